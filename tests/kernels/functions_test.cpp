// Lanes, and the functions of gates, from end to end of their range.
#include "functions.hpp"

#include <cfenv>
#include <limits>

#include "check.hpp"
#include "formulas.hpp"

using namespace onernn;

static const float kNan = std::numeric_limits<float>::quiet_NaN();
static const float kInfinity = std::numeric_limits<float>::infinity();

template <class Function>
static float of(Function function, float a) {
  float v[16];
  store(v, function(broadcast(a)));
  for (float one : v) CHECK(one == v[0] || (one != one && v[0] != v[0]));
  return v[0];
}

template <class Function, class Exact>
static void check_finite(Function function, Exact exact) {
  for (int step = -4000; step <= 4000; ++step) {
    const double a = step / 40.0;
    CHECK_NEAR(of(function, static_cast<float>(a)), exact(static_cast<float>(a)), 3e-7);
  }
  for (double a : {1e-8, 1e-3, 1e3, -1e-8, -1e-3, -1e3}) {
    CHECK_NEAR(of(function, static_cast<float>(a)), exact(static_cast<float>(a)), 3e-7);
  }
  CHECK(std::isnan(of(function, kNan)));
}

template <class Function, class Exact>
static void check(Function function, Exact exact) {
  check_finite(function, exact);
  for (double a : {1.0, -1.0}) {
    const double want = exact(a * kInfinity), got = of(function, static_cast<float>(a * kInfinity));
    CHECK(std::isinf(want) ? got == want : std::abs(got - want) <= 3e-7);
  }
}

TEST(functions_are_right_from_end_to_end) {
  check(Sigmoid<float>(), [](double a) { return 1 / (1 + std::exp(-a)); });
  check(Tanh<float>(), [](double a) { return std::tanh(a); });
  check(Identity<float>(), [](double a) { return a; });
  check_finite(Softsign<float>(), [](double a) { return a / (1 + std::abs(a)); });
  check(Softplus<float>(), [](double a) { return a > 40 ? a : std::log1p(std::exp(a)); });
  check(Affine<float>{0.5f, 0.25f}, [](double a) { return 0.5 * a + 0.25; });
  check(ScaledTanh<float>{0.75f, 0.5f}, [](double a) { return 0.75 * std::tanh(0.5 * a); });
  check(LeakyRelu<float>{0.125f}, [](double a) { return a < 0 ? 0.125 * a : a; });
  check(Elu<float>{0.75f}, [](double a) { return a < 0 ? 0.75 * std::expm1(a) : a; });
}

TEST(sigmoid_of_extremes_keeps_its_units_in_the_last_place_and_ends_at_0_and_1) {
  for (int step = -8700; step <= 8900; ++step) {
    const float a = static_cast<float>(step) / 100.0f;
    const double want = 1 / (1 + std::exp(-static_cast<double>(a)));
    CHECK(std::abs(of(Sigmoid<float>(), a) - want) <= want * 4.8e-7);  // exp, sum and division
  }
  for (float a : {-104.5f, -1e4f, -3e38f, -kInfinity}) CHECK(of(Sigmoid<float>(), a) == 0);
  for (float a : {104.5f, 1e4f, 3e38f, kInfinity}) CHECK(of(Sigmoid<float>(), a) == 1);
}

TEST(functions_that_choose_are_exact) {
  for (float a : {-3.0f, -0.25f, -0.0f, 0.0f, 0.25f, 0.5f, 3.0f, kInfinity, -kInfinity}) {
    CHECK(of(Relu<float>(), a) == (a > 0 ? a : 0));
    CHECK(of(ThresholdedRelu<float>{0.25f}, a) == (a > 0.25f ? a : 0));
    CHECK(of(Clip<float>{-0.5f, 0.5f}, a) == (a < -0.5f ? -0.5f : a > 0.5f ? 0.5f : a));
    CHECK(of(ClipNan<float>{-0.5f, 0.5f}, a) == of(Clip<float>{-0.5f, 0.5f}, a));
    const float line = 0.25f * a + 0.5f;
    CHECK(of(HardSigmoid<float>{0.25f, 0.5f}, a) == (line < 0 ? 0 : line > 1 ? 1 : line));
  }
  CHECK(std::isnan(of(Clip<float>{-0.5f, 0.5f}, kNan)));
  CHECK(of(ClipNan<float>{-0.5f, 0.5f}, kNan) == -0.5f);
}

TEST(exp_is_right_to_two_units_in_the_last_place) {
  const auto function = [](Floats a) { return exp(a); };
  for (int step = -8700; step <= 8872; ++step) {
    const float a = static_cast<float>(step) / 100.0f;
    const double want = std::exp(static_cast<double>(a));
    CHECK(std::abs(of(function, a) - want) <= want * 2.4e-7);
  }
}

TEST(exp_of_extremes_is_subnormal_or_0_or_infinite) {
  const auto function = [](Floats a) { return exp(a); };
  const double smallest = std::numeric_limits<float>::denorm_min();
  for (int step = -12000; step <= -8700; ++step) {
    const float a = static_cast<float>(step) / 100.0f;
    const double want = std::exp(static_cast<double>(a));
    CHECK(std::abs(of(function, a) - want) <= want * 2.4e-7 + smallest);
  }
  for (float a : {-104.5f, -1e4f, -3e38f, -kInfinity}) CHECK(of(function, a) == 0);
  for (float a : {88.73f, 89.5f, 1e4f, 3e38f, kInfinity}) CHECK(of(function, a) == kInfinity);
  CHECK(std::isnan(of(function, kNan)));
}

TEST(some_numbers_are_loaded_before_zeros) {
  for (std::int64_t count = 0; count <= 16; ++count) {
    float given[16], v[16];
    for (int i = 0; i < 16; ++i) given[i] = static_cast<float>(i + 1);
    store(v, load_some<float>(given, count));
    for (std::int64_t i = 0; i < 16; ++i) CHECK(v[i] == (i < count ? given[i] : 0));
  }
}

TEST(doubles_are_doubles) {
  for (double a : {-30.0, -1.0, -1e-9, 0.0, 0.3, 20.0}) {
    double v[16];
    store(v, sigmoid(broadcast(a)));
    CHECK(std::abs(v[15] - 1 / (1 + std::exp(-a))) <= 1e-15);
    store(v, tanh(broadcast(a)));
    CHECK(std::abs(v[0] - std::tanh(a)) <= 1e-15);
  }
}

TEST(every_half_is_widened_exactly) {
  for (std::uint32_t first = 0; first < 65536; first += 16) {
    Half halves[16];
    float v[16];
    for (std::uint32_t i = 0; i < 16; ++i) halves[i].bits = static_cast<std::uint16_t>(first + i);
    store(v, load(halves));
    for (std::uint32_t i = 0; i < 16; ++i) {
      const int bits = static_cast<int>(first + i), exponent = bits >> 10 & 31, rest = bits & 1023;
      double want = exponent == 31 ? (rest ? kNan : kInfinity)
                    : exponent     ? std::ldexp(1024 + rest, exponent - 25)
                                   : std::ldexp(rest, -24);
      want = bits & 0x8000 ? -want : want;
      const float plain = widened(halves[i]);
      CHECK(v[i] == want || (std::isnan(want) && std::isnan(v[i])));
      CHECK(plain == want || (std::isnan(want) && std::isnan(plain)));
      CHECK(std::signbit(v[i]) == std::signbit(want));
    }
  }
}

TEST(of_a_nan_and_a_number_the_second_comes_out) {
  const auto low = [](Floats a) { return minimum(a, broadcast(2.0f)); };
  const auto high = [](Floats a) { return maximum(broadcast(2.0f), a); };
  CHECK(of(low, kNan) == 2 && std::isnan(of(high, kNan)));
}

TEST(some_of_the_lanes_are_stored_and_nothing_else) {
  for (std::int64_t count = 0; count <= 16; ++count) {
    float v[17];
    for (float& one : v) one = -1;
    store_some(v, broadcast(5.0f), count);
    for (std::int64_t i = 0; i < 17; ++i) CHECK(v[i] == (i < count ? 5 : -1));
  }
}

TEST(single_numbers_follow_numpy) {
  CHECK(most(1.0f, 2.0f) == 2 && least(1.0f, 2.0f) == 1 && most(3, -3) == 3);
  CHECK(std::isnan(most(kNan, 1.0f)) && std::isnan(most(1.0f, kNan)));
  CHECK(std::isnan(least(kNan, 1.0f)) && std::isnan(least(1.0f, kNan)));
  CHECK(sign(-4) == -1 && sign(0) == 0 && sign(2.5f) == 1 && std::isnan(sign(kNan)));
  CHECK(whole<std::int32_t>(-2.75f) == -2 && whole<std::int32_t>(2.75) == 2);
  CHECK(whole<std::int32_t>(kNan) == std::numeric_limits<std::int32_t>::min());
  CHECK(whole<std::int64_t>(1e30f) == std::numeric_limits<std::int64_t>::min());
}
