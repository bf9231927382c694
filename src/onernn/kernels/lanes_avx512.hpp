// Sixteen floats in one register of AVX-512; nothing for other targets.
#ifndef ONERNN_LANES_AVX512_HPP
#define ONERNN_LANES_AVX512_HPP

#include "isa.hpp"
#include "stored.hpp"

#if defined(__AVX512F__)
namespace onernn {
inline namespace ONERNN_ISA {

struct Floats {
  __m512 v;
};
constexpr __mmask16 kEvery = 0xffff;  // GCC 12 warns of its own header where nothing is masked

inline Floats broadcast(float a) { return {_mm512_set1_ps(a)}; }
inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Floats load(const Half* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_maskz_cvtph_ps(kEvery, bits)};
}
inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }
inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Floats multiply_add(Floats a, Floats b, Floats c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline Floats minimum(Floats a, Floats b) { return {_mm512_maskz_min_ps(kEvery, a.v, b.v)}; }
inline Floats maximum(Floats a, Floats b) { return {_mm512_maskz_max_ps(kEvery, a.v, b.v)}; }
inline Floats round_to_even(Floats a) { return {_mm512_maskz_roundscale_ps(kEvery, a.v, 8)}; }
inline Floats times_power_of_two(Floats a, Floats n) {
  return {_mm512_maskz_scalef_ps(kEvery, a.v, n.v)};
}
inline Floats times_normal_power_of_two(Floats a, Floats n) { return times_power_of_two(a, n); }

}  // namespace ONERNN_ISA
}  // namespace onernn
#endif

#endif
