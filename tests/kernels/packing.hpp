// Matrices as kernels read them, packed in the plainest way: nothing here is the package's.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "stored.hpp"

/// float -> the upper 16 bits, rounded to nearest even.
inline std::uint16_t brain_bits(float a) {
  std::uint32_t bits;
  std::memcpy(&bits, &a, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
inline float brain(float a) {
  const std::uint32_t bits = static_cast<std::uint32_t>(brain_bits(a)) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

/// The half of a multiple of 2^-10 within 1 (an exact one).
inline onernn::Half half(float a) {
  if (a == 0) return {0};
  int exponent;
  const float rest = std::frexp(std::abs(a), &exponent);  // [0.5, 1)
  const int fraction = static_cast<int>(std::ldexp(rest, 11)) - 1024;
  return {static_cast<std::uint16_t>((a < 0 ? 0x8000 : 0) | ((exponent + 14) << 10) | fraction)};
}

/// What a stored number is: multiples of 2^-7 within 1 are exact in every storage.
inline float exact(float a) { return std::round(a * 128) / 128; }

/// How many panels a kernel takes at once.
inline std::int64_t beside(std::int64_t gates, std::int64_t panels) {
  for (std::int64_t n : {4, 2})
    if (n * gates <= 4 && panels % n == 0) return n;
  return 1;
}

/// Signed bytes, in fours of rows, in steps of each column's largest number / 127.
template <class Number>
std::vector<onernn::ByteQuad> packed_quads(std::int64_t groups, std::int64_t K, std::int64_t B,
                                           std::int64_t G, Number number) {
  using Quad = onernn::ByteQuad;
  const std::int64_t rows = 2 + (K + 3) / 4, columns = B * G * 16;
  std::vector<Quad> out(static_cast<std::size_t>(groups * rows * columns));
  for (std::int64_t group = 0; group < groups; ++group)
    for (std::int64_t column = 0; column < columns; ++column) {
      Quad* to = out.data() + group * rows * columns + column;
      const auto row = [&](std::int64_t k) {
        return number(k, column / 16 % G, (group * B + column / 16 / G) * 16 + column % 16);
      };
      float largest = 0;
      for (std::int64_t k = 0; k < K; ++k) largest = std::fmax(largest, std::fabs(row(k)));
      const float step = largest > 0 ? largest / 127 : 1;
      std::int32_t start = 0;
      for (std::int64_t k = 0; k < K; ++k) {
        const long whole = std::lrint(row(k) / step);
        to[(2 + k / 4) * columns].v[k % 4] = static_cast<std::int8_t>(whole);
        start -= 128 * static_cast<std::int32_t>(whole);
      }
      std::memcpy(to, &start, sizeof start);
      std::memcpy(to + columns, &step, sizeof step);
    }
  return out;
}

/// A matrix (K, G, O) -> panels of `B` times G times 16 columns.
template <class Stored, class Real>
std::vector<Stored> packed(const std::vector<Real>& matrix, std::int64_t K, std::int64_t G,
                           std::int64_t O, std::int64_t B) {
  const std::int64_t panels = (O + 15) / 16, groups = (panels + B - 1) / B;
  constexpr bool kPairs = std::is_same_v<Stored, onernn::BrainPair>;
  const std::int64_t rows = kPairs ? (K + 1) / 2 : K;
  const auto number = [&](std::int64_t k, std::int64_t g, std::int64_t o) -> Real {
    return k < K && o < O ? matrix[static_cast<std::size_t>((k * G + g) * O + o)] : Real(0);
  };
  if constexpr (std::is_same_v<Stored, onernn::ByteQuad>)
    return packed_quads(groups, K, B, G, number);
  std::vector<Stored> out;
  for (std::int64_t group = 0; group < groups; ++group)
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t b = 0; b < B; ++b)
        for (std::int64_t g = 0; g < G; ++g)
          for (std::int64_t lane = 0; lane < 16; ++lane) {
            const std::int64_t o = (group * B + b) * 16 + lane;
            if constexpr (kPairs)
              out.push_back(
                  {brain_bits(number(2 * row, g, o)), brain_bits(number(2 * row + 1, g, o))});
            else if constexpr (std::is_same_v<Stored, onernn::Half>)
              out.push_back(half(number(row, g, o)));
            else if constexpr (!std::is_same_v<Stored, onernn::ByteQuad>)
              out.push_back(number(row, g, o));
          }
  return out;
}
