// Runs and trains a layer of Paddle's operator `rnn` on the kernels' library. This file uses
// neither Paddle nor Python. The library does not check sizes, so callers check them.
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
#include <vector>

#include "kernels.h"

namespace onernn_paddle {

/// The functions of the kernels' library that was opened.
struct Library {
  decltype(&::onernn_stack_new) stack_new;
  decltype(&::onernn_stack_run) stack_run;
  decltype(&::onernn_stack_run_unpacked) stack_run_unpacked;
  decltype(&::onernn_stack_free) stack_free;
  decltype(&::onernn_training_new) training_new;
  decltype(&::onernn_training_forward) training_forward;
  decltype(&::onernn_training_backward) training_backward;
  decltype(&::onernn_training_free) training_free;
};

inline void check(std::int32_t status) {
  if (status) throw std::runtime_error("the kernels gave status " + std::to_string(status));
}

/// The weights of one layer in one direction, or their gradients, as the library reads them.
struct Plain {
  std::vector<float> input, recurrent, bias;  // (I, G, O), (O, G, O), (G or more, O)

  onernn_weights view() { return {input.data(), recurrent.data(), bias.data(), nullptr, nullptr}; }
};

/// The cell and the sizes of a layer, without its weights.
struct Layer {
  std::int32_t cell, function, stored;
  int layers, directions, threads;
  std::int64_t inputs, units;
  std::vector<int> gates;  // gate g of the library is gate gates[g] of Paddle

  int parts() const { return layers * directions; }
  std::int64_t wide() const { return directions * units; }
  std::int64_t inputs_of(int l) const { return l ? wide() : inputs; }
  std::int64_t row() const { return std::int64_t(gates.size()) * units; }
  /// A GRU's candidate has a second bias, which is multiplied by the reset gate.
  std::int64_t bias_rows() const { return std::int64_t(gates.size()) + (cell == ONERNN_LBR_GRU); }

  /// Returns the number of elements of tensor k of Paddle's WeightList; see `plain`.
  std::int64_t size_of(std::size_t k) const {
    if (k >= 2 * std::size_t(parts())) return row();
    return row() * (k % 2 ? units : inputs_of(int(k / 2) / directions));
  }

  onernn_spec spec() const {
    onernn_spec result{};
    result.cell = cell;
    result.stored = stored;
    result.layers = layers;
    result.directions = directions;
    result.joined = 1;
    result.inputs = inputs;
    result.units = result.width = units;
    result.gate.kind = function;
    result.candidate.kind = result.output.kind = ONERNN_TANH;
    result.gate_clip = result.cell_high = std::numeric_limits<double>::infinity();
    result.cell_low = -result.cell_high;
    return result;
  }
  onernn_spec part_spec(int part) const {
    onernn_spec result = spec();
    result.backwards = part % directions;
    result.layers = result.directions = 1;
    result.inputs = inputs_of(part / directions);
    return result;
  }

  /// Converts (G*O, K) with Paddle's gates to (K, G, O) with the library's gates, and back.
  void turn(const float* from, std::int64_t K, float* to) const { turn<false>(from, K, to); }
  void turn_back(const float* from, std::int64_t K, float* to) const { turn<true>(from, K, to); }

  /// Returns the weights of a part (one layer in one direction). `weights`: Paddle's WeightList,
  /// which is (w_ih, w_hh) of each part, then (b_ih, b_hh) of each part.
  Plain plain(const std::vector<const float*>& weights, int part) const {
    const std::int64_t I = inputs_of(part / directions);
    Plain result{std::vector<float>(I * row()), std::vector<float>(units * row()),
                 std::vector<float>(bias_rows() * units)};
    turn(weights[2 * part], I, result.input.data());
    turn(weights[2 * part + 1], units, result.recurrent.data());
    const float *of_input = weights[2 * (parts() + part)],
                *of_state = weights[2 * (parts() + part) + 1];
    for (std::size_t g = 0; g < gates.size(); ++g)
      for (std::int64_t o = 0; o < units; ++o) {
        const std::int64_t at = gates[g] * units + o;
        const bool apart = bias_rows() > row() / units && g + 1 == gates.size();
        result.bias[g * units + o] = of_input[at] + (apart ? 0 : of_state[at]);
        if (apart) result.bias[(g + 1) * units + o] = of_state[at];
      }
    return result;
  }

  /// Returns pointers to the weights of all parts in Paddle's memory.
  std::vector<onernn_unpacked> unpacked(const std::vector<const float*>& weights) const {
    std::vector<onernn_unpacked> result(parts());
    for (int part = 0; part < parts(); ++part) {
      onernn_unpacked& own = result[part];
      const std::int64_t I = inputs_of(part / directions);
      own.input.row = own.recurrent.row = 1;
      own.input.column = I;
      own.recurrent.column = units;
      const float *of_input = weights[2 * (parts() + part)],
                  *of_state = weights[2 * (parts() + part) + 1];
      for (std::size_t g = 0; g < gates.size(); ++g) {
        const std::int64_t row = gates[g] * units;
        own.input.gates[g] = weights[2 * part] + row * I;
        own.recurrent.gates[g] = weights[2 * part + 1] + row * units;
        own.bias[g][0] = of_input + row;
        const bool apart = bias_rows() > std::int64_t(gates.size()) && g + 1 == gates.size();
        own.bias[g + apart][!apart] = of_state + row;
      }
    }
    return result;
  }

  /// Writes a part's gradients in the layout of Paddle's WeightList.
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
    constexpr std::int64_t kBlock = 16;  // cache lines of both matrices stay in L1
    for (std::size_t g = 0; g < gates.size(); ++g)
      for (std::int64_t o = 0; o < units; o += kBlock)
        for (std::int64_t k = 0; k < K; k += kBlock)
          for (std::int64_t p = o; p < (std::min)(o + kBlock, units); ++p)
            for (std::int64_t q = k; q < (std::min)(k + kBlock, K); ++q) {
              const std::int64_t kernel_at = q * row() + std::int64_t(g) * units + p;
              const std::int64_t paddle_at = (gates[g] * units + p) * K + q;
              if (kBack)
                to[paddle_at] = from[kernel_at];
              else
                to[kernel_at] = from[paddle_at];
            }
  }
};

/// Padded sequences, (T, N, ...) or (N, T, ...). If `lengths` is empty, all lengths are T.
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
  void clear_padding(float* rows, std::int64_t width) const {
    if (lengths.empty()) return;
    for (std::int64_t n = 0; n < N; ++n)
      for (std::int64_t t = length(n); t < T; ++t) std::fill_n(rows + at(n, t) * width, width, 0.f);
  }
};

/// The initial and final states of one call, (layers * directions, N, units). c and c_n are nullptr
/// except for LSTM.
struct States {
  const float *h, *c;
  float *h_n, *c_n;
};

/// Trains a layer on a batch whose rows are sorted by step. Results have the same bits for any
/// number of threads.
class Training {
 public:
  Training(const Library& library, const Layer& layer, const Batch& batch)
      : library_(library), layer_(layer), batch_(batch), order_(batch.N), begin_{0} {
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](std::int64_t a, std::int64_t b) {
      return batch.length(a) > batch.length(b);
    });
    const std::int64_t steps = order_.empty() ? 0 : batch.length(order_[0]);
    for (std::int64_t t = 0; t < steps; ++t) {
      for (std::int64_t n : order_) {
        if (batch.length(n) <= t) break;
        rows_.push_back(batch.at(n, t));
      }
      begin_.push_back(words());
    }
  }

  std::int64_t tape_size() const {
    return words() *
           (layer_.inputs + (layer_.layers - 1) * layer_.wide() + layer_.parts() * per_part());
  }

  void forward(const std::vector<const float*>& weights, const float* x, const States& states,
               float* y, float* tape) const {
    const std::int64_t I = layer_.inputs, wide = layer_.wide();
    const auto parts = trainings(weights);
    batch_.clear_padding(y, wide);
    for (std::int64_t w = 0; w < words(); ++w) std::copy_n(x + rows_[w] * I, I, tape + w * I);
    std::vector<float> last(words() * wide);
    for (int l = 0; l < layer_.layers; ++l) {
      std::vector<Ends> ends = ends_of(states, l);
      std::vector<onernn_trained> row = trained(parts, ends, l, tape);
      for (int d = 0; d < layer_.directions; ++d)
        row[d].y = (l + 1 < layer_.layers ? read_at(tape, l + 1) : last.data()) + d * layer_.units;
      check(library_.training_forward(row.data(), layer_.directions, begin_.data(), steps()));
      put(ends, states, l);
    }
    for (std::int64_t w = 0; w < words(); ++w)
      std::copy_n(last.data() + w * wide, wide, y + rows_[w] * wide);
  }

  /// `states`: h and c are gradients of the final states. h_n and c_n receive gradients of the
  /// initial states.
  void backward(const std::vector<const float*>& weights, const float* dy, const States& states,
                float* dx, const std::vector<float*>& gradients, float* tape) const {
    const std::int64_t inputs = layer_.inputs, wide = layer_.wide();
    const auto parts = trainings(weights);
    batch_.clear_padding(dx, inputs);
    std::vector<float> above(words() * wide);
    for (std::int64_t w = 0; w < words(); ++w)
      std::copy_n(dy + rows_[w] * wide, wide, above.data() + w * wide);
    for (int l = layer_.layers - 1; l >= 0; --l) {
      const std::int64_t I = layer_.inputs_of(l);
      std::vector<float> below[] = {std::vector<float>(words() * I),
                                    std::vector<float>(layer_.directions > 1 ? words() * I : 0)};
      std::vector<Plain> sums(
          layer_.directions,
          {std::vector<float>(I * layer_.row()), std::vector<float>(layer_.units * layer_.row()),
           std::vector<float>(layer_.bias_rows() * layer_.units)});
      std::vector<Ends> ends = ends_of(states, l);
      std::vector<onernn_trained> row = trained(parts, ends, l, tape);
      for (int d = 0; d < layer_.directions; ++d) {
        row[d].y = above.data() + d * layer_.units;
        row[d].dx = below[d].data();
        row[d].gradients = sums[d].view();
      }
      check(library_.training_backward(row.data(), layer_.directions, begin_.data(), steps()));
      put(ends, states, l);
      for (int d = 0; d < layer_.directions; ++d)
        layer_.plain_back(sums[d], l * layer_.directions + d, gradients);
      for (std::size_t k = 0; k < below[1].size(); ++k) below[0][k] += below[1][k];
      above.swap(below[0]);
    }
    for (std::int64_t w = 0; w < words(); ++w)
      std::copy_n(above.data() + w * inputs, inputs, dx + rows_[w] * inputs);
  }

 private:
  using TrainingPart = std::unique_ptr<onernn_training, decltype(&::onernn_training_free)>;
  struct Ends {  // states of a part, longest sequence first
    std::vector<float> h, c;
  };

  std::int64_t words() const { return std::int64_t(rows_.size()); }
  std::int64_t steps() const { return std::int64_t(begin_.size()) - 1; }

  /// Returns the number of tape arrays (rows, units) of a part, without the gates.
  int extras() const { return layer_.cell == ONERNN_LSTM ? 4 : layer_.cell == ONERNN_RNN ? 1 : 2; }
  std::int64_t per_part() const { return layer_.row() + extras() * layer_.units; }

  /// Returns the input of a layer in the tape.
  float* read_at(float* tape, int l) const {
    if (!l) return tape;
    return tape +
           words() * (layer_.inputs + (l - 1) * layer_.wide() + l * layer_.directions * per_part());
  }
  onernn_tape tape_of(float* tape, int l, int d) const {
    float* read = read_at(tape, l);
    float* own = read + words() * (layer_.inputs_of(l) + d * per_part());
    float* h = own + words() * layer_.row();
    const auto more = [&](int k) {
      return k < extras() ? h + k * words() * layer_.units : nullptr;
    };
    return {read, nullptr, own, h, more(1), more(2), more(3)};
  }

  /// Returns the arguments for the directions of a layer, without y, dx and gradients.
  std::vector<onernn_trained> trained(const std::vector<TrainingPart>& parts,
                                      std::vector<Ends>& ends, int l, float* tape) const {
    std::vector<onernn_trained> row(layer_.directions);
    for (int d = 0; d < layer_.directions; ++d) {
      row[d].training = parts[l * layer_.directions + d].get();
      row[d].tape = tape_of(tape, l, d);
      row[d].y_row = layer_.wide();
      row[d].h = ends[d].h.data();
      row[d].c = ends[d].c.empty() ? nullptr : ends[d].c.data();
    }
    return row;
  }

  std::vector<TrainingPart> trainings(const std::vector<const float*>& weights) const {
    std::vector<TrainingPart> result;
    for (int part = 0; part < layer_.parts(); ++part) {
      const onernn_spec spec = layer_.part_spec(part);
      Plain plain = layer_.plain(weights, part);
      const onernn_weights arrays = plain.view();
      onernn_training* training = nullptr;
      check(library_.training_new(&spec, &arrays, layer_.threads, &training));
      result.emplace_back(training, library_.training_free);
    }
    return result;
  }

  /// Returns a layer's initial states; `put` stores its final states.
  std::vector<Ends> ends_of(const States& states, int l) const {
    const std::int64_t O = layer_.units;
    std::vector<Ends> ends(layer_.directions);
    for (int d = 0; d < layer_.directions; ++d) {
      const std::int64_t first = (l * layer_.directions + d) * batch_.N;
      for (std::int64_t n : order_) {
        const float* h = states.h + (first + n) * O;
        ends[d].h.insert(ends[d].h.end(), h, h + O);
        if (!states.c) continue;
        const float* c = states.c + (first + n) * O;
        ends[d].c.insert(ends[d].c.end(), c, c + O);
      }
    }
    return ends;
  }
  void put(const std::vector<Ends>& ends, const States& states, int l) const {
    const std::int64_t O = layer_.units;
    for (int d = 0; d < layer_.directions; ++d) {
      const std::int64_t first = (l * layer_.directions + d) * batch_.N;
      for (std::int64_t k = 0; k < batch_.N; ++k) {
        std::copy_n(ends[d].h.data() + k * O, O, states.h_n + (first + order_[k]) * O);
        if (states.c)
          std::copy_n(ends[d].c.data() + k * O, O, states.c_n + (first + order_[k]) * O);
      }
    }
  }

  const Library& library_;
  const Layer& layer_;
  const Batch& batch_;
  std::vector<std::int64_t> order_, begin_;  // sequences, longest first; first row of each step
  std::vector<std::int64_t> rows_;           // the position in x of each row
};

}  // namespace onernn_paddle

#endif
