// One direction of one recurrent layer: a forward pass that stores what the backward pass needs,
// and the backward pass.
//
// The headers of the cells have the equations of the forward pass; the equations of the backward
// pass were derived by hand. The gates of a step are (gates, units). In the backward pass, each
// step passes on what the step before it needs. The gradients of the input and of the weights are
// products over all steps at once.
#ifndef ONERNN_TRAINING_HPP
#define ONERNN_TRAINING_HPP

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "../isa.hpp"
#include "../lanes.hpp"
#include "../matrices.hpp"
#include "../memory.hpp"
#include "../products.hpp"
#include "../team.hpp"
#include "any_stack.hpp"
#include "exported.hpp"
#include "runtime_traits.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// The rows of sorted sequences, step by step: step t has the rows begin[t] to begin[t + 1].
struct Steps {
  const std::int64_t* begin;
  std::int64_t count;

  std::int64_t words() const { return begin[count]; }
  std::int64_t sequences() const { return count ? begin[1] : 0; }
};

/// Returns the derivative of a gate's function, computed from the function's value. For a relu at 0
/// it is 0.
inline Floats slope(const onernn_function& function, Floats y) {
  const Floats one = broadcast(1.0f);
  switch (function.kind) {
    case ONERNN_SIGMOID:
      return y * (one - y);
    case ONERNN_TANH:
      return one - y * y;
    case ONERNN_RELU:
      return each<float>(y, [](float v) { return v > 0 ? 1.0f : 0.0f; });
    default:
      return one;
  }
}
/// Returns the derivative of the clipping of the state c, before it is clipped: 1 within the
/// bounds, else 0.
inline Floats slope(const AnyClip<float>& clip, Floats c) {
  return each<float>(c, [&](float v) { return v >= clip.low && v <= clip.high ? 1.0f : 0.0f; });
}
/// Returns a factor of the state's gradient. If a bound replaces NaN, a factor that is not finite
/// becomes 0: the derivative is 0 for a NaN state, and 0 * NaN would be NaN.
inline Floats kept_factor(const AnyClip<float>& clip, Floats factor) {
  if (!clip.nan_is_low) return factor;
  return each<float>(factor, [](float v) { return v - v == 0 ? v : 0.0f; });
}

}  // namespace ONERNN_ISA
}  // namespace onernn

/// The training that kernels.h declares, for any type of stored weights.
struct onernn_training {
  onernn_training(const onernn_spec& of, std::int32_t threads) : spec(of), team(threads) {}
  virtual ~onernn_training() = default;
  /// Runs the forward pass. Sequences are divided into `groups` groups, each of which one member of
  /// the team runs; below 2, all members share each step. The results are the same.
  virtual void forward(const onernn::Steps& steps, const onernn_trained& one, std::int64_t groups,
                       onernn::Team& team) const = 0;
  virtual void backward(const onernn::Steps& steps, const onernn_trained& one, std::int64_t groups,
                        onernn::Team& team) const = 0;

  const onernn_spec spec;
  mutable onernn::Team team;
};

namespace onernn {
inline namespace ONERNN_ISA {

/// The weights of one layer and direction in panels, both as they are and transposed. Many threads
/// may read them.
template <class Stored>
class Training final : public onernn_training {
  using Held = Scope<typename FactorOf<float, Stored>::Type, Stored>;

 public:
  Training(const onernn_spec& of, const onernn_weights& weights, std::int32_t threads)
      : onernn_training(of, threads),
        is_(of),
        O_(of.units),
        R_(of.width),
        row_(gates_of(of) * O_),
        bias_(4 * O_),
        peephole_(3 * O_),
        input_(weights.input, row_, 1, is_.inputs, row_),
        input_turned_(weights.input, 1, row_, row_, is_.inputs),
        gates_(weights.recurrent, row_, 1, R_, together()),
        gates_turned_(weights.recurrent, 1, row_, together(), R_),
        candidate_(candidate_of(weights), row_, 1, O_, O_),
        candidate_turned_(candidate_of(weights), 1, row_, O_, O_),
        projection_(weights.projection, R_, 1, O_, R_),
        projection_turned_(weights.projection, 1, R_, R_, O_),
        has_input_(weights.input) {
    if (weights.bias) std::copy_n(weights.bias, row_ + is_lbr() * O_, bias_.data());
    if (is_.peephole) std::copy_n(weights.peephole, 3 * O_, peephole_.data());
  }

  void forward(const Steps& steps, const onernn_trained& one, std::int64_t groups,
               Team& team) const override {
    [[maybe_unused]] const Held scope{};
    const onernn_tape& tape = one.tape;
    float* const h = one.h;
    std::vector<Products<Stored>> own = products(groups, team);
    Team alone(1);
    // If the threads do not share steps, the gates of these steps should stay in one core's cache.
    const bool shared = groups > 1 || team.is_worth_it(steps.sequences() * R_ * row_);
    for (std::int64_t k = 0, end = 0; k < steps.count; k = end) {
      const std::int64_t least = kAhead * (shared ? team.members() : 1);
      const Words words = some_steps(steps, spec.backwards, least, &end);
      by_words(words, is_.inputs * row_, own, shared ? team : alone,
               [&](const Words& some, Products<Stored>& products, Team& team) {
                 begin_gates(tape, some, products, team);
               });
      by_sequences(words, groups, own, team, [&](Step at, Products<Stored>& products, Team& team) {
        for (std::int64_t j = k; j < end; ++j) {
          at.step(steps, spec.backwards ? steps.count - 1 - j : j);
          each_row(at, [&](std::int64_t m) {
            std::copy_n(h + m * R_, R_, tape.h + (at.word + m) * R_);
          });
          multiply(at, tape.h + at.word * R_, R_, gates_, tape.gates + at.word * row_, row_, true,
                   products, team);
          if (spec.cell == ONERNN_LSTM)
            lstm(tape, at, h, one.c, products, team);
          else if (is_gru())
            gru(tape, at, h, products, team);
          else
            units(at, team, [&](std::int64_t m, std::int64_t o, std::int64_t some) {
              float* a = tape.gates + (at.word + m) * O_ + o;
              const Floats after = is_.gate(load_some(a, some));
              store_some<float>(a, after, some);
              store_some<float>(h + m * O_ + o, after, some);
            });
          each_row(at, [&](std::int64_t m) {
            std::copy_n(h + m * R_, R_, one.y + (at.word + m) * one.y_row);
          });
        }
      });
    }
  }

  /// Overwrites the tape. With peepholes, tape.three becomes the cell state after the step. For
  /// ONERNN_LBR_GRU, tape.one becomes the gradient of the factor that r is multiplied by.
  void backward(const Steps& steps, const onernn_trained& one, std::int64_t groups,
                Team& team) const override {
    [[maybe_unused]] const Held scope{};
    const onernn_tape& tape = one.tape;
    float *const dh = one.h, *const dx = one.dx;
    std::vector<Products<Stored>> own = products(groups, team);
    OuterProducts<Stored> sums((std::max)({is_.inputs, R_, O_}),
                               (std::min)(steps.words(), kSummed + steps.sequences()),
                               team.members());
    Memory<float> scratch(steps.sequences() * O_);
    Memory<float> outer(is_.projection ? steps.words() * R_ : 0);  // gradients of h, per row
    for (std::int64_t k = 0, end = 0; k < steps.count; k = end) {
      const Words words = some_steps(steps, !spec.backwards, kSummed, &end);
      by_sequences(words, groups, own, team, [&](Step at, Products<Stored>& products, Team& team) {
        for (std::int64_t j = k; j < end; ++j) {
          at.step(steps, spec.backwards ? j : steps.count - 1 - j);
          each_row(at, [&](std::int64_t m) {
            const float* const dy = one.y + (at.word + m) * one.y_row;
            for (std::int64_t i = 0; i < R_; ++i) dh[m * R_ + i] += dy[i];
          });
          float* gates = tape.gates + at.word * row_;
          if (spec.cell == ONERNN_LSTM) {
            if (is_.projection) {
              each_row(at, [&](std::int64_t m) {
                std::copy_n(dh + m * R_, R_, outer.data() + (at.word + m) * R_);
              });
              multiply(at, dh, R_, projection_turned_, scratch.data(), O_, false, products, team);
            }
            lstm_gradient(tape, at, is_.projection ? scratch.data() : dh, one.c, team);
          } else if (is_gru()) {
            gru_gradient(tape, at, dh, scratch.data(), one.dattention, products, team);
          } else {
            units(at, team, [&](std::int64_t m, std::int64_t o, std::int64_t some) {
              float* a = gates + m * O_ + o;
              const Floats by = slope(spec.gate, load_some(a, some));
              store_some<float>(a, load_some(dh + m * O_ + o, some) * by, some);
            });
          }
          multiply(at, gates, row_, gates_turned_, dh, R_, is_gru(), products, team);
        }
      });
      if (has_input_)
        by_words(words, is_.inputs * row_, own, team,
                 [&](const Words& some, Products<Stored>& products, Team& team) {
                   products.multiply(tape.gates + some.first * row_, row_, some.count,
                                     input_turned_, dx + some.first * is_.inputs, is_.inputs, false,
                                     team);
                 });
      else
        std::copy_n(tape.gates + words.first * row_, words.count * row_, dx + words.first * row_);
      add_weights(words, tape, outer.data(), one.gradients, sums, team);
    }
  }

 private:
  /// Rows of some successive steps, whose gates are still in the cache when they are read again.
  /// kAhead rows (or a few more) are projected together, kSummed rows are summed for the gradients
  /// of the weights.
  static constexpr std::int64_t kAhead = 240, kSummed = 448;
  struct Words {
    std::int64_t first, count;
  };

  /// Returns the rows from step `*end` on, in the order of steps or in reverse, at least `least`
  /// rows if there are so many. Moves `*end` to the step after them.
  static Words some_steps(const Steps& steps, bool reverse, std::int64_t least, std::int64_t* end) {
    const auto row = [&](std::int64_t k) { return steps.begin[reverse ? steps.count - k : k]; };
    const std::int64_t from = row(*end);
    while (*end < steps.count && std::abs(row(*end) - from) < least) ++*end;
    const std::int64_t to = row(*end);
    return {(std::min)(from, to), std::abs(to - from)};
  }

  /// Some sequences of one step: its rows `first`, `first` + `every`, ... below `rows`. The step's
  /// own rows begin at row `word`.
  struct Step {
    std::int64_t first, every, word = 0, rows = 0;

    void step(const Steps& steps, std::int64_t t) {
      word = steps.begin[t];
      rows = steps.begin[t + 1] - word;
    }
    std::int64_t count() const { return rows > first ? (rows - first + every - 1) / every : 0; }
  };

  /// Returns one object for each piece of work that may run at the same time, because members of
  /// the team allocate nothing.
  std::vector<Products<Stored>> products(std::int64_t groups, const Team& team) const {
    std::vector<Products<Stored>> own;
    for (std::int64_t i = 0; i < (std::max<std::int64_t>)(groups, team.members()); ++i)
      own.emplace_back(most());
    return own;
  }

  /// Calls function(step without rows, products, team) for each group of sequences.
  template <class Function>
  void by_sequences(const Words& words, std::int64_t groups, std::vector<Products<Stored>>& own,
                    Team& team, Function function) const {
    if (groups < 2) return function(Step{0, 1}, own[0], team);
    team.split(groups, words.count * R_ * row_ / groups, [&](std::int64_t g, std::int64_t end) {
      [[maybe_unused]] const Held scope{};
      Team alone(1);
      for (; g < end; ++g) function(Step{g, groups}, own[static_cast<std::size_t>(g)], alone);
    });
  }

  /// Calls function(rows, products, team) for parts of the rows, one part per member. Each row
  /// takes `each` multiplications.
  template <class Function>
  static void by_words(const Words& words, std::int64_t each, std::vector<Products<Stored>>& own,
                       Team& team, Function function) {
    const std::int64_t pieces =
        (std::max<std::int64_t>)((std::min<std::int64_t>)(words.count / 16, team.members()), 1);
    if (pieces < 2) return function(words, own[0], team);
    team.split(pieces, words.count * each / pieces, [&](std::int64_t piece, std::int64_t end) {
      Team alone(1);
      for (; piece < end; ++piece) {
        const std::int64_t from = words.count * piece / pieces;
        function({words.first + from, words.count * (piece + 1) / pieces - from},
                 own[static_cast<std::size_t>(piece)], alone);
      }
    });
  }

  /// Computes rows of y = rows of x times a matrix, or y += that product if `added`.
  static void multiply(const Step& at, const float* x, std::int64_t x_row,
                       const Matrix<Stored>& matrix, float* y, std::int64_t y_row, bool added,
                       Products<Stored>& products, Team& team) {
    products.multiply(x + at.first * x_row, at.every * x_row, at.count(), matrix,
                      y + at.first * y_row, at.every * y_row, added, team);
  }

  bool is_lbr() const { return spec.cell == ONERNN_LBR_GRU; }
  bool is_gru() const { return spec.cell == ONERNN_GRU || is_lbr(); }
  /// Returns how many columns of gates are multiplied with h first. A GRU's candidate is multiplied
  /// separately.
  std::int64_t together() const { return is_gru() ? 2 * O_ : row_; }
  /// Returns the largest number of elements in a row that is multiplied.
  std::int64_t most() const { return (std::max)({is_.inputs, row_, R_}); }

  const float* candidate_of(const onernn_weights& weights) const {
    return is_gru() ? weights.recurrent + 2 * O_ : nullptr;
  }

  template <class Function>
  static void each_row(const Step& at, Function function) {
    for (std::int64_t m = at.first; m < at.rows; m += at.every) function(m);
  }

  /// Calls function(m, o, count) for all rows m, and sixteen units from unit o on at a time.
  template <class Function>
  void units(const Step& at, Team& team, Function function) const {
    // The functions of one unit take as long as so many multiplications.
    constexpr std::int64_t kEach = 128;
    team.split(at.count(), O_ * kEach, [&](std::int64_t row, std::int64_t end) {
      for (; row < end; ++row)
        for (std::int64_t o = 0; o < O_; o += 16) function(at.first + row * at.every, o, O_ - o);
    });
  }

  /// Computes the input's share of the gates, with the bias.
  void begin_gates(const onernn_tape& tape, const Words& words, Products<Stored>& products,
                   Team& team) const {
    float* gates = tape.gates + words.first * row_;
    for (std::int64_t w = 0; w < words.count; ++w)
      std::copy_n(bias_.data(), row_, gates + w * row_);
    if (has_input_)
      products.multiply(tape.x + words.first * is_.inputs, is_.inputs, words.count, input_, gates,
                        row_, true, team);
    else
      for (std::int64_t i = 0; i < words.count * row_; ++i)
        gates[i] += tape.x[words.first * row_ + i];
  }

  void lstm(const onernn_tape& tape, const Step& at, float* h, float* c, Products<Stored>& products,
            Team& team) const {
    const std::int64_t w = at.word;
    units(at, team, [&](std::int64_t m, std::int64_t o, std::int64_t some) {
      const std::int64_t word = (w + m) * O_ + o;
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
      store_some<float>(tape.one + word, before, some);
      store_some<float>(tape.two + word, out * shown, some);
      store_some<float>(tape.three + word, shown, some);
    });
    const float* outputs = tape.two + w * O_;
    if (is_.projection)
      multiply(at, outputs, O_, projection_, h, R_, false, products, team);
    else
      each_row(at, [&](std::int64_t m) { std::copy_n(outputs + m * O_, O_, h + m * O_); });
  }

  void gru(const onernn_tape& tape, const Step& at, float* h, Products<Stored>& products,
           Team& team) const {
    const std::int64_t w = at.word;
    const bool lbr = is_lbr();
    float *gates = tape.gates + w * 3 * O_, *one = tape.one + w * O_;
    units(at, team, [&](std::int64_t m, std::int64_t o, std::int64_t some) {
      float *a = gates + m * 3 * O_ + o, *kept = one + m * O_ + o;
      const Floats u = is_.gate(load_some(a, some)), r = is_.gate(load_some(a + O_, some));
      store_some<float>(a, u, some);
      store_some<float>(a + O_, r, some);
      const float* from = lbr ? bias_.data() + 3 * O_ + o : h + m * O_ + o;
      const Floats other = load_some(from, some);
      store_some<float>(kept, lbr ? other : r * other, some);
    });
    if (lbr)
      multiply(at, tape.h + w * O_, O_, candidate_, one, O_, true, products, team);
    else
      multiply(at, one, O_, candidate_, gates + 2 * O_, 3 * O_, true, products, team);
    units(at, team, [&](std::int64_t m, std::int64_t o, std::int64_t some) {
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

  /// Returns the factor of the old h in the next one, from the update gates of row w.
  Floats kept(const onernn_tape& tape, std::int64_t w, Floats u) const {
    if (is_.attention) u = broadcast(1.0f - tape.attention[w]) * u;
    return is_.replaces ? broadcast(1.0f) - u : u;
  }

  void lstm_gradient(const onernn_tape& tape, const Step& at, const float* dh, float* dc,
                     Team& team) const {
    const std::int64_t w = at.word;
    units(at, team, [&](std::int64_t m, std::int64_t o, std::int64_t some) {
      const std::int64_t word = (w + m) * O_ + o;
      float* a = tape.gates + (w + m) * 4 * O_ + o;
      const auto gate = [&](std::int64_t g) { return load_some(a + g * O_, some); };
      const auto peephole = [&](std::int64_t p) {
        return load_some(peephole_.data() + p * O_ + o, some);
      };
      Floats i = gate(0), f = gate(1), g = gate(2), c = load_some(tape.one + word, some);
      const Floats out = gate(3), shown = load_some(tape.three + word, some);
      const Floats sum = multiply_add(f, c, i * g);
      for (Floats* part : {&i, &f, &g, &c}) *part = kept_factor(is_.clip_cell, *part);
      const Floats by_h = load_some(dh + m * O_ + o, some);
      const Floats dout = by_h * shown * slope(spec.gate, out);
      Floats by_c =
          multiply_add(by_h * out, slope(spec.output, shown), load_some(dc + m * O_ + o, some));
      by_c = multiply_add(dout, peephole(2), by_c);
      if (!is_.clip_cell.is_none) by_c = by_c * slope(is_.clip_cell, sum);
      Floats di = by_c * g, df = by_c * c;
      if (is_.input_forget) {
        di = di - df;
        df = broadcast(0.0f);
      }
      di = di * slope(spec.gate, i);
      df = df * slope(spec.gate, f);
      const Floats gates[] = {di, df, by_c * i * slope(spec.candidate, g), dout};
      for (int k = 0; k < 4; ++k) store_some<float>(a + k * O_, gates[k], some);
      const Floats through = multiply_add(di, peephole(0), df * peephole(1));
      store_some<float>(dc + m * O_ + o, multiply_add(by_c, f, through), some);
      if (is_.peephole) store_some<float>(tape.three + word, is_.clip_cell(sum), some);
    });
  }

  /// `scratch` has the shape (N, units).
  void gru_gradient(const onernn_tape& tape, const Step& at, float* dh, float* scratch,
                    float* dattention, Products<Stored>& products, Team& team) const {
    const std::int64_t w = at.word;
    const bool lbr = is_lbr();
    float *gates = tape.gates + w * 3 * O_, *one = tape.one + w * O_;
    const float* h = tape.h + w * O_;
    const Floats whole = broadcast(1.0f);
    units(at, team, [&](std::int64_t m, std::int64_t o, std::int64_t some) {
      float* a = gates + m * 3 * O_ + o;
      const std::int64_t unit = m * O_ + o;
      const Floats u = load_some(a, some), r = load_some(a + O_, some);
      const Floats out = load_some(a + 2 * O_, some), by_h = load_some(dh + unit, some);
      const Floats keep = kept(tape, w + m, u);
      Floats du = by_h * (load_some(h + unit, some) - out);
      if (is_.replaces) du = broadcast(0.0f) - du;
      if (is_.attention) {
        float products_[16];
        store(products_, du * u);
        if (o == 0) dattention[w + m] = 0;
        for (float v : products_) dattention[w + m] -= v;
        du = broadcast(1.0f - tape.attention[w + m]) * du;
      }
      const Floats dout = by_h * (whole - keep) * slope(spec.candidate, out);
      store_some<float>(a, du * slope(spec.gate, u), some);
      store_some<float>(a + 2 * O_, dout, some);
      store_some<float>(dh + unit, by_h * keep, some);
      if (lbr) {
        const Floats dr = dout * load_some(one + unit, some);
        store_some<float>(a + O_, dr * slope(spec.gate, r), some);
        store_some<float>(one + unit, dout * r, some);
      }
    });
    if (lbr) return multiply(at, one, O_, candidate_turned_, dh, O_, true, products, team);
    multiply(at, gates + 2 * O_, 3 * O_, candidate_turned_, scratch, O_, false, products, team);
    units(at, team, [&](std::int64_t m, std::int64_t o, std::int64_t some) {
      float* a = gates + m * 3 * O_ + o;
      const std::int64_t unit = m * O_ + o;
      const Floats r = load_some(a + O_, some), inside = load_some(scratch + unit, some);
      const Floats by_h = load_some(dh + unit, some);
      store_some<float>(dh + unit, multiply_add(inside, r, by_h), some);
      const Floats dr = inside * load_some(h + unit, some);
      store_some<float>(a + O_, dr * slope(spec.gate, r), some);
    });
  }

  /// Adds the gradients of the weights, from the gradients of the gates of some rows.
  void add_weights(const Words& words, const onernn_tape& tape, const float* by_h,
                   const onernn_weights& into, OuterProducts<Stored>& sums, Team& team) const {
    const auto [first, count] = words;
    const bool lbr = is_lbr();
    const float *gates = tape.gates + first * row_, *one = tape.one + first * O_;
    const float* h = tape.h + first * R_;
    const auto add = [&, count = count](const float* a, std::int64_t I, const float* b,
                                        std::int64_t b_row, std::int64_t C, float* y,
                                        std::int64_t y_row) {
      sums.add(a, I, b, b_row, C, count, y, y_row, team);
    };
    if (has_input_)
      add(tape.x + first * is_.inputs, is_.inputs, gates, row_, row_, into.input, row_);
    add(h, R_, gates, row_, together(), into.recurrent, row_);
    float* candidate = into.recurrent + 2 * O_;
    if (lbr)
      add(h, R_, one, O_, O_, candidate, row_);
    else if (is_gru())
      add(one, O_, gates + 2 * O_, row_, O_, candidate, row_);
    if (into.bias) {
      add_up(gates, count, row_, into.bias, team);
      if (lbr) add_up(one, count, O_, into.bias + 3 * O_, team);
    }
    if (into.peephole) add_peepholes(words, tape, into.peephole, team);
    if (is_.projection)
      add(tape.two + first * O_, O_, by_h + first * R_, R_, R_, into.projection, R_);
  }

  static void add_up(const float* from, std::int64_t rows, std::int64_t count, float* to,
                     Team& team) {
    team.split((count + 63) / 64, rows * 64, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t i = begin * 64; i < (std::min)(end * 64, count); ++i)
          to[i] += from[row * count + i];
    });
  }

  void add_peepholes(const Words& words, const onernn_tape& tape, float* to, Team& team) const {
    team.split(panels_of(O_), words.count * 3 * 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t o = begin * 16; o < (std::min)(end * 16, O_); o += 16) {
        const std::int64_t some = O_ - o;
        Floats sums[3];
        for (int p = 0; p < 3; ++p) sums[p] = load_some(to + p * O_ + o, some);
        for (std::int64_t w = words.first; w < words.first + words.count; ++w) {
          const float* a = tape.gates + w * row_ + o;
          const Floats before = kept_factor(is_.clip_cell, load_some(tape.one + w * O_ + o, some));
          const Floats after = load_some(tape.three + w * O_ + o, some);
          sums[0] = sums[0] + load_some(a, some) * before;
          sums[1] = sums[1] + load_some(a + O_, some) * before;
          sums[2] = sums[2] + load_some(a + 3 * O_, some) * after;
        }
        for (int p = 0; p < 3; ++p) store_some<float>(to + p * O_ + o, sums[p], some);
      }
    });
  }

  RuntimeTraits<float, float> is_;
  std::int64_t O_, R_, row_;  // row_: numbers of a row's gates
  Memory<float> bias_, peephole_;
  Matrix<Stored> input_, input_turned_, gates_, gates_turned_;
  Matrix<Stored> candidate_, candidate_turned_;  // of a GRU
  Matrix<Stored> projection_, projection_turned_;
  bool has_input_;
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
