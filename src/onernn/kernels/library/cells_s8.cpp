#include "../gru.hpp"
#include "../lbr_gru.hpp"
#include "../lstm.hpp"
#include "../quads.hpp"
#include "../rnn.hpp"
#include "stack.hpp"

namespace onernn {
template onernn_stack* new_stack<Rnn, float, ByteQuad>(const Arguments&);
template onernn_stack* new_stack<Gru, float, ByteQuad>(const Arguments&);
template onernn_stack* new_stack<LbrGru, float, ByteQuad>(const Arguments&);
template onernn_stack* new_stack<Lstm, float, ByteQuad>(const Arguments&);
}  // namespace onernn
