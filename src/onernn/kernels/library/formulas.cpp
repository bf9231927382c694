// The functions of formulas.hpp, over arrays.
#include "../formulas.hpp"

#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>

#include "../functions.hpp"
#include "calls.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

namespace {

template <auto F>
struct Loop;
template <class R, class... A, R (*F)(A...)>
struct Loop<F> {
  static constexpr std::uint8_t kWidths[] = {sizeof(R), sizeof(A)..., 0};
  static void run(void* out, const void* const* arguments, std::int64_t count) {
    over(static_cast<R*>(out), arguments, count, std::index_sequence_for<A...>());
  }
  template <std::size_t... I>
  static void over(R* out, const void* const* arguments, std::int64_t count,
                   std::index_sequence<I...>) {
    const std::tuple<const A*...> in{static_cast<const A*>(arguments[I])...};
    for (std::int64_t i = 0; i < count; ++i) out[i] = F(std::get<I>(in)[i]...);
  }
};

template <Floats (*F)(Floats)>
void in_lanes(void* out, const void* const* arguments, std::int64_t count) {
  const float* from = static_cast<const float*>(arguments[0]);
  float* to = static_cast<float*>(out);
  for (std::int64_t i = 0; i < count; i += 16)
    store_some(to + i, F(load_some(from + i, count - i)), count - i);
}
/// tanh, by a polynomial near 0 so that the relative error stays small, and elsewhere by exp.
Floats relative_tanh(Floats a) {
  float x[16], made[16];
  store(x, a);
  store(made, tanh(a));
  for (int k = 0; k < 16; ++k) {
    const float z = x[k] * x[k];
    float p = -5.70498872745e-3f;
    for (const float c :
         {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f})
      p = p * z + c;
    made[k] = std::abs(x[k]) < 0.625f ? x[k] * (1 + z * p) : made[k];
  }
  return load(made);
}

/// Integer division that returns 0 if the CPU cannot divide. Sessions refuse these divisors, but a
/// damaged file may have them.
template <class T, T (*F)(T, T)>
T safely(T a, T b) {
  return b == 0 || (b == -1 && a == (std::numeric_limits<T>::min)()) ? T(0) : F(a, b);
}

constexpr std::uint8_t kOfFloats[] = {4, 4, 0};

#define OVER(...) Loop<__VA_ARGS__>::run, Loop<__VA_ARGS__>::kWidths
#define FLOATS(name) \
  {#name ":float32", OVER(&name<float>)}, { #name ":float64", OVER(&name<double>) }
#define INTEGERS(name) \
  {#name ":int32", OVER(&name<int32>)}, { #name ":int64", OVER(&name<int64>) }
#define NUMBERS(name) FLOATS(name), INTEGERS(name)
#define DIVISIONS(name)                                   \
  {#name ":int32", OVER(&safely<int32, &name<int32>>)}, { \
    #name ":int64", OVER(&safely<int64, &name<int64>>)    \
  }
#define ANYTHING(name) \
  NUMBERS(name), { #name ":bool", OVER(&name<Truth>) }
#define IN_LANES(name, function) \
  {#name ":float32", in_lanes<&function>, kOfFloats}, { #name ":float64", OVER(&name<double>) }
#define CASTS(From, from)                                   \
  {"cast:" from ",float32", OVER(&cast<float, From>)},      \
      {"cast:" from ",float64", OVER(&cast<double, From>)}, \
      {"cast:" from ",float16", OVER(&cast<Half, From>)},   \
      {"cast:" from ",int32", OVER(&cast<int32, From>)},    \
      {"cast:" from ",int64", OVER(&cast<int64, From>)}, {  \
    "truth:" from ",bool", OVER(&truth<From>)               \
  }
constexpr Formula kFormulas[] = {
    ANYTHING(same),
    NUMBERS(plus),
    NUMBERS(minus),
    NUMBERS(times),
    FLOATS(divided),
    DIVISIONS(divided),
    FLOATS(remainder),
    DIVISIONS(remainder),
    DIVISIONS(modulo),
    NUMBERS(negative),
    NUMBERS(absolute),
    NUMBERS(sign),
    NUMBERS(relu),
    NUMBERS(leaky_relu),
    FLOATS(power),
    IN_LANES(exp, exp),
    IN_LANES(tanh, relative_tanh),
    IN_LANES(sigmoid, sigmoid),
    FLOATS(rational_tanh),
    FLOATS(rational_sigmoid),
    FLOATS(log),
    FLOATS(sqrt),
    FLOATS(floor),
    FLOATS(ceil),
    FLOATS(round),
    FLOATS(reciprocal),
    FLOATS(sin),
    FLOATS(cos),
    FLOATS(atan),
    FLOATS(erf),
    FLOATS(softplus),
    FLOATS(softsign),
    FLOATS(thresholded_relu),
    FLOATS(hard_sigmoid),
    FLOATS(elu),
    FLOATS(selu),
    FLOATS(celu),
    FLOATS(gelu),
    FLOATS(gelu_tanh),
    FLOATS(hard_swish),
    FLOATS(normalized),
    FLOATS(is_nan),
    ANYTHING(chosen),
    ANYTHING(least),
    ANYTHING(most),
    ANYTHING(equal),
    ANYTHING(less),
    ANYTHING(less_or_equal),
    {"both:bool", OVER(&both<Truth>)},
    {"either:bool", OVER(&either<Truth>)},
    {"differ:bool", OVER(&differ<Truth>)},
    {"negated:bool", OVER(&negated<Truth>)},
    {"same:float16", OVER(&same<Half>)},
    {"negative:float16", OVER(&negative<Half>)},
    {"widened:float16", OVER(&widened)},
    {"as_bfloat16:float32", OVER(&as_bfloat16)},
    {"halved:float32", OVER(static_cast<Half (*)(float)>(&halved))},
    CASTS(Half, "float16"),
    CASTS(float, "float32"),
    CASTS(double, "float64"),
    CASTS(int32, "int32"),
    CASTS(int64, "int64"),
    CASTS(Truth, "bool"),
    CASTS(Truth, "uint8"),
    CASTS(std::int8_t, "int8"),
};
}  // namespace

Formulas formulas() { return {kFormulas, std::size(kFormulas)}; }

}  // namespace ONERNN_ISA
}  // namespace onernn
