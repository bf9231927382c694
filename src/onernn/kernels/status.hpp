// The status of a call, and pointers that it may leave out.
#ifndef ONERNN_STATUS_HPP
#define ONERNN_STATUS_HPP

namespace onernn {

enum class Status {
  ok,
  no_weights,   ///< nothing was loaded
  bad_sizes,    ///< negative, or larger than the model was made for
  bad_index,    ///< an index outside of its table
  bad_lengths,  ///< a sentence longer than its array, or offsets that fall
  no_branch,    ///< what would have to run then was not generated
  no_bytes,     ///< numbers or scales for which no byte stands: NaN, infinity, a scale of 0
};

/// A pointer that may be null: other arguments determine its type.
template <class T>
struct Optional_ {
  using Pointer = T*;
};
template <class T>
using Optional = typename Optional_<T>::Pointer;

}  // namespace onernn

#endif
