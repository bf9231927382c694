#include "../lstm.hpp"
#include "stack.hpp"

namespace onernn {
template onernn_stack* new_stack<Lstm, float, BrainPair>(const Arguments&);
}
