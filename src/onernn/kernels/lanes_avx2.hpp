// Sixteen floats in two registers of AVX2; nothing for other targets.
#ifndef ONERNN_LANES_AVX2_HPP
#define ONERNN_LANES_AVX2_HPP

#include "isa.hpp"
#include "stored.hpp"

#if defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
namespace onernn {
inline namespace ONERNN_ISA {

struct Floats {
  __m256 low, high;
};

inline Floats broadcast(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Floats load(const Half* p) {
#if defined(__F16C__)
  const __m128i* bits = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(bits)), _mm256_cvtph_ps(_mm_loadu_si128(bits + 1))};
#else
  float wide[16];
  for (int i = 0; i < 16; ++i) wide[i] = widened(p[i]);
  return load(wide);
#endif
}
inline void store(float* p, Floats a) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}
inline Floats operator+(Floats a, Floats b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Floats operator-(Floats a, Floats b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Floats operator*(Floats a, Floats b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Floats operator/(Floats a, Floats b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline Floats multiply_add(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Floats minimum(Floats a, Floats b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
inline Floats maximum(Floats a, Floats b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Floats round_to_even(Floats a) {
  return {_mm256_round_ps(a.low, 8), _mm256_round_ps(a.high, 8)};
}
inline __m256 times_power_of_two(__m256 a, __m256i n) {
  const __m256i exponent = _mm256_add_epi32(n, _mm256_set1_epi32(127));
  return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
inline __m256 times_power_of_two(__m256 a, __m256 n) {
  // In two steps: a result may be subnormal, or infinite, where no single power is a number.
  const __m256i all = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(all, 1);
  return times_power_of_two(times_power_of_two(a, half), _mm256_sub_epi32(all, half));
}
inline Floats times_power_of_two(Floats a, Floats n) {
  return {times_power_of_two(a.low, n.low), times_power_of_two(a.high, n.high)};
}
inline Floats times_normal_power_of_two(Floats a, Floats n) {
  return {times_power_of_two(a.low, _mm256_cvtps_epi32(n.low)),
          times_power_of_two(a.high, _mm256_cvtps_epi32(n.high))};
}

}  // namespace ONERNN_ISA
}  // namespace onernn
#endif

#endif
