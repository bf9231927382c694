// A layer of Paddle's operator `rnn` on the kernels' library: forward, with a tape, and backward.
// Nothing of Paddle, nothing of Python. The library checks nothing, so callers check sizes.
#ifndef ONERNN_PADDLE_RECURRENT_LAYER_HPP
#define ONERNN_PADDLE_RECURRENT_LAYER_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "onernn.h"
}

namespace onernn_paddle {

/// The functions of the library that was opened.
struct Library {
  decltype(&::onernn_stack_new) stack_new;
  decltype(&::onernn_stack_run) stack_run;
  decltype(&::onernn_stack_free) stack_free;
  decltype(&::onernn_training_new) training_new;
  decltype(&::onernn_training_forward) training_forward;
  decltype(&::onernn_training_backward) training_backward;
  decltype(&::onernn_training_free) training_free;
};

inline void check(std::int32_t status) {
  if (status) throw std::runtime_error("the kernels gave status " + std::to_string(status));
}

/// function(k) for every k below count, each in a thread of its own but the last.
template <class Function>
void in_threads(int count, const Function& function) {
  std::vector<std::thread> others;
  std::vector<std::exception_ptr> failed(count);
  const auto guarded = [&](int k) noexcept {
    try {
      function(k);
    } catch (...) {
      failed[k] = std::current_exception();
    }
  };
  int begun = 0;
  try {
    for (; begun + 1 < count; ++begun) others.emplace_back(guarded, begun);
  } catch (const std::system_error&) {  // no thread is left: this one does their work
  }
  for (int k = begun; k < count; ++k) guarded(k);
  for (auto& each : others) each.join();
  for (auto& each : failed)
    if (each) std::rethrow_exception(each);
}

/// Weights of one layer in one direction, or their gradients, as the library reads them.
struct Plain {
  std::vector<float> input, recurrent, bias;  // (I, G, O), (O, G, O), (G or more, O)

  onernn_weights told() { return {input.data(), recurrent.data(), bias.data(), nullptr, nullptr}; }
};

/// What a layer is, but for its numbers.
struct Layer {
  std::int32_t cell, function, stored;
  int layers, directions, threads;
  std::int64_t inputs, units;
  std::vector<int> gates;  // gate g of the library is gate gates[g] of Paddle

  int parts() const { return layers * directions; }
  std::int64_t wide() const { return directions * units; }
  std::int64_t inputs_of(int l) const { return l ? wide() : inputs; }
  std::int64_t row() const { return std::int64_t(gates.size()) * units; }
  /// A GRU's candidate has a bias inside of its reset gate, too.
  std::int64_t bias_rows() const { return std::int64_t(gates.size()) + (cell == ONERNN_LBR_GRU); }

  onernn_spec spec() const {
    onernn_spec told{};
    told.cell = cell;
    told.stored = stored;
    told.layers = layers;
    told.directions = directions;
    told.joined = 1;
    told.inputs = inputs;
    told.units = told.width = units;
    told.gate.kind = function;
    told.candidate.kind = told.output.kind = ONERNN_TANH;
    told.gate_clip = told.cell_high = std::numeric_limits<double>::infinity();
    told.cell_low = -told.cell_high;
    return told;
  }
  onernn_spec part_spec(int part) const {
    onernn_spec told = spec();
    told.backwards = part % directions;
    told.layers = told.directions = 1;
    told.inputs = inputs_of(part / directions);
    return told;
  }

  /// (G*O, K) of Paddle's gates -> (K, G, O), and back.
  void turn(const float* from, std::int64_t K, float* to) const { turn<false>(from, K, to); }
  void turn_back(const float* from, std::int64_t K, float* to) const { turn<true>(from, K, to); }

  /// `weights`: Paddle's WeightList: (w_ih, w_hh) of each part, then (b_ih, b_hh) of each.
  Plain plain(const std::vector<const float*>& weights, int part) const {
    const std::int64_t I = inputs_of(part / directions);
    Plain made{std::vector<float>(I * row()), std::vector<float>(units * row()),
               std::vector<float>(bias_rows() * units)};
    turn(weights[2 * part], I, made.input.data());
    turn(weights[2 * part + 1], units, made.recurrent.data());
    const float *of_input = weights[2 * (parts() + part)],
                *of_state = weights[2 * (parts() + part) + 1];
    for (std::size_t g = 0; g < gates.size(); ++g)
      for (std::int64_t o = 0; o < units; ++o) {
        const std::int64_t at = gates[g] * units + o;
        const bool apart = bias_rows() > row() / units && g + 1 == gates.size();
        made.bias[g * units + o] = of_input[at] + (apart ? 0 : of_state[at]);
        if (apart) made.bias[(g + 1) * units + o] = of_state[at];
      }
    return made;
  }

  /// Gradients of these, into those of Paddle's WeightList.
  void plain_back(const Plain& from, int part, const std::vector<float*>& gradients) const {
    turn_back(from.input.data(), inputs_of(part / directions), gradients[2 * part]);
    turn_back(from.recurrent.data(), units, gradients[2 * part + 1]);
    for (std::size_t g = 0; g < gates.size(); ++g) {
      const bool apart = bias_rows() > row() / units && g + 1 == gates.size();
      const float* row_of = from.bias.data() + g * units;
      std::copy_n(row_of, units, gradients[2 * (parts() + part)] + gates[g] * units);
      std::copy_n(row_of + (apart ? units : 0), units,
                  gradients[2 * (parts() + part) + 1] + gates[g] * units);
    }
  }

 private:
  template <bool kBack>
  void turn(const float* from, std::int64_t K, float* to) const {
    constexpr std::int64_t kBlock = 16;  // lines of both sides stay in L1
    for (std::size_t g = 0; g < gates.size(); ++g)
      for (std::int64_t o = 0; o < units; o += kBlock)
        for (std::int64_t k = 0; k < K; k += kBlock)
          for (std::int64_t p = o; p < (std::min)(o + kBlock, units); ++p)
            for (std::int64_t q = k; q < (std::min)(k + kBlock, K); ++q) {
              const std::int64_t ours = q * row() + std::int64_t(g) * units + p;
              const std::int64_t theirs = (gates[g] * units + p) * K + q;
              if (kBack)
                to[theirs] = from[ours];
              else
                to[ours] = from[theirs];
            }
  }
};

/// Sequences that stand padded in memory, (T, N, ...) or (N, T, ...). No lengths: all are T.
struct Batch {
  std::int64_t T, N;
  bool time_major;
  std::vector<std::int64_t> lengths;

  std::int64_t length(std::int64_t n) const { return lengths.empty() ? T : lengths[n]; }
  std::int64_t words() const {
    return lengths.empty() ? T * N : std::accumulate(lengths.begin(), lengths.end(), 0ll);
  }
  std::int64_t at(std::int64_t n, std::int64_t t) const {
    return time_major ? t * N + n : n * T + t;
  }
  /// Rows behind the lengths become zeros.
  void clear_padding(float* rows, std::int64_t width) const {
    if (lengths.empty()) return;
    for (std::int64_t n = 0; n < N; ++n)
      for (std::int64_t t = length(n); t < T; ++t) std::fill_n(rows + at(n, t) * width, width, 0.f);
  }
};

/// Numbers of one call. States are (layers * directions, N, units); c is nullptr but for LSTM.
struct States {
  const float *h, *c;
  float *h_n, *c_n;
};

/// Training: a batch in shares, a thread each, with its words sorted step by step.
class Training {
 public:
  Training(const Library& library, const Layer& layer, const Batch& batch)
      : library_(library), layer_(layer), batch_(batch), rows_(batch.words()) {
    std::vector<std::int64_t> order(batch.N);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return batch.length(a) > batch.length(b);
    });
    const std::int64_t enough = batch.words() / kLeast;
    const auto count =
        std::max<std::int64_t>(1, std::min({std::int64_t(layer.threads), batch.N, enough}));
    shares_.resize(count);
    for (std::int64_t k = 0; k < batch.N; ++k) shares_[k % count].sequences.push_back(order[k]);
    std::int64_t row = 0;
    for (Share& share : shares_) {
      share.first = row;
      share.begin.push_back(0);
      const std::int64_t steps = share.sequences.empty() ? 0 : batch.length(share.sequences[0]);
      for (std::int64_t t = 0; t < steps; ++t) {
        for (std::int64_t n : share.sequences) {
          if (batch.length(n) <= t) break;
          rows_[row++] = batch.at(n, t);
        }
        share.begin.push_back(row - share.first);
      }
    }
  }

  /// Numbers of the tape.
  std::int64_t tape_size() const { return batch_.words() * per_word(); }

  void forward(const std::vector<const float*>& weights, const float* x, const States& states,
               float* y, float* tape) const {
    const auto made = trainings(weights);
    batch_.clear_padding(y, layer_.wide());
    in_threads(int(shares_.size()), [&](int k) { forward(made, shares_[k], x, states, y, tape); });
  }

  /// `states` holds the gradients of the final states, and where those of the initial ones go.
  void backward(const std::vector<const float*>& weights, const float* dy, const States& states,
                float* dx, const std::vector<float*>& gradients, float* tape) const {
    const auto made = trainings(weights);
    std::vector<std::vector<Plain>> sums(shares_.size());
    batch_.clear_padding(dx, layer_.inputs);
    in_threads(int(shares_.size()), [&](int k) {
      for (int part = 0; part < layer_.parts(); ++part)
        sums[k].push_back(
            {std::vector<float>(layer_.inputs_of(part / layer_.directions) * layer_.row()),
             std::vector<float>(layer_.units * layer_.row()),
             std::vector<float>(layer_.bias_rows() * layer_.units)});
      backward(made, shares_[k], dy, states, dx, sums[k], tape);
    });
    for (int part = 0; part < layer_.parts(); ++part) {
      Plain& whole = sums[0][part];
      for (std::size_t k = 1; k < sums.size(); ++k) {
        add(sums[k][part].input, whole.input);
        add(sums[k][part].recurrent, whole.recurrent);
        add(sums[k][part].bias, whole.bias);
      }
      layer_.plain_back(whole, part, gradients);
    }
  }

 private:
  static constexpr std::int64_t kLeast = 32;  // words for which a thread pays
  struct Share {
    std::vector<std::int64_t> sequences, begin;
    std::int64_t first;
    std::int64_t words() const { return begin.back(); }
    std::int64_t steps() const { return std::int64_t(begin.size()) - 1; }
  };
  using Made = std::unique_ptr<onernn_training, decltype(&::onernn_training_free)>;

  static void add(const std::vector<float>& from, std::vector<float>& to) {
    for (std::size_t k = 0; k < to.size(); ++k) to[k] += from[k];
  }

  /// Arrays of (words, units) beside the gates.
  int kept() const { return layer_.cell == ONERNN_LSTM ? 4 : layer_.cell == ONERNN_RNN ? 1 : 2; }
  std::int64_t per_part() const { return layer_.row() + kept() * layer_.units; }
  std::int64_t per_word() const {
    return layer_.inputs + (layer_.layers - 1) * layer_.wide() + layer_.parts() * per_part();
  }
  /// Where a share keeps what a layer reads.
  float* read_at(const Share& share, float* tape, int l) const {
    const std::int64_t before =
        l ? layer_.inputs + (l - 1) * layer_.wide() + l * layer_.directions * per_part() : 0;
    return tape + share.first * per_word() + share.words() * before;
  }
  onernn_tape tape_of(const Share& share, float* tape, int l, int d) const {
    const std::int64_t words = share.words();
    float* read = read_at(share, tape, l);
    float* own = read + words * (layer_.inputs_of(l) + d * per_part());
    float* h = own + words * layer_.row();
    const auto more = [&](int k) { return k < kept() ? h + k * words * layer_.units : nullptr; };
    return {read, nullptr, own, h, more(1), more(2), more(3)};
  }

  std::vector<Made> trainings(const std::vector<const float*>& weights) const {
    std::vector<Made> made;
    for (int part = 0; part < layer_.parts(); ++part) {
      const onernn_spec told = layer_.part_spec(part);
      Plain plain = layer_.plain(weights, part);
      const onernn_weights given = plain.told();
      onernn_training* found = nullptr;
      check(library_.training_new(&told, &given, &found));
      made.emplace_back(found, library_.training_free);
    }
    return made;
  }

  /// Rows of a state for a share's sequences, and back.
  std::vector<float> taken(const Share& share, const float* state, int part) const {
    const std::int64_t O = layer_.units;
    std::vector<float> made(share.sequences.size() * O);
    for (std::size_t k = 0; k < share.sequences.size(); ++k)
      std::copy_n(state + (part * batch_.N + share.sequences[k]) * O, O, made.data() + k * O);
    return made;
  }
  void put(const Share& share, const std::vector<float>& rows, float* state, int part) const {
    const std::int64_t O = layer_.units;
    for (std::size_t k = 0; k < share.sequences.size(); ++k)
      std::copy_n(rows.data() + k * O, O, state + (part * batch_.N + share.sequences[k]) * O);
  }

  void forward(const std::vector<Made>& made, const Share& share, const float* x,
               const States& states, float* y, float* tape) const {
    const std::int64_t words = share.words(), I = layer_.inputs, wide = layer_.wide();
    float* read = read_at(share, tape, 0);
    for (std::int64_t w = 0; w < words; ++w)
      std::copy_n(x + rows_[share.first + w] * I, I, read + w * I);
    std::vector<float> last(words * wide);
    for (int l = 0; l < layer_.layers; ++l) {
      float* out = l + 1 < layer_.layers ? read_at(share, tape, l + 1) : last.data();
      for (int d = 0; d < layer_.directions; ++d) {
        const int part = l * layer_.directions + d;
        std::vector<float> h = taken(share, states.h, part), c;
        if (states.c) c = taken(share, states.c, part);
        const onernn_tape own = tape_of(share, tape, l, d);
        check(library_.training_forward(made[part].get(), share.begin.data(), share.steps(), &own,
                                        out + d * layer_.units, wide, h.data(),
                                        states.c ? c.data() : nullptr));
        put(share, h, states.h_n, part);
        if (states.c) put(share, c, states.c_n, part);
      }
    }
    for (std::int64_t w = 0; w < words; ++w)
      std::copy_n(last.data() + w * wide, wide, y + rows_[share.first + w] * wide);
  }

  void backward(const std::vector<Made>& made, const Share& share, const float* dy,
                const States& states, float* dx, std::vector<Plain>& sums, float* tape) const {
    const std::int64_t words = share.words(), O = layer_.units, wide = layer_.wide();
    std::vector<float> above(words * wide), own(words * O);
    for (std::int64_t w = 0; w < words; ++w)
      std::copy_n(dy + rows_[share.first + w] * wide, wide, above.data() + w * wide);
    for (int l = layer_.layers - 1; l >= 0; --l) {
      const std::int64_t I = layer_.inputs_of(l);
      std::vector<float> below(words * I), other(words * I);
      for (int d = 0; d < layer_.directions; ++d) {
        const int part = l * layer_.directions + d;
        for (std::int64_t w = 0; w < words; ++w)
          std::copy_n(above.data() + w * wide + d * O, O, own.data() + w * O);
        std::vector<float> h = taken(share, states.h, part), c;
        if (states.c) c = taken(share, states.c, part);
        const onernn_tape kept = tape_of(share, tape, l, d);
        const onernn_weights into = sums[part].told();
        check(library_.training_backward(made[part].get(), share.begin.data(), share.steps(), &kept,
                                         own.data(), h.data(), states.c ? c.data() : nullptr,
                                         d ? other.data() : below.data(), nullptr, &into));
        if (d) add(other, below);
        put(share, h, states.h_n, part);
        if (states.c) put(share, c, states.c_n, part);
      }
      above.swap(below);
    }
    const std::int64_t I = layer_.inputs;
    for (std::int64_t w = 0; w < words; ++w)
      std::copy_n(above.data() + w * I, I, dx + rows_[share.first + w] * I);
  }

  const Library& library_;
  const Layer& layer_;
  const Batch& batch_;
  std::vector<Share> shares_;
  std::vector<std::int64_t> rows_;  // of each word of each share, in x
};

}  // namespace onernn_paddle

#endif
