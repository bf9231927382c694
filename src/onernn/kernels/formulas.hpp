// Functions of single numbers, which operators apply to each element. Formulas: ONNX operator
// specification.
#ifndef ONERNN_FORMULAS_HPP
#define ONERNN_FORMULAS_HPP

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "isa.hpp"
#include "stored.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

using Truth = std::uint8_t;

/// Returns the larger number, or NaN if one of both is NaN. NumPy does the same.
template <class T>
inline T most(T a, T b) {
  return a > b || a != a ? a : b;
}
/// Returns the smaller number, or NaN if one of both is NaN.
template <class T>
inline T least(T a, T b) {
  return a < b || a != a ? a : b;
}
/// Returns 1, 0 or -1, or NaN for NaN.
template <class T>
inline T sign(T a) {
  return a > 0 ? T(1) : a < 0 ? T(-1) : a;
}
/// Rounds towards zero. NaN and numbers out of range become the lowest integer, the same as on x86.
template <class T, class Real>
inline T whole(Real a) {
  const Real bound = 2 * static_cast<Real>(T(1) << (std::numeric_limits<T>::digits - 1));
  return a > -bound - 1 && a < bound ? static_cast<T>(a) : (std::numeric_limits<T>::min)();
}

/// Returns Eigen's rational approximation of an odd function, with fused multiply-adds, so that it
/// has the bits of ONNX Runtime on x86-64. `above`, `below`: coefficients of the numerator and
/// denominator, the highest power first. NaN stays NaN.
template <class T, std::size_t A, std::size_t B>
inline T quotient(T a, T bound, const T (&above)[A], const T (&below)[B]) {
  a = a < -bound ? -bound : a > bound ? bound : a;
  const T square = a * a;
  T p = above[0], q = below[0];
  for (std::size_t k = 1; k < A; ++k) p = std::fma(p, square, above[k]);
  for (std::size_t k = 1; k < B; ++k) q = std::fma(q, square, below[k]);
  return p * a / q;
}
template <class T>
inline T rational_tanh(T a) {
  return quotient(a, T(9),
                  {T(-2.76076847742355e-16f), T(2.00018790482477e-13f), T(-8.60467152213735e-11f),
                   T(5.12229709037114e-08f), T(1.48572235717979e-05f), T(6.37261928875436e-04f),
                   T(4.89352455891786e-03f)},
                  {T(1.19825839466702e-06f), T(1.18534705686654e-04f), T(2.26843463243900e-03f),
                   T(4.89352518554385e-03f)});
}
template <class T>
inline T rational_sigmoid(T a) {
  const T y =
      quotient(a, T(18),
               {T(4.37031012579801e-11f), T(1.15627324459942e-07f), T(6.08574864600143e-05f),
                T(8.51377133304701e-03f), T(2.48287947061529e-01f)},
               {T(6.10247389755681e-13f), T(5.76102136993427e-09f), T(6.29106785017040e-06f),
                T(1.70198817374094e-03f), T(1.16817656904453e-01f), T(9.93151921023180e-01f)});
  return y < T(-0.5) ? T(0) : y > T(0.5) ? T(1) : y + T(0.5);
}

#define ONERNN_UNARY(name, formula) \
  template <class T>                \
  inline T name(T a) {              \
    return formula;                 \
  }
#define ONERNN_BINARY(name, formula) \
  template <class T>                 \
  inline T name(T a, T b) {          \
    return formula;                  \
  }
#define ONERNN_TRUTH(name, formula) \
  template <class T>                \
  inline Truth name(T a, T b) {     \
    return formula;                 \
  }
ONERNN_UNARY(same, a)
ONERNN_UNARY(negative, -a)
ONERNN_UNARY(absolute, std::abs(a))
ONERNN_UNARY(exp, std::exp(a))
ONERNN_UNARY(log, std::log(a))
ONERNN_UNARY(sqrt, std::sqrt(a))
ONERNN_UNARY(floor, std::floor(a))
ONERNN_UNARY(ceil, std::ceil(a))
ONERNN_UNARY(round, std::nearbyint(a))
ONERNN_UNARY(reciprocal, 1 / a)
ONERNN_UNARY(sin, std::sin(a))
ONERNN_UNARY(cos, std::cos(a))
ONERNN_UNARY(atan, std::atan(a))
ONERNN_UNARY(erf, std::erf(a))
ONERNN_UNARY(tanh, std::tanh(a))
ONERNN_UNARY(sigmoid, 1 / (1 + std::exp(-a)))
ONERNN_UNARY(softplus, most(a, T(0)) + std::log1p(std::exp(-std::abs(a))))
ONERNN_UNARY(softsign, a / (1 + std::abs(a)))
ONERNN_UNARY(relu, most(a, T(0)))
ONERNN_UNARY(gelu, T(0.5) * a * (1 + std::erf(a * T(0.70710678118654752))))
ONERNN_UNARY(gelu_tanh,
             T(0.5) * a * (1 + std::tanh(T(0.79788456080286536) * (a + T(0.044715) * a * a * a))))
ONERNN_UNARY(hard_swish, a* most(least(a / 6 + T(0.5), T(1)), T(0)))

ONERNN_BINARY(plus, a + b)
ONERNN_BINARY(minus, a - b)
ONERNN_BINARY(times, a* b)
ONERNN_BINARY(divided, a / b)
ONERNN_BINARY(power, b == 2 ? a * a : std::pow(a, b))  // Most powers are squares.
// b is alpha, or the slope.
ONERNN_BINARY(leaky_relu, a < 0 ? a * b : a)
ONERNN_BINARY(thresholded_relu, a > b ? a : 0)
ONERNN_BINARY(elu, a < 0 ? b * std::expm1(a) : a)
ONERNN_BINARY(celu, most(a, T(0)) + least(b * std::expm1(a / b), T(0)))

ONERNN_TRUTH(equal, a == b)
ONERNN_TRUTH(less, a < b)
ONERNN_TRUTH(less_or_equal, a <= b)
ONERNN_TRUTH(both, a&& b)
ONERNN_TRUTH(either, a || b)
ONERNN_TRUTH(differ, a != b)
#undef ONERNN_UNARY
#undef ONERNN_BINARY
#undef ONERNN_TRUTH

/// Returns the remainder with the sign of the second number.
template <class T>
inline T modulo(T a, T b) {
  const T rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? static_cast<T>(rest + b) : rest;
}
/// Returns the remainder with the sign of the first number.
template <class T>
inline T remainder(T a, T b) {
  if constexpr (std::numeric_limits<T>::is_integer)
    return a % b;
  else
    return std::fmod(a, b);
}
template <class T>
inline T hard_sigmoid(T a, T alpha, T beta) {
  return most(least(alpha * a + beta, T(1)), T(0));
}
template <class T>
inline T selu(T a, T alpha, T gamma) {
  return gamma * (a > 0 ? a : alpha * std::expm1(a));
}
/// Returns a number after batch normalization.
template <class T>
inline T normalized(T a, T scale, T bias, T mean, T variance, T epsilon) {
  return (a - mean) * (scale / std::sqrt(variance + epsilon)) + bias;
}

template <class T>
inline T chosen(Truth which, T a, T b) {
  return which ? a : b;
}
template <class T>
inline Truth is_nan(T a) {
  return std::isnan(a);
}
template <class T>
inline Truth negated(T a) {
  return !a;
}

/// Converts a number to another type.
template <class To, class From>
inline To cast(From a) {
  if constexpr (std::is_same_v<From, Half>)
    return cast<To>(widened(a));
  else if constexpr (std::is_same_v<To, Half>)
    return halved(cast<std::conditional_t<std::is_same_v<From, double>, double, float>>(a));
  else if constexpr (!std::numeric_limits<From>::is_integer && std::numeric_limits<To>::is_integer)
    return whole<To>(a);
  else
    return static_cast<To>(a);
}
/// Rounds a number to bfloat16 and returns it as a float.
inline float as_bfloat16(float a) {
  const std::uint32_t bits = brain_bits(a) << 16;
  std::memcpy(&a, &bits, sizeof a);
  return a;
}
template <class From>
inline Truth truth(From a) {
  if constexpr (std::is_same_v<From, Half>)
    return (a.bits & 0x7fffu) != 0;
  else
    return a != 0;
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
