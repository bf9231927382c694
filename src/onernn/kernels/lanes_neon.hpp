// Sixteen numbers in four registers of NEON; nothing for other targets.
#ifndef ONERNN_LANES_NEON_HPP
#define ONERNN_LANES_NEON_HPP

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "isa.hpp"
#include "lanes_registers.hpp"
#include "stored.hpp"

#if defined(ONERNN_NEON)
namespace onernn {
inline namespace ONERNN_ISA {

using Floats = Four<float32x4_t>;
using Ints = Four<int32x4_t>;
inline constexpr Four<int> kFirst{0, 4, 8, 12};

/// Sixteen bytes of anything, at any address.
inline uint8x16_t bytes_at(const void* p) { return vld1q_u8(static_cast<const std::uint8_t*>(p)); }

inline float32x4_t all_of(float a) { return vdupq_n_f32(a); }
inline float32x4_t register_at(const float* p) { return vld1q_f32(p); }
inline float32x4_t register_at(const Half* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)));
}
inline void put(float* p, float32x4_t a) { vst1q_f32(p, a); }
inline float32x4_t multiply_add(float32x4_t a, float32x4_t b, float32x4_t c) {
  return vfmaq_f32(c, a, b);
}
/// fmin and fmax return NaN if either number is NaN; here the second number must be returned.
inline float32x4_t minimum(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}
inline float32x4_t maximum(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
inline float32x4_t round_to_even(float32x4_t a) { return vrndnq_f32(a); }
inline float32x4_t times_power_of_two(float32x4_t a, int32x4_t n) {
  const int32x4_t exponent = vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23);
  return vmulq_f32(a, vreinterpretq_f32_s32(exponent));
}
inline float32x4_t times_power_of_two(float32x4_t a, float32x4_t n) {
  // Multiplies by two powers of two: if the result is subnormal or infinite, 2^n alone may not be a
  // finite normal number.
  const int32x4_t all = vcvtnq_s32_f32(n), half = vshrq_n_s32(all, 1);
  return times_power_of_two(times_power_of_two(a, half), vsubq_s32(all, half));
}
inline float32x4_t times_normal_power_of_two(float32x4_t a, float32x4_t n) {
  return times_power_of_two(a, vcvtnq_s32_f32(n));
}

/// Loads four columns of sixteen rows. Rows are `apart` numbers apart.
inline void turn(const float* from, std::int64_t apart, Floats (&columns)[4]) {
  const auto quarter = [=](std::int64_t first, auto put) {
    float32x4_t v[4];
    for (int r = 0; r < 4; ++r) v[r] = vld1q_f32(from + (first + r) * apart);
    const float32x4x2_t one = vtrnq_f32(v[0], v[1]), two = vtrnq_f32(v[2], v[3]);
    for (int j = 0; j < 2; ++j) {
      put(j, vcombine_f32(vget_low_f32(one.val[j]), vget_low_f32(two.val[j])));
      put(j + 2, vcombine_f32(vget_high_f32(one.val[j]), vget_high_f32(two.val[j])));
    }
  };
  quarter(0, [&](int j, float32x4_t a) { columns[j].a = a; });
  quarter(4, [&](int j, float32x4_t a) { columns[j].b = a; });
  quarter(8, [&](int j, float32x4_t a) { columns[j].c = a; });
  quarter(12, [&](int j, float32x4_t a) { columns[j].d = a; });
}

inline int32x4_t integers_at(const void* p) { return vreinterpretq_s32_u8(bytes_at(p)); }
inline int32x4_t sum_of(int32x4_t a, int32x4_t b) { return vaddq_s32(a, b); }
inline float32x4_t to_floats(int32x4_t a) { return vcvtq_f32_s32(a); }
inline float32x4_t upper_half(int32x4_t a) {
  return vreinterpretq_f32_s32(vandq_s32(a, vdupq_n_s32(-65536)));
}
inline float32x4_t lower_half(int32x4_t a) { return vreinterpretq_f32_s32(vshlq_n_s32(a, 16)); }

/// A factor for sixteen numbers, which instructions take from the first lane of a register. The
/// empty assembler statement keeps it there. Otherwise Clang would copy it to all lanes, with an
/// instruction that keeps a vector unit busy.
struct Lane {
  float v;
};
inline Lane factor_of(float a) {
  asm("" : "+w"(a));
  return {a};
}
inline Floats multiply_add(Lane x, Floats y, Floats z) {
  return in_each([x](auto b, auto c) { return vfmaq_n_f32(c, b, x.v); }, y, z);
}

/// Returns a Lane of four bytes, which are a quad or a pair of bfloat16.
template <class Bytes>
inline Lane lane_of(const Bytes& bytes) {
  float lane;
  static_assert(sizeof lane == sizeof bytes);
  std::memcpy(&lane, &bytes, sizeof lane);
  return factor_of(lane);
}
inline float32x2_t register_of(Lane x) {
#if defined(__clang__)
  return vdup_n_f32(x.v);
#else
  float32x2_t out;  // no instruction: GCC would copy the lane
  asm("" : "=w"(out) : "0"(x.v));
  return out;
#endif
}

#if defined(__ARM_FEATURE_DOTPROD)
/// sums += each column's four bytes times a lane's four bytes.
inline Ints add_quads(Lane x, Four<int8x16_t> columns, Ints sums) {
  const int8x8_t quad = vreinterpret_s8_f32(register_of(x));
  return in_each([quad](auto a, auto sum) { return vdotq_lane_s32(sum, a, quad, 0); }, columns,
                 sums);
}
#endif

#if defined(ONERNN_SQUARES)
/// sums += each column's pair of bfloat16 times a lane's pair.
inline Floats add_pairs(Lane x, Four<bfloat16x8_t> columns, Floats sums) {
  const bfloat16x4_t pair = vreinterpret_bf16_f32(register_of(x));
  return in_each([pair](auto a, auto sum) { return vbfdotq_lane_f32(sum, a, pair, 0); }, columns,
                 sums);
}

/// Adds to the sums of two rows and two columns: two quads (or pairs) of each row times two quads
/// (or pairs) of each column, one after the other. The bits are the same as with add_quads and
/// add_pairs. In assembler, and in this order: Clang would need more registers than there are.
inline int32x4_t add_square(uint8x16_t rows, uint8x16_t columns, int32x4_t sums) {
  asm volatile("smmla %0.4s, %1.16b, %2.16b" : "+w"(sums) : "w"(rows), "w"(columns));
  return sums;
}
inline float32x4_t add_square(uint8x16_t rows, uint8x16_t columns, float32x4_t sums) {
  asm volatile("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sums) : "w"(rows), "w"(columns));
  return sums;
}

inline int32x4_t lower_halves(int32x4_t a, int32x4_t b) {
  return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}
inline int32x4_t upper_halves(int32x4_t a, int32x4_t b) {
  return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}
inline float32x4_t lower_halves(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}
inline float32x4_t upper_halves(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}

/// sums[m][g] += `count` quads or pairs of row m times the quads or pairs of columns place(g). M
/// and `count` are even; rows of the matrix are `row` stored numbers apart. A register holds two
/// rows or two columns.
template <int M, int G, class Sums, class Factor, class Stored, class Place>
inline void multiply_squares(Sums (*sums)[G], const Factor* const* left, const Stored* panel,
                             std::int64_t count, std::int64_t row, Place place) {
  static_assert(M % 2 == 0 && sizeof(Factor) == 4 && sizeof(Stored) == 4);
  const auto lower = [](auto a, auto b) { return lower_halves(a, b); };
  const auto upper = [](auto a, auto b) { return upper_halves(a, b); };
  Sums low[M / 2][G], high[M / 2][G];
  const std::uint8_t* rows[M];
#pragma GCC unroll 32
  for (int m = 0; m < M; ++m) rows[m] = reinterpret_cast<const std::uint8_t*>(left[m]);
#pragma GCC unroll 32
  for (int i = 0; i < M / 2 * G; ++i) {
    const Sums &even = sums[i / G * 2][i % G], &odd = sums[i / G * 2 + 1][i % G];
    low[i / G][i % G] = in_each(lower, even, odd);
    high[i / G][i % G] = in_each(upper, even, odd);
  }
  for (std::int64_t k = 0; k < count; k += 2, panel += 2 * row) {
    uint8x16_t two[M / 2];
#pragma GCC unroll 32
    for (int m = 0; m < M / 2; ++m)
      two[m] = vcombine_u8(vld1_u8(rows[2 * m] + 4 * k), vld1_u8(rows[2 * m + 1] + 4 * k));
#pragma GCC unroll 32
    for (int i = 0; i < 4 * G; ++i) {
      const int g = i / 4;
      constexpr decltype(&Sums::a) kPart[] = {&Sums::a, &Sums::b, &Sums::c, &Sums::d};
      const auto part = kPart[i % 4];
      const Stored* const from = panel + place(g) + i % 4 * 4;
      const uint32x4_t one = vreinterpretq_u32_u8(bytes_at(from));
      const uint32x4_t other = vreinterpretq_u32_u8(bytes_at(from + row));
#pragma GCC unroll 32
      for (int m = 0; m < M / 2; ++m) {
        Sums &left_ones = low[m][g], &right_ones = high[m][g];
        left_ones.*part =
            add_square(two[m], vreinterpretq_u8_u32(vzip1q_u32(one, other)), left_ones.*part);
        right_ones.*part =
            add_square(two[m], vreinterpretq_u8_u32(vzip2q_u32(one, other)), right_ones.*part);
      }
    }
  }
#pragma GCC unroll 32
  for (int i = 0; i < M / 2 * G; ++i) {
    sums[i / G * 2][i % G] = in_each(lower, low[i / G][i % G], high[i / G][i % G]);
    sums[i / G * 2 + 1][i % G] = in_each(upper, low[i / G][i % G], high[i / G][i % G]);
  }
}
#endif

}  // namespace ONERNN_ISA
}  // namespace onernn
#endif

#endif
