// The functions of moves.hpp that a plan's steps call.
#include "../moves.hpp"

#include <iterator>

#include "calls.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

namespace {
#define SCATTERED(name, type, called)                              \
  function<&name<type, int32>, ByRule>(#name ":" called ",int32"), \
      function<&name<type, int64>, ByRule>(#name ":" called ",int64")
#define SCATTERED_NUMBERS(name)                                          \
  SCATTERED(name, float, "float32"), SCATTERED(name, double, "float64"), \
      SCATTERED(name, int32, "int32"), SCATTERED(name, int64, "int64")
constexpr Function kFunctions[] = {
    SCATTERED_NUMBERS(scatter_elements),
    SCATTERED_NUMBERS(scatter_nd),
    function<&natural>("natural:"),
    function<&choose, Of<>>("choose:"),
    function<&tell_size>("tell_size:"),
    function<&read_size<int64>, Of<>>("read_size:int64"),
    function<&read_size<int32>, Of<>>("read_size:int32"),
    function<&are_divisors<int64>, Of<0>>("are_divisors:int64"),
    function<&are_divisors<int32>, Of<0>>("are_divisors:int32"),
    function<&has_turn, Of<>, Of<>, May<>>("has_turn:"),
    function<&tell<int64>, ByRule>("tell:int64"),
    function<&tell<int32>, ByRule>("tell:int32"),
    function<&fill<float, double>, Of<1>>("fill:float32,float64"),
    function<&fill<double, double>, Of<1>>("fill:float64,float64"),
    function<&fill<Half, double>, Of<1>>("fill:float16,float64"),
    function<&fill<int64, int64>, Of<1>>("fill:int64,int64"),
    function<&fill<int32, int64>, Of<1>>("fill:int32,int64"),
    function<&fill<u1, int64>, Of<1>>("fill:bool,int64"),
    function<&range<int64>, ByRule>("range:int64"),
    function<&range<int32>, ByRule>("range:int32"),
    ONERNN_INDEXED(gather, Of<4, 5, 6>, Of<3, 5, 6>, Of<4>),
    ONERNN_INDEXED(gather_elements, Of<4, 5, 6>, Of<3, 5, 6>, Of<4, 5, 6>),
    ONERNN_INDEXED(gather_nd, ByRule),
    ONERNN_INDEXED(reverse, Of<3, 4, 5>, Of<3, 4, 5>, Of<4>),
    ONERNN_INDEXED(one_hot, ByRule),
    ONERNN_MOVED(around, ByRule),
    ONERNN_MOVED(compress, ByRule),
    ONERNN_MOVED(trilu, Of<2, 3, 4>, Of<2, 3, 4>),
    function<&non_zero<float>, ByRule>("non_zero:float32"),
    function<&non_zero<double>, ByRule>("non_zero:float64"),
    function<&non_zero<Half>, ByRule>("non_zero:float16"),
    function<&non_zero<int64>, ByRule>("non_zero:int64"),
    function<&non_zero<int32>, ByRule>("non_zero:int32"),
    function<&non_zero<u1>, ByRule>("non_zero:bool"),
};
}  // namespace

Functions moves() { return {kFunctions, std::size(kFunctions)}; }

}  // namespace ONERNN_ISA
}  // namespace onernn
