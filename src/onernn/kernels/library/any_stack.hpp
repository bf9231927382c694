// The interface of all stacks of layers, and the functions that make stacks.
#ifndef ONERNN_ANY_STACK_HPP
#define ONERNN_ANY_STACK_HPP

#include "../isa.hpp"
#include "../stored.hpp"
#include "../team.hpp"
#include "exported.hpp"

/// The stack that kernels.h declares.
struct onernn_stack {
  virtual ~onernn_stack() = default;
  /// Runs the layers. `accounts`: null, or one per layer; then nothing is computed, see
  /// onernn_stack_account. `unpacked`: the weights, see onernn_stack_run_unpacked; null: the
  /// stack's own weights.
  virtual void run(const onernn_batch& batch, const onernn_arrays& arrays,
                   onernn_account* accounts = nullptr,
                   const onernn_unpacked* unpacked = nullptr) = 0;
  virtual onernn::Team& team() = 0;
};

namespace onernn {
inline namespace ONERNN_ISA {

inline std::int64_t gates_of(const onernn_spec& spec) {
  return spec.cell == ONERNN_RNN ? 1 : spec.cell == ONERNN_LSTM ? 4 : 3;
}
/// Returns the channels of y.
inline std::int64_t joined_width(const onernn_spec& spec) {
  return spec.width * (spec.directions == 2 && !spec.added ? 2 : 1);
}

template <class Traits>
class Rnn;
template <class Traits>
class Gru;
template <class Traits>
class LbrGru;
template <class Traits>
class Lstm;

/// The arguments of onernn_stack_new.
struct Arguments {
  const onernn_spec& spec;
  const onernn_part* parts;
  const void* numbers;
  int threads;
};

/// Makes a stack of one cell and one type of stored weights. It is defined in stack.hpp. Each type
/// of stored weights is compiled in a source of its own, so that the sources compile in parallel.
/// One source has all cells, because most of the time goes into reading the headers. A new type
/// needs such a source, and an entry in the table of interface.cpp.
template <template <class> class Kernel, class Real, class Stored>
onernn_stack* new_stack(const Arguments& arguments);

using Factory = onernn_stack* (*)(const Arguments&);

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
