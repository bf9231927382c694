// A program of tests: TEST(name) { CHECK(...); } anywhere, and what did not hold is told at the
// end.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "isa.hpp"

struct Test {
  const char* name;
  void (*run)();
  Test* next;
};
inline Test* tests = nullptr;
inline int failures = 0;

#define TEST(name)                               \
  static void name();                            \
  static Test name##_test{#name, name, nullptr}; \
  static const bool name##_known = [] {          \
    name##_test.next = tests;                    \
    tests = &name##_test;                        \
    return true;                                 \
  }();                                           \
  static void name()

#define CHECK(...)                                                          \
  do {                                                                      \
    if (!(__VA_ARGS__) && ++failures <= 20)                                 \
      std::printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #__VA_ARGS__); \
  } while (false)

/// Within `bound` of what is wanted, relative to 1 or to its size, whichever is larger.
#define CHECK_NEAR(got, want, bound)                                                        \
  do {                                                                                      \
    const double got_ = (got), want_ = (want);                                              \
    if (!(std::abs(got_ - want_) <= (bound) * std::fmax(1.0, std::abs(want_))) &&           \
        ++failures <= 20)                                                                   \
      std::printf("%s:%d: %s is %.9g, want %.9g\n", __FILE__, __LINE__, #got, got_, want_); \
  } while (false)

template <class Real>
std::vector<Real> random_numbers(std::int64_t count, int seed, double bound = 1) {
  std::mt19937 generator(static_cast<unsigned>(seed));
  std::uniform_real_distribution<double> one(-bound, bound);
  std::vector<Real> made(static_cast<std::size_t>(count));
  for (Real& v : made) v = static_cast<Real>(one(generator));
  return made;
}

#define ONERNN_NAME_(text) #text
#define ONERNN_NAME(text) ONERNN_NAME_(text)

/// The one argument is the namespace that the kernels are expected in.
int main(int count, char** arguments) {
  if (count != 2 || std::string(arguments[1]) != ONERNN_NAME(ONERNN_ISA)) {
    std::printf("kernels are in onernn::%s\n", ONERNN_NAME(ONERNN_ISA));
    return 2;
  }
  for (Test* one = tests; one; one = one->next) {
    const int before = failures;
    one->run();
    std::printf("%s %s\n", failures == before ? "ok  " : "FAIL", one->name);
  }
  return failures ? 1 : 0;
}
