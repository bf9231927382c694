// The functions of quantized.hpp that a plan's steps call.
#include "../quantized.hpp"

#include <iterator>

#include "../tile_products.hpp"
#include "calls.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

namespace {
#define SCALED Of<4, 5, 6>, Of<4, 5, 6>, Of<5>, May<5>
#define BESIDE(count, type, name)                                                    \
  function<&dense_bytes<count, type, Team>, ByRule>("dense_bytes:" name "," #count), \
      function<&convolve_bytes<count, type, Team>, ByRule>("convolve_bytes:" name "," #count)
#define OF_BYTES(type, name)                                                          \
  function<&quantize<type>, SCALED>("quantize:" name),                                \
      function<&dequantize<type>, SCALED>("dequantize:" name), BESIDE(1, type, name), \
      BESIDE(2, type, name), BESIDE(3, type, name), BESIDE(4, type, name)
constexpr Function kFunctions[] = {
    OF_BYTES(std::uint8_t, "uint8"),
    OF_BYTES(std::int8_t, "int8"),
    function<&quantize<std::uint16_t>, SCALED>("quantize:uint16"),
    function<&quantize<std::int16_t>, SCALED>("quantize:int16"),
    function<&dequantize<std::uint16_t>, SCALED>("dequantize:uint16"),
    function<&dequantize<std::int16_t>, SCALED>("dequantize:int16"),
    function<&dequantize<std::int32_t>, SCALED>("dequantize:int32"),
    function<&dynamic_quantize, Of<4>, May<>, May<>, Of<4>>("dynamic_quantize:"),
    function<&quantized_lstm<Team>, ByRule>("quantized_lstm:"),
};
}  // namespace

Functions quantized() { return {kFunctions, std::size(kFunctions)}; }

}  // namespace ONERNN_ISA
}  // namespace onernn
