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
constexpr __mmask16 kEvery = 0xffff;  // GCC 12 warns of its own header where nothing is masked

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
