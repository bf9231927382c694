// Pooling: the maximum or mean of a window at each of its places over planes (H, W).
#ifndef ONERNN_POOLS_HPP
#define ONERNN_POOLS_HPP

#include <algorithm>
#include <cstdint>

#include "axes.hpp"
#include "formulas.hpp"
#include "isa.hpp"
#include "memory.hpp"
#include "moves.hpp"
#include "windows.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// to[k] = function(to[k], from[k * stride]). Compilers vectorize the loops whose stride they know.
template <class T, class Function>
inline void combine(T* to, const T* from, std::int64_t stride, std::int64_t count,
                    Function function) {
  if (stride == 1)
    for (std::int64_t k = 0; k < count; ++k) to[k] = function(to[k], from[k]);
  else if (stride == 2)
    for (std::int64_t k = 0; k < count; ++k) to[k] = function(to[k], from[2 * k]);
  else
    for (std::int64_t k = 0; k < count; ++k) to[k] = function(to[k], from[k * stride]);
}

/// Computes the maximum of the window at each place of each plane: first down each column, then
/// along each row of these maxima.
template <class T>
void max_pool(T* y, const T* x, std::int64_t planes, const Dims& x_sizes, const Dims& y_sizes,
              const Dims& window) {
  const Windows w(x_sizes, y_sizes, window);
  const auto larger = [](T a, T b) { return most(a, b); };
  Memory<Range> wide(w.column.size);
  for (std::int64_t j = 0; j < w.column.size; ++j)
    wide.data()[j] =
        inside(w.column.in, w.column.out, w.column.stride, j * w.column.dilation - w.column.before);
  Memory<T> tops(w.column.in);
  for (std::int64_t n = 0; n < planes; ++n, x += w.seen())
    for (std::int64_t r = 0; r < w.row.out; ++r, y += w.column.out) {
      const std::int64_t down = r * w.row.stride - w.row.before;
      const Range high = inside(w.row.in, w.row.size, w.row.dilation, down);
      std::fill_n(tops.data(), w.column.in, lowest<T>());
      for (std::int64_t i = high.begin; i < high.end; ++i)
        combine(tops.data(), x + (down + i * w.row.dilation) * w.column.in, 1, w.column.in, larger);
      std::fill_n(y, w.column.out, lowest<T>());
      for (std::int64_t j = 0; j < w.column.size; ++j) {
        const Range own = wide.data()[j];
        const std::int64_t right = j * w.column.dilation - w.column.before;
        combine(y + own.begin, tops.data() + own.begin * w.column.stride + right, w.column.stride,
                own.end - own.begin, larger);
      }
    }
}

/// Computes the mean of the window at each place. `after`: how many elements of padding after each
/// axis count, in the same way as padding before it; -1: only elements of x count.
template <class T>
void average_pool(T* y, const T* x, std::int64_t planes, const Dims& x_sizes, const Dims& y_sizes,
                  const Dims& window, std::int64_t rows_after, std::int64_t columns_after) {
  const Windows w(x_sizes, y_sizes, window);
  const auto seen = [](const Window& one, std::int64_t place, std::int64_t after) {
    const std::int64_t first = place * one.stride - one.before;
    std::int64_t found = 0;
    for (std::int64_t k = 0; k < one.size; ++k) {
      const std::int64_t at = first + k * one.dilation;
      found += after < 0 ? at >= 0 && at < one.in : at < one.in + after;
    }
    return found;
  };
  Memory<T> columns(w.column.out);
  for (std::int64_t c = 0; c < w.column.out; ++c)
    columns.data()[c] = static_cast<T>(seen(w.column, c, columns_after));
  for (std::int64_t n = 0; n < planes; ++n, x += w.seen(), y += w.places()) {
    std::fill_n(y, w.places(), T());
    each_tap(w, [&](std::int64_t place, std::int64_t at, std::int64_t count) {
      combine(y + place, x + at, w.column.stride, count, [](T a, T b) { return a + b; });
    });
    for (std::int64_t r = 0; r < w.row.out; ++r) {
      const T rows = static_cast<T>(seen(w.row, r, rows_after));
      combine(y + r * w.column.out, columns.data(), 1, w.column.out,
              [=](T sum, T count) { return sum / (rows * count); });
    }
  }
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
