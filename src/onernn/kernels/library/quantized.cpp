// Functions of quantized.hpp that steps call.
#include "../quantized.hpp"

#include <iterator>

#include "calls.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

namespace {
#define OF_BYTES(type, name)                                                                    \
  function<&quantize<type>>("quantize:" name), function<&dequantize<type>>("dequantize:" name), \
      function<&dense_bytes<1, type, Team>>("dense_bytes:" name ",1"),                          \
      function<&dense_bytes<2, type, Team>>("dense_bytes:" name ",2"),                          \
      function<&dense_bytes<3, type, Team>>("dense_bytes:" name ",3"),                          \
      function<&dense_bytes<4, type, Team>>("dense_bytes:" name ",4")
constexpr Function kFunctions[] = {
    OF_BYTES(std::uint8_t, "uint8"),
    OF_BYTES(std::int8_t, "int8"),
    function<&dequantize<std::int32_t>>("dequantize:int32"),
    function<&dynamic_quantize>("dynamic_quantize:"),
    function<&quantized_lstm<Team>>("quantized_lstm:"),
};
}  // namespace

Functions quantized() { return {kFunctions, std::size(kFunctions)}; }

}  // namespace ONERNN_ISA
}  // namespace onernn
