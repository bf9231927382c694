// Sixteen integer sums, and products of quads (fours of bytes) that are added to them, for each
// kind of register. QuadFactor is four numbers of a row in the form that products read, Ints are
// the sums, QuadColumns is a stored row of sixteen quads. Sums are exact: the same on every
// instruction set.
#ifndef ONERNN_QUAD_LANES_HPP
#define ONERNN_QUAD_LANES_HPP

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "isa.hpp"
#include "lanes.hpp"
#include "products.hpp"
#include "stored.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

#if defined(ONERNN_VNNI)

struct QuadFactor {
  std::uint8_t v[4];  // each plus the shift of its row
};
inline void put_byte(QuadFactor& quad, int i, int number) {
  quad.v[i] = static_cast<std::uint8_t>(number + 128);
}

/// sum += unsigned bytes times signed bytes. In assembler: GCC 12 copies each sum around the
/// intrinsic, and runs out of registers.
#if defined(__AVX512VNNI__)
inline void add_products(__m512i& sum, __m512i bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(signed_bytes));
}
/// Returns the lowest byte of each of sixteen integers.
inline __m128i lowest_bytes(Ints a) { return _mm512_maskz_cvtepi32_epi8(kEvery, a.v); }
#else
inline void add_products(__m256i& sum, __m256i bytes, __m256i signed_bytes) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(bytes), "x"(signed_bytes));
}
inline __m128i lowest_bytes(Ints a) {
  const __m256i byte = _mm256_set1_epi32(255);
  const __m256i words = _mm256_permute4x64_epi64(
      _mm256_packus_epi32(_mm256_and_si256(a.low, byte), _mm256_and_si256(a.high, byte)), 0xd8);
  return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
#endif

using QuadColumns = Ints;
struct QuadFactors {
  IntRegister v;
};
inline QuadColumns load_row(const ByteQuad* p, int) { return integers(p); }
inline Ints first_sums(const ByteQuad* start) { return integers(start); }
inline QuadFactors broadcast(QuadFactor a) {
  std::int32_t bits;
  std::memcpy(&bits, &a, sizeof bits);
  return {all_of(bits)};
}
inline Ints multiply_add(QuadFactors factor, QuadColumns columns, Ints sums) {
  return in_each([=](auto column, auto sum) { return add_products(sum, factor.v, column), sum; },
                 columns, sums);
}
/// Stores sixteen integers, which are from -shift to 255 - shift.
inline void store_quads(QuadFactor* to, Floats whole, std::int32_t shift) {
  const auto more = all_of(shift);
  const __m128i bytes =
      lowest_bytes(in_each([=](auto a) { return sum_of(rounded(a), more); }, whole));
  std::memcpy(to, &bytes, sizeof bytes);
}

#elif defined(ONERNN_NEON)

// Both factors are signed here. A number of a row plus its shift may be from 0 to 255, so 128 is
// subtracted; see multiply_quads.
struct QuadFactor {
  std::int8_t v[4];
};
inline void put_byte(QuadFactor& quad, int i, int number) {
  quad.v[i] = static_cast<std::int8_t>(number);
}
using QuadColumns = Four<int8x16_t>;
inline QuadColumns load_row(const ByteQuad* p, int) {
  return in_each([](auto quads) { return vreinterpretq_s8_s32(quads); }, integers(p));
}
/// Stores the lowest byte of each of sixteen integers.
inline void store_bytes(QuadFactor* to, Ints x) {
  const auto eight = [](int32x4_t low, int32x4_t high) {
    return vmovn_s16(vcombine_s16(vmovn_s32(low), vmovn_s32(high)));
  };
  vst1_s8(to[0].v, eight(x.a, x.b));
  vst1_s8(to[2].v, eight(x.c, x.d));
}
inline void store_quads(QuadFactor* to, Floats whole, std::int32_t shift) {
  const int32x4_t more = vdupq_n_s32(shift - 128);
  store_bytes(to, in_each([=](auto a) { return vaddq_s32(vcvtnq_s32_f32(a), more); }, whole));
}
#if defined(__ARM_FEATURE_DOTPROD)
using QuadSums = Ints;
inline Ints total(Ints sums) { return sums; }
inline Lane broadcast(QuadFactor a) { return lane_of(a); }
inline Ints multiply_add(Lane factor, QuadColumns columns, Ints sums) {
  return add_quads(factor, columns, sums);
}
#else
/// Two sums per column: of numbers 0 and 1 of its quads, and of numbers 2 and 3. 16 bits hold each
/// product, but not the sum of two products.
struct QuadSums {
  Ints low, high;  // of four columns: 0 and 1; 2 and 3
};
inline QuadSums operator+(QuadSums a, QuadSums b) { return {a.low + b.low, a.high + b.high}; }
inline Ints total(QuadSums sums) {
  return in_each([](auto a, auto b) { return vpaddq_s32(a, b); }, sums.low, sums.high);
}
inline int8x16_t broadcast(QuadFactor a) {
  std::int32_t bits;
  std::memcpy(&bits, &a, sizeof bits);
  return vreinterpretq_s8_s32(vdupq_n_s32(bits));
}
inline QuadSums multiply_add(int8x16_t factor, QuadColumns columns, QuadSums sums) {
  const auto low = [factor](int8x16_t bytes, int32x4_t sum) {
    return vpadalq_s16(sum, vmull_s8(vget_low_s8(bytes), vget_low_s8(factor)));
  };
  const auto high = [factor](int8x16_t bytes, int32x4_t sum) {
    return vpadalq_s16(sum, vmull_high_s8(bytes, factor));
  };
  return {in_each(low, columns, sums.low), in_each(high, columns, sums.high)};
}
#endif

#else

// Without vpdpbusd, bytes are widened to 16 bits: vpmaddubsw would saturate sums of two products.
struct QuadFactor {
  std::int16_t v[4];  // numbers 0, 2, 1 and 3
};

#if defined(__AVX512BW__)
/// even_of and odd_of return numbers 0 and 2, or 1 and 3, of each quad, as pairs of 16 bits.
/// products_of returns the sums of the products of pairs.
inline __m512i even_of(__m512i bytes) { return _mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8); }
inline __m512i odd_of(__m512i bytes) { return _mm512_srai_epi16(bytes, 8); }
inline __m512i products_of(__m512i a, __m512i b) { return _mm512_madd_epi16(a, b); }
#elif defined(__AVX2__) && defined(__FMA__)
inline __m256i even_of(__m256i bytes) { return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8); }
inline __m256i odd_of(__m256i bytes) { return _mm256_srai_epi16(bytes, 8); }
inline __m256i products_of(__m256i a, __m256i b) { return _mm256_madd_epi16(a, b); }
#elif defined(__SSE4_1__)
inline __m128i even_of(__m128i bytes) { return _mm_srai_epi16(_mm_slli_epi16(bytes, 8), 8); }
inline __m128i odd_of(__m128i bytes) { return _mm_srai_epi16(bytes, 8); }
inline __m128i products_of(__m128i a, __m128i b) { return _mm_madd_epi16(a, b); }
#endif

#if defined(__SSE4_1__)
inline Ints first_sums(const ByteQuad*) { return Ints{}; }
struct QuadFactors {
  IntRegister even, odd;
};
#if defined(__AVX2__) && !defined(__AVX512F__)
/// Loads each half from memory: GCC 12 would load both at once, and separate them in further
/// registers.
inline QuadFactors broadcast(const QuadFactor& a) {
  const auto two = [](const std::int16_t* at) {
    return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(at)));
  };
  return {two(a.v), two(a.v + 2)};
}
#else
inline QuadFactors broadcast(QuadFactor a) {
  std::int32_t bits[2];
  std::memcpy(bits, &a, sizeof bits);
  return {all_of(bits[0]), all_of(bits[1])};
}
#endif
template <class Register>
inline Register add_products(QuadFactors factor, Register even, Register odd, Register sum) {
  return sum_of(sum_of(sum, products_of(factor.even, even)), products_of(factor.odd, odd));
}
#if defined(__AVX2__) && defined(__FMA__)
/// Columns that are widened once for all rows.
struct QuadColumns {
  Ints even, odd;
};
inline QuadColumns load_row(const ByteQuad* p, int) {
  const Ints bytes = integers(p);
  return {in_each([](auto a) { return even_of(a); }, bytes),
          in_each([](auto a) { return odd_of(a); }, bytes)};
}
inline Ints multiply_add(QuadFactors factor, const QuadColumns& columns, Ints sums) {
  return in_each(
      [=](auto even, auto odd, auto sum) { return add_products(factor, even, odd, sum); },
      columns.even, columns.odd, sums);
}
#else  // too few registers to hold widened columns
using QuadColumns = Ints;
inline QuadColumns load_row(const ByteQuad* p, int) { return integers(p); }
inline Ints multiply_add(QuadFactors factor, QuadColumns columns, Ints sums) {
  return in_each([=](auto bytes,
                     auto sum) { return add_products(factor, even_of(bytes), odd_of(bytes), sum); },
                 columns, sums);
}
#endif
#else
struct Ints {
  std::int32_t v[16];
};
struct QuadColumns {
  const ByteQuad* quads;
};
inline Ints first_sums(const ByteQuad*) { return {}; }
inline Ints operator+(Ints a, Ints b) {
  for (int i = 0; i < 16; ++i) a.v[i] += b.v[i];
  return a;
}
inline Floats to_floats(Ints a) {
  Floats out;
  for (int i = 0; i < 16; ++i) out.v[i] = static_cast<float>(a.v[i]);
  return out;
}
inline QuadColumns load_row(const ByteQuad* p, int) { return {p}; }
inline QuadFactor broadcast(QuadFactor a) { return a; }
inline Ints multiply_add(QuadFactor factor, QuadColumns columns, Ints sum) {
  for (int i = 0; i < 16; ++i) {
    const std::int8_t* w = columns.quads[i].v;
    sum.v[i] += factor.v[0] * w[0] + factor.v[2] * w[1] + factor.v[1] * w[2] + factor.v[3] * w[3];
  }
  return sum;
}
#endif

/// Returns number i of a quad, from -128 to 127.
inline void put_byte(QuadFactor& quad, int i, int number) {
  quad.v[i / 2 + i % 2 * 2] = static_cast<std::int16_t>(number);
}
inline void store_quads(QuadFactor* to, Floats whole, std::int32_t) {
#if defined(__AVX2__) && defined(__FMA__)
#if defined(__AVX512BW__)
  const __m256i rows =
      _mm512_maskz_cvtepi32_epi16(kEvery, _mm512_maskz_cvtps_epi32(kEvery, whole.v));
#else
  const __m256i rows = _mm256_permute4x64_epi64(
      _mm256_packs_epi32(_mm256_cvtps_epi32(whole.low), _mm256_cvtps_epi32(whole.high)), 0xd8);
#endif
  const __m256i turned = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(rows, 0xd8), 0xd8);
  std::memcpy(to, &turned, sizeof turned);
#else
  float v[16];
  store(v, whole);
  for (int q = 0; q < 4; ++q)
    for (int i = 0; i < 4; ++i) put_byte(to[q], i, static_cast<int>(v[q * 4 + i]));
#endif
}

#endif

/// A byte of a row is its number plus this.
#if defined(ONERNN_NEON)
inline constexpr int kByteZero = 0;
#else
inline constexpr int kByteZero = 128;
using QuadSums = Ints;
inline Ints total(Ints sums) { return sums; }
#endif

template <>
struct FactorOf<float, ByteQuad> {
  using Type = QuadFactor;
};
template <>
inline constexpr int kRowsOf<QuadFactor> = 4;

/// Loads the steps (scales) of sixteen columns, which are stored like a row of quads.
inline Floats load_steps(const ByteQuad* p) {
#if defined(ONERNN_NEON)
  return in_each([](auto steps) { return vreinterpretq_f32_s32(steps); }, integers(p));
#elif defined(__SSE4_1__)
  return load(reinterpret_cast<const float*>(p));  // vector registers may alias anything
#else
  Floats out;
  std::memcpy(out.v, p, sizeof out.v);
  return out;
#endif
}

/// The head of a row in quads, which says how its numbers were rounded, see quads.hpp. `coded`: 1
/// if a matrix of codes is multiplied, see codes.hpp.
struct QuadHead {
  float step;
  std::int32_t coded;
#if defined(ONERNN_NEON)
  std::int32_t shift = 128;
#endif
};
inline QuadHead head_of(const QuadFactor* row) {
  QuadHead head;
  std::memcpy(&head, reinterpret_cast<const char*>(row) - sizeof head, sizeof head);
  return head;
}

/// Loads numbers k to k + 15 of a row of K numbers, with zeros after its end.
inline Floats sixteen_of(const float* row, std::int64_t k, std::int64_t K) {
  if (k + 16 <= K) return load(row + k);
  float some[16] = {};
  std::copy(row + k, row + K, some);
  return load(some);
}

/// Writes the head of a row of K numbers. Returns 1 / the row's step, or 0 if that step is NaN. The
/// row's step is `step`; if `step` is 0, it is the row's largest magnitude / `most`, or NaN if a
/// number is not finite.
inline float put_head(const float* row, std::int64_t K, float step, float most, bool coded,
                      QuadFactor* to) {
  std::uint32_t largest = 0;  // magnitudes sort like their bits; infinity and NaN come last
  for (std::int64_t k = 0; k < K; ++k) {
    std::uint32_t number;
    std::memcpy(&number, row + k, sizeof number);
    largest = (std::max)(largest, number & 0x7fffffffu);
  }
  const bool finite = largest < 0x7f800000u;
  float magnitude;
  std::memcpy(&magnitude, &largest, sizeof magnitude);
  if (!(step > 0)) step = (std::max)(magnitude, 1e-30f) / most;  // smaller magnitudes count as 0
  const QuadHead head{finite ? step : std::numeric_limits<float>::quiet_NaN(), coded};
  std::memcpy(reinterpret_cast<char*>(to) - sizeof head, &head, sizeof head);
  return finite ? 1 / step : 0.0f;
}

/// Returns the nearest integers, limited to the range from `low` to `high`; NaN becomes `low`.
inline Floats whole_of(Floats a, float low, float high) {
  return round_to_even(minimum(maximum(a, broadcast(low)), broadcast(high)));
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
