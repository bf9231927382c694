// GRU whose reset gate is applied after the product ("linear before reset"), gates u, r, o:
//   u = f(Wu x + Ru h + bu)                  r = f(Wr x + Rr h + br)
//   o = g(Wo x + bo + r (Ro h + b'o))        h' = u h + (1 - u) o
// LBR_AUGRU: u becomes (1 - a) u. Source: oneDNN's guide of the RNN primitive, Linear-before-reset
// GRU; ONNX operator specification, GRU, linear_before_reset = 1; cuDNN's and PyTorch's GRU.
#ifndef ONERNN_LBR_GRU_HPP
#define ONERNN_LBR_GRU_HPP

#include "cell.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// The fourth row of the bias is b'o.
template <class Traits>
class LbrGru : public Cell<Traits, 3, 4> {
  using Base = Cell<Traits, 3, 4>;

 public:
  using Base::Base;
  using typename Base::L;
  using typename Base::Real;

  /// Computes the next h of the first `running` sequences.
  template <class Team>
  void step(const typename Base::Weights& weights, const Real* share, const Real* attention,
            std::int64_t running, typename Base::State& state, Team& team) const {
    const auto width = this->traits_.width;
    const std::int64_t row = this->h_row();
    const auto shared = this->shared(share);
    const Real* h = state.h();
    Real* next = state.next();
    const auto* rows = state.rows(h, row, width, running, weights.of_h);
    product<3, Real>(
        weights.recurrent, state.depth(width), panels_of(this->traits_.units), rows, running, team,
        state.back(),
        [=, bias = weights.bias](std::int64_t n, std::int64_t p, int g) {
          return g < 2 ? shared(n, p, g) : load(bias + (p * 4 + 3) * 16);
        },
        [=, &cell = *this](std::int64_t n, std::int64_t p, const L* sums) {
          const std::int64_t at = n * row + p * 16;
          const L u = cell.update(sums[0], attention, n), r = cell.gate(sums[1]);
          const L o = cell.candidate(multiply_add(r, sums[2], shared(n, p, 2)));
          store(next + at, cell.mixed(u, load(h + at), o));
        });
    state.turn();
  }
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
