// Windows that move over the rows and columns of planes.
#ifndef ONERNN_WINDOWS_HPP
#define ONERNN_WINDOWS_HPP

#include <algorithm>
#include <cstdint>

#include "isa.hpp"
#include "moves.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// A window along one axis. The axis has `in` elements. The window has `size` elements, which are
/// `dilation` apart, and `out` places, which are `stride` apart. At the first place, `before`
/// elements of padding come before the axis.
struct Window {
  std::int64_t in, out, size, stride, dilation, before;

  std::int64_t extent() const { return dilation * (size - 1) + 1; }
  /// The distance from the first to the last element that the window reads at all places, plus 1.
  std::int64_t span() const { return out > 0 ? (out - 1) * stride + extent() : 0; }
  bool stays_inside() const { return before == 0 && span() <= in; }
};

/// Windows along rows and columns.
struct Windows {
  Window row, column;

  /// The last two sizes of x and y are H and W. `of` has sizes, strides, dilations and padding
  /// before, each for rows and columns.
  Windows(const Dims& x, const Dims& y, const Dims& of)
      : row{x[x.count - 2], y[y.count - 2], of[0], of[2], of[4], of[6]},
        column{x[x.count - 1], y[y.count - 1], of[1], of[3], of[5], of[7]} {}

  bool stay_inside() const { return row.stays_inside() && column.stays_inside(); }
  std::int64_t seen() const { return row.in * column.in; }
  std::int64_t places() const { return row.out * column.out; }
  std::int64_t taps() const { return row.size * column.size; }
  /// Says whether there are so few places that the lanes of registers are channels: then there are
  /// at least as many channels (M) as lanes.
  bool are_few(std::int64_t M) const { return places() <= 8 && M >= 16; }
  /// Says whether the lanes of registers are channels although there are many places: M channels,
  /// which are sums of K products. Then the rows of a matrix are read once for all places, and no
  /// lanes stay empty if there are few places. Short sums at many places would wait for planes that
  /// are far apart.
  bool are_wide(std::int64_t M, std::int64_t K) const {
    return M >= 32 && (K >= 512 || (K >= 64 && places() <= 128));
  }
};

/// The integers from `begin` to `end` - 1.
struct Range {
  std::int64_t begin, end;
};

/// Returns the places below `out` at which place * stride + shift is an index of one of `in`
/// elements.
inline Range inside(std::int64_t in, std::int64_t out, std::int64_t stride, std::int64_t shift) {
  const auto from = [=](std::int64_t at) {  // the first place that reaches index `at`
    return at <= 0 ? 0 : (std::min)(out, (at + stride - 1) / stride);
  };
  const std::int64_t begin = from(-shift);
  return {begin, (std::max)(begin, from(in - shift))};
}

template <class Real>
inline void copy_steps(Real* to, const Real* from, std::int64_t step, std::int64_t count) {
  if (step == 1 && count > 16)
    std::copy_n(from, count, to);
  else if (step == 2)
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[2 * i];
  else
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i * step];
}

/// How windows find their elements: in x itself, or in a copy with zeros around it. The copy
/// consists of phase_rows * phase_columns planes. Each plane has every phase_rows-th row and every
/// phase_columns-th column. So neighbouring places of a window read neighbouring elements, whatever
/// the stride is.
struct Surroundings {
  std::int64_t phase_rows, phase_columns, rows, columns;
  bool copied;

  explicit Surroundings(const Windows& w)
      : phase_rows(w.row.stride), phase_columns(w.column.stride) {
    const auto count = [](const Window& one, std::int64_t phases) {
      return (one.out - 1) * (one.stride / phases) + (one.extent() - 1) / phases + 1;
    };
    copied = phase_rows * phase_columns > 1 || !w.stay_inside();
    rows = copied ? count(w.row, phase_rows) : w.row.in;
    columns = copied ? count(w.column, phase_columns) : w.column.in;
  }
  std::int64_t phase() const { return rows * columns; }
  std::int64_t channel() const { return phase_rows * phase_columns * phase(); }

  /// Returns the distance from the first element that a window sees to the element of a tap.
  std::int64_t tap(const Windows& w, std::int64_t row, std::int64_t column) const {
    row *= w.row.dilation;
    column *= w.column.dilation;
    return (row % phase_rows * phase_columns + column % phase_columns) * phase() +
           row / phase_rows * columns + column / phase_columns;
  }
  /// Copies `planes` planes of x. If `first`, also writes the zeros around them, which later copies
  /// keep.
  template <class Real>
  void copy(Real* to, const Real* x, std::int64_t planes, const Windows& w, bool first) const {
    for (std::int64_t a = 0; a < phase_rows; ++a)
      for (std::int64_t b = 0; b < phase_columns; ++b, to += phase()) {
        const std::int64_t down = a - w.row.before, right = b - w.column.before;
        const Range high = inside(w.row.in, rows, phase_rows, down);
        const Range wide = inside(w.column.in, columns, phase_columns, right);
        const std::int64_t from = down * w.column.in + right + wide.begin * phase_columns;
        for (std::int64_t c = 0; c < planes; ++c) {
          Real* const own = to + c * channel();
          if (first) std::fill_n(own, high.begin * columns, Real());
          for (std::int64_t r = high.begin; r < high.end; ++r) {
            Real* const row = own + r * columns;
            if (first) std::fill_n(row, wide.begin, Real());
            copy_steps(row + wide.begin, x + c * w.seen() + r * phase_rows * w.column.in + from,
                       phase_columns, wide.end - wide.begin);
            if (first) std::fill(row + wide.end, row + columns, Real());
          }
          if (first) std::fill(own + high.end * columns, own + phase(), Real());
        }
      }
  }
};

/// Calls function(place, element, count) for the places at which tap (row, column) of the window is
/// inside x: `count` neighbouring places at a time, whose elements are a stride apart.
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
