// Functions of moves.hpp that steps call. Numbers that only move are u1, u2, u4 and u8: of one,
// two, four and eight bytes.
#include "../moves.hpp"

#include <iterator>

#include "calls.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

namespace {
using u1 = std::uint8_t;
using u2 = std::uint16_t;
using u4 = std::uint32_t;
using u8 = std::uint64_t;
using int32 = std::int32_t;
using int64 = std::int64_t;
#define MOVED(name)                                                   \
  function<&name<u1>>(#name ":u1"), function<&name<u2>>(#name ":u2"), \
      function<&name<u4>>(#name ":u4"), function<&name<u8>>(#name ":u8")
#define INDEXED_OF(name, type)                            \
  function<&name<type, int32>>(#name ":" #type ",int32"), \
      function<&name<type, int64>>(#name ":" #type ",int64")
#define INDEXED(name) \
  INDEXED_OF(name, u1), INDEXED_OF(name, u2), INDEXED_OF(name, u4), INDEXED_OF(name, u8)
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
    MOVED(copy),
    function<&fill<float, double>>("fill:float32,float64"),
    function<&fill<double, double>>("fill:float64,float64"),
    function<&fill<Half, double>>("fill:float16,float64"),
    function<&fill<int64, int64>>("fill:int64,int64"),
    function<&fill<int32, int64>>("fill:int32,int64"),
    function<&fill<u1, int64>>("fill:bool,int64"),
    function<&range<int64>>("range:int64"),
    function<&range<int32>>("range:int32"),
    INDEXED(gather),
    INDEXED(gather_elements),
    INDEXED(gather_nd),
    INDEXED(reverse),
    INDEXED(one_hot),
    MOVED(around),
    MOVED(compress),
    MOVED(trilu),
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
