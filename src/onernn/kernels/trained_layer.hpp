// What is trained: one direction of one recurrent layer, its numbers and its words.
#ifndef ONERNN_TRAINED_LAYER_HPP
#define ONERNN_TRAINED_LAYER_HPP

#include <cstdint>

#include "functions.hpp"
#include "isa.hpp"
#include "lanes.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// A function of a gate that has a slope, known when the program runs.
struct Trained {
  enum Kind { kIdentity, kSigmoid, kTanh, kRelu };
  Kind kind;

  Floats operator()(Floats a) const {
    switch (kind) {
      case kSigmoid:
        return sigmoid(a);
      case kTanh:
        return tanh(a);
      case kRelu:
        return maximum(broadcast(0.0f), a);
      default:
        return a;
    }
  }
  /// The slope, in terms of the function's value; at 0 a relu has none.
  Floats slope(Floats y) const {
    const Floats one = broadcast(1.0f);
    switch (kind) {
      case kSigmoid:
        return y * (one - y);
      case kTanh:
        return one - y * y;
      case kRelu:
        return each<float>(y, [](float v) { return v > 0 ? 1.0f : 0.0f; });
      default:
        return one;
    }
  }
};

/// Bounds of an LSTM's cell state, where some are `given`.
struct TrainedClip {
  bool given, nan_is_low;
  float low, high;

  Floats operator()(Floats c) const {
    if (!given) return c;
    if (nan_is_low) c = maximum(c, broadcast(low));
    return Clip<float>{low, high}(c);
  }
  /// 1 from bound to bound, 0 outside, in terms of the state before it was clipped.
  Floats slope(Floats c) const {
    return each<float>(c, [this](float v) { return v >= low && v <= high ? 1.0f : 0.0f; });
  }
  /// A factor of the state, 0 where it is no number and a bound stands for what came of it: there
  /// is no slope then, and 0 * NaN must not make one.
  Floats kept(Floats factor) const {
    if (!(given && nan_is_low)) return factor;
    return each<float>(factor, [](float v) { return v - v == 0 ? v : 0.0f; });
  }
};

/// What a layer computes in one direction; `width` is `units` but where a projection follows.
struct TrainedLayer {
  enum Cell { kRnn, kGru, kLbrGru, kLstm };
  Cell cell;
  bool backwards;
  std::int64_t inputs, units, width;
  Trained gate, candidate, output;
  TrainedClip clip_cell;
  bool attention, replaces, peephole, input_forget, projection;

  std::int64_t gates() const { return cell == kLstm ? 4 : cell == kRnn ? 1 : 3; }
  bool is_gru() const { return cell == kGru || cell == kLbrGru; }
  /// Columns of the gates that h is multiplied for first: a GRU's candidate comes on its own.
  std::int64_t together() const { return (is_gru() ? 2 : gates()) * units; }
};

/// Weights as they stand, row by row: input (inputs, gates, units), recurrent (width, gates,
/// units), bias (gates or four, units), peephole (3, units), projection (units, width). Null:
/// absent; without `input` a word has its share of the gates. Their gradients are added to such.
template <class Number>
struct TrainedWeights {
  Number *input, *recurrent, *bias, *peephole, *projection;
};

/// The words of sorted sequences, step by step: step t is the rows begin[t] to begin[t + 1].
struct Steps {
  const std::int64_t *begin;
  std::int64_t count;

  std::int64_t words() const { return begin[count]; }
  std::int64_t sequences() const { return count ? begin[1] : 0; }
};

/// What forward leaves behind of every word. `gates` become gradients when backward has been.
struct Tape {
  const float *x, *attention;  // (W, inputs), (W)
  float *gates, *h;            // (W, gates, units), (W, width): h before the step
  float *one, *two;            // (W, units). LSTM: c before the step, and o f(c); LBR: what r is
                               // multiplied by; GRU: r h
  float *three;                // LSTM (W, units): f(c)
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
