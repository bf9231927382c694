// Sixteen numbers in one register of AVX-512; nothing for other targets.
#ifndef ONERNN_LANES_AVX512_HPP
#define ONERNN_LANES_AVX512_HPP

#include "isa.hpp"
#include "lanes_registers.hpp"
#include "stored.hpp"

#if defined(__AVX512F__)
namespace onernn {
inline namespace ONERNN_ISA {

using FloatRegister [[gnu::vector_size(64)]] = float;
using IntRegister [[gnu::vector_size(64)]] = long long;
using Floats = One<FloatRegister>;
using Ints = One<IntRegister>;
inline constexpr One<int> kFirst{0};
constexpr __mmask16 kEvery = 0xffff;  // without a mask GCC 12 warns of its own header

inline __m512 all_of(float a) { return _mm512_set1_ps(a); }
inline __m512 register_at(const float* p) { return _mm512_loadu_ps(p); }
inline __m512 register_at(const Half* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_maskz_cvtph_ps(kEvery, bits);
}
inline void put(float* p, __m512 a) { _mm512_storeu_ps(p, a); }
inline __m512 multiply_add(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
inline __m512 minimum(__m512 a, __m512 b) { return _mm512_maskz_min_ps(kEvery, a, b); }
inline __m512 maximum(__m512 a, __m512 b) { return _mm512_maskz_max_ps(kEvery, a, b); }
inline __m512 round_to_even(__m512 a) { return _mm512_maskz_roundscale_ps(kEvery, a, 8); }
inline __m512 times_power_of_two(__m512 a, __m512 n) {
  return _mm512_maskz_scalef_ps(kEvery, a, n);
}
inline __m512 times_normal_power_of_two(__m512 a, __m512 n) { return times_power_of_two(a, n); }

/// Loads four columns of sixteen rows. Rows are `apart` numbers apart.
inline void turn(const float* from, std::int64_t apart, Floats (&columns)[4]) {
  __m512 v[4];
  for (int r = 0; r < 4; ++r) {
    const float* row = from + r * apart;
    v[r] = _mm512_maskz_broadcast_f32x4(kEvery, _mm_loadu_ps(row));
    v[r] = _mm512_maskz_insertf32x4(kEvery, v[r], _mm_loadu_ps(row + 4 * apart), 1);
    v[r] = _mm512_maskz_insertf32x4(kEvery, v[r], _mm_loadu_ps(row + 8 * apart), 2);
    v[r] = _mm512_maskz_insertf32x4(kEvery, v[r], _mm_loadu_ps(row + 12 * apart), 3);
  }
  const auto low = [](__m512 a, __m512 b) { return _mm512_maskz_unpacklo_ps(kEvery, a, b); };
  const auto high = [](__m512 a, __m512 b) { return _mm512_maskz_unpackhi_ps(kEvery, a, b); };
  const auto pairs = [&](int j, __m512 a, __m512 b) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    columns[j].v = _mm512_castpd_ps(_mm512_maskz_unpacklo_pd(0xff, x, y));
    columns[j + 1].v = _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(0xff, x, y));
  };
  pairs(0, low(v[0], v[1]), low(v[2], v[3]));
  pairs(2, high(v[0], v[1]), high(v[2], v[3]));
}

inline __m512i all_of(std::int32_t a) { return _mm512_set1_epi32(a); }
inline __m512i integers_at(const void* p) { return _mm512_loadu_si512(p); }
inline __m512i sum_of(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
inline __m512i rounded(__m512 a) { return _mm512_maskz_cvtps_epi32(kEvery, a); }
inline __m512 to_floats(__m512i a) { return _mm512_maskz_cvtepi32_ps(kEvery, a); }
inline __m512 upper_half(__m512i a) {
  return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(-65536)));
}
inline __m512 lower_half(__m512i a) {
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kEvery, a, 16));
}

}  // namespace ONERNN_ISA
}  // namespace onernn
#endif

#endif
