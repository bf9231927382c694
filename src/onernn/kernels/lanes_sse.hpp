// Sixteen numbers in four registers of SSE4.1; nothing for other targets.
#ifndef ONERNN_LANES_SSE_HPP
#define ONERNN_LANES_SSE_HPP

#include "isa.hpp"
#include "lanes_registers.hpp"
#include "stored.hpp"

#if defined(ONERNN_LANES_SSE)
namespace onernn {
inline namespace ONERNN_ISA {

using FloatRegister [[gnu::vector_size(16)]] = float;
using IntRegister [[gnu::vector_size(16)]] = long long;
using Floats = Four<FloatRegister>;
using Ints = Four<IntRegister>;
inline constexpr Four<int> kFirst{0, 4, 8, 12};

inline __m128 all_of(float a) { return _mm_set1_ps(a); }
inline __m128 register_at(const float* p) { return _mm_loadu_ps(p); }
inline void put(float* p, __m128 a) { _mm_storeu_ps(p, a); }
inline __m128 multiply_add(__m128 a, __m128 b, __m128 c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
inline __m128 minimum(__m128 a, __m128 b) { return _mm_min_ps(a, b); }
inline __m128 maximum(__m128 a, __m128 b) { return _mm_max_ps(a, b); }
inline __m128 round_to_even(__m128 a) { return _mm_round_ps(a, 8); }
inline __m128 times_power_of_two(__m128 a, __m128i n) {
  const __m128i exponent = _mm_add_epi32(n, _mm_set1_epi32(127));
  return _mm_mul_ps(a, _mm_castsi128_ps(_mm_slli_epi32(exponent, 23)));
}
inline __m128 times_power_of_two(__m128 a, __m128 n) {
  // Multiplies by two powers of two: if the result is subnormal or infinite, 2^n alone may not be a
  // finite normal number.
  const __m128i all = _mm_cvtps_epi32(n), half = _mm_srai_epi32(all, 1);
  return times_power_of_two(times_power_of_two(a, half), _mm_sub_epi32(all, half));
}
inline __m128 times_normal_power_of_two(__m128 a, __m128 n) {
  return times_power_of_two(a, _mm_cvtps_epi32(n));
}

/// Loads four columns of sixteen rows. Rows are `apart` numbers apart.
inline void turn(const float* from, std::int64_t apart, Floats (&columns)[4]) {
  const auto quarter = [=](std::int64_t first, auto put) {
    __m128 v[4];
    for (int r = 0; r < 4; ++r) v[r] = _mm_loadu_ps(from + (first + r) * apart);
    const __m128 low = _mm_unpacklo_ps(v[0], v[1]), high = _mm_unpackhi_ps(v[0], v[1]);
    const __m128 low2 = _mm_unpacklo_ps(v[2], v[3]), high2 = _mm_unpackhi_ps(v[2], v[3]);
    put(0, _mm_movelh_ps(low, low2));
    put(1, _mm_movehl_ps(low2, low));
    put(2, _mm_movelh_ps(high, high2));
    put(3, _mm_movehl_ps(high2, high));
  };
  quarter(0, [&](int j, __m128 a) { columns[j].a = a; });
  quarter(4, [&](int j, __m128 a) { columns[j].b = a; });
  quarter(8, [&](int j, __m128 a) { columns[j].c = a; });
  quarter(12, [&](int j, __m128 a) { columns[j].d = a; });
}

inline __m128i all_of(std::int32_t a) { return _mm_set1_epi32(a); }
inline __m128i integers_at(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
inline __m128i sum_of(__m128i a, __m128i b) { return _mm_add_epi32(a, b); }
inline __m128 to_floats(__m128i a) { return _mm_cvtepi32_ps(a); }
inline __m128 upper_half(__m128i a) {
  return _mm_castsi128_ps(_mm_and_si128(a, _mm_set1_epi32(-65536)));
}
inline __m128 lower_half(__m128i a) { return _mm_castsi128_ps(_mm_slli_epi32(a, 16)); }

}  // namespace ONERNN_ISA
}  // namespace onernn
#endif

#endif
