// The status of a call, and pointers that it may leave out.
#ifndef ONERNN_STATUS_HPP
#define ONERNN_STATUS_HPP

namespace onernn {

enum class Status {
  ok,
  no_weights,   // No weights were loaded.
  bad_sizes,    // A size is negative, or larger than the model was made for.
  bad_index,    // An index is outside of its table.
  bad_lengths,  // A sequence is longer than its array, or offsets decrease.
  no_branch,    // A branch that has to run was not generated.
  no_bytes,     // A number or scale has no byte: NaN, infinity, or a scale of 0.
};

/// A pointer that may be null. The type T follows from the other arguments of a call.
template <class T>
struct Optional_ {
  using Pointer = T*;
};
template <class T>
using Optional = typename Optional_<T>::Pointer;

}  // namespace onernn

#endif
