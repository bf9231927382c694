#include "../gru.hpp"
#include "../lbr_gru.hpp"
#include "../lstm.hpp"
#include "../rnn.hpp"
#include "stack.hpp"

namespace onernn {
template onernn_stack* new_stack<Rnn, double, double>(const Arguments&);
template onernn_stack* new_stack<Gru, double, double>(const Arguments&);
template onernn_stack* new_stack<LbrGru, double, double>(const Arguments&);
template onernn_stack* new_stack<Lstm, double, double>(const Arguments&);
}  // namespace onernn
