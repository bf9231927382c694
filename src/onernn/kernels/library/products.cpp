// The functions of products.hpp that a plan's steps call.
#include "../products.hpp"

#include <iterator>

#include "calls.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

namespace {
#define DENSE(type, name)                                                \
  function<&dense<1, type, type, Team>, ByRule>("dense:" name ",1"),     \
      function<&dense<2, type, type, Team>, ByRule>("dense:" name ",2"), \
      function<&dense<3, type, type, Team>, ByRule>("dense:" name ",3"), \
      function<&dense<4, type, type, Team>, ByRule>("dense:" name ",4")
constexpr Function kFunctions[] = {
    DENSE(float, "float32"),
    DENSE(double, "float64"),
    function<&product<float>, Of<3, 4, 6>, Of<3, 4, 5>, Of<3, 5, 6>>("product:float32"),
    function<&product<double>, Of<3, 4, 6>, Of<3, 4, 5>, Of<3, 5, 6>>("product:float64"),
};
}  // namespace

Functions products() { return {kFunctions, std::size(kFunctions)}; }

}  // namespace ONERNN_ISA
}  // namespace onernn
