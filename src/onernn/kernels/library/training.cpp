// Implements the training functions of kernels.h. Exceptions become a status.
#include "training.hpp"

#include <atomic>

#include "../tile_products.hpp"
#include "division.hpp"

using namespace onernn;

namespace {

bool is_known(const onernn_spec& spec) {
  for (const onernn_function& one : {spec.gate, spec.candidate, spec.output})
    if (one.kind < ONERNN_IDENTITY || one.kind > ONERNN_RELU) return false;
  return spec.cell >= ONERNN_RNN && spec.cell <= ONERNN_LSTM;
}

/// Runs the directions of a layer: at the same time if more than one thread per direction does not
/// pay, otherwise one after the other.
int32_t run(const onernn_trained* directions, int32_t count, const Steps& steps,
            decltype(&onernn_training::forward) way) try {
  const onernn_spec& spec = directions[0].training->spec;
  Team& team = directions[0].training->team;
  const Team::Lead lead(team);
  const std::int64_t products = gates_of(spec) * spec.units * spec.width, words = steps.words();
  const auto groups = [&](std::int64_t beside) {
    const Work work{steps.sequences(),
                    words,
                    steps.count,
                    spec.units,
                    0,
                    products,
                    products * std::int64_t(sizeof(float)),
                    1,
                    beside};
    return team.is_worth_it(words * products * beside) ? groups_of(work, team.members()) : 0;
  };
  const auto go = [&](std::int64_t d, std::int64_t some, Team& own) {
    (directions[d].training->*way)(steps, directions[d], some, own);
  };
  if (count == 1 || groups(count) != 1) {
    for (std::int64_t d = 0; d < count; ++d) go(d, groups(1), team);
    return ONERNN_DONE;
  }
  std::atomic<bool> failed{false};
  team.split(count, words * products, [&](std::int64_t d, std::int64_t end) {
    Team alone(1);
    try {
      for (; d < end; ++d) go(d, 0, alone);
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
  if (spec->stored == ONERNN_F32)
    *training = new Training<float>(*spec, *weights, threads);
  else if (spec->stored == ONERNN_BF16)
    *training = new Training<Brains>(*spec, *weights, threads);
  else
    return ONERNN_UNKNOWN;
  return ONERNN_DONE;
} catch (...) {
  return ONERNN_NO_MEMORY;
}

int32_t onernn_training_forward(const onernn_trained* directions, int32_t count,
                                const int64_t* begin, int64_t steps) {
  return run(directions, count, {begin, steps}, &onernn_training::forward);
}

int32_t onernn_training_backward(const onernn_trained* directions, int32_t count,
                                 const int64_t* begin, int64_t steps) {
  return run(directions, count, {begin, steps}, &onernn_training::backward);
}

void onernn_training_free(onernn_training* training) { delete training; }
