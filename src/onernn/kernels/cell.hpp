// The common part of all recurrent cells: their traits, weights, the memory of a step, and the
// input's share of the gates, which is W x + b.
//
// A cell's Traits say what is special about it: they derive from onernn::Traits and replace
// members. Each member may be a compile-time constant (Fixed<128> for a size), or a value that is
// known only at run time.
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

/// Traits of a plain cell. A derived class adds its sizes: `inputs`, the channels of x; `units`;
/// and `width`, the channels of h, which equals `units` unless a projection follows.
template <class Real_, class Stored_ = Real_>
struct Traits {
  using Real = Real_;      // the type of the computation
  using Stored = Stored_;  // the type of the stored weights
  using Matrix = const Stored*;
  static constexpr Sigmoid<Real> gate{};
  static constexpr Tanh<Real> candidate{};
  static constexpr Tanh<Real> output{};    // LSTM: applied to c before the output gate
  static constexpr Identity<Real> clip{};  // applied to a gate's sum before its function
  static constexpr Identity<Real> clip_cell{};
  static constexpr bool attention = false;     // AUGRU: u becomes (1 - attention) u
  static constexpr bool replaces = false;      // GRU: u is the factor of the candidate, not of h
  static constexpr bool peephole = false;      // LSTM: gates also read c
  static constexpr bool input_forget = false;  // LSTM: the forget gate is 1 - i
  static constexpr bool projection = false;    // LSTM: h is multiplied by one more matrix
  static constexpr bool coded = false;         // matrices of 8-bit codes, see codes.hpp
};

/// The weights of one direction of one layer. Matrices are in panels, see products.hpp.
template <class Real, class Matrix>
struct CellWeights {
  const Real* bias;          // (panels, rows of bias, 16).
  Matrix input;              // (panels, inputs, gates, 16); null: x already is W x.
  Matrix recurrent;          // (panels, width, gates, 16), of a GRU without the candidate.
  Matrix candidate;          // GRU: (panels, width, 1, 16).
  const Real* peephole;      // LSTM: (panels, 3, 16), for input, forget and output gate.
  Matrix projection;         // LSTM: (panels of width, units, 1, 16).
  ByteScale of_x{}, of_h{};  // How x and h are rounded to bytes, if they are.
  bool is_finite = true;     // No weight is NaN or infinite, so zeros times them are zeros.
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
  /// Returns the memory for the cell's output: the next h, or the vector that the projection
  /// multiplies.
  Real* next() { return turned_ ? one_.data() : two_.data(); }
  /// Returns the cell states of an LSTM, or the update gates of a GRU.
  Real* c() { return three_.data(); }
  /// Returns `count` rows of K numbers in the form that products read. The rows begin at `first`
  /// and are `row` numbers apart.
  const Factor* const* rows(const Real* first, std::int64_t row, std::int64_t K, std::int64_t count,
                            ByteScale scale) {
    left_.scale(scale);
    left_.put(0, first, K);  // outside the loop: most steps have only this row
    for (std::int64_t m = 1; m < count; ++m) left_.put(m, first + m * row, K);
    return left_.get();
  }
  void turn() { turned_ = !turned_; }
  /// Says whether h is all zeros. If it is, products with h read no matrix.
  void set_zero(bool zero) { zero_ = zero; }
  /// Returns how many rows of a recurrent matrix a step reads.
  std::int64_t depth(std::int64_t width) const { return zero_ ? 0 : width; }
  template <std::int64_t kWidth>
  Fixed<kWidth> depth(Fixed<kWidth> width) const {
    return width;
  }
  /// Returns whether the products of this step read their matrix from the end to the beginning.
  /// Every second step does.
  bool back() { return back_ = !back_; }

 private:
  Memory<Real> one_, two_, three_;
  Rows<Factor> left_;
  bool turned_ = false, back_ = true, zero_ = false;
};

/// A cell with kGates gates, without the function that computes a step.
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
  static constexpr int kTogether = kGates;  // gates in the recurrent matrix

  explicit Cell(const Traits& traits = {}) : traits_(traits) {}

  std::int64_t inputs() const { return traits_.inputs; }
  bool coded() const { return traits_.coded; }
  std::int64_t units() const { return traits_.units; }
  std::int64_t width() const { return traits_.width; }
  /// Return how many numbers a row of c, of h, and of the input's share has in memory: whole panels
  /// of 16.
  std::int64_t c_row() const { return 16 * panels_of(traits_.units); }
  std::int64_t h_row() const { return 16 * panels_of(traits_.width); }
  std::int64_t share_row() const { return kGates * c_row(); }

  /// Computes the input's share of the gates, W x + b, of `count` rows: (count, panels, gates, 16).
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

  /// Computes the same for one row whose product was computed before: here x is already W x, with
  /// the shape (gates, units).
  void add_bias(const Weights& weights, const Real* x, Real* share) const {
    for (std::int64_t o = 0; o < c_row(); ++o)
      for (std::int64_t g = 0; g < kGates; ++g)
        share[(o / 16 * kGates + g) * 16 + o % 16] =
            weights.bias[(o / 16 * kBiasRows + g) * 16 + o % 16] +
            (o < units() ? x[g * units() + o] : Real(0));
  }

 protected:
  /// Returns a function of row n, panel p and gate g that loads the input's share. A gate's sum
  /// starts with it.
  auto shared(const Real* share) const {
    return [share, row = share_row()](std::int64_t n, std::int64_t p, int g) {
      return load(share + n * row + (p * kGates + g) * 16);
    };
  }
  /// 1 - a.
  static L without(L a) { return broadcast(Real(1)) - a; }
  /// u a + (1 - u) b. The addition is part of a multiply_add, so that every compiler rounds it
  /// once.
  static L mixed(L u, L a, L b) { return multiply_add(u, a, without(u) * b); }

  L gate(L sum) const { return traits_.gate(traits_.clip(sum)); }
  L candidate(L sum) const { return traits_.candidate(traits_.clip(sum)); }
  /// Returns a GRU's update gate: the factor of the old h in the next h.
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
