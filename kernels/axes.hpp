// What mixes the numbers along one axis: x is (outer, count, inner), and a function goes over
// `count`. Formulas: ONNX operator specification.
#ifndef ONERNN_AXES_HPP
#define ONERNN_AXES_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "formulas.hpp"
#include "isa.hpp"
#include "status.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// The numbers of x along an axis, one after the other.
template <class T>
struct Line {
  T* first;
  std::int64_t step;
  T& operator[](std::int64_t k) const { return first[k * step]; }
};

/// function(line of x, which line) for every line.
template <class T, class Function>
inline void each_line(T* x, std::int64_t outer, std::int64_t count, std::int64_t inner,
                      Function function) {
  for (std::int64_t i = 0; i < outer; ++i)
    for (std::int64_t j = 0; j < inner; ++j)
      function(Line<T>{x + i * count * inner + j, inner}, i * inner + j);
}

/// What sums of T are added up in: one float after the other would lose what long axes hold.
template <class T>
using Sum = std::conditional_t<std::is_floating_point_v<T>, double, T>;

/// Below every number.
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

/// Where the same line of another value begins.
template <class T>
inline Line<T> beside(T* y, std::int64_t line, std::int64_t count, std::int64_t inner) {
  return {y + line / inner * count * inner + line % inner, inner};
}

template <class T>
void softmax(T* out, const T* x, std::int64_t outer, std::int64_t count, std::int64_t inner) {
  each_line(x, outer, count, inner, [=](Line<const T> from, std::int64_t line) {
    const Line<T> to = beside(out, line, count, inner);
    T top = lowest<T>();
    Sum<T> total = 0;
    for (std::int64_t k = 0; k < count; ++k) top = most(top, from[k]);
    for (std::int64_t k = 0; k < count; ++k) total += to[k] = std::exp(from[k] - top);
    for (std::int64_t k = 0; k < count; ++k) to[k] /= static_cast<T>(total);
  });
}

template <class T>
void log_softmax(T* out, const T* x, std::int64_t outer, std::int64_t count, std::int64_t inner) {
  each_line(x, outer, count, inner, [=](Line<const T> from, std::int64_t line) {
    const Line<T> to = beside(out, line, count, inner);
    T top = lowest<T>();
    Sum<T> total = 0;
    for (std::int64_t k = 0; k < count; ++k) top = most(top, from[k]);
    for (std::int64_t k = 0; k < count; ++k) total += std::exp(from[k] - top);
    const T share = static_cast<T>(std::log(total));
    for (std::int64_t k = 0; k < count; ++k) to[k] = from[k] - top - share;
  });
}

/// Of rows; `bias`, `mean` and `inverse` (one number a row) may be null.
template <class T>
void layer_norm(T* out, const T* x, const T* scale, Optional<const T> bias, Optional<T> mean_out,
                Optional<T> inverse_out, std::int64_t rows, std::int64_t count, double epsilon) {
  for (std::int64_t i = 0; i < rows; ++i, x += count, out += count) {
    Sum<T> total = 0, squares = 0;
    for (std::int64_t k = 0; k < count; ++k) total += x[k];
    const T mean = static_cast<T>(total / static_cast<Sum<T>>(count));
    for (std::int64_t k = 0; k < count; ++k) squares += (x[k] - mean) * (x[k] - mean);
    const T variance = static_cast<T>(squares / static_cast<Sum<T>>(count));
    const T inverse = 1 / std::sqrt(variance + static_cast<T>(epsilon));
    for (std::int64_t k = 0; k < count; ++k)
      out[k] = (x[k] - mean) * inverse * scale[k] + (bias ? bias[k] : T(0));
    if (mean_out) mean_out[i] = mean;
    if (inverse_out) inverse_out[i] = inverse;
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

/// The `best` of each line and their places; `order` (count) is memory of its own, `places` may be
/// null. A NaN is larger than every number; of equal ones the first one comes first.
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

/// The place of the largest number of each line, or of the smallest one, or of a NaN; of equal ones
/// the first or the last.
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

/// A sum of a line: `add` takes the total and a number, `end` the last total and the count.
template <class Total, class T, class Add, class End>
inline void reduce(T* out, const T* x, std::int64_t outer, std::int64_t count, std::int64_t inner,
                   Total begin, Add add, End end) {
  each_line(x, outer, count, inner, [=](Line<const T> from, std::int64_t line) {
    Total total = begin;
    for (std::int64_t k = 0; k < count; ++k) total = static_cast<Total>(add(total, from[k]));
    out[line] = static_cast<T>(end(total));
  });
}

#define ONERNN_REDUCE(name, Total, begin, add, end)                                           \
  template <class T>                                                                          \
  void name(T* out, const T* x, std::int64_t outer, std::int64_t count, std::int64_t inner) { \
    reduce<Total>(                                                                            \
        out, x, outer, count, inner, begin, [](Total total, T x) { return add; },             \
        [count](Total total) { return (void)count, end; });                                   \
  }
ONERNN_REDUCE(reduce_sum, Sum<T>, 0, total + x, total)
ONERNN_REDUCE(reduce_mean, Sum<T>, 0, total + x, total / static_cast<Sum<T>>(count))
ONERNN_REDUCE(reduce_prod, T, 1, total* x, total)
ONERNN_REDUCE(reduce_max, T, lowest<T>(), most(total, x), total)
ONERNN_REDUCE(reduce_min, T, highest<T>(), least(total, x), total)
ONERNN_REDUCE(reduce_l1, Sum<T>, 0, total + std::abs(x), total)
ONERNN_REDUCE(reduce_l2, Sum<T>, 0, total + x * x, std::sqrt(total))
ONERNN_REDUCE(reduce_sum_square, Sum<T>, 0, total + x * x, total)
ONERNN_REDUCE(reduce_log_sum, Sum<T>, 0, total + x, std::log(total))
#undef ONERNN_REDUCE

template <class T>
void reduce_log_sum_exp(T* out, const T* x, std::int64_t outer, std::int64_t count,
                        std::int64_t inner) {
  each_line(x, outer, count, inner, [=](Line<const T> from, std::int64_t line) {
    T top = lowest<T>();
    Sum<T> total = 0;
    for (std::int64_t k = 0; k < count; ++k) top = most(top, from[k]);
    if (!std::isfinite(top)) top = 0;
    for (std::int64_t k = 0; k < count; ++k) total += std::exp(from[k] - top);
    out[line] = static_cast<T>(std::log(total)) + top;
  });
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
