// Windows that go over the rows and columns of planes.
#ifndef ONERNN_WINDOWS_HPP
#define ONERNN_WINDOWS_HPP

#include <algorithm>
#include <cstdint>

#include "isa.hpp"
#include "moves.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// A window along an axis of `in` elements: it has `size` elements, `dilation` apart, and `out`
/// places, `stride` apart. At its first place `before` elements come before the axis.
struct Window {
  std::int64_t in, out, size, stride, dilation, before;

  std::int64_t extent() const { return dilation * (size - 1) + 1; }
  bool stays_inside() const { return before == 0 && (out - 1) * stride + extent() <= in; }
};

/// Those along rows and columns.
struct Windows {
  Window row, column;

  /// Sizes: (..., H, W) of x and of y; `of`: sizes, strides, dilations, what comes before.
  Windows(const Dims& x, const Dims& y, const Dims& of)
      : row{x[x.count - 2], y[y.count - 2], of[0], of[2], of[4], of[6]},
        column{x[x.count - 1], y[y.count - 1], of[1], of[3], of[5], of[7]} {}

  bool stay_inside() const { return row.stays_inside() && column.stays_inside(); }
  std::int64_t seen() const { return row.in * column.in; }
  std::int64_t places() const { return row.out * column.out; }
  std::int64_t taps() const { return row.size * column.size; }
};

/// From one place to another.
struct Range {
  std::int64_t begin, end;
};

/// The places, of `out`, at which place * stride + shift is one of `in` elements.
inline Range inside(std::int64_t in, std::int64_t out, std::int64_t stride, std::int64_t shift) {
  const auto from = [=](std::int64_t at) {  // the first one at `at` or behind it
    return at <= 0 ? 0 : (std::min)(out, (at + stride - 1) / stride);
  };
  const std::int64_t begin = from(-shift);
  return {begin, (std::max)(begin, from(in - shift))};
}

/// function(place, element, count) for what windows see at tap (row, column): `count` places side
/// by side, whose elements are a stride apart.
template <class Function>
inline void each_seen(const Windows& w, std::int64_t row, std::int64_t column, Function function) {
  const std::int64_t down = row * w.row.dilation - w.row.before;
  const std::int64_t right = column * w.column.dilation - w.column.before;
  const Range high = inside(w.row.in, w.row.out, w.row.stride, down);
  const Range wide = inside(w.column.in, w.column.out, w.column.stride, right);
  for (std::int64_t r = high.begin; r < high.end; ++r)
    function(r * w.column.out + wide.begin,
             (r * w.row.stride + down) * w.column.in + wide.begin * w.column.stride + right,
             wide.end - wide.begin);
}
template <class Function>
inline void each_tap(const Windows& w, Function function) {
  for (std::int64_t row = 0; row < w.row.size; ++row)
    for (std::int64_t column = 0; column < w.column.size; ++column)
      each_seen(w, row, column, function);
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
