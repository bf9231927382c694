// Training through onernn.h: no exception leaves.
#include "../training.hpp"

#include <cmath>
#include <memory>

#include "exported.hpp"

using namespace onernn;

/// Of any stored numbers.
struct onernn_training {
  virtual ~onernn_training() = default;
  virtual void forward(const Steps& steps, const Tape& tape, float* y, std::int64_t y_row, float* h,
                       float* c) const = 0;
  virtual void backward(const Steps& steps, const Tape& tape, const float* dy, float* dh, float* dc,
                        float* dx, float* dattention,
                        const TrainedWeights<float>& gradients) const = 0;
};

namespace {

template <class Stored>
class TrainingOf final : public onernn_training {
 public:
  TrainingOf(const TrainedLayer& layer, const TrainedWeights<const float>& weights)
      : training_(layer, weights) {}

  void forward(const Steps& steps, const Tape& tape, float* y, std::int64_t y_row, float* h,
               float* c) const override {
    training_.forward(steps, tape, y, y_row, h, c);
  }
  void backward(const Steps& steps, const Tape& tape, const float* dy, float* dh, float* dc,
                float* dx, float* dattention,
                const TrainedWeights<float>& gradients) const override {
    training_.backward(steps, tape, dy, dh, dc, dx, dattention, gradients);
  }

 private:
  Training<Stored> training_;
};

static_assert(int(TrainedLayer::kRnn) == ONERNN_RNN && int(TrainedLayer::kGru) == ONERNN_GRU &&
              int(TrainedLayer::kLbrGru) == ONERNN_LBR_GRU &&
              int(TrainedLayer::kLstm) == ONERNN_LSTM);
static_assert(int(Trained::kIdentity) == ONERNN_IDENTITY &&
              int(Trained::kSigmoid) == ONERNN_SIGMOID && int(Trained::kTanh) == ONERNN_TANH &&
              int(Trained::kRelu) == ONERNN_RELU);

Trained function_of(const onernn_function& told) { return {Trained::Kind(told.kind)}; }

TrainedClip clip_of(const onernn_spec& spec) {
  const bool given = std::isfinite(spec.cell_low) || std::isfinite(spec.cell_high);
  return {given, spec.cell_nan_is_low != 0, float(spec.cell_low), float(spec.cell_high)};
}

TrainedLayer layer_of(const onernn_spec& spec) {
  return {TrainedLayer::Cell(spec.cell),
          spec.backwards != 0,
          spec.inputs,
          spec.units,
          spec.width,
          function_of(spec.gate),
          function_of(spec.candidate),
          function_of(spec.output),
          clip_of(spec),
          spec.attention != 0,
          spec.replaces != 0,
          spec.peephole != 0,
          spec.input_forget != 0,
          spec.projection != 0};
}

template <class Number>
TrainedWeights<Number> weights_of(const onernn_weights& w) {
  return {w.input, w.recurrent, w.bias, w.peephole, w.projection};
}

Tape tape_of(const onernn_tape& t) {
  return {t.x, t.attention, t.gates, t.h, t.one, t.two, t.three};
}

bool is_known(const onernn_spec& spec) {
  for (const onernn_function& one : {spec.gate, spec.candidate, spec.output})
    if (one.kind < ONERNN_IDENTITY || one.kind > ONERNN_RELU) return false;
  return spec.cell >= ONERNN_RNN && spec.cell <= ONERNN_LSTM;
}

}  // namespace

int32_t onernn_training_new(const onernn_spec* spec, const onernn_weights* weights,
                            onernn_training** training) try {
  if (!is_known(*spec)) return ONERNN_UNKNOWN;
  const auto given = weights_of<const float>(*weights);
  if (spec->stored == ONERNN_F32)
    *training = new TrainingOf<float>(layer_of(*spec), given);
  else if (spec->stored == ONERNN_BF16)
    *training = new TrainingOf<Brains>(layer_of(*spec), given);
  else
    return ONERNN_UNKNOWN;
  return ONERNN_DONE;
} catch (...) {
  return ONERNN_NO_MEMORY;
}

int32_t onernn_training_forward(const onernn_training* training, const int64_t* begin,
                                int64_t steps, const onernn_tape* tape, float* y, int64_t y_row,
                                float* h, float* c) try {
  training->forward({begin, steps}, tape_of(*tape), y, y_row, h, c);
  return ONERNN_DONE;
} catch (...) {
  return ONERNN_NO_MEMORY;
}

int32_t onernn_training_backward(const onernn_training* training, const int64_t* begin,
                                 int64_t steps, const onernn_tape* tape, const float* dy, float* dh,
                                 float* dc, float* dx, float* dattention,
                                 const onernn_weights* gradients) try {
  training->backward({begin, steps}, tape_of(*tape), dy, dh, dc, dx, dattention,
                     weights_of<float>(*gradients));
  return ONERNN_DONE;
} catch (...) {
  return ONERNN_NO_MEMORY;
}

void onernn_training_free(onernn_training* training) { delete training; }
