// One direction of one recurrent layer over a batch of sequences of different lengths.
//
// Step t runs the sequences that are longer than t. The sequences are in the order of their
// lengths, the longest first, so those that still run are always the first rows.
#ifndef ONERNN_RECURRENT_HPP
#define ONERNN_RECURRENT_HPP

#include <algorithm>
#include <cstdint>

#include "batch.hpp"
#include "cell.hpp"
#include "isa.hpp"
#include "memory.hpp"
#include "products.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// Runs a cell over batches of at most `most` sequences. A run allocates nothing.
template <class Cell>
class Recurrent {
  using Real = typename Cell::Real;

 public:
  struct Words {
    const Real* x;          // (W, inputs)
    const Real* attention;  // (W), for AUGRU cells
    Real* y;                // Rows of y_row numbers, of which `width` are written.
    std::int64_t y_row;
    bool backwards, added;  // `added`: the outputs are added to y.
    Real* cells = nullptr;  // (W, units), c of every step; null: not wanted.
  };
  struct States {
    const Real *h, *c;  // (N, width) and (N, units); null: zeros.
    Real *h_n, *c_n;    // Null: not wanted. May be h and c.
  };

  explicit Recurrent(std::int64_t most, const Cell& cell = Cell())
      : cell_(cell),
        steps_(most + kStepsAhead),
        rows_(most + kStepsAhead, cell.inputs(), cell.coded()),
        attention_(most),
        share_((most + kStepsAhead) * cell.share_row()),
        state_(most, cell.h_row(), cell.c_row(), cell.coded()) {}

  /// Not inlined: a caller with two calls would contain all of it twice.
  template <class Team>
  [[gnu::noinline]] void run(const typename Cell::Weights& weights, const Batch& batch,
                             const Words& words, const States& states, Team& team) {
    [[maybe_unused]] const Scope<typename Cell::Factor, typename Cell::Stored> scope{};
    begin(batch, states, weights.is_finite);
    // If steps are too short to be shared, this thread also projects alone: reading another core's
    // results from its cache would take longer than the product.
    const bool shared = team.is_worth_it(batch.sequences * cell_.width() * cell_.share_row());
    Team alone(1, team);
    rows_.scale(weights.of_x);
    std::int64_t running = batch.sequences, ready = 0, start = 0;
    for (std::int64_t t = 0; finish(batch, states, t, &running), running > 0; ++t) {
      if (t == ready) {
        start = t;
        ready = project(weights, batch, words, t, running, shared ? team : alone);
      }
      if (words.attention)
        for (std::int64_t m = 0; m < running; ++m)
          attention_.data()[m] = words.attention[row(batch, words, m, t)];
      const Real* share = share_.data() + steps_.data()[t - start] * cell_.share_row();
      cell_.step(weights, share, attention_.data(), running, state_, team);
      state_.set_zero(false);
      for (std::int64_t m = 0; m < running; ++m) {
        const Real* h = state_.h() + m * cell_.h_row();
        const std::int64_t word = row(batch, words, m, t);
        Real* y = words.y + word * words.y_row;
        if (words.added)
          for (std::int64_t o = 0; o < cell_.width(); ++o) y[o] += h[o];
        else
          std::copy_n(h, cell_.width(), y);
        if (Cell::kHasCellState && words.cells)
          std::copy_n(state_.c() + m * cell_.c_row(), cell_.units(),
                      words.cells + word * cell_.units());
      }
    }
  }

 private:
  // How many steps are projected at once if there is only one sequence.
  static constexpr std::int64_t kStepsAhead = 32;

  /// Returns the row of step t of the m-th longest sequence.
  static std::int64_t row(const Batch& batch, const Words& words, std::int64_t m, std::int64_t t) {
    const std::int64_t n = batch.order[m];
    return batch.row(n, words.backwards ? batch.length[n] - 1 - t : t);
  }

  void begin(const Batch& batch, const States& states, bool is_finite) {
    const auto take = [](Real* to, const Real* from, std::int64_t n, std::int64_t count) {
      if (from)
        std::copy_n(from + n * count, count, to);
      else
        std::fill_n(to, count, Real(0));
    };
    state_.set_zero(is_finite && !states.h && !kHeadRows<typename Cell::Stored>);
    for (std::int64_t m = 0; m < batch.sequences; ++m) {
      const std::int64_t n = batch.order[m];
      take(state_.h() + m * cell_.h_row(), states.h, n, cell_.width());
      if (Cell::kHasCellState) take(state_.c() + m * cell_.c_row(), states.c, n, cell_.units());
    }
  }

  /// Writes the final states of the sequences that end before step t.
  void finish(const Batch& batch, const States& states, std::int64_t t, std::int64_t* running) {
    for (; *running > 0 && batch.length[batch.order[*running - 1]] <= t; --*running) {
      const std::int64_t m = *running - 1, n = batch.order[m], R = cell_.width(), O = cell_.units();
      if (states.h_n) std::copy_n(state_.h() + m * cell_.h_row(), R, states.h_n + n * R);
      if (Cell::kHasCellState && states.c_n)
        std::copy_n(state_.c() + m * cell_.c_row(), O, states.c_n + n * O);
    }
  }

  /// Computes the input's share of the gates for as many steps from t on as fit the memory. Returns
  /// the end of these steps.
  template <class Team>
  std::int64_t project(const typename Cell::Weights& weights, const Batch& batch,
                       const Words& words, std::int64_t t, std::int64_t running, Team& team) {
    std::int64_t rows = 0, end = t;
    for (; running > 0 && rows + running <= batch.sequences + kStepsAhead; ++end) {
      steps_.data()[end - t] = rows;
      for (std::int64_t m = 0; m < running; ++m, ++rows) {
        const Real* x = words.x + row(batch, words, m, end) * cell_.inputs();
        if (weights.input)
          rows_.put(rows, x, cell_.inputs());
        else
          cell_.add_bias(weights, x, share_.data() + rows * cell_.share_row());
      }
      while (running > 0 && batch.length[batch.order[running - 1]] <= end + 1) --running;
    }
    if (weights.input) cell_.project(weights, rows_.get(), rows, share_.data(), team);
    return end;
  }

  Cell cell_;
  Memory<std::int64_t> steps_;        // Per step: its first row.
  Rows<typename Cell::Factor> rows_;  // The rows of x that are projected.
  Memory<Real> attention_, share_;
  typename Cell::State state_;
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
