// Sixteen floats in four registers of SSE4.1; nothing for other targets.
#ifndef ONERNN_LANES_SSE_HPP
#define ONERNN_LANES_SSE_HPP

#include "isa.hpp"
#include "stored.hpp"

#if defined(ONERNN_LANES_SSE)
namespace onernn {
inline namespace ONERNN_ISA {

struct Floats {
  __m128 a, b, c, d;
};

inline Floats broadcast(float a) {
  const __m128 four = _mm_set1_ps(a);
  return {four, four, four, four};
}
inline Floats load(const float* p) {
  return {_mm_loadu_ps(p), _mm_loadu_ps(p + 4), _mm_loadu_ps(p + 8), _mm_loadu_ps(p + 12)};
}
inline Floats load(const Half* p) {
  float wide[16];
  for (int i = 0; i < 16; ++i) wide[i] = widened(p[i]);
  return load(wide);
}
inline void store(float* p, Floats x) {
  _mm_storeu_ps(p, x.a);
  _mm_storeu_ps(p + 4, x.b);
  _mm_storeu_ps(p + 8, x.c);
  _mm_storeu_ps(p + 12, x.d);
}
#define ONERNN_EACH(name, instruction)                                           \
  inline Floats name(Floats x, Floats y) {                                       \
    return {instruction(x.a, y.a), instruction(x.b, y.b), instruction(x.c, y.c), \
            instruction(x.d, y.d)};                                              \
  }
ONERNN_EACH(operator+, _mm_add_ps)
ONERNN_EACH(operator-, _mm_sub_ps)
ONERNN_EACH(operator*, _mm_mul_ps)
ONERNN_EACH(operator/, _mm_div_ps)
ONERNN_EACH(minimum, _mm_min_ps)
ONERNN_EACH(maximum, _mm_max_ps)
inline __m128 times_power_of_two(__m128 a, __m128i n) {
  const __m128i exponent = _mm_add_epi32(n, _mm_set1_epi32(127));
  return _mm_mul_ps(a, _mm_castsi128_ps(_mm_slli_epi32(exponent, 23)));
}
inline __m128 times_normal_power_of_two(__m128 a, __m128 n) {
  return times_power_of_two(a, _mm_cvtps_epi32(n));
}
inline __m128 times_power_of_two(__m128 a, __m128 n) {
  // In two steps: a result may be subnormal, or infinite, where no single power is a number.
  const __m128i all = _mm_cvtps_epi32(n), half = _mm_srai_epi32(all, 1);
  return times_power_of_two(times_power_of_two(a, half), _mm_sub_epi32(all, half));
}
ONERNN_EACH(times_power_of_two, times_power_of_two)
ONERNN_EACH(times_normal_power_of_two, times_normal_power_of_two)
#undef ONERNN_EACH
inline Floats multiply_add(Floats x, Floats y, Floats z) { return x * y + z; }
inline Floats round_to_even(Floats x) {
  return {_mm_round_ps(x.a, 8), _mm_round_ps(x.b, 8), _mm_round_ps(x.c, 8), _mm_round_ps(x.d, 8)};
}

}  // namespace ONERNN_ISA
}  // namespace onernn
#endif

#endif
