// The functions of axes.hpp and signals.hpp that a plan's steps call.
#include "../axes.hpp"

#include <iterator>

#include "../signals.hpp"
#include "calls.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

namespace {
#define FLOATS(name, ...)                                \
  function<&name<float>, __VA_ARGS__>(#name ":float32"), \
      function<&name<double>, __VA_ARGS__>(#name ":float64")
#define NUMBERS(name, ...)                                                        \
  FLOATS(name, __VA_ARGS__), function<&name<int32>, __VA_ARGS__>(#name ":int32"), \
      function<&name<int64>, __VA_ARGS__>(#name ":int64")
// Arguments 2 to 4 are the sizes before an axis, of the axis, and after it.
#define ALONG Of<2, 3, 4>, Of<2, 3, 4>
#define REDUCED Of<2, 4>, Of<2, 3, 4>
constexpr Function kFunctions[] = {
    FLOATS(softmax, ALONG),
    FLOATS(log_softmax, ALONG),
    FLOATS(layer_norm, Of<6, 7>, Of<6, 7>, Of<7>, May<7>, May<6>, May<6>),
    FLOATS(group_norm, ByRule),
    NUMBERS(cum_sum, ALONG),
    NUMBERS(top_k, ByRule),
    NUMBERS(arg_extreme, REDUCED),
    NUMBERS(reduce_sum, REDUCED),
    FLOATS(reduce_mean, REDUCED),
    NUMBERS(reduce_prod, REDUCED),
    NUMBERS(reduce_max, REDUCED),
    NUMBERS(reduce_min, REDUCED),
    FLOATS(reduce_l1, REDUCED),
    FLOATS(reduce_l2, REDUCED),
    FLOATS(reduce_sum_square, REDUCED),
    FLOATS(reduce_log_sum, REDUCED),
    FLOATS(reduce_log_sum_exp, REDUCED),
    FLOATS(spectra, ByRule),
    FLOATS(interpolate, Of<6, 7, 8>, Of<5, 7, 8>, Of<6>, Of<6>, Of<6>),
};
}  // namespace

Functions axes() { return {kFunctions, std::size(kFunctions)}; }

}  // namespace ONERNN_ISA
}  // namespace onernn
