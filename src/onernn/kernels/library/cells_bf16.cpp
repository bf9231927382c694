#include "../gru.hpp"
#include "../lbr_gru.hpp"
#include "../lstm.hpp"
#include "../rnn.hpp"
#include "stack.hpp"

namespace onernn {
template onernn_stack* new_stack<Rnn, float, BrainPair>(const Arguments&);
template onernn_stack* new_stack<Gru, float, BrainPair>(const Arguments&);
template onernn_stack* new_stack<LbrGru, float, BrainPair>(const Arguments&);
template onernn_stack* new_stack<Lstm, float, BrainPair>(const Arguments&);
}  // namespace onernn
