// How the numbers of a matrix are stored: unchanged, as float16, as pairs of bfloat16, or as fours
// of bytes.
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

/// The rows of stored numbers before a panel's first row, which describe its columns.
template <class Stored>
inline constexpr int kHeadRows = 0;
template <>
inline constexpr int kHeadRows<ByteQuad> = 2;

/// The type of the factors of a matrix of `Stored`.
template <class Real, class Stored>
struct FactorOf {
  using Type = Real;
};
#if defined(ONERNN_PAIRS)
template <>
struct FactorOf<float, BrainPair> {
  using Type = BrainPair;  // this target multiplies pairs: the other factor is also rounded
};
#endif

/// The upper half of a float, rounded to nearest even; a NaN stays one.
inline std::uint32_t brain_bits(float a) {
  std::uint32_t bits;
  std::memcpy(&bits, &a, sizeof bits);
  const std::uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  return ((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded) >> 16;
}

/// A half as a float, exactly.
inline float widened(Half half) {
  const std::uint32_t sign = (half.bits & 0x8000u) << 16, rest = half.bits & 0x7fffu;
  // The exponent moves by 112 (by 224 for infinity and NaN); a subnormal is cut out.
  std::uint32_t bits = sign | ((rest << 13) + (rest < 0x7c00u ? 112u << 23 : 224u << 23));
  float out;
  if (rest < 0x400u) {
    out = static_cast<float>(rest) * 5.9604644775390625e-8f;  // units of 2^-24
    return sign ? -out : out;
  }
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

/// The nearest half, the even one of two; beyond 65504 lies infinity.
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
/// The same of a double: what a float cannot hold makes it odd, so that it is rounded once.
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
