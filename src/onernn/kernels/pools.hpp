// One number of all that a window sees, at each of its places over planes (H, W).
#ifndef ONERNN_POOLS_HPP
#define ONERNN_POOLS_HPP

#include <algorithm>
#include <cstdint>

#include "axes.hpp"
#include "formulas.hpp"
#include "isa.hpp"
#include "moves.hpp"
#include "windows.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// The largest number that windows see at each place, of so many planes.
template <class T>
void max_pool(T* y, const T* x, std::int64_t planes, const Dims& x_sizes, const Dims& y_sizes,
              const Dims& window) {
  const Windows w(x_sizes, y_sizes, window);
  for (std::int64_t n = 0; n < planes; ++n, x += w.seen(), y += w.places()) {
    std::fill_n(y, w.places(), lowest<T>());
    each_tap(w, [&](std::int64_t place, std::int64_t at, std::int64_t count) {
      for (std::int64_t k = 0; k < count; ++k)
        y[place + k] = most(y[place + k], x[at + k * w.column.stride]);
    });
  }
}

/// The mean of what they see; `after`: how many elements behind each axis count, too, as those
/// before it do; -1: only those of x.
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
  for (std::int64_t n = 0; n < planes; ++n, x += w.seen(), y += w.places()) {
    std::fill_n(y, w.places(), T());
    each_tap(w, [&](std::int64_t place, std::int64_t at, std::int64_t count) {
      for (std::int64_t k = 0; k < count; ++k) y[place + k] += x[at + k * w.column.stride];
    });
    for (std::int64_t r = 0, place = 0; r < w.row.out; ++r) {
      const std::int64_t rows = seen(w.row, r, rows_after);
      for (std::int64_t c = 0; c < w.column.out; ++c, ++place)
        y[place] /= static_cast<T>(rows * seen(w.column, c, columns_after));
    }
  }
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
