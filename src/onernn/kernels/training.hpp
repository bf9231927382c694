// One direction of one recurrent layer, forward with all that backward needs, and backward.
//
// Equations forward: the cells' own headers; backward they are differentiated by hand. A word's
// gates stand side by side (gates, units). Backward, a step hands on what the step before it needs;
// the gradients by the input and by the weights are products over all words at once.
#ifndef ONERNN_TRAINING_HPP
#define ONERNN_TRAINING_HPP

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "isa.hpp"
#include "lanes.hpp"
#include "matrices.hpp"
#include "memory.hpp"
#include "trained_layer.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// The weights of one layer and direction in panels, forward and turned; many threads may read.
template <class Stored>
class Training {
 public:
  using Gradients = TrainedWeights<float>;

  Training(const TrainedLayer& layer, const TrainedWeights<const float>& weights)
      : is_(layer),
        G_(layer.gates()),
        O_(layer.units),
        R_(layer.width),
        row_(G_ * O_),
        bias_(4 * O_),
        peephole_(3 * O_),
        input_(weights.input, row_, 1, is_.inputs, row_),
        input_turned_(weights.input, 1, row_, row_, is_.inputs),
        gates_(weights.recurrent, row_, 1, R_, is_.together()),
        gates_turned_(weights.recurrent, 1, row_, is_.together(), R_),
        candidate_(candidate_of(weights), row_, 1, O_, O_),
        candidate_turned_(candidate_of(weights), 1, row_, O_, O_),
        projection_(weights.projection, R_, 1, O_, R_),
        projection_turned_(weights.projection, 1, R_, R_, O_),
        has_input_(weights.input) {
    if (weights.bias)
      std::copy_n(weights.bias, row_ + (is_.cell == TrainedLayer::kLbrGru) * O_, bias_.data());
    if (is_.peephole) std::copy_n(weights.peephole, 3 * O_, peephole_.data());
  }

  /// y: rows of `width` numbers, `y_row` apart. h (N, width) and c (N, units) are the initial
  /// states and become the final ones.
  void forward(const Steps& steps, const Tape& tape, float* y, std::int64_t y_row, float* h,
               float* c) const {
    Products<Stored> products(most());
    std::int64_t ready = 0;
    for (std::int64_t k = 0; k < steps.count; ++k) {
      if (k == ready) {
        const Words some = some_steps(steps, is_.backwards, kAhead, &ready);
        begin_gates(tape, some, products);
      }
      const std::int64_t t = is_.backwards ? steps.count - 1 - k : k;
      const std::int64_t w = steps.begin[t], n = steps.begin[t + 1] - w;
      float* before = tape.h + w * R_;
      std::copy_n(h, n * R_, before);
      products.multiply(before, R_, n, gates_, tape.gates + w * row_, row_, true);
      if (is_.cell == TrainedLayer::kLstm)
        lstm(tape, w, n, h, c, products);
      else if (is_.is_gru())
        gru(tape, w, n, h, products);
      else
        rows(n, [&](std::int64_t m, std::int64_t o, std::int64_t some) {
          float* a = tape.gates + (w + m) * O_ + o;
          const Floats after = is_.gate(load_some(a, some));
          store_some<float>(a, after, some);
          store_some<float>(h + m * O_ + o, after, some);
        });
      for (std::int64_t m = 0; m < n; ++m) std::copy_n(h + m * R_, R_, y + (w + m) * y_row);
    }
  }

  /// dy (W, width). dh and dc are the gradients by the final states and become those by the initial
  /// ones; dx (W, inputs) and, where the cell has it, that of the attention (W) are written.
  void backward(const Steps& steps, const Tape& tape, const float* dy, float* dh, float* dc,
                float* dx, float* dattention, const Gradients& into) const {
    Products<Stored> products(most());
    Memory<float> scratch(2 * steps.sequences() * (std::max)(O_, R_));
    Memory<float> outer(is_.projection ? steps.words() * R_ : 0);  // by each word's h
    std::int64_t ready = 0;
    Words words{0, 0};
    for (std::int64_t k = 0; k < steps.count; ++k) {
      if (k == ready) words = some_steps(steps, !is_.backwards, kSummed, &ready);
      const std::int64_t t = is_.backwards ? k : steps.count - 1 - k;
      const std::int64_t w = steps.begin[t], n = steps.begin[t + 1] - w;
      for (std::int64_t i = 0; i < n * R_; ++i) dh[i] += dy[w * R_ + i];
      float* gates = tape.gates + w * row_;
      if (is_.cell == TrainedLayer::kLstm) {
        const float* by_output = dh;
        if (is_.projection) {
          std::copy_n(dh, n * R_, outer.data() + w * R_);
          products.multiply(dh, R_, n, projection_turned_, scratch.data(), O_, false);
          by_output = scratch.data();
        }
        lstm_gradient(tape, w, n, by_output, dc, into.peephole);
      } else if (is_.is_gru()) {
        gru_gradient(tape, w, n, dh, scratch.data(), dattention, products);
      } else {
        rows(n, [&](std::int64_t m, std::int64_t o, std::int64_t some) {
          float* a = gates + m * O_ + o;
          const Floats slope = is_.gate.slope(load_some(a, some));
          store_some<float>(a, load_some(dh + m * O_ + o, some) * slope, some);
        });
      }
      products.multiply(gates, row_, n, gates_turned_, dh, R_, is_.is_gru());
      if (k + 1 == ready) finish(words, tape, outer.data(), dx, into, products);
    }
  }

 private:
  /// Words of some steps, so many at least, whose gates are still in the cache when they are read
  /// again: for the input's share of the gates, and for gradients by the weights.
  static constexpr std::int64_t kAhead = 240, kSummed = 448;
  struct Words {
    std::int64_t first, count;
  };

  /// The words from step `*end` on, in the order of steps or the other one; their end.
  static Words some_steps(const Steps& steps, bool reverse, std::int64_t least, std::int64_t* end) {
    const auto row = [&](std::int64_t k) { return steps.begin[reverse ? steps.count - k : k]; };
    const std::int64_t from = row(*end);
    while (*end < steps.count && std::abs(row(*end) - from) < least) ++*end;
    const std::int64_t to = row(*end);
    return {(std::min)(from, to), std::abs(to - from)};
  }

  /// Most numbers of a row that is multiplied.
  std::int64_t most() const { return (std::max)({is_.inputs, row_, R_}); }

  const float* candidate_of(const TrainedWeights<const float>& weights) const {
    return is_.is_gru() ? weights.recurrent + 2 * O_ : nullptr;
  }

  /// function(m, o, count) over n rows, sixteen units at a time.
  template <class Function>
  void rows(std::int64_t n, Function function) const {
    for (std::int64_t m = 0; m < n; ++m)
      for (std::int64_t o = 0; o < O_; o += 16) function(m, o, O_ - o);
  }

  /// The input's share of the gates, with the bias.
  void begin_gates(const Tape& tape, const Words& words, Products<Stored>& products) const {
    float* gates = tape.gates + words.first * row_;
    for (std::int64_t w = 0; w < words.count; ++w)
      std::copy_n(bias_.data(), row_, gates + w * row_);
    if (has_input_)
      products.multiply(tape.x + words.first * is_.inputs, is_.inputs, words.count, input_, gates,
                        row_, true);
    else
      for (std::int64_t i = 0; i < words.count * row_; ++i)
        gates[i] += tape.x[words.first * row_ + i];
  }

  void lstm(const Tape& tape, std::int64_t w, std::int64_t n, float* h, float* c,
            Products<Stored>& products) const {
    rows(n, [&](std::int64_t m, std::int64_t o, std::int64_t some) {
      const std::int64_t at = (w + m) * O_ + o;
      float* a = tape.gates + (w + m) * 4 * O_ + o;
      const auto sum = [&](std::int64_t g) { return load_some(a + g * O_, some); };
      const auto seen = [&](std::int64_t p, Floats state) {
        const Floats weights = load_some(peephole_.data() + p * O_ + o, some);
        return is_.peephole ? weights * state : weights;  // 0 * inf would be NaN
      };
      const Floats one = broadcast(1.0f), before = load_some(c + m * O_ + o, some);
      const Floats i = is_.gate(sum(0) + seen(0, before)), g = is_.candidate(sum(2));
      const Floats f = is_.input_forget ? one - i : is_.gate(sum(1) + seen(1, before));
      const Floats after = is_.clip_cell(multiply_add(f, before, i * g));
      const Floats out = is_.gate(sum(3) + seen(2, after)), shown = is_.output(after);
      const Floats gates[] = {i, f, g, out};
      for (int k = 0; k < 4; ++k) store_some<float>(a + k * O_, gates[k], some);
      store_some<float>(c + m * O_ + o, after, some);
      store_some<float>(tape.one + at, before, some);
      store_some<float>(tape.two + at, out * shown, some);
      store_some<float>(tape.three + at, shown, some);
    });
    const float* outputs = tape.two + w * O_;
    if (is_.projection)
      products.multiply(outputs, O_, n, projection_, h, R_, false);
    else
      std::copy_n(outputs, n * O_, h);
  }

  void gru(const Tape& tape, std::int64_t w, std::int64_t n, float* h,
           Products<Stored>& products) const {
    const bool lbr = is_.cell == TrainedLayer::kLbrGru;
    float *gates = tape.gates + w * 3 * O_, *one = tape.one + w * O_;
    rows(n, [&](std::int64_t m, std::int64_t o, std::int64_t some) {
      float *a = gates + m * 3 * O_ + o, *kept = one + m * O_ + o;
      const Floats u = is_.gate(load_some(a, some)), r = is_.gate(load_some(a + O_, some));
      store_some<float>(a, u, some);
      store_some<float>(a + O_, r, some);
      const float* from = lbr ? bias_.data() + 3 * O_ + o : h + m * O_ + o;
      const Floats other = load_some(from, some);
      store_some<float>(kept, lbr ? other : r * other, some);
    });
    if (lbr)
      products.multiply(tape.h + w * O_, O_, n, candidate_, one, O_, true);
    else
      products.multiply(one, O_, n, candidate_, gates + 2 * O_, 3 * O_, true);
    rows(n, [&](std::int64_t m, std::int64_t o, std::int64_t some) {
      float *a = gates + m * 3 * O_ + o, *state = h + m * O_ + o;
      Floats sum = load_some(a + 2 * O_, some);
      if (lbr) sum = multiply_add(load_some(a + O_, some), load_some(one + m * O_ + o, some), sum);
      const Floats out = is_.candidate(sum), keep = kept(tape, w + m, load_some(a, some));
      store_some<float>(a + 2 * O_, out, some);
      const Floats after =
          multiply_add(keep, load_some(state, some), (broadcast(1.0f) - keep) * out);
      store_some<float>(state, after, some);
    });
  }

  /// How much of h stays, from the update gate of word w.
  Floats kept(const Tape& tape, std::int64_t w, Floats u) const {
    if (is_.attention) u = broadcast(1.0f - tape.attention[w]) * u;
    return is_.replaces ? broadcast(1.0f) - u : u;
  }

  void lstm_gradient(const Tape& tape, std::int64_t w, std::int64_t n, const float* dh, float* dc,
                     float* dpeephole) const {
    rows(n, [&](std::int64_t m, std::int64_t o, std::int64_t some) {
      const std::int64_t at = (w + m) * O_ + o;
      float* a = tape.gates + (w + m) * 4 * O_ + o;
      const auto gate = [&](std::int64_t g) { return load_some(a + g * O_, some); };
      const auto peephole = [&](std::int64_t p) {
        return load_some(peephole_.data() + p * O_ + o, some);
      };
      Floats i = gate(0), f = gate(1), g = gate(2), c = load_some(tape.one + at, some);
      const Floats out = gate(3), shown = load_some(tape.three + at, some);
      const Floats sum = multiply_add(f, c, i * g);
      for (Floats* part : {&i, &f, &g, &c}) *part = is_.clip_cell.kept(*part);
      const Floats by_h = load_some(dh + m * O_ + o, some);
      const Floats dout = by_h * shown * is_.gate.slope(out);
      Floats by_c =
          multiply_add(by_h * out, is_.output.slope(shown), load_some(dc + m * O_ + o, some));
      by_c = multiply_add(dout, peephole(2), by_c);
      if (is_.clip_cell.given) by_c = by_c * is_.clip_cell.slope(sum);
      Floats di = by_c * g, df = by_c * c;
      if (is_.input_forget) {
        di = di - df;
        df = broadcast(0.0f);
      }
      di = di * is_.gate.slope(i);
      df = df * is_.gate.slope(f);
      const Floats gates[] = {di, df, by_c * i * is_.candidate.slope(g), dout};
      for (int k = 0; k < 4; ++k) store_some<float>(a + k * O_, gates[k], some);
      const Floats through = multiply_add(di, peephole(0), df * peephole(1));
      store_some<float>(dc + m * O_ + o, multiply_add(by_c, f, through), some);
      if (dpeephole) {
        const Floats seen[] = {di * c, df * c, dout * is_.clip_cell(sum)};
        for (int p = 0; p < 3; ++p) {
          float* to = dpeephole + p * O_ + o;
          store_some<float>(to, load_some(to, some) + seen[p], some);
        }
      }
    });
  }

  /// `scratch`: (N, units), twice. LBR: tape.one becomes the gradient by what r is multiplied by.
  void gru_gradient(const Tape& tape, std::int64_t w, std::int64_t n, float* dh, float* scratch,
                    float* dattention, Products<Stored>& products) const {
    const bool lbr = is_.cell == TrainedLayer::kLbrGru;
    float *gates = tape.gates + w * 3 * O_, *one = tape.one + w * O_;
    const float* h = tape.h + w * O_;
    const Floats unit = broadcast(1.0f);
    if (is_.attention) std::fill_n(dattention + w, n, 0.0f);
    rows(n, [&](std::int64_t m, std::int64_t o, std::int64_t some) {
      float* a = gates + m * 3 * O_ + o;
      const std::int64_t at = m * O_ + o;
      const Floats u = load_some(a, some), r = load_some(a + O_, some);
      const Floats out = load_some(a + 2 * O_, some), by_h = load_some(dh + at, some);
      const Floats keep = kept(tape, w + m, u);
      Floats du = by_h * (load_some(h + at, some) - out);
      if (is_.replaces) du = broadcast(0.0f) - du;
      if (is_.attention) {
        float products_[16];
        store(products_, du * u);
        for (float v : products_) dattention[w + m] -= v;
        du = broadcast(1.0f - tape.attention[w + m]) * du;
      }
      const Floats dout = by_h * (unit - keep) * is_.candidate.slope(out);
      store_some<float>(a, du * is_.gate.slope(u), some);
      store_some<float>(a + 2 * O_, dout, some);
      store_some<float>(dh + at, by_h * keep, some);
      if (lbr) {
        const Floats dr = dout * load_some(one + at, some);
        store_some<float>(a + O_, dr * is_.gate.slope(r), some);
        store_some<float>(one + at, dout * r, some);
      }
    });
    if (lbr) return products.multiply(one, O_, n, candidate_turned_, dh, O_, true);
    products.multiply(gates + 2 * O_, 3 * O_, n, candidate_turned_, scratch, O_, false);
    rows(n, [&](std::int64_t m, std::int64_t o, std::int64_t some) {
      float* a = gates + m * 3 * O_ + o;
      const std::int64_t at = m * O_ + o;
      const Floats r = load_some(a + O_, some), inside = load_some(scratch + at, some);
      const Floats by_h = load_some(dh + at, some);
      store_some<float>(dh + at, multiply_add(inside, r, by_h), some);
      const Floats dr = inside * load_some(h + at, some);
      store_some<float>(a + O_, dr * is_.gate.slope(r), some);
    });
  }

  /// The gradients by the input and by the weights, from those by the gates of some words.
  void finish(const Words& words, const Tape& tape, const float* by_h, float* dx,
              const Gradients& into, Products<Stored>& products) const {
    const auto [first, count] = words;
    const bool lbr = is_.cell == TrainedLayer::kLbrGru;
    const float *gates = tape.gates + first * row_, *one = tape.one + first * O_;
    const float *x = tape.x + first * is_.inputs, *h = tape.h + first * R_;
    dx += first * is_.inputs;
    if (has_input_) {
      products.multiply(gates, row_, count, input_turned_, dx, is_.inputs, false);
      products.outer(x, is_.inputs, gates, row_, row_, count, into.input, row_);
    } else {
      std::copy_n(gates, count * row_, dx);
    }
    products.outer(h, R_, gates, row_, is_.together(), count, into.recurrent, row_);
    float* candidate = into.recurrent + 2 * O_;
    if (lbr)
      products.outer(h, R_, one, O_, O_, count, candidate, row_);
    else if (is_.is_gru())
      products.outer(one, O_, gates + 2 * O_, row_, O_, count, candidate, row_);
    if (into.bias) {
      add_up(gates, count, row_, into.bias);
      if (lbr) add_up(one, count, O_, into.bias + 3 * O_);
    }
    if (is_.projection)
      products.outer(tape.two + first * O_, O_, by_h + first * R_, R_, R_, count, into.projection,
                     R_);
  }

  static void add_up(const float* from, std::int64_t rows, std::int64_t count, float* to) {
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = 0; i < count; ++i) to[i] += from[row * count + i];
  }

  TrainedLayer is_;
  std::int64_t G_, O_, R_, row_;  // row_: numbers of a word's gates
  Memory<float> bias_, peephole_;
  Matrix<Stored> input_, input_turned_, gates_, gates_turned_;
  Matrix<Stored> candidate_, candidate_turned_;  // of a GRU
  Matrix<Stored> projection_, projection_turned_;
  bool has_input_;
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
