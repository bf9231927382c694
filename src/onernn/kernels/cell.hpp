// The common part of all recurrent cells: their traits, numbers, the memory of a step, and the
// input's share of the gates.
//
// A cell's Traits say what is special about it. Traits derive from onernn::Traits and replace
// members; each member may be a constant (Fixed<128> for a size), or a number that only the run
// knows.
#ifndef ONERNN_CELL_HPP
#define ONERNN_CELL_HPP

#include <algorithm>
#include <cstdint>
#include <utility>

#include "functions.hpp"
#include "isa.hpp"
#include "lanes.hpp"
#include "memory.hpp"
#include "products.hpp"
#include "stored.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// Traits of a plain cell. A derived class adds its sizes: `inputs` channels of a step, `units`,
/// and `width` channels of h, which equals `units` unless a projection follows.
template <class Real_, class Stored_ = Real_>
struct Traits {
  using Real = Real_;      // what is computed with
  using Stored = Stored_;  // what matrices are made of
  using Matrix = const Stored*;
  static constexpr Sigmoid<Real> gate{};
  static constexpr Tanh<Real> candidate{};
  static constexpr Tanh<Real> output{};    // LSTM: what c goes through
  static constexpr Identity<Real> clip{};  // of what goes into a gate
  static constexpr Identity<Real> clip_cell{};
  static constexpr bool attention = false;     // AUGRU: u becomes (1 - attention) u
  static constexpr bool replaces = false;      // GRU: u is the part of h that is replaced
  static constexpr bool peephole = false;      // LSTM: gates see c
  static constexpr bool input_forget = false;  // LSTM: the forget gate is 1 - i
  static constexpr bool projection = false;    // LSTM: h is the output times one more matrix
  static constexpr bool coded = false;         // matrices of codes, see codes.hpp
};

/// The numbers of one direction of one layer; matrices in panels, as products.hpp has them.
template <class Real, class Matrix>
struct CellWeights {
  const Real* bias;          // (panels, rows of bias, 16)
  Matrix input;              // (panels, inputs, gates, 16); null: x holds the gates' sums
  Matrix recurrent;          // (panels, width, gates but a GRU's candidate, 16)
  Matrix candidate;          // (panels, width, 1, 16), of a GRU
  const Real* peephole;      // (panels, 3, 16), of an LSTM: input, forget and output gate
  Matrix projection;         // (panels of width, units, 1, 16), of an LSTM
  ByteScale of_x{}, of_h{};  // in quads; what is projected has a step for each row
  bool is_finite = true;     // else zeros times a matrix may not be zeros
};

/// The rows that a step works on, one per sequence.
template <class Real, class Factor>
class CellState {
 public:
  CellState(std::int64_t most, std::int64_t width, std::int64_t units, bool coded)
      : one_(most * (std::max)(width, units)),
        two_(most * (std::max)(width, units)),
        three_(most * units),
        left_(most, (std::max)(width, units), coded) {}

  Real* h() { return turned_ ? two_.data() : one_.data(); }
  /// The output of the cell: h, or the factor of one more product that results in h.
  Real* next() { return turned_ ? one_.data() : two_.data(); }
  /// The state of an LSTM, or the update gates of a GRU.
  Real* c() { return three_.data(); }
  /// `count` rows of K numbers, as products read them.
  const Factor* const* rows(const Real* first, std::int64_t row, std::int64_t K, std::int64_t count,
                            ByteScale scale) {
    left_.scale(scale);
    left_.put(0, first, K);  // not in the loop: of one row, which has most steps, that is all
    for (std::int64_t m = 1; m < count; ++m) left_.put(m, first + m * row, K);
    return left_.get();
  }
  void turn() { turned_ = !turned_; }
  /// Whether h holds zeros: products with it read no matrix.
  void set_zero(bool zero) { zero_ = zero; }
  /// The rows of a recurrent matrix that a step reads.
  std::int64_t depth(std::int64_t width) const { return zero_ ? 0 : width; }
  template <std::int64_t kWidth>
  Fixed<kWidth> depth(Fixed<kWidth> width) const {
    return width;
  }
  /// Whether the products of a step read a matrix from its end, as in every second step.
  bool back() { return back_ = !back_; }

 private:
  Memory<Real> one_, two_, three_;
  Rows<Factor> left_;
  bool turned_ = false, back_ = true, zero_ = false;
};

/// A cell of so many gates, without its step.
template <class Traits, int kGates_, int kBiasRows_ = kGates_>
class Cell {
 public:
  using Real = typename Traits::Real;
  using Stored = typename Traits::Stored;
  using Factor = typename FactorOf<Real, Stored>::Type;
  using Weights = CellWeights<Real, typename Traits::Matrix>;
  using State = CellState<Real, Factor>;
  using L = Lanes<Real>;
  static constexpr int kGates = kGates_, kBiasRows = kBiasRows_;
  static constexpr bool kHasCellState = false;
  static constexpr int kTogether = kGates;  // gates of the recurrent matrix

  explicit Cell(const Traits& traits = {}) : traits_(traits) {}

  std::int64_t inputs() const { return traits_.inputs; }
  bool coded() const { return traits_.coded; }
  std::int64_t units() const { return traits_.units; }
  std::int64_t width() const { return traits_.width; }
  /// Numbers of a row of c, of h, and of the input's share: panels are whole in memory.
  std::int64_t c_row() const { return 16 * panels_of(traits_.units); }
  std::int64_t h_row() const { return 16 * panels_of(traits_.width); }
  std::int64_t share_row() const { return kGates * c_row(); }

  /// The input's share of the gates with the bias, of `count` rows: (count, panels, gates, 16).
  template <class Team>
  void project(const Weights& weights, const Factor* const* x, std::int64_t count, Real* share,
               Team& team) const {
    product<kGates, Real>(
        weights.input, traits_.inputs, panels_of(traits_.units), x, count, team, false,
        [bias = weights.bias](std::int64_t, std::int64_t p, int g) {
          return load(bias + (p * kBiasRows + g) * 16);
        },
        [share, share_row = share_row()](std::int64_t row, std::int64_t p, const L* sums) {
          for (int g = 0; g < kGates; ++g)
            store(share + row * share_row + (p * kGates + g) * 16, sums[g]);
        });
  }

  /// The same of one row that was projected before: x holds gates of units.
  void add_bias(const Weights& weights, const Real* x, Real* share) const {
    for (std::int64_t o = 0; o < c_row(); ++o)
      for (std::int64_t g = 0; g < kGates; ++g)
        share[(o / 16 * kGates + g) * 16 + o % 16] =
            weights.bias[(o / 16 * kBiasRows + g) * 16 + o % 16] +
            (o < units() ? x[g * units() + o] : Real(0));
  }

 protected:
  /// The input's share of gate g, panel p and row n, from which the sum starts.
  auto shared(const Real* share) const {
    return [share, row = share_row()](std::int64_t n, std::int64_t p, int g) {
      return load(share + n * row + (p * kGates + g) * 16);
    };
  }
  /// One less each number.
  static L without(L a) { return broadcast(Real(1)) - a; }
  /// a if u is 1, b if u is 0. It is one addition, so that every compiler rounds it once.
  static L mixed(L u, L a, L b) { return multiply_add(u, a, without(u) * b); }

  L gate(L sum) const { return traits_.gate(traits_.clip(sum)); }
  L candidate(L sum) const { return traits_.candidate(traits_.clip(sum)); }
  /// A GRU's update gate: the part of h that stays.
  L update(L sum, const Real* attention, std::int64_t n) const {
    L u = gate(sum);
    if (traits_.attention) u = without(broadcast(attention[n])) * u;
    return traits_.replaces ? without(u) : u;
  }

  Traits traits_;
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
