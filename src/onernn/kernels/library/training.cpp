// Training through kernels.h: no exception leaves.
#include "../training.hpp"

#include <atomic>
#include <cmath>

#include "division.hpp"
#include "exported.hpp"

using namespace onernn;

/// Of any stored numbers.
struct onernn_training {
  onernn_training(const TrainedLayer& layer, std::int32_t threads) : is(layer), team(threads) {}
  virtual ~onernn_training() = default;
  virtual void forward(const Steps& steps, const onernn_trained& one, std::int64_t groups,
                       Team& team) const = 0;
  virtual void backward(const Steps& steps, const onernn_trained& one, std::int64_t groups,
                        Team& team) const = 0;

  const TrainedLayer is;
  mutable Team team;
};

namespace {

template <class Number>
TrainedWeights<Number> weights_of(const onernn_weights& w) {
  return {w.input, w.recurrent, w.bias, w.peephole, w.projection};
}

Tape tape_of(const onernn_tape& t) {
  return {t.x, t.attention, t.gates, t.h, t.one, t.two, t.three};
}

template <class Stored>
class TrainingOf final : public onernn_training {
 public:
  TrainingOf(const TrainedLayer& layer, const TrainedWeights<const float>& weights,
             std::int32_t threads)
      : onernn_training(layer, threads), training_(layer, weights) {}

  void forward(const Steps& steps, const onernn_trained& one, std::int64_t groups,
               Team& team) const override {
    training_.forward(steps, tape_of(one.tape), one.y, one.y_row, one.h, one.c, groups, team);
  }
  void backward(const Steps& steps, const onernn_trained& one, std::int64_t groups,
                Team& team) const override {
    training_.backward(steps, tape_of(one.tape), one.y, one.y_row, one.h, one.c, one.dx,
                       one.dattention, weights_of<float>(one.gradients), groups, team);
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

Trained function_of(const onernn_function& function) { return {Trained::Kind(function.kind)}; }

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

bool is_known(const onernn_spec& spec) {
  for (const onernn_function& one : {spec.gate, spec.candidate, spec.output})
    if (one.kind < ONERNN_IDENTITY || one.kind > ONERNN_RELU) return false;
  return spec.cell >= ONERNN_RNN && spec.cell <= ONERNN_LSTM;
}

/// function(direction, groups, team) for each direction of a layer: beside each other where a
/// thread each is all that pays, else one after the other.
template <class Function>
int32_t run(const onernn_trained* directions, int32_t count, const Steps& steps,
            Function function) try {
  const TrainedLayer& is = directions[0].training->is;
  Team& team = directions[0].training->team;
  const Team::Lead lead(team);
  const std::int64_t products = is.gates() * is.units * is.width, words = steps.words();
  const auto groups = [&](std::int64_t beside) {
    const Work work{steps.sequences(),
                    words,
                    steps.count,
                    is.units,
                    0,
                    products,
                    products * std::int64_t(sizeof(float)),
                    1,
                    beside};
    return team.is_worth_it(words * products * beside) ? groups_of(work, team.members()) : 0;
  };
  if (count == 1 || groups(count) != 1) {
    for (std::int32_t d = 0; d < count; ++d) function(directions[d], groups(1), team);
    return ONERNN_DONE;
  }
  std::atomic<bool> failed{false};
  team.split(count, words * products, [&](std::int64_t d, std::int64_t end) {
    Team alone(1);
    try {
      for (; d < end; ++d) function(directions[d], std::int64_t(0), alone);
    } catch (...) {
      failed = true;
    }
  });
  return failed ? ONERNN_NO_MEMORY : ONERNN_DONE;
} catch (...) {
  return ONERNN_NO_MEMORY;
}

}  // namespace

int32_t onernn_training_new(const onernn_spec* spec, const onernn_weights* weights, int32_t threads,
                            onernn_training** training) try {
  if (!is_known(*spec)) return ONERNN_UNKNOWN;
  const auto given = weights_of<const float>(*weights);
  if (spec->stored == ONERNN_F32)
    *training = new TrainingOf<float>(layer_of(*spec), given, threads);
  else if (spec->stored == ONERNN_BF16)
    *training = new TrainingOf<Brains>(layer_of(*spec), given, threads);
  else
    return ONERNN_UNKNOWN;
  return ONERNN_DONE;
} catch (...) {
  return ONERNN_NO_MEMORY;
}

int32_t onernn_training_forward(const onernn_trained* directions, int32_t count,
                                const int64_t* begin, int64_t steps) {
  const Steps all{begin, steps};
  return run(directions, count, all,
             [&](const onernn_trained& one, std::int64_t groups, Team& team) {
               one.training->forward(all, one, groups, team);
             });
}

int32_t onernn_training_backward(const onernn_trained* directions, int32_t count,
                                 const int64_t* begin, int64_t steps) {
  const Steps all{begin, steps};
  return run(directions, count, all,
             [&](const onernn_trained& one, std::int64_t groups, Team& team) {
               one.training->backward(all, one, groups, team);
             });
}

void onernn_training_free(onernn_training* training) { delete training; }
