// Functions of gates, on Lanes. Formulas: ONNX operator specification, RNN.
#ifndef ONERNN_FUNCTIONS_HPP
#define ONERNN_FUNCTIONS_HPP

#include <cmath>

#include "formulas.hpp"
#include "isa.hpp"
#include "lanes.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// Computes e^a = 2^n e^r with |r| <= log(2) / 2: sets n, and returns e^r to 2 units in the last
/// place. A polynomial of degree 6 computes e^r; its terms depend on each other as little as
/// possible. NaN stays NaN.
inline Floats exp_without_power(Floats a, Floats& n) {
  n = round_to_even(a * broadcast(1.44269504f));
  // log(2) in two parts: n times the first one is exact.
  const Floats r =
      multiply_add(n, broadcast(2.12194440e-4f), multiply_add(n, broadcast(-0.693359375f), a));
  const Floats square = r * r;
  Floats q = multiply_add(broadcast(1.394656138e-3f), r, broadcast(8.369223215e-3f));
  q = multiply_add(q, r, broadcast(4.166626185e-2f));
  q = multiply_add(q, square, multiply_add(broadcast(1.666651517e-1f), r, broadcast(0.5f)));
  return multiply_add(square, q, r + broadcast(1.0f));
}

/// e^a. If a is out of range, the result is 0 or infinite, the same as at the bound of the range.
inline Floats exp(Floats a) {
  Floats n;
  a = exp_without_power(minimum(broadcast(89.0f), maximum(broadcast(-104.0f), a)), n);
  return times_power_of_two(a, n);
}
/// 1 + e^a in fewer steps than with `exp`. e^a is bounded below by e^-87, which does not change the
/// sum. The sum may be infinite if its inverse is subnormal.
inline Floats one_and_exp(Floats a) {
  Floats n;
  a = exp_without_power(minimum(broadcast(89.0f), maximum(broadcast(-87.0f), a)), n);
  return times_normal_power_of_two(a, n) + broadcast(1.0f);
}
inline Doubles exp(Doubles a) {
  for (double& v : a.v) v = std::exp(v);
  return a;
}

inline Floats tanh(Floats a) { return broadcast(1.0f) - broadcast(2.0f) / one_and_exp(a + a); }
inline Doubles tanh(Doubles a) {
  for (double& v : a.v) v = std::tanh(v);
  return a;
}

inline Floats sigmoid(Floats a) { return broadcast(1.0f) / one_and_exp(broadcast(0.0f) - a); }
inline Doubles sigmoid(Doubles a) {
  return broadcast(1.0) / (broadcast(1.0) + exp(broadcast(0.0) - a));
}

/// Limits a number to the range from `low` to `high`; NaN stays NaN.
template <class Real>
struct Clip {
  Real low, high;
  Lanes<Real> operator()(Lanes<Real> a) const {
    return minimum(broadcast(high), maximum(broadcast(low), a));
  }
};
/// Limits a number to the range from `low` to `high`; NaN becomes `low`.
template <class Real>
struct ClipNan {
  Real low, high;
  Lanes<Real> operator()(Lanes<Real> a) const {
    return Clip<Real>{low, high}(maximum(a, broadcast(low)));
  }
};

// A cell's functions are objects; alpha and beta have ONNX's defaults.
#define ONERNN_FUNCTION(Name, formula)                              \
  template <class Real>                                             \
  struct Name {                                                     \
    Real alpha = 0, beta = 0;                                       \
    Lanes<Real> operator()(Lanes<Real> a) const { return formula; } \
  };
ONERNN_FUNCTION(Identity, a)
ONERNN_FUNCTION(Sigmoid, sigmoid(a))
ONERNN_FUNCTION(Tanh, tanh(a))
ONERNN_FUNCTION(Relu, maximum(broadcast(Real(0)), a))
ONERNN_FUNCTION(Affine, multiply_add(broadcast(alpha), a, broadcast(beta)))
ONERNN_FUNCTION(ScaledTanh, broadcast(alpha) * tanh(broadcast(beta) * a))
ONERNN_FUNCTION(HardSigmoid, (Clip<Real>{0, 1}(Affine<Real>{alpha, beta}(a))))
ONERNN_FUNCTION(Softsign, each<Real>(a, softsign<Real>))
ONERNN_FUNCTION(Softplus, each<Real>(a, softplus<Real>))
ONERNN_FUNCTION(LeakyRelu, each<Real>(a, [this](Real v) { return leaky_relu(v, alpha); }))
ONERNN_FUNCTION(ThresholdedRelu,
                each<Real>(a, [this](Real v) { return thresholded_relu(v, alpha); }))
ONERNN_FUNCTION(Elu, each<Real>(a, [this](Real v) { return elu(v, alpha); }))
#undef ONERNN_FUNCTION

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
