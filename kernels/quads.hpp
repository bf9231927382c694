// Matrices of signed bytes, which are stored in fours of rows ("quads"), times rows of numbers that
// are rounded to bytes for the product. Sums are exact integers: the same on every instruction set.
//
// A row of numbers has a step of its own, its largest magnitude / 127. So a sequence has the same
// bits in any batch, and states of any size are as exact as small ones. Calibrated layers have one
// step, and one shift, for all rows of x, and others for h. A row with a number that is not finite
// has the step NaN: all that it is multiplied into becomes NaN.
//
// Two rows stand before each panel: what an integer sum starts with, minus the shift times the sum
// of its column, as vpdpbusd multiplies numbers that are shifted to have no sign; and the columns'
// steps, as floats.
#ifndef ONERNN_QUADS_HPP
#define ONERNN_QUADS_HPP

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "isa.hpp"
#include "lanes.hpp"
#include "memory.hpp"
#include "products.hpp"
#include "stored.hpp"

#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

namespace onernn {
inline namespace ONERNN_ISA {

// For each kind of register: QuadFactor, four numbers of a row as products read them; Ints, sixteen
// sums; QuadColumns, a stored row; and functions of these.

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)

struct QuadFactor {
  std::uint8_t v[4];  // plus the shift of their row
};
struct Ints {
  __m512i v;
};
struct QuadColumns {
  __m512i v;
};

inline Ints first_sums(const ByteQuad* start) { return {_mm512_loadu_si512(start)}; }
inline Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Floats to_floats(Ints a) { return {_mm512_maskz_cvtepi32_ps(kEvery, a.v)}; }
inline QuadColumns load_row(const ByteQuad* p, int) { return {_mm512_loadu_si512(p)}; }
inline Ints broadcast(QuadFactor a) {
  std::int32_t bits;
  std::memcpy(&bits, &a, sizeof bits);
  return {_mm512_set1_epi32(bits)};
}
/// As text: GCC 12 copies each sum around the intrinsic, and runs out of registers.
inline Ints multiply_add(Ints factor, QuadColumns columns, Ints sum) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(factor.v), "v"(columns.v));
  return sum;
}
/// Sixteen whole numbers from -shift to 255 - shift.
inline void store_quads(QuadFactor* to, Floats whole, std::int32_t shift) {
  const __m512i shifted =
      _mm512_add_epi32(_mm512_maskz_cvtps_epi32(kEvery, whole.v), _mm512_set1_epi32(shift));
  const __m128i bytes = _mm512_maskz_cvtepi32_epi8(kEvery, shifted);
  std::memcpy(to, &bytes, sizeof bytes);
}

#else

// Without vpdpbusd bytes are widened: sums of two products do not fit 16 bits, where vpmaddubsw
// saturates.
struct QuadFactor {
  std::int16_t v[4];  // numbers 0, 2, 1 and 3
};

#if defined(__AVX512BW__)
struct Ints {
  __m512i v;
};
/// Pairs of 16 bits: numbers 0 and 2 of each quad, 1 and 3.
struct QuadColumns {
  __m512i even, odd;
};
inline Ints first_sums(const ByteQuad*) { return {_mm512_setzero_si512()}; }
inline Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Floats to_floats(Ints a) { return {_mm512_maskz_cvtepi32_ps(kEvery, a.v)}; }
inline QuadColumns load_row(const ByteQuad* p, int) {
  const __m512i bytes = _mm512_loadu_si512(p);
  return {_mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8), _mm512_srai_epi16(bytes, 8)};
}
inline QuadColumns broadcast(QuadFactor a) {
  std::int32_t bits[2];
  std::memcpy(bits, &a, sizeof bits);
  return {_mm512_set1_epi32(bits[0]), _mm512_set1_epi32(bits[1])};
}
inline Ints multiply_add(QuadColumns factor, QuadColumns columns, Ints sum) {
  const __m512i even = _mm512_madd_epi16(factor.even, columns.even);
  return {
      _mm512_add_epi32(_mm512_add_epi32(sum.v, even), _mm512_madd_epi16(factor.odd, columns.odd))};
}
#elif defined(__AVX2__) && defined(__FMA__)
struct Ints {
  __m256i low, high;
};
/// Pairs of 16 bits of eight columns each: numbers 0 and 2 of each quad, 1 and 3.
struct QuadColumns {
  __m256i bytes[2];
};
struct QuadFactors {
  __m256i even, odd;
};
inline Ints first_sums(const ByteQuad*) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Ints operator+(Ints a, Ints b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
inline Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
inline QuadColumns load_row(const ByteQuad* p, int) {
  const __m256i* bytes = reinterpret_cast<const __m256i*>(p);
  return {{_mm256_loadu_si256(bytes), _mm256_loadu_si256(bytes + 1)}};
}
inline QuadFactors broadcast(QuadFactor a) {
  std::int32_t bits[2];
  std::memcpy(bits, &a, sizeof bits);
  return {_mm256_set1_epi32(bits[0]), _mm256_set1_epi32(bits[1])};
}
inline Ints multiply_add(QuadFactors factor, QuadColumns columns, Ints sum) {
  const auto eight = [factor](__m256i bytes, __m256i so_far) {
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
    const __m256i odd = _mm256_srai_epi16(bytes, 8);
    return _mm256_add_epi32(_mm256_add_epi32(so_far, _mm256_madd_epi16(factor.even, even)),
                            _mm256_madd_epi16(factor.odd, odd));
  };
  return {eight(columns.bytes[0], sum.low), eight(columns.bytes[1], sum.high)};
}
#elif defined(__SSE4_1__)
struct Ints {
  __m128i v[4];
};
/// Four columns each.
struct QuadColumns {
  __m128i bytes[4];
};
struct QuadFactors {
  __m128i even, odd;
};
inline Ints first_sums(const ByteQuad*) { return {}; }
inline Ints operator+(Ints a, Ints b) {
  for (int i = 0; i < 4; ++i) a.v[i] = _mm_add_epi32(a.v[i], b.v[i]);
  return a;
}
inline Floats to_floats(Ints a) {
  Floats out;
  for (int i = 0; i < 4; ++i) _mm_storeu_ps(out.v + i * 4, _mm_cvtepi32_ps(a.v[i]));
  return out;
}
inline QuadColumns load_row(const ByteQuad* p, int) {
  QuadColumns out;
  for (int i = 0; i < 4; ++i)
    out.bytes[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i);
  return out;
}
inline QuadFactors broadcast(QuadFactor a) {
  std::int32_t bits[2];
  std::memcpy(bits, &a, sizeof bits);
  return {_mm_set1_epi32(bits[0]), _mm_set1_epi32(bits[1])};
}
inline Ints multiply_add(QuadFactors factor, QuadColumns columns, Ints sum) {
  for (int i = 0; i < 4; ++i) {
    const __m128i even = _mm_srai_epi16(_mm_slli_epi16(columns.bytes[i], 8), 8);
    const __m128i odd = _mm_srai_epi16(columns.bytes[i], 8);
    sum.v[i] = _mm_add_epi32(_mm_add_epi32(sum.v[i], _mm_madd_epi16(factor.even, even)),
                             _mm_madd_epi16(factor.odd, odd));
  }
  return sum;
}
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

inline void store_quads(QuadFactor* to, Floats whole, std::int32_t) {
  float v[16];
  store(v, whole);
  for (int q = 0; q < 4; ++q)
    for (int i = 0; i < 4; ++i)
      to[q].v[i / 2 + i % 2 * 2] = static_cast<std::int16_t>(v[q * 4 + i]);
}

#endif

template <>
struct FactorOf<float, ByteQuad> {
  using Type = QuadFactor;
};

/// The steps of sixteen columns, which stand in the place of quads.
inline Floats load_steps(const ByteQuad* p) {
#if defined(__AVX2__) && defined(__FMA__)
  return load(reinterpret_cast<const float*>(p));  // vector registers may alias anything
#else
  Floats out;
  std::memcpy(out.v, p, sizeof out.v);
  return out;
#endif
}

template <>
inline constexpr int kRowsOf<QuadFactor> = 4;

/// The step of a row in quads, which stands before it.
inline float step_of(const QuadFactor* row) {
  float step;
  std::memcpy(&step, reinterpret_cast<const char*>(row) - sizeof step, sizeof step);
  return step;
}

/// K numbers of a row as bytes.
inline void round_to_quads(const float* row, std::int64_t K, ByteScale scale, QuadFactor* to) {
  const auto sixteen = [row, K](std::int64_t k) {
    if (k + 16 <= K) return load(row + k);
    float some[16] = {};
    std::copy(row + k, row + K, some);
    return load(some);
  };
  std::uint32_t largest = 0;  // as bits, magnitudes are in order; infinity and NaN are last
  for (std::int64_t k = 0; k < K; ++k) {
    std::uint32_t bits;
    std::memcpy(&bits, row + k, sizeof bits);
    largest = (std::max)(largest, bits & 0x7fffffffu);
  }
  const bool finite = largest < 0x7f800000u;
  float most;
  std::memcpy(&most, &largest, sizeof most);
  float step = scale.step;
  if (!(step > 0)) step = (std::max)(most, 1e-30f) / 127;  // what is smaller counts as 0
  if (!finite) step = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(reinterpret_cast<char*>(to) - sizeof step, &step, sizeof step);
  const Floats inverse = broadcast(finite ? 1 / step : 0.0f);
  const Floats low = broadcast(static_cast<float>(-scale.shift)),
               high = broadcast(static_cast<float>(255 - scale.shift));
  for (std::int64_t k = 0; k < K; k += 16) {
    // NaN becomes the least here: whatever it is, the step says the rest.
    const Floats a = maximum(sixteen(k) * inverse, low);
    store_quads(to + k / 4, round_to_even(minimum(a, high)), scale.shift);
  }
}

/// Rows of at most K numbers, in quads.
template <>
class Rows<QuadFactor> {
 public:
  Rows(std::int64_t most, std::int64_t K) : rows_(most), made_(most * (kHead + (K + 15) / 16 * 4)) {
    for (std::int64_t m = 0; m < most; ++m)
      rows_.data()[m] = made_.data() + m * (kHead + (K + 15) / 16 * 4) + kHead;
  }

  void put(std::int64_t m, const float* row, std::int64_t K) {
    round_to_quads(row, K, scale_, rows_.data()[m]);
  }
  const QuadFactor* const* get() const { return rows_.data(); }
  /// Of the rows that are put from now on.
  void scale(ByteScale scale) { scale_ = scale; }

 private:
  static constexpr std::int64_t kHead = 64 / sizeof(QuadFactor);  // a row begins a cache line
  ByteScale scale_;
  Memory<QuadFactor*> rows_;
  Memory<QuadFactor> made_;
};

/// use(m, g, sum) of row m of `left` times columns g of the panel, `count` quads each. A function
/// of its own: among other values GCC runs out of registers for the rows' addresses.
template <int M, int G, class Use>
[[gnu::noinline]] void sum_quads(const QuadFactor* const* left, const ByteQuad* panel,
                                 std::int64_t count, Use use) {
  constexpr int P = M * G < 8 ? 2 : 1;  // few sums wait for themselves: these have two parts
  Ints own[P * M][G];
  const QuadFactor* rows[M];
  for (int m = 0; m < M; ++m) {
    rows[m] = left[m];
    for (int g = 0; g < G; ++g) {
      own[m][g] = first_sums(panel + g * 16);
      if (P > 1) own[M * (P - 1) + m][g] = Ints{};
    }
  }
  if (count < 1) return;  // else the sums would be stored before the loop, too
  panel += 2 * G * 16;
  const auto add = [&](auto part, std::int64_t k) {
    QuadColumns columns[G];
    for (int g = 0; g < G; ++g) columns[g] = load_row(panel + (k * G + g) * 16, 0);
    for (int m = 0; m < M; ++m) {
      const auto factor = broadcast(rows[m][k]);
      for (int g = 0; g < G; ++g)
        own[part * M + m][g] = multiply_add(factor, columns[g], own[part * M + m][g]);
    }
  };
  std::int64_t k = 0;
  if constexpr (P > 1)
    for (; k + 1 < count; k += 2) {
      add(Fixed<0>(), k);
      add(Fixed<1>(), k + 1);
    }
  for (; k < count; ++k) add(Fixed<0>(), k);
  for (int m = 0; m < M; ++m)
    for (int g = 0; g < G; ++g) use(m, g, P > 1 ? own[m][g] + own[M * (P - 1) + m][g] : own[m][g]);
}

/// sums[m][g] += row m of `left` times the panel, in the steps of both.
template <int M, int G>
inline void multiply_quads(Floats (&sums)[M][G], const QuadFactor* const* left,
                           const ByteQuad* panel, std::int64_t count) {
  const ByteQuad* const steps = panel + G * 16;
  sum_quads<M, G>(left, panel, count, [&sums, left, steps](int m, int g, Ints sum) {
    const Floats step = broadcast(step_of(left[m]));
    sums[m][g] = multiply_add(to_floats(sum), step * load_steps(steps + g * 16), sums[m][g]);
  });
}

template <int M, int G, class Size>
inline void multiply(Floats (&sums)[M][G], const QuadFactor* const* left, const ByteQuad* panel,
                     Size K) {
  multiply_quads(sums, left, panel, (K + 3) / 4);
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
