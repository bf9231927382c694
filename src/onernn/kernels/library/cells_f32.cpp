#include "../gru.hpp"
#include "../lbr_gru.hpp"
#include "../lstm.hpp"
#include "../rnn.hpp"
#include "stack.hpp"

namespace onernn {
template onernn_stack* new_stack<Rnn, float, float>(const Arguments&);
template onernn_stack* new_stack<Gru, float, float>(const Arguments&);
template onernn_stack* new_stack<LbrGru, float, float>(const Arguments&);
template onernn_stack* new_stack<Lstm, float, float>(const Arguments&);
}  // namespace onernn
