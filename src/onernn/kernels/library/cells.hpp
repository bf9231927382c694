// Stacks of all cells with one type of stored weights. Each source that includes this names the
// type.
#ifndef ONERNN_CELLS_HPP
#define ONERNN_CELLS_HPP

#include "../gru.hpp"
#include "../lbr_gru.hpp"
#include "../lstm.hpp"
#include "../rnn.hpp"
#include "stack.hpp"

#define ONERNN_CELLS(Real, Stored)                                          \
  namespace onernn {                                                        \
  template onernn_stack* new_stack<Rnn, Real, Stored>(const Arguments&);    \
  template onernn_stack* new_stack<Gru, Real, Stored>(const Arguments&);    \
  template onernn_stack* new_stack<LbrGru, Real, Stored>(const Arguments&); \
  template onernn_stack* new_stack<Lstm, Real, Stored>(const Arguments&);   \
  }

#endif
