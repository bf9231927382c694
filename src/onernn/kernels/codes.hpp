// Matrices of 8-bit codes, times rows whose numbers keep 24 bits. Such matrices are for small
// batches, which spend most of their time on reading the weights.
//
// A row is rounded to multiples of its largest magnitude / kMostWhole. Each multiple is an integer
// with three digits, which are signed bytes. So the products of a row are three integer sums, which
// are exact: the same in any batch and on every instruction set. The rounding error is as small as
// float32's.
//
// The rows of a panel form groups. A group begins with the steps (scales) of its columns, as
// floats; then its rows follow in quads of codes. A code is a signed number plus 128. vpdpbusd
// multiplies these unsigned codes, so a row also stores the value with which the sums of each group
// start: minus 128 times the sum of the row's digits.
#ifndef ONERNN_CODES_HPP
#define ONERNN_CODES_HPP

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "isa.hpp"
#include "lanes.hpp"
#include "quad_lanes.hpp"
#include "stored.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

inline constexpr int kDigits = 3;
inline constexpr float kMostWhole = 127 << 16;

/// How many rows share the steps of their columns: as many as 32-bit sums can add.
inline constexpr std::int64_t kGroup = 1 << 16;
/// A code is a signed number plus kZero.
inline constexpr int kZero = 128;

/// Returns how many quads one digit of K numbers takes.
inline std::int64_t digit_quads(std::int64_t K) { return (K + 15) / 16 * 4; }
/// Returns how many quads all digits take, with the values with which sums start.
inline std::int64_t quads_with_digits(std::int64_t K) {
  const std::int64_t groups = (K + kGroup - 1) / kGroup;
  return kDigits * (digit_quads(K) + groups);
}

#if defined(ONERNN_VNNI)

#if defined(__AVX512VNNI__)
inline __m512i differ(__m512i a, __m512i b) { return _mm512_xor_si512(a, b); }
inline __m512i without_byte(__m512i a) { return _mm512_maskz_srli_epi32(kEvery, a, 8); }
#else
inline __m256i differ(__m256i a, __m256i b) { return _mm256_xor_si256(a, b); }
inline __m256i without_byte(__m256i a) { return _mm256_srli_epi32(a, 8); }
#endif
/// Stores the digits of sixteen integers: digit d at `to + d * quads`. Digit 0 has the highest
/// place value.
inline void store_digits(QuadFactor* to, std::int64_t quads, Floats whole) {
  // The bytes of a number plus 0x808080 are its digits plus 128.
  const auto zeros = all_of(0x808080);
  Ints left = in_each([=](auto a) { return differ(sum_of(rounded(a), zeros), zeros); }, whole);
  for (int d = kDigits - 1; d >= 0; --d) {
    const __m128i bytes = lowest_bytes(left);
    std::memcpy(to + d * quads, &bytes, sizeof bytes);
    left = in_each([](auto a) { return without_byte(a); }, left);
  }
}
/// Loads codes unchanged: vpdpbusd multiplies unsigned codes by signed digits.
inline QuadColumns load_codes(const ByteQuad* p, ByteQuad*) { return load_row(p, 0); }
inline Ints times_digits(QuadColumns codes, QuadFactors digits, Ints sums) {
  return in_each([=](auto code, auto sum) { return add_products(sum, code, digits.v), sum; }, codes,
                 sums);
}
inline Ints start_of(std::int32_t start) {
  return in_each([start](int) { return all_of(start); }, kFirst);
}

#elif defined(ONERNN_NEON)

inline void store_digits(QuadFactor* to, std::int64_t quads, Floats whole) {
  const int32x4_t zeros = vdupq_n_s32(0x808080);
  Ints left =
      in_each([=](auto a) { return veorq_s32(vaddq_s32(vcvtnq_s32_f32(a), zeros), zeros); }, whole);
  for (int d = kDigits - 1; d >= 0; --d) {
    store_bytes(to + d * quads, left);
    left = in_each([](auto a) { return vshrq_n_s32(a, 8); }, left);
  }
}
/// Loads codes as signed numbers.
inline QuadColumns load_codes(const ByteQuad* p, ByteQuad*) {
  return in_each([](auto codes) { return veorq_s8(codes, vdupq_n_s8(-kZero)); }, load_row(p, 0));
}

#else

inline void store_digits(QuadFactor* to, std::int64_t quads, Floats whole) {
  float v[16], digits[kDigits][16];
  store(v, whole);
  for (int i = 0; i < 16; ++i) {
    const std::int32_t plus = static_cast<std::int32_t>(v[i]) + 0x808080;
    for (int d = 0; d < kDigits; ++d)
      digits[d][i] = static_cast<float>((plus >> (8 * (kDigits - 1 - d)) & 255) - 128);
  }
  for (int d = 0; d < kDigits; ++d) store_quads(to + d * quads, load(digits[d]), 0);
}
/// Loads sixteen quads of codes as signed numbers, by way of `scratch`, from which `load_row`
/// widens bytes.
inline QuadColumns load_codes(const ByteQuad* p, ByteQuad* scratch) {
  std::uint8_t codes[64];
  std::memcpy(codes, p, sizeof codes);
  for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(code - kZero);
  std::memcpy(scratch, codes, sizeof codes);
  return load_row(scratch, 0);
}

#endif

#if !defined(ONERNN_VNNI)
template <class Digits>
inline QuadSums times_digits(QuadColumns columns, Digits digits, QuadSums sum) {
  return multiply_add(digits, columns, sum);
}
inline QuadSums start_of(std::int32_t) { return QuadSums{}; }
#endif

/// Writes K numbers of a row as digits, and after them the values with which the sums of each group
/// start.
inline void round_to_digits(const float* row, std::int64_t K, QuadFactor* to) {
  const std::int64_t quads = digit_quads(K);
  const Floats inverse = broadcast(put_head(row, K, 0, kMostWhole, true, to));
  for (std::int64_t k = 0; k < K; k += 16)
    store_digits(to + k / 4, quads,
                 whole_of(sixteen_of(row, k, K) * inverse, -kMostWhole, kMostWhole));
  char* starts = reinterpret_cast<char*>(to + kDigits * quads);
  for (std::int64_t quad = 0; quad < quads; quad += kGroup / 4)
    for (int d = 0; d < kDigits; ++d, starts += sizeof(std::int32_t)) {
      const QuadFactor* const from = to + d * quads;
      std::int32_t sum = 0;
      for (std::int64_t q = quad; q < (std::min)(quads, quad + kGroup / 4); ++q)
        for (const auto digit : from[q].v) sum += static_cast<std::int8_t>(digit);
      sum *= -kZero;
      std::memcpy(starts, &sum, sizeof sum);
    }
}

/// sums[g] += a row in digits times panel p of a matrix of codes.
template <int G>
[[gnu::noinline]] void multiply_codes(Floats (&sums)[G], const QuadFactor* row,
                                      const ByteQuad* matrix, std::int64_t p, std::int64_t K) {
  const std::int64_t rows = (K + 3) / 4, quads = digit_quads(K);
  const std::int64_t groups = (K + kGroup - 1) / kGroup;
  const ByteQuad* panel = matrix + p * (groups + rows) * G * 16;
  const char* starts = reinterpret_cast<const char*>(row + kDigits * quads);
  const Floats step = broadcast(head_of(row).step);
  constexpr std::int64_t kRows = kGroup / 4;  // quads in a group
  for (std::int64_t first = 0; first < rows; first += kRows) {
    const ByteQuad* const steps = panel;
    QuadSums own[kDigits][G];
    for (int d = 0; d < kDigits; ++d, starts += sizeof(std::int32_t)) {
      std::int32_t start;
      std::memcpy(&start, starts, sizeof start);
      for (int g = 0; g < G; ++g) own[d][g] = start_of(start);
    }
    panel += G * 16;
    for (std::int64_t r = first; r < (std::min)(rows, first + kRows); ++r, panel += G * 16) {
      decltype(load_codes(panel, nullptr)) codes[G];
      ByteQuad scratch[G][16];
      unrolled<G>([&](int g) { codes[g] = load_codes(panel + g * 16, scratch[g]); });
      unrolled<kDigits>([&](int d) {
        const auto digits = broadcast(row[d * quads + r]);
        unrolled<G>([&](int g) { own[d][g] = times_digits(codes[g], digits, own[d][g]); });
      });
    }
    for (int g = 0; g < G; ++g) {
      Floats sum = to_floats(total(own[0][g]));
      for (int d = 1; d < kDigits; ++d)
        sum = multiply_add(sum, broadcast(256.0f), to_floats(total(own[d][g])));
      sums[g] = multiply_add(sum, step * load_steps(steps + g * 16), sums[g]);
    }
  }
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
