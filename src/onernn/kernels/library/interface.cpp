// Implements kernels.h. Exceptions become a status.
#include <cstdint>
#include <iterator>

#include "any_stack.hpp"
#include "exported.hpp"

namespace {

using namespace onernn;

/// The functions that make stacks, by cell and by type of stored weights, in the order of
/// kernels.h. All int8 types share one kind of stack.
template <template <class> class Kernel>
constexpr Factory kFactoriesOf[7] = {
    new_stack<Kernel, float, float>,     new_stack<Kernel, float, Half>,
    new_stack<Kernel, float, BrainPair>, new_stack<Kernel, double, double>,
    new_stack<Kernel, float, ByteQuad>,  new_stack<Kernel, float, ByteQuad>,
    new_stack<Kernel, float, ByteQuad>};
constexpr const Factory (*kFactories[])[7] = {&kFactoriesOf<Rnn>, &kFactoriesOf<Gru>,
                                              &kFactoriesOf<LbrGru>, &kFactoriesOf<Lstm>};

/// Returns the function that makes a stack for `spec`; null if `spec` has a number that kernels.h
/// does not define.
Factory factory_of(const onernn_spec& spec) {
  const auto within = [](std::int32_t at, auto count) {
    return at >= 0 && at < static_cast<std::int32_t>(count);
  };
  if (!within(spec.cell, std::size(kFactories)) || !within(spec.stored, std::size(*kFactories[0])))
    return nullptr;
  for (const onernn_function& one : {spec.gate, spec.candidate, spec.output})
    if (one.kind < ONERNN_IDENTITY || one.kind > ONERNN_ELU) return nullptr;
  return (*kFactories[spec.cell])[spec.stored];
}

bool reads_unpacked(const onernn_spec& spec) {
  const bool stored =
      spec.stored == ONERNN_F32 || spec.stored == ONERNN_BF16 || spec.stored == ONERNN_F64;
  return stored && !spec.peephole;
}

}  // namespace

int32_t onernn_stack_new(const onernn_spec* spec, const onernn_part* parts, const void* numbers,
                         int32_t threads, onernn_stack** stack) try {
  const Factory factory = factory_of(*spec);
  if (!factory || (!parts && !reads_unpacked(*spec))) return ONERNN_UNKNOWN;
  *stack = factory({*spec, parts, numbers, threads});
  return ONERNN_DONE;
} catch (...) {  // out of memory, or no thread can start
  return ONERNN_NO_MEMORY;
}

int32_t onernn_stack_run(onernn_stack* stack, const onernn_batch* batch,
                         const onernn_arrays* arrays) {
  return onernn_stack_account(stack, batch, arrays, nullptr);
}

int32_t onernn_stack_run_unpacked(onernn_stack* stack, const onernn_batch* batch,
                                  const onernn_arrays* arrays, const onernn_unpacked* weights) try {
  if (batch->layout < ONERNN_LOD || batch->layout > ONERNN_PACKED) return ONERNN_UNKNOWN;
  stack->run(*batch, *arrays, nullptr, weights);
  return ONERNN_DONE;
} catch (...) {
  return ONERNN_NO_MEMORY;
}

int32_t onernn_stack_account(onernn_stack* stack, const onernn_batch* batch,
                             const onernn_arrays* arrays, onernn_account* accounts) try {
  if (batch->layout < ONERNN_LOD || batch->layout > ONERNN_PACKED) return ONERNN_UNKNOWN;
  stack->run(*batch, *arrays, accounts);
  return ONERNN_DONE;
} catch (...) {
  return ONERNN_NO_MEMORY;
}

void onernn_stack_free(onernn_stack* stack) { delete stack; }
