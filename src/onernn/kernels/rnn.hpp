// The plain cell: h' = f(W x + R h + b). Source: ONNX operator specification, RNN; oneDNN's guide
// of the RNN primitive, vanilla RNN.
#ifndef ONERNN_RNN_HPP
#define ONERNN_RNN_HPP

#include "cell.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// A cell with one gate, whose function is the traits' `gate`.
template <class Traits>
class Rnn : public Cell<Traits, 1> {
  using Base = Cell<Traits, 1>;

 public:
  using Base::Base;
  using typename Base::L;
  using typename Base::Real;

  /// Computes the next h of the first `running` sequences.
  template <class Team>
  void step(const typename Base::Weights& weights, const Real* share, const Real*,
            std::int64_t running, typename Base::State& state, Team& team) const {
    const auto width = this->traits_.width;
    const std::int64_t row = this->h_row();
    const auto* rows = state.rows(state.h(), row, width, running, weights.of_h);
    Real* next = state.next();
    product<1, Real>(weights.recurrent, state.depth(width), panels_of(this->traits_.units), rows,
                     running, team, state.back(), this->shared(share),
                     [=, &cell = *this](std::int64_t n, std::int64_t p, const L* sums) {
                       store(next + n * row + p * 16, cell.gate(sums[0]));
                     });
    state.turn();
  }
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
