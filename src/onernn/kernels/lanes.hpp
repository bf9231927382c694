// Lanes: sixteen numbers at once, in whatever registers the target has.
//
// broadcast, load, store, + - * /, multiply_add, minimum, maximum, round_to_even,
// times_power_of_two and times_normal_power_of_two (for n from -126 to 128; with n = 128 the result
// may be infinite) are written for each kind of register, everything else in terms of them. If one
// of two numbers is NaN, minimum and maximum return the second number, as on x86.
#ifndef ONERNN_LANES_HPP
#define ONERNN_LANES_HPP

#include <type_traits>

#include "isa.hpp"
#include "lanes_avx2.hpp"
#include "lanes_avx512.hpp"
#include "lanes_loops.hpp"
#include "lanes_neon.hpp"
#include "lanes_sse.hpp"

#if defined(ONERNN_SHARED)
#error "libraries of other instruction sets share this source: it cannot use lanes (build.py)"
#endif

namespace onernn {
inline namespace ONERNN_ISA {

#if defined(__SSE4_1__) || defined(ONERNN_NEON)
inline Floats broadcast(float a) {
  return in_each([a](int) { return all_of(a); }, kFirst);
}
inline Floats load(const float* p) {
  return in_each([p](int first) { return register_at(p + first); }, kFirst);
}
inline void store(float* p, Floats x) {
  in_each([p](int first, auto a) { return put(p + first, a), 0; }, kFirst, x);
}
#define ONERNN_EACH(name, formula)                                \
  inline Floats name(Floats x, Floats y) {                        \
    return in_each([](auto a, auto b) { return formula; }, x, y); \
  }
ONERNN_EACH(operator+, a + b)
ONERNN_EACH(operator-, a - b)
ONERNN_EACH(operator*, a* b)
ONERNN_EACH(operator/, a / b)
ONERNN_EACH(minimum, minimum(a, b))
ONERNN_EACH(maximum, maximum(a, b))
ONERNN_EACH(times_power_of_two, times_power_of_two(a, b))
ONERNN_EACH(times_normal_power_of_two, times_normal_power_of_two(a, b))
#undef ONERNN_EACH
inline Floats round_to_even(Floats x) {
  return in_each([](auto a) { return round_to_even(a); }, x);
}
inline Floats multiply_add(Floats x, Floats y, Floats z) {
  return in_each([](auto a, auto b, auto c) { return multiply_add(a, b, c); }, x, y, z);
}

inline Ints operator+(Ints x, Ints y) {
  return in_each([](auto a, auto b) { return sum_of(a, b); }, x, y);
}
inline Floats to_floats(Ints x) {
  return in_each([](auto a) { return to_floats(a); }, x);
}
/// Loads sixteen integers, or other data of that size, from any address.
template <class Number>
inline Ints integers(const Number* p) {
  return in_each([p](int first) { return integers_at(p + first); }, kFirst);
}
#else
using Floats = Loops<float>;
#endif

inline Floats load(const Half* p) {
#if !defined(ONERNN_LANES_SSE) && \
    (defined(__F16C__) || defined(__AVX512F__) || defined(ONERNN_NEON))
  return in_each([p](int first) { return register_at(p + first); }, kFirst);
#else
  float wide[16];
  for (int i = 0; i < 16; ++i) wide[i] = widened(p[i]);
  return load(wide);
#endif
}

using Doubles = Loops<double>;

/// How many sums of this type stay in registers, together with what is added to them.
template <class Lanes>
inline constexpr int kSums = 3;
#if defined(__AVX512F__)
template <>
inline constexpr int kSums<Floats> = 24;
template <>
inline constexpr int kSums<Ints> = 24;
#elif (defined(__AVX2__) && defined(__FMA__)) || defined(ONERNN_NEON)
template <>
inline constexpr int kSums<Floats> = 6;
#if defined(__ARM_FEATURE_DOTPROD)
template <>
inline constexpr int kSums<Ints> = 6;
#endif
#endif

template <class Real>
struct LanesOf;
template <>
struct LanesOf<float> {
  using Type = Floats;
};
template <>
struct LanesOf<double> {
  using Type = Doubles;
};

/// The Lanes of a number type.
template <class Real>
using Lanes = typename LanesOf<Real>::Type;

/// Returns x unchanged, and makes GCC keep it in registers with AVX-512, which has enough of them.
/// Otherwise GCC would read x from memory again for each of two or three uses.
template <class Numbers>
inline Numbers kept(Numbers x) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<Numbers, Floats> || std::is_same_v<Numbers, Ints>)
    asm("" : "+v"(x.v));
#endif
  return x;
}

/// Loads the first `count` of sixteen numbers; the rest are zeros.
template <class Real>
inline Lanes<Real> load_some(const Real* p, std::int64_t count) {
  if (count >= 16) return load(p);
  Real v[16] = {};
  for (std::int64_t i = 0; i < count; ++i) v[i] = p[i];
  return load(v);
}
template <class Real>
inline void store_some(Real* p, Lanes<Real> a, std::int64_t count) {
  if (count >= 16) return store(p, a);
  Real v[16];
  store(v, a);
  for (std::int64_t i = 0; i < count; ++i) p[i] = v[i];
}
#if defined(__AVX512F__)
inline __mmask16 first_lanes(std::int64_t count) {
  return static_cast<__mmask16>((1u << count) - 1);
}
template <>
inline Floats load_some(const float* p, std::int64_t count) {
  return count >= 16 ? load(p) : Floats{_mm512_maskz_loadu_ps(first_lanes(count), p)};
}
template <>
inline void store_some(float* p, Floats a, std::int64_t count) {
  if (count >= 16) return store(p, a);
  _mm512_mask_storeu_ps(p, first_lanes(count), a.v);
}
#elif defined(__AVX2__) && defined(__FMA__)
template <>
inline Floats load_some(const float* p, std::int64_t count) {
  if (count >= 16) return load(p);
  const auto half = [=](std::int64_t first) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i some = _mm256_set1_epi32(static_cast<std::int32_t>(count - first));
    return _mm256_maskload_ps(p + first, _mm256_cmpgt_epi32(some, lanes));
  };
  return {half(0), half(8)};
}
#endif

/// Applies a function of one number to each of sixteen numbers.
template <class Real, class Function>
inline Lanes<Real> each(Lanes<Real> a, Function function) {
  Real v[16];
  store(v, a);
  for (Real& one : v) one = function(one);
  return load(v);
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
