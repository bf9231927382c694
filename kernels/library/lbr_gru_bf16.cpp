#include "../lbr_gru.hpp"
#include "stack.hpp"

namespace onernn {
template onernn_stack* new_stack<LbrGru, float, BrainPair>(const Arguments&);
}
