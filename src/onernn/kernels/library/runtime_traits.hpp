// Traits of a cell that are known only at run time.
#ifndef ONERNN_RUNTIME_TRAITS_HPP
#define ONERNN_RUNTIME_TRAITS_HPP

#include <cmath>
#include <limits>
#include <type_traits>

#include "../cell.hpp"
#include "../functions.hpp"
#include "../isa.hpp"
#include "exported.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// A function of a gate that is chosen at run time.
template <class Real>
class AnyFunction {
  using L = Lanes<Real>;

 public:
  explicit AnyFunction(const onernn_function& function)
      : kind_(function.kind),
        alpha_(static_cast<Real>(function.alpha)),
        beta_(static_cast<Real>(function.beta)),
        is_curve_(std::is_same_v<Real, float> && (kind_ == ONERNN_TANH || kind_ == ONERNN_SIGMOID)),
        // 1 - 2 / (1 + e^2a), or 0 + 1 / (1 + e^-a).
        inside_(kind_ == ONERNN_TANH ? Real(2) : Real(-1)),
        offset_(kind_ == ONERNN_TANH ? Real(1) : Real(0)),
        outside_(kind_ == ONERNN_TANH ? Real(-2) : Real(1)) {}

  /// tanh and sigmoid are one formula with different constants. So the bits are the same as with
  /// `tanh` and `sigmoid`, and it takes nearly the time of a function that is known at compile
  /// time.
  L operator()(L a) const {
    if (!is_curve_) return other(a);
    return curve(a);
  }

 private:
#if defined(__GNUC__)
  [[gnu::noinline, gnu::cold]]
#endif
  L other(L a) const {
    switch (kind_) {
      case ONERNN_SIGMOID:
        return sigmoid(a);
      case ONERNN_TANH:
        return tanh(a);
      case ONERNN_RELU:
        return Relu<Real>{}(a);
      case ONERNN_AFFINE:
        return Affine<Real>{alpha_, beta_}(a);
      case ONERNN_SCALEDTANH:
        return ScaledTanh<Real>{alpha_, beta_}(a);
      case ONERNN_HARDSIGMOID:
        return HardSigmoid<Real>{alpha_, beta_}(a);
      case ONERNN_SOFTSIGN:
        return Softsign<Real>{}(a);
      case ONERNN_SOFTPLUS:
        return Softplus<Real>{}(a);
      case ONERNN_LEAKYRELU:
        return LeakyRelu<Real>{alpha_}(a);
      case ONERNN_THRESHOLDEDRELU:
        return ThresholdedRelu<Real>{alpha_}(a);
      case ONERNN_ELU:
        return Elu<Real>{alpha_}(a);
      default:
        return a;
    }
  }

  Floats curve(Floats a) const {
    return broadcast(offset_) + broadcast(outside_) / one_and_exp(broadcast(inside_) * a);
  }
  Doubles curve(Doubles a) const { return a; }  // see is_curve_

  std::int32_t kind_;
  Real alpha_, beta_;
  bool is_curve_;
  Real inside_, offset_, outside_;
};

/// Bounds that may be infinite. If they are, nothing changes: a branch takes less time than two
/// instructions that the sums wait for.
template <class Real>
struct AnyClip {
  AnyClip(double low_bound, double high_bound, bool nan_becomes_low)
      : low(static_cast<Real>(low_bound)),
        high(static_cast<Real>(high_bound)),
        nan_is_low(nan_becomes_low),
        is_none(!nan_becomes_low && std::isinf(low) && std::isinf(high)) {}
  Real low, high;
  bool nan_is_low, is_none;
  Lanes<Real> operator()(Lanes<Real> a) const {
    if (is_none) return a;
    if (nan_is_low) a = maximum(a, broadcast(low));
    return Clip<Real>{low, high}(a);
  }
};

/// The traits of a cell that kernels.h describes.
template <class Real_, class Stored_>
struct RuntimeTraits {
  using Real = Real_;
  using Stored = Stored_;
  using Matrix = MatrixOf<Real, Stored>;

  RuntimeTraits(const onernn_spec& spec)
      : inputs(spec.inputs),
        units(spec.units),
        width(spec.width),
        gate(spec.gate),
        candidate(spec.candidate),
        output(spec.output),
        clip(-spec.gate_clip, spec.gate_clip, false),
        clip_cell(spec.cell_low, spec.cell_high, spec.cell_nan_is_low != 0),
        attention(spec.attention != 0),
        replaces(spec.replaces != 0),
        peephole(spec.peephole != 0),
        input_forget(spec.input_forget != 0),
        projection(spec.projection != 0),
        coded(spec.stored == ONERNN_W8) {}

  std::int64_t inputs, units, width;
  AnyFunction<Real> gate, candidate, output;
  AnyClip<Real> clip, clip_cell;
  bool attention, replaces, peephole, input_forget, projection, coded;
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
