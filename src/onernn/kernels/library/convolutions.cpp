// The functions of convolutions.hpp and pools.hpp that a plan's steps call.
#include "../convolutions.hpp"

#include <iterator>

#include "../pools.hpp"
#include "calls.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

namespace {
#define CONVOLVE(type, name, beside)                                             \
  function<&convolve<beside, type, Team>, ByRule>("convolve:" name "," #beside), \
      function<&pack<beside, type>, ByRule>("pack:" name "," #beside)
#define WINDOWS(type, name)                                      \
  function<&convolve_back<type>, ByRule>("convolve_back:" name), \
      function<&max_pool<type>, ByRule>("max_pool:" name),       \
      function<&average_pool<type>, ByRule>("average_pool:" name)
// float64 has one panel width only: each one takes as long to compile as all other functions of
// this file.
constexpr Function kFunctions[] = {
    CONVOLVE(float, "float32", 1), CONVOLVE(float, "float32", 2),  CONVOLVE(float, "float32", 3),
    CONVOLVE(float, "float32", 4), CONVOLVE(double, "float64", 1), WINDOWS(float, "float32"),
    WINDOWS(double, "float64"),
};
}  // namespace

Functions convolutions() { return {kFunctions, std::size(kFunctions)}; }

}  // namespace ONERNN_ISA
}  // namespace onernn
