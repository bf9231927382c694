// Functions of axes.hpp that steps call.
#include "../axes.hpp"

#include <iterator>

#include "calls.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

namespace {
#define FLOATS(name) \
  function<&name<float>>(#name ":float32"), function<&name<double>>(#name ":float64")
#define NUMBERS(name) \
  FLOATS(name), function<&name<int32>>(#name ":int32"), function<&name<int64>>(#name ":int64")
constexpr Function kFunctions[] = {
    FLOATS(softmax),        FLOATS(log_softmax),        FLOATS(layer_norm),
    FLOATS(group_norm),     NUMBERS(cum_sum),           NUMBERS(top_k),
    NUMBERS(arg_extreme),   NUMBERS(reduce_sum),        FLOATS(reduce_mean),
    NUMBERS(reduce_prod),   NUMBERS(reduce_max),        NUMBERS(reduce_min),
    FLOATS(reduce_l1),      FLOATS(reduce_l2),          FLOATS(reduce_sum_square),
    FLOATS(reduce_log_sum), FLOATS(reduce_log_sum_exp),
};
}  // namespace

Functions axes() { return {kFunctions, std::size(kFunctions)}; }

}  // namespace ONERNN_ISA
}  // namespace onernn
