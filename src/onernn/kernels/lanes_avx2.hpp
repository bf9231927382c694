// Sixteen numbers in two registers of AVX2; nothing for other targets.
#ifndef ONERNN_LANES_AVX2_HPP
#define ONERNN_LANES_AVX2_HPP

#include "isa.hpp"
#include "lanes_registers.hpp"
#include "stored.hpp"

#if defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
namespace onernn {
inline namespace ONERNN_ISA {

using FloatRegister [[gnu::vector_size(32)]] = float;
using IntRegister [[gnu::vector_size(32)]] = long long;
using Floats = Two<FloatRegister>;
using Ints = Two<IntRegister>;
inline constexpr Two<int> kFirst{0, 8};

inline __m256 all_of(float a) { return _mm256_set1_ps(a); }
inline __m256 register_at(const float* p) { return _mm256_loadu_ps(p); }
#if defined(__F16C__)
inline __m256 register_at(const Half* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
#endif
inline void put(float* p, __m256 a) { _mm256_storeu_ps(p, a); }
inline __m256 multiply_add(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
inline __m256 minimum(__m256 a, __m256 b) { return _mm256_min_ps(a, b); }
inline __m256 maximum(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
inline __m256 round_to_even(__m256 a) { return _mm256_round_ps(a, 8); }
inline __m256 times_power_of_two(__m256 a, __m256i n) {
  const __m256i exponent = _mm256_add_epi32(n, _mm256_set1_epi32(127));
  return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
inline __m256 times_power_of_two(__m256 a, __m256 n) {
  // Multiplies by two powers of two: if the result is subnormal or infinite, 2^n alone may not be a
  // finite normal number.
  const __m256i all = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(all, 1);
  return times_power_of_two(times_power_of_two(a, half), _mm256_sub_epi32(all, half));
}
inline __m256 times_normal_power_of_two(__m256 a, __m256 n) {
  return times_power_of_two(a, _mm256_cvtps_epi32(n));
}

/// Loads four columns of sixteen rows. Rows are `apart` numbers apart.
inline void turn(const float* from, std::int64_t apart, Floats (&columns)[4]) {
  const auto half = [=](std::int64_t first, auto put) {
    __m256 v[4];
    for (int r = 0; r < 4; ++r) {
      const float* row = from + (first + r) * apart;
      v[r] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(row)),
                                  _mm_loadu_ps(row + 4 * apart), 1);
    }
    const __m256d low = _mm256_castps_pd(_mm256_unpacklo_ps(v[0], v[1]));
    const __m256d high = _mm256_castps_pd(_mm256_unpackhi_ps(v[0], v[1]));
    const __m256d low2 = _mm256_castps_pd(_mm256_unpacklo_ps(v[2], v[3]));
    const __m256d high2 = _mm256_castps_pd(_mm256_unpackhi_ps(v[2], v[3]));
    put(0, _mm256_castpd_ps(_mm256_unpacklo_pd(low, low2)));
    put(1, _mm256_castpd_ps(_mm256_unpackhi_pd(low, low2)));
    put(2, _mm256_castpd_ps(_mm256_unpacklo_pd(high, high2)));
    put(3, _mm256_castpd_ps(_mm256_unpackhi_pd(high, high2)));
  };
  half(0, [&](int j, __m256 a) { columns[j].low = a; });
  half(8, [&](int j, __m256 a) { columns[j].high = a; });
}

inline __m256i all_of(std::int32_t a) { return _mm256_set1_epi32(a); }
inline __m256i integers_at(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline __m256i sum_of(__m256i a, __m256i b) { return _mm256_add_epi32(a, b); }
inline __m256i rounded(__m256 a) { return _mm256_cvtps_epi32(a); }
inline __m256 to_floats(__m256i a) { return _mm256_cvtepi32_ps(a); }
inline __m256 upper_half(__m256i a) {
  return _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32(-65536)));
}
inline __m256 lower_half(__m256i a) { return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16)); }

}  // namespace ONERNN_ISA
}  // namespace onernn
#endif

#endif
