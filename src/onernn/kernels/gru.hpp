// GRU, gates u, r, o:
//   u = f(Wu x + Ru h + bu)        r = f(Wr x + Rr h + br)
//   o = g(Wo x + Ro (r h) + bo)    h' = u h + (1 - u) o
// AUGRU: u becomes (1 - a) u, with a number a per step. If the traits set `replaces`, u and
// 1 - u are swapped in h'. Source: oneDNN's guide of the RNN primitive, GRU and AUGRU; ONNX
// operator specification, GRU, linear_before_reset = 0.
#ifndef ONERNN_GRU_HPP
#define ONERNN_GRU_HPP

#include "cell.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// The candidate o needs the reset gate first, so a step has a second product.
template <class Traits>
class Gru : public Cell<Traits, 3> {
  using Base = Cell<Traits, 3>;

 public:
  using Base::Base;
  using typename Base::L;
  using typename Base::Real;
  static constexpr int kTogether = 2;

  /// Computes the next h of the first `running` sequences.
  template <class Team>
  void step(const typename Base::Weights& weights, const Real* share, const Real* attention,
            std::int64_t running, typename Base::State& state, Team& team) const {
    const auto width = this->traits_.width;
    const auto panels = panels_of(this->traits_.units);
    const std::int64_t row = this->h_row();
    const auto shared = this->shared(share);
    const bool back = state.back();
    Real *h = state.h(), *reset = state.next(), *kept = state.c();
    const auto* rows = state.rows(h, row, width, running, weights.of_h);
    const auto depth = state.depth(width);
    product<2, Real>(weights.recurrent, depth, panels, rows, running, team, back, shared,
                     [=, &cell = *this](std::int64_t n, std::int64_t p, const L* sums) {
                       const std::int64_t at = n * row + p * 16;
                       store(kept + at, cell.update(sums[0], attention, n));
                       store(reset + at, cell.gate(sums[1]) * load(h + at));
                     });
    rows = state.rows(reset, row, width, running, weights.of_h);
    product<1, Real>(
        weights.candidate, depth, panels, rows, running, team, back,
        [=](std::int64_t n, std::int64_t p, int) { return shared(n, p, 2); },
        [=, &cell = *this](std::int64_t n, std::int64_t p, const L* sums) {
          const std::int64_t at = n * row + p * 16;
          store(h + at, cell.mixed(load(kept + at), load(h + at), cell.candidate(sums[0])));
        });
  }
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
