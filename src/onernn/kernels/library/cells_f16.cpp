#include "../gru.hpp"
#include "../lbr_gru.hpp"
#include "../lstm.hpp"
#include "../rnn.hpp"
#include "stack.hpp"

namespace onernn {
template onernn_stack* new_stack<Rnn, float, Half>(const Arguments&);
template onernn_stack* new_stack<Gru, float, Half>(const Arguments&);
template onernn_stack* new_stack<LbrGru, float, Half>(const Arguments&);
template onernn_stack* new_stack<Lstm, float, Half>(const Arguments&);
}  // namespace onernn
