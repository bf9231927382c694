// How a matrix is stored: unchanged, as float16, as pairs of bfloat16, or as fours of bytes.
#ifndef ONERNN_STORED_HPP
#define ONERNN_STORED_HPP

#include <cmath>
#include <cstdint>
#include <cstring>

#include "isa.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// A number of 16 bits, IEEE 754 half precision.
struct Half {
  std::uint16_t bits;
};
inline Half operator-(Half a) { return {static_cast<std::uint16_t>(a.bits ^ 0x8000u)}; }

/// The upper 16 bits of two floats: rows 2k and 2k + 1 of a column.
struct BrainPair {
  std::uint16_t even, odd;
};

/// Signed bytes: rows 4k to 4k + 3 of a column. The unit is the column's largest magnitude / 127.
struct ByteQuad {
  std::int8_t v[4];
};

/// How many rows of a matrix are in one stored number.
template <class Stored>
inline constexpr int kRowsOf = 1;
template <>
inline constexpr int kRowsOf<BrainPair> = 2;
template <>
inline constexpr int kRowsOf<ByteQuad> = 4;

/// How many rows of stored numbers come before a panel's first row. They describe its columns.
template <class Stored>
inline constexpr int kHeadRows = 0;
template <>
inline constexpr int kHeadRows<ByteQuad> = 2;

/// The type of factors by which a matrix of `Stored` is multiplied.
template <class Real, class Stored>
struct FactorOf {
  using Type = Real;
};
#if defined(ONERNN_PAIRS)
template <>
struct FactorOf<float, BrainPair> {
  using Type = BrainPair;  // this target multiplies pairs, so both factors are rounded
};
#endif

/// Returns the upper half of a float, rounded to nearest even; NaN stays NaN.
inline std::uint32_t brain_bits(float a) {
  std::uint32_t bits;
  std::memcpy(&bits, &a, sizeof bits);
  const std::uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  return ((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded) >> 16;
}

/// Converts a half to a float, exactly.
inline float widened(Half half) {
  const std::uint32_t sign = (half.bits & 0x8000u) << 16, rest = half.bits & 0x7fffu;
  // The exponent increases by 112 (by 224 for infinity and NaN). Subnormal numbers are converted
  // separately.
  std::uint32_t bits = sign | ((rest << 13) + (rest < 0x7c00u ? 112u << 23 : 224u << 23));
  float out;
  if (rest < 0x400u) {
    out = static_cast<float>(rest) * 5.9604644775390625e-8f;  // units of 2^-24
    return sign ? -out : out;
  }
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

/// Returns the nearest half, ties to even. Numbers that are too large become infinite.
inline Half halved(float a) {
  std::uint32_t bits;
  std::memcpy(&bits, &a, sizeof bits);
  const std::uint32_t sign = bits & 0x80000000u, rest = bits ^ sign;
  std::uint32_t out;
  if (rest >= 143u << 23) {  // 65536 and more, infinity, NaN
    out = rest > 255u << 23 ? 0x7e00u : 0x7c00u;
  } else if (rest < 113u << 23) {  // a subnormal: 0.5 has units of 2^-24, and adding rounds to them
    float moved;
    std::memcpy(&moved, &rest, sizeof moved);
    moved += 0.5f;
    std::memcpy(&out, &moved, sizeof out);
    out -= 126u << 23;
  } else {
    out = (rest - (112u << 23) + 0xfffu + (rest >> 13 & 1u)) >> 13;
  }
  return {static_cast<std::uint16_t>(out | sign >> 16)};
}
/// Converts a double in the same way. If a float does not hold all of its bits, the float is made
/// odd, so that the number is rounded only once.
inline Half halved(double a) {
  float near = static_cast<float>(a);
  const auto of = static_cast<double>(near);
  if (of != a && a == a) {
    std::uint32_t bits;
    std::memcpy(&bits, &near, sizeof bits);
    bits = (bits - (std::abs(of) > std::abs(a))) | 1u;
    std::memcpy(&near, &bits, sizeof near);
  }
  return halved(near);
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
