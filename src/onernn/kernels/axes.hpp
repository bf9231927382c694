// Functions along one axis, such as sums, softmax and top-k. x has the shape (outer, count, inner);
// the axis is the one with `count` elements. Formulas: ONNX operator specification.
#ifndef ONERNN_AXES_HPP
#define ONERNN_AXES_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "formulas.hpp"
#include "functions.hpp"
#include "isa.hpp"
#include "lanes.hpp"
#include "status.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// A line: the elements of x along the axis, at one index of the outer and inner axes.
template <class T>
struct Line {
  T* first;
  std::int64_t step;
  T& operator[](std::int64_t k) const { return first[k * step]; }
};

/// Calls function(line, its number) for every line of x.
template <class T, class Function>
inline void each_line(T* x, std::int64_t outer, std::int64_t count, std::int64_t inner,
                      Function function) {
  for (std::int64_t i = 0; i < outer; ++i)
    for (std::int64_t j = 0; j < inner; ++j)
      function(Line<T>{x + i * count * inner + j, inner}, i * inner + j);
}

/// The type of a sum of elements of T. Floats are summed in double: a float sum over a long axis
/// would lose small terms.
template <class T>
using Sum = std::conditional_t<std::is_floating_point_v<T>, double, T>;

/// Minus infinity, or the lowest integer.
template <class T>
constexpr T lowest() {
  return std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                              : (std::numeric_limits<T>::min)();
}
template <class T>
constexpr T highest() {
  return std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity()
                                              : (std::numeric_limits<T>::max)();
}

/// Returns line number `line` of another array y, which has `count` elements along the axis.
template <class T>
inline Line<T> beside(T* y, std::int64_t line, std::int64_t count, std::int64_t inner) {
  return {y + line / inner * count * inner + line % inner, inner};
}

/// A strip: at most kStrip neighbouring lines, which are combined at the same time. Element k of
/// all its lines is one row of the strip. If there is only one line, it is cut into rows; the
/// results of the columns are combined at the end.
constexpr std::int64_t kStrip = 64;
struct Strip {
  std::int64_t count, step, width, last;  // `last`: the width of the last row
  bool alone;

  std::int64_t lines() const { return alone ? 1 : width; }
  /// Calls function(index of the row's first element, width of the row) for each row.
  template <class Function>
  void each(Function function) const {
    for (std::int64_t k = 0; k < count; ++k) function(k * step, k + 1 < count ? width : last);
  }
};

/// Returns the strip of a single line that is contiguous in memory. With Width = 1 its elements are
/// combined in their order.
template <std::int64_t Width = kStrip>
inline Strip strip_of(std::int64_t count) {
  const std::int64_t rows = (count + Width - 1) / Width;
  const std::int64_t width = (std::max)(std::int64_t(1), (std::min)(count, Width));
  return {rows, Width, width, count - (rows - 1) * Width, true};
}

/// Calls function(strip, index in x of its first element, number of its first line) for each strip.
template <std::int64_t Width = kStrip, class Function>
inline void each_strip(std::int64_t outer, std::int64_t count, std::int64_t inner,
                       Function function) {
  for (std::int64_t i = 0; i < outer; ++i) {
    if (inner == 1) {
      function(strip_of<Width>(count), i * count, i);
      continue;
    }
    for (std::int64_t j = 0; j < inner; j += kStrip) {
      const std::int64_t width = (std::min)(kStrip, inner - j);
      function(Strip{count, inner, width, width, false}, i * count * inner + j, i * inner + j);
    }
  }
}

/// Holds a number for each column of a strip.
template <class Total>
struct Columns {
  Total v[kStrip];

  Columns(const Strip& strip, Total begin) { std::fill_n(v, padded(strip), begin); }

  static std::int64_t padded(const Strip& strip) { return (strip.width + 15) / 16 * 16; }

  /// If the strip is a single line: combines the totals of all columns, and stores the result in
  /// each column.
  template <class Join>
  void meet(const Strip& strip, Join join) {
    if (!strip.alone) return;
    const auto fold = [&](auto count, std::int64_t from) {
      for (int j = 0; j < count; ++j) v[j] = static_cast<Total>(join(v[j], v[j + from]));
    };
    for (std::int64_t j = 16; j < padded(strip); j += 16)
      fold(std::integral_constant<int, 16>(), j);
    fold(std::integral_constant<int, 8>(), 8);
    fold(std::integral_constant<int, 4>(), 4);
    fold(std::integral_constant<int, 2>(), 2);
    fold(std::integral_constant<int, 1>(), 1);
    std::fill_n(v, padded(strip), Total(v[0]));
  }
};

/// Returns the totals of a strip's lines. `of` maps each element, `join` combines two totals.
template <class Total, class T, class Of, class Join>
inline Columns<Total> joined(const T* x, const Strip& strip, Total begin, Of of, Join join) {
  Columns<Total> totals(strip, begin);
  strip.each([&](std::int64_t at, std::int64_t width) {
    for (std::int64_t j = 0; j < width; ++j)
      totals.v[j] = static_cast<Total>(join(totals.v[j], of(x[at + j])));
  });
  totals.meet(strip, join);
  return totals;
}

template <class T, class Of>
inline Columns<Sum<T>> sums(const T* x, const Strip& strip, Of of) {
  return joined(x, strip, Sum<T>(0), of, [](Sum<T> a, Sum<T> b) { return a + b; });
}
template <class T>
inline Columns<T> tops(const T* x, const Strip& strip) {
  return joined(x, strip, lowest<T>(), [](T a) { return a; }, [](T a, T b) { return most(a, b); });
}

/// Returns the sums of e^(x - from) over each line. Also writes these powers to `out` if it is not
/// null.
template <class T>
inline Columns<Sum<T>> exps(Optional<T> out, const T* x, const Strip& strip,
                            const Columns<T>& from) {
  Columns<Sum<T>> totals(strip, 0);
  strip.each([&](std::int64_t at, std::int64_t width) {
    T own[kStrip];
    T* const to = out ? out + at : own;
    for (std::int64_t j = 0; j < width; j += 16)
      store_some(to + j, exp(load_some(x + at + j, width - j) - load(from.v + j)), width - j);
    for (std::int64_t j = 0; j < width; ++j) totals.v[j] += to[j];
  });
  totals.meet(strip, [](Sum<T> a, Sum<T> b) { return a + b; });
  return totals;
}

template <class T>
void softmax(T* out, const T* x, std::int64_t outer, std::int64_t count, std::int64_t inner) {
  each_strip(outer, count, inner, [=](const Strip& strip, std::int64_t begin, std::int64_t) {
    const Columns<Sum<T>> totals = exps<T>(out + begin, x + begin, strip, tops(x + begin, strip));
    strip.each([&](std::int64_t at, std::int64_t width) {
      for (std::int64_t j = 0; j < width; ++j) out[begin + at + j] /= static_cast<T>(totals.v[j]);
    });
  });
}

template <class T>
void log_softmax(T* out, const T* x, std::int64_t outer, std::int64_t count, std::int64_t inner) {
  each_strip(outer, count, inner, [=](const Strip& strip, std::int64_t begin, std::int64_t) {
    const Columns<T> top = tops(x + begin, strip);
    Columns<Sum<T>> shares = exps<T>(nullptr, x + begin, strip, top);
    for (std::int64_t j = 0; j < strip.lines(); ++j) shares.v[j] = std::log(shares.v[j]);
    if (strip.alone) std::fill_n(shares.v, strip.width, shares.v[0]);
    strip.each([&](std::int64_t at, std::int64_t width) {
      for (std::int64_t j = begin + at; j < begin + at + width; ++j)
        out[j] = x[j] - top.v[j - begin - at] - static_cast<T>(shares.v[j - begin - at]);
    });
  });
}

/// The mean of `count` numbers, and 1 / their standard deviation.
template <class T>
struct Moments {
  T mean, inverse;

  Moments(const T* x, std::int64_t count, double epsilon) {
    const Strip line = strip_of(count);
    const auto average = [&](auto of) {
      return static_cast<T>(sums(x, line, of).v[0] / static_cast<Sum<T>>(count));
    };
    mean = average([](T a) { return a; });
    const T variance = average([mean = mean](T a) { return (a - mean) * (a - mean); });
    inverse = 1 / std::sqrt(variance + static_cast<T>(epsilon));
  }
};

/// Normalizes each row (LayerNormalization). `bias`, `mean_out` and `inverse_out` (one number per
/// row) may be null.
template <class T>
void layer_norm(T* out, const T* x, const T* scale, Optional<const T> bias, Optional<T> mean_out,
                Optional<T> inverse_out, std::int64_t rows, std::int64_t count, double epsilon) {
  for (std::int64_t i = 0; i < rows; ++i, x += count, out += count) {
    const auto [mean, inverse] = Moments<T>(x, count, epsilon);
    for (std::int64_t k = 0; k < count; ++k)
      out[k] = (x[k] - mean) * inverse * scale[k] + (bias ? bias[k] : T(0));
    if (mean_out) mean_out[i] = mean;
    if (inverse_out) inverse_out[i] = inverse;
  }
}

/// Group normalization of x (N, C, inner): each group of C / groups neighbouring channels is
/// normalized by its own mean and standard deviation, then multiplied by scale (C), plus bias (C).
template <class T>
void group_norm(T* y, const T* x, const T* scale, const T* bias, std::int64_t N, std::int64_t C,
                std::int64_t inner, std::int64_t groups, double epsilon) {
  if (groups < 1) return;
  const std::int64_t channels = C / groups, count = channels * inner;
  for (std::int64_t group = 0; group < N * groups; ++group, x += count) {
    const auto [mean, inverse] = Moments<T>(x, count, epsilon);
    for (std::int64_t c = 0; c < channels; ++c) {
      const std::int64_t channel = group % groups * channels + c;
      const T factor = inverse * scale[channel];
      for (std::int64_t k = c * inner; k < (c + 1) * inner; ++k)
        *y++ = (x[k] - mean) * factor + bias[channel];
    }
  }
}

template <class T>
void cum_sum(T* out, const T* x, std::int64_t outer, std::int64_t count, std::int64_t inner,
             std::int64_t exclusive, std::int64_t reverse) {
  each_line(x, outer, count, inner, [=](Line<const T> from, std::int64_t line) {
    const Line<T> to = beside(out, line, count, inner);
    T total = 0;
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int64_t k = reverse ? count - 1 - n : n;
      const T before = total;
      total = static_cast<T>(total + from[k]);
      to[k] = exclusive ? before : total;
    }
  });
}

/// Finds the `best` largest (or smallest) elements of each line, and their indices. `order` (count)
/// is scratch memory; `places` may be null. A NaN counts as larger than every number; equal
/// elements stay in the order of their indices.
template <class T>
void top_k(T* out, std::int64_t* places, const T* x, std::int64_t* order, std::int64_t outer,
           std::int64_t count, std::int64_t inner, std::int64_t best, std::int64_t largest) {
  each_line(x, outer, count, inner, [=](Line<const T> from, std::int64_t line) {
    for (std::int64_t k = 0; k < count; ++k) order[k] = k;
    std::partial_sort(order, order + best, order + count, [=](std::int64_t a, std::int64_t b) {
      const T one = from[largest ? b : a], other = from[largest ? a : b];
      const bool nan = other != other;
      if (one == other || (one != one && nan)) return a < b;
      return one < other || nan;
    });
    const Line<T> to = beside(out, line, best, inner);
    for (std::int64_t k = 0; k < best; ++k) to[k] = from[order[k]];
    if (!places) return;
    const Line<std::int64_t> at = beside(places, line, best, inner);
    for (std::int64_t k = 0; k < best; ++k) at[k] = order[k];
  });
}

/// Finds the index of the largest element of each line (of the smallest one with `smallest`), or of
/// a NaN if there is one. Of equal elements it takes the first one (the last one with `last`).
template <class T>
void arg_extreme(std::int64_t* out, const T* x, std::int64_t outer, std::int64_t count,
                 std::int64_t inner, std::int64_t smallest, std::int64_t last) {
  each_line(x, outer, count, inner, [=](Line<const T> from, std::int64_t line) {
    const auto beyond = [=](T a, T b) { return smallest ? a < b : a > b; };
    std::int64_t best = 0;
    for (std::int64_t k = 1; k < count; ++k) {
      const T now = from[k], then = from[best];
      if (last ? now != now || (then == then && !beyond(then, now))
               : then == then && (now != now || beyond(now, then)))
        best = k;
    }
    out[line] = best;
  });
}

#define ONERNN_REDUCE(name, Total, Width, begin, of, join, end)                               \
  template <class T>                                                                          \
  void name(T* out, const T* x, std::int64_t outer, std::int64_t count, std::int64_t inner) { \
    each_strip<Width>(outer, count, inner,                                                    \
                      [=](const Strip& strip, std::int64_t at, std::int64_t line) {           \
                        const Columns<Total> totals = joined(                                 \
                            x + at, strip, Total(begin), [](T a) { return of; },              \
                            [](Total a, Total b) { return join; });                           \
                        for (std::int64_t j = 0; j < strip.lines(); ++j) {                    \
                          const Total a = totals.v[j];                                        \
                          out[line + j] = static_cast<T>(end);                                \
                        }                                                                     \
                      });                                                                     \
  }
ONERNN_REDUCE(reduce_sum, Sum<T>, kStrip, 0, a, a + b, a)
ONERNN_REDUCE(reduce_mean, Sum<T>, kStrip, 0, a, a + b, a / static_cast<Sum<T>>(count))
ONERNN_REDUCE(reduce_prod, T, 1, 1, a, a* b, a)  // in order: otherwise different inputs overflow
ONERNN_REDUCE(reduce_max, T, kStrip, lowest<T>(), a, most(a, b), a)
ONERNN_REDUCE(reduce_min, T, kStrip, highest<T>(), a, least(a, b), a)
ONERNN_REDUCE(reduce_l1, Sum<T>, kStrip, 0, std::abs(a), a + b, a)
ONERNN_REDUCE(reduce_l2, Sum<T>, kStrip, 0, a* a, a + b, std::sqrt(a))
ONERNN_REDUCE(reduce_sum_square, Sum<T>, kStrip, 0, a* a, a + b, a)
ONERNN_REDUCE(reduce_log_sum, Sum<T>, kStrip, 0, a, a + b, std::log(a))
#undef ONERNN_REDUCE

template <class T>
void reduce_log_sum_exp(T* out, const T* x, std::int64_t outer, std::int64_t count,
                        std::int64_t inner) {
  each_strip(outer, count, inner, [=](const Strip& strip, std::int64_t at, std::int64_t line) {
    Columns<T> top = tops(x + at, strip);
    for (std::int64_t j = 0; j < strip.width; ++j)
      top.v[j] = std::isfinite(top.v[j]) ? top.v[j] : T(0);
    const Columns<Sum<T>> totals = exps<T>(nullptr, x + at, strip, top);
    for (std::int64_t j = 0; j < strip.lines(); ++j)
      out[line + j] = static_cast<T>(std::log(totals.v[j])) + top.v[j];
  });
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
