// Tiles: the twin has the bits of the manual's formula, the instructions those of the twin, and
// each row of a product the same bits in any block.
#include "tiles.hpp"

#include <cmath>
#include <cstring>

#include "check.hpp"

using namespace onernn;

namespace {

std::mt19937 generator(7);

float float_of(std::uint32_t bits) {
  float a;
  std::memcpy(&a, &bits, sizeof a);
  return a;
}

/// A float in the upper 16 bits, which is often small, subnormal, zero or, if `any`, not finite.
std::uint32_t brain(bool any) {
  static constexpr std::uint32_t kExponents[] = {0, 1, 2, 63, 64, 65, 126, 127, 128, 190, 254, 255};
  const std::uint32_t exponent = kExponents[generator() % (any ? 12 : 9)];
  return (generator() & 0x807f0000u) | exponent << 23;
}
std::uint32_t pair(bool any) { return brain(any) | brain(any) >> 16; }

bool same(std::uint32_t a, std::uint32_t b) {
  return a == b || (std::isnan(float_of(a)) && std::isnan(float_of(b)));
}

/// Of C's function, with a larger exponent where that may round elsewhere; subnormal is zero.
float fused(float a, float b, float c) {
  const auto flushed = [](float v) { return std::fpclassify(v) == FP_SUBNORMAL ? v * 0 : v; };
  a = flushed(a), b = flushed(b), c = flushed(c);
  const float sum = std::fma(a, b, c);
  if (!(std::abs(sum) <= 0x1p-126f)) return sum;
  const float large = std::fma(a * 0x1p63f * 0x1p37f, b, c * 0x1p100f);
  return std::abs(large) < 0x1p-26f ? std::copysign(0.0f, sum) : sum;
}

struct Operands {
  Operands() = default;
  explicit Operands(bool bytes, bool any) {
    for (auto* tile : {&sums, &left, &right})
      for (auto& row : *tile)
        for (std::uint32_t& word : row)
          word = bytes           ? generator()
                 : tile == &sums ? brain(any) | (generator() & 0xffffu)
                                 : pair(any);
  }
  std::uint32_t sums[16][16] = {}, left[16][16] = {}, right[16][16] = {};
};

/// Sums next to the smallest normal float, 2^-126 - 2^-151 (1 + n / 16), and subnormal numbers.
Operands smallest() {
  Operands made;
  made.left[0][0] = 0x2000;  // 2^-63
  made.left[0][1] = 0x9980;  // -2^-76
  made.left[1][2] = 0x0040;  // 2^-127
  made.left[2][3] = 0x7e80;
  for (std::uint32_t n = 0; n < 16; ++n) {
    made.right[0][n] = 0x2000;
    made.right[1][n] = 0x1a00 | n << 3;
    made.right[2][n] = 0x7e80 | n;  // 2^126
    made.right[3][n] = 0x0040 | n;
    made.sums[3][n] = 0x00400000 | n;
  }
  return made;
}

/// Sums of `rows` rows after one instruction; others are untouched.
template <class Unit, class Stored>
void run(Operands& with, int rows) {
  Unit::configure(TileConfig(rows, rows));
  Unit::template load<0>(with.sums, 64);
  Unit::template load<4>(with.left, 64);
  Unit::template load<6>(with.right, 64);
  Unit::template multiply<0, 4, 6>(Stored());
  Unit::template store<0>(with.sums, 64);
  Unit::release();
}

}  // namespace

TEST(the_twin_adds_pairs_as_the_manual_says) {
  for (int round = 0; round < 60; ++round) {
    const int rows = 16 - round % 16;
    const Operands before = round ? Operands(false, round % 2) : smallest();
    Operands after = before;
    run<TileTwin, BrainPair>(after, rows);
    for (int m = 0; m < 16; ++m)
      for (int n = 0; n < 16; ++n) {
        float parts[2] = {0, 0};
        for (int k = 0; k < 16; ++k)
          for (int i = 0; i < 2; ++i) {
            const auto half = [i](std::uint32_t word) {
              return float_of(i ? word & 0xffff0000u : word << 16);
            };
            parts[i] = fused(half(before.left[m][k]), half(before.right[k][n]), parts[i]);
          }
        const float more = fused(1, parts[0], parts[1]);
        const float sum = fused(1, float_of(before.sums[m][n]), more);
        std::uint32_t want = before.sums[m][n];
        if (m < rows) std::memcpy(&want, &sum, sizeof want);
        CHECK(same(after.sums[m][n], want));
      }
  }
}

TEST(the_twin_adds_quads_as_the_manual_says) {
  const Operands before(true, false);
  Operands after = before;
  run<TileTwin, ByteQuad>(after, 16);
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n) {
      std::int64_t want = before.sums[m][n];
      for (int k = 0; k < 64; ++k)
        want += std::int64_t(before.left[m][k / 4] >> k % 4 * 8 & 255) *
                static_cast<std::int8_t>(before.right[k / 4][n] >> k % 4 * 8 & 255);
      CHECK(after.sums[m][n] == static_cast<std::uint32_t>(want));
    }
}

#if defined(__AMX_TILE__)
#include "tile_trap.hpp"

TEST(the_instructions_have_the_bits_of_their_twin) {
  std::printf("%s\n", trap::set() ? "by this CPU" : "trapped");
  for (int round = 0; round < 400; ++round) {
    const bool bytes = round % 4 == 0;
    Operands one = round == 13 ? smallest() : Operands(bytes, round % 3 == 0), other = one;
    const int rows = 1 + round % 16;
    if (bytes) {
      run<TileRegisters, ByteQuad>(one, rows);
      run<TileTwin, ByteQuad>(other, rows);
    } else {
      run<TileRegisters, BrainPair>(one, rows);
      run<TileTwin, BrainPair>(other, rows);
    }
    for (int i = 0; i < 256; ++i) CHECK(same(one.sums[i / 16][i % 16], other.sums[i / 16][i % 16]));
  }
}
#endif
