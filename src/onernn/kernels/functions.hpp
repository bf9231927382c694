// The functions that gates go through, of Lanes. Formulas: ONNX operator specification, RNN.
#ifndef ONERNN_FUNCTIONS_HPP
#define ONERNN_FUNCTIONS_HPP

#include <cmath>

#include "isa.hpp"
#include "lanes.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// e^a = 2^n e^r, |r| <= log(2) / 2: n, and e^r to 2 units in the last place, a polynomial of
/// degree 6 whose terms wait for each other as little as they can. A NaN stays one.
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

/// e^a. Beyond the bounds of a the result is 0, or infinite, as it is there.
inline Floats exp(Floats a) {
  Floats n;
  a = exp_without_power(minimum(broadcast(89.0f), maximum(broadcast(-104.0f), a)), n);
  return times_power_of_two(a, n);
}
/// 1 + e^a in fewer steps: e^a is at least e^-87, which adds nothing, and may be infinite where its
/// inverse is subnormal.
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

// Functions of a cell are objects; those with numbers of their own hold them.

template <class Real>
struct Identity {
  Lanes<Real> operator()(Lanes<Real> a) const { return a; }
};
template <class Real>
struct Sigmoid {
  Lanes<Real> operator()(Lanes<Real> a) const { return sigmoid(a); }
};
template <class Real>
struct Tanh {
  Lanes<Real> operator()(Lanes<Real> a) const { return tanh(a); }
};
template <class Real>
struct Relu {
  Lanes<Real> operator()(Lanes<Real> a) const { return maximum(broadcast(Real(0)), a); }
};
template <class Real>
struct Softsign {
  Lanes<Real> operator()(Lanes<Real> a) const {
    return each<Real>(a, [](Real v) { return v / (1 + std::abs(v)); });
  }
};
template <class Real>
struct Softplus {
  Lanes<Real> operator()(Lanes<Real> a) const {
    return each<Real>(a,
                      [](Real v) { return (v > 0 ? v : 0) + std::log1p(std::exp(-std::abs(v))); });
  }
};
template <class Real>
struct Affine {
  Real alpha, beta;
  Lanes<Real> operator()(Lanes<Real> a) const {
    return multiply_add(broadcast(alpha), a, broadcast(beta));
  }
};
template <class Real>
struct ScaledTanh {
  Real alpha, beta;
  Lanes<Real> operator()(Lanes<Real> a) const {
    return broadcast(alpha) * tanh(broadcast(beta) * a);
  }
};
template <class Real>
struct HardSigmoid {
  Real alpha, beta;
  Lanes<Real> operator()(Lanes<Real> a) const {
    const auto line = multiply_add(broadcast(alpha), a, broadcast(beta));
    return maximum(broadcast(Real(0)), minimum(broadcast(Real(1)), line));
  }
};
template <class Real>
struct LeakyRelu {
  Real alpha;
  Lanes<Real> operator()(Lanes<Real> a) const {
    return each<Real>(a, [this](Real v) { return v < 0 ? alpha * v : v; });
  }
};
template <class Real>
struct ThresholdedRelu {
  Real alpha;
  Lanes<Real> operator()(Lanes<Real> a) const {
    return each<Real>(a, [this](Real v) { return v > alpha ? v : 0; });
  }
};
template <class Real>
struct Elu {
  Real alpha;
  Lanes<Real> operator()(Lanes<Real> a) const {
    return each<Real>(a, [this](Real v) { return v < 0 ? alpha * std::expm1(v) : v; });
  }
};

/// Not below `low` nor above `high`; a NaN stays one.
template <class Real>
struct Clip {
  Real low, high;
  Lanes<Real> operator()(Lanes<Real> a) const {
    return minimum(broadcast(high), maximum(broadcast(low), a));
  }
};
/// The same, and a NaN becomes `low`.
template <class Real>
struct ClipNan {
  Real low, high;
  Lanes<Real> operator()(Lanes<Real> a) const {
    return Clip<Real>{low, high}(maximum(a, broadcast(low)));
  }
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
