// Matrices of bfloat16, which are stored in pairs of rows. With AVX512_BF16 or bfdot, one
// instruction multiplies pairs by pairs of the second factor. Otherwise both rows of a pair are
// loaded as Lanes.
#ifndef ONERNN_PAIRS_HPP
#define ONERNN_PAIRS_HPP

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "isa.hpp"
#include "lanes.hpp"
#include "stored.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

#if defined(__AVX512F__) && defined(__AVX512BF16__)

struct Pairs {
  __m512i v;
};

inline Pairs broadcast(BrainPair a) {
  std::int32_t bits;
  std::memcpy(&bits, &a, sizeof bits);
  return {_mm512_set1_epi32(bits)};
}
inline Pairs load_row(const BrainPair* p, int) { return {_mm512_loadu_si512(p)}; }
inline Floats multiply_add(Pairs a, Pairs b, Floats c) {
  return {_mm512_dpbf16_ps(c.v, (__m512bh)a.v, (__m512bh)b.v)};
}

/// Rounds K numbers of a row to pairs, to nearest even. Zeros follow up to the next multiple of 32.
inline void round_to_pairs(const float* row, std::int64_t K, BrainPair* to) {
  const auto sixteen = [row, K](std::int64_t k) {
    const std::int64_t begin = (std::min)(k, K), count = (std::min<std::int64_t>)(K - begin, 16);
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), row + begin);
  };
  for (std::int64_t k = 0; k < K; k += 32)
    _mm512_storeu_si512(to + k / 2, (__m512i)_mm512_cvtne2ps_pbh(sixteen(k + 16), sixteen(k)));
}

#elif defined(ONERNN_SQUARES)

inline Lane factor_of(BrainPair a) { return lane_of(a); }
inline Four<bfloat16x8_t> load_row(const BrainPair* p, int) {
  const auto four = [p](int first) { return vreinterpretq_bf16_u8(bytes_at(p + first)); };
  return {four(0), four(4), four(8), four(12)};
}
inline Floats multiply_add(Lane a, Four<bfloat16x8_t> b, Floats c) { return add_pairs(a, b, c); }

/// Rounds K numbers of a row to pairs, to nearest even. Zeros follow up to the next multiple of 32.
inline void round_to_pairs(const float* row, std::int64_t K, BrainPair* to) {
  for (std::int64_t k = 0; k < K || k % 32; k += 16) {
    const std::int64_t begin = (std::min)(k, K);
    const Floats some = load_some(row + begin, K - begin);
    const auto eight = [to, k](int first, float32x4_t low, float32x4_t high) {
      const bfloat16x8_t both = vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high);
      vst1q_u8(reinterpret_cast<std::uint8_t*>(to + (k + first) / 2), vreinterpretq_u8_bf16(both));
    };
    eight(0, some.a, some.b);
    eight(8, some.c, some.d);
  }
}

#else

/// Loads row r of the two rows of a pair, as Lanes.
inline Floats load_row(const BrainPair* p, int r) {
#if defined(__SSE4_1__) || defined(ONERNN_NEON)
  return in_each([r](auto bits) { return r ? upper_half(bits) : lower_half(bits); }, integers(p));
#else
  Floats out;
  std::uint32_t bits[16];
  for (int i = 0; i < 16; ++i) std::memcpy(&bits[i], p + i, sizeof bits[i]);
  if (r)
    for (std::uint32_t& one : bits) one &= 0xffff0000u;
  else
    for (std::uint32_t& one : bits) one <<= 16;
  for (int i = 0; i < 16; ++i) std::memcpy(&out.v[i], &bits[i], sizeof bits[i]);
  return out;
#endif
}

#if defined(ONERNN_TILES)
/// Rounds K numbers of a row to pairs, to nearest even. Zeros follow up to the next multiple of 32.
inline void round_to_pairs(const float* row, std::int64_t K, BrainPair* to) {
  const auto rounded = [row, K](std::int64_t k) {
    return static_cast<std::uint16_t>(k < K ? brain_bits(row[k]) : 0);
  };
  for (std::int64_t k = 0; k < K || k % 32; k += 2) to[k / 2] = {rounded(k), rounded(k + 1)};
}
#endif

#endif

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
