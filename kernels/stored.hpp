// How the numbers of a matrix are stored: as they are, as halves, as pairs of bfloat16, or as
// fours of bytes.
#ifndef ONERNN_STORED_HPP
#define ONERNN_STORED_HPP

#include <cstdint>
#include <cstring>

#include "isa.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// A number of 16 bits, IEEE 754 half precision.
struct Half {
  std::uint16_t bits;
};

/// The upper halves of two floats: rows 2k and 2k + 1 of a column.
struct BrainPair {
  std::uint16_t even, odd;
};

/// Signed bytes: rows 4k to 4k + 3 of a column, in steps of the column's largest number / 127.
struct ByteQuad {
  std::int8_t v[4];
};

/// So many rows of a matrix are in one of its stored numbers.
template <class Stored>
inline constexpr int kRowsOf = 1;
template <>
inline constexpr int kRowsOf<BrainPair> = 2;
template <>
inline constexpr int kRowsOf<ByteQuad> = 4;

/// So many rows of stored numbers stand before a panel's first row, and tell about its columns.
template <class Stored>
inline constexpr int kHeadRows = 0;
template <>
inline constexpr int kHeadRows<ByteQuad> = 2;

/// What a matrix of `Stored` is multiplied by.
template <class Real, class Stored>
struct FactorOf {
  using Type = Real;
};
#if defined(__AVX512F__) && defined(__AVX512BF16__)
template <>
struct FactorOf<float, BrainPair> {
  using Type = BrainPair;  // this target multiplies pairs: the other factor is rounded, too
};
#endif

/// A half as a float, exactly.
inline float widened(Half half) {
  const std::uint32_t sign = (half.bits & 0x8000u) << 16, rest = half.bits & 0x7fffu;
  // The exponent moves by 112 (by 224 where it says infinity or NaN); a subnormal is cut out.
  std::uint32_t bits = sign | ((rest << 13) + (rest < 0x7c00u ? 112u << 23 : 224u << 23));
  float out;
  if (rest < 0x400u) {
    out = static_cast<float>(rest) * 5.9604644775390625e-8f;  // units of 2^-24
    return sign ? -out : out;
  }
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
