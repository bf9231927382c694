// LSTM, gates i, f, c, o:
//   i = f(Wi x + Ri h + Pi c + bi)     f = f(Wf x + Rf h + Pf c + bf)
//   c' = f c + i g(Wc x + Rc h + bc)   o = f(Wo x + Ro h + Po c' + bo)
//   h' = o h(c'), or P (o h(c')) with a projection
// Pi, Pf, Po (peepholes) and the projection only if the traits say so. Source: oneDNN's guide of
// the RNN primitive, LSTM with its peephole and projection variants; ONNX operator specification,
// LSTM.
#ifndef ONERNN_LSTM_HPP
#define ONERNN_LSTM_HPP

#include "cell.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

template <class Traits>
class Lstm : public Cell<Traits, 4> {
  using Base = Cell<Traits, 4>;

 public:
  using Base::Base;
  using typename Base::L;
  using typename Base::Real;
  static constexpr bool kHasCellState = true;

  /// Computes the next h and c of the first `running` sequences.
  template <class Team>
  void step(const typename Base::Weights& weights, const Real* share, const Real*,
            std::int64_t running, typename Base::State& state, Team& team) const {
    const std::int64_t c_row = this->c_row(), h_row = this->h_row();
    const Traits& traits = this->traits_;
    const bool back = state.back();
    const auto* rows = state.rows(state.h(), h_row, traits.width, running, weights.of_h);
    Real *next = state.next(), *cells = state.c();
    const auto seen = [&traits, peephole = weights.peephole](int g, std::int64_t p, L c, L sum) {
      if (!traits.peephole) return sum;
      return multiply_add(load(peephole + (p * 3 + g) * 16), c, sum);
    };
    product<4, Real>(
        weights.recurrent, state.depth(traits.width), panels_of(traits.units), rows, running, team,
        back, this->shared(share),
        [=, &cell = *this](std::int64_t n, std::int64_t p, const L* sums) {
          Real* const own = cells + n * c_row + p * 16;
          const L c = load(own), i = cell.gate(seen(0, p, c, sums[0]));
          const L f =
              cell.traits_.input_forget ? cell.without(i) : cell.gate(seen(1, p, c, sums[1]));
          store(own, cell.traits_.clip_cell(multiply_add(f, c, i * cell.candidate(sums[2]))));
        },
        [=, &cell = *this](std::int64_t n, std::int64_t p, const L* sums) {
          const std::int64_t at = n * c_row + p * 16;
          const L c = load(cells + at), o = cell.gate(seen(2, p, c, sums[3]));
          store(next + at, o * cell.traits_.output(c));
        });
    if (!traits.projection) return state.turn();
    Real* h = state.h();
    rows = state.rows(next, c_row, traits.units, running, {});
    product<1, Real>(
        weights.projection, traits.units, panels_of(traits.width), rows, running, team, back,
        [](std::int64_t, std::int64_t, int) { return broadcast(Real(0)); },
        [=](std::int64_t n, std::int64_t p, const L* sums) {
          store(h + n * h_row + p * 16, sums[0]);
        });
  }
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
