// Functions of moves.hpp that steps call.
#include "../moves.hpp"

#include <iterator>

#include "calls.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

namespace {
#define SCATTERED(name, type, called)                      \
  function<&name<type, int32>>(#name ":" called ",int32"), \
      function<&name<type, int64>>(#name ":" called ",int64")
#define SCATTERED_NUMBERS(name)                                          \
  SCATTERED(name, float, "float32"), SCATTERED(name, double, "float64"), \
      SCATTERED(name, int32, "int32"), SCATTERED(name, int64, "int64")
constexpr Function kFunctions[] = {
    SCATTERED_NUMBERS(scatter_elements),
    SCATTERED_NUMBERS(scatter_nd),
    function<&natural>("natural:"),
    function<&choose>("choose:"),
    function<&tell_size>("tell_size:"),
    function<&has_turn>("has_turn:"),
    function<&tell<int64>>("tell:int64"),
    function<&tell<int32>>("tell:int32"),
    function<&fill<float, double>>("fill:float32,float64"),
    function<&fill<double, double>>("fill:float64,float64"),
    function<&fill<Half, double>>("fill:float16,float64"),
    function<&fill<int64, int64>>("fill:int64,int64"),
    function<&fill<int32, int64>>("fill:int32,int64"),
    function<&fill<u1, int64>>("fill:bool,int64"),
    function<&range<int64>>("range:int64"),
    function<&range<int32>>("range:int32"),
    ONERNN_INDEXED(gather),
    ONERNN_INDEXED(gather_elements),
    ONERNN_INDEXED(gather_nd),
    ONERNN_INDEXED(reverse),
    ONERNN_INDEXED(one_hot),
    ONERNN_MOVED(around),
    ONERNN_MOVED(compress),
    ONERNN_MOVED(trilu),
    function<&non_zero<float>>("non_zero:float32"),
    function<&non_zero<double>>("non_zero:float64"),
    function<&non_zero<Half>>("non_zero:float16"),
    function<&non_zero<int64>>("non_zero:int64"),
    function<&non_zero<int32>>("non_zero:int32"),
    function<&non_zero<u1>>("non_zero:bool"),
};
}  // namespace

Functions moves() { return {kFunctions, std::size(kFunctions)}; }

}  // namespace ONERNN_ISA
}  // namespace onernn
