#include "../gru.hpp"
#include "stack.hpp"

namespace onernn {
template onernn_stack* new_stack<Gru, float, float>(const Arguments&);
}
