// Tiles: registers of at most sixteen rows of 64 bytes, and products of two of them that are added
// to a third one. AMX has them; a twin in plain C++ has the same bits on any CPU.
//
// A row of 64 bytes holds sixteen sums, sixteen pairs of bfloat16, or sixteen quads of bytes. Tiles
// 0 to 3 hold sums, tiles 4 and 5 rows of the left factor, tiles 6 and 7 sixteen rows of a panel.
// `shape` sets how many rows tiles 0, 1 and 4 have, and how many rows tiles 2, 3 and 5 have.
//
// build.py defines ONERNN_TILES for libraries that use them. Linux lets a process use AMX only if
// the process has asked (library/cpu.hpp), so compiler flags alone do not enable tiles.
#ifndef ONERNN_TILES_HPP
#define ONERNN_TILES_HPP

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "isa.hpp"
#include "stored.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

inline constexpr int kTileRows = 16;

/// The configuration that LDTILECFG reads.
struct TileConfig {
  TileConfig(int first, int second) {
    const int rows_of[8] = {first, first, second, second, first, second, kTileRows, kTileRows};
    for (int i = 0; i < 8; ++i) {
      rows[i] = static_cast<std::uint8_t>(rows_of[i]);
      bytes[i] = 64;
    }
  }
  std::uint8_t palette = 1, start = 0, reserved[14] = {};
  std::uint16_t bytes[16] = {};  // bytes of a row of each tile
  std::uint8_t rows[16] = {};
};

/// The instructions in plain C++, from Intel's manual (volume 2, TDPBF16PS, TDPBUSD).
class TileTwin {
 public:
  static void configure(const TileConfig& config) {
    for (int i = 0; i < 8; ++i) {
      tiles()[i].rows = config.rows[i];
      zeros(tiles()[i], 0);
    }
  }
  static void release() { configure(TileConfig(0, 0)); }
  template <int kTo>
  static void zero() {
    zeros(tiles()[kTo], 0);
  }
  /// Loads rows of 64 bytes. Rows are `apart` bytes apart.
  template <int kTo>
  static void load(const void* from, std::int64_t apart) {
    Tile& to = tiles()[kTo];
    for (int r = 0; r < to.rows; ++r)
      std::memcpy(to.words[r], static_cast<const char*>(from) + r * apart, 64);
    zeros(to, to.rows);
  }
  template <int kFrom>
  static void store(void* to, std::int64_t apart) {
    const Tile& from = tiles()[kFrom];
    for (int r = 0; r < from.rows; ++r)
      std::memcpy(static_cast<char*>(to) + r * apart, from.words[r], 64);
  }
  /// Adds the products of the even and of the odd numbers of a step of 32, each from zero, then
  /// adds both to the sum.
  template <int kSum, int kLeft, int kRight>
  static void multiply(BrainPair) {
    each<kSum>([left = tiles()[kLeft], right = tiles()[kRight]](int m, int n, std::uint32_t sum) {
      float even = 0, odd = 0;
      for (int k = 0; k < right.rows; ++k) {
        const std::uint32_t a = left.words[m][k], b = right.words[k][n];
        even = added(product(a << 16, b << 16), even);
        odd = added(product(a & 0xffff0000u, b & 0xffff0000u), odd);
      }
      return bits_of(added(flushed(sum), added(even, odd)));
    });
  }
  /// Unsigned bytes times signed bytes; the sums wrap around.
  template <int kSum, int kLeft, int kRight>
  static void multiply(ByteQuad) {
    each<kSum>([left = tiles()[kLeft], right = tiles()[kRight]](int m, int n, std::uint32_t sum) {
      for (int k = 0; k < right.rows; ++k)
        for (int i = 0; i < 32; i += 8) {
          const auto a = static_cast<std::uint8_t>(left.words[m][k] >> i);
          const auto b = static_cast<std::int8_t>(right.words[k][n] >> i);
          sum += static_cast<std::uint32_t>(a * b);
        }
      return sum;
    });
  }

 private:
  struct Tile {
    std::uint32_t words[kTileRows][16];
    int rows;
  };
  static Tile* tiles() {
    static thread_local Tile all[8];
    return all;
  }
  static void zeros(Tile& tile, int from) {
    std::memset(tile.words[from], 0, sizeof tile.words - static_cast<std::size_t>(from) * 64);
  }
  template <int kSum, class Function>
  static void each(Function function) {
    Tile& sums = tiles()[kSum];
    for (int m = 0; m < sums.rows; ++m)
      for (int n = 0; n < 16; ++n) sums.words[m][n] = function(m, n, sums.words[m][n]);
  }

  static std::uint32_t bits_of(float a) {
    std::uint32_t bits;
    std::memcpy(&bits, &a, sizeof bits);
    return bits;
  }
  /// Returns the float with these bits, or zero if it is subnormal.
  static float flushed(std::uint32_t bits) {
    if (!(bits & 0x7f800000u)) bits &= 0x80000000u;
    float a;
    std::memcpy(&a, &bits, sizeof a);
    return a;
  }
  /// Returns the exact product of two bfloat16 numbers.
  static double product(std::uint32_t a, std::uint32_t b) {
    return static_cast<double>(flushed(a)) * static_cast<double>(flushed(b));
  }
  /// Returns a + b as a float, rounded to nearest even; subnormal results become zero. Both have at
  /// most a float's 24 bits, and a double has more than twice as many, so rounding twice changes
  /// nothing.
  static float added(double a, double b) {
    const double sum = a + b, size = sum < 0 ? -sum : sum;
    constexpr double kNormal = 0x1p-126;
    // Subnormal even after rounding.
    if (size < kNormal - 0x1p-151) return static_cast<float>(sum * 0.0);
    if (size < kNormal) return static_cast<float>(sum < 0 ? -kNormal : kNormal);
    return static_cast<float>(sum);
  }
};

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
/// The instructions, in assembler: the compilers' functions accept a tile's number only as a
/// literal.
class TileRegisters {
 public:
  static void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
  static void release() { asm volatile("tilerelease"); }
  template <int kTo>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTo));
  }
  template <int kTo>
  static void load(const void* from, std::int64_t apart) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTo), "r"(from), "r"(apart) : "memory");
  }
  template <int kFrom>
  static void store(void* to, std::int64_t apart) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kFrom), "r"(to), "r"(apart) : "memory");
  }
  template <int kSum, int kLeft, int kRight>
  static void multiply(BrainPair) {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight));
  }
  template <int kSum, int kLeft, int kRight>
  static void multiply(ByteQuad) {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight));
  }
};
using TileUnit = TileRegisters;
#else
using TileUnit = TileTwin;
#endif

/// While at least one exists, its thread keeps the shape of its tiles. When the last one ends, it
/// releases the tiles, so that no other code pays for their state.
class TileScope {
 public:
  TileScope() { ++state().scopes; }
  ~TileScope() {
    State& own = state();
    if (--own.scopes || !own.first) return;
    TileUnit::release();
    own.first = 0;
  }
  TileScope(const TileScope&) = delete;

  static void shape(int first, int second) {
    State& own = state();
    if (own.first == first && own.second == second) return;
    own.first = first;
    own.second = second;
    TileUnit::configure(TileConfig(first, second));
  }

 private:
  struct State {
    int scopes = 0, first = 0, second = 0;
  };
  static State& state() {
    static thread_local State own;
    return own;
  }
};

/// Calls function(0) to function(N - 1) with compile-time constants.
template <int... I, class Function>
inline void each_constant(std::integer_sequence<int, I...>, Function function) {
  (function(std::integral_constant<int, I>()), ...);
}
template <int N, class Function>
inline void each_constant(Function function) {
  each_constant(std::make_integer_sequence<int, N>(), function);
}

/// Adds to sums in tiles: R blocks of rows of `left` times C * 16 columns of `count` stored rows,
/// which are `row` stored numbers apart. The second block begins at row `second`. Tiles from 0 on
/// hold the sums of the first block, tiles from 2 on the sums of the second block. Each row of
/// `left` is filled up to a multiple of 64 bytes: with zeros, or with any numbers if they are
/// integers.
template <int R, int C, class Factor, class Stored>
inline void add_in_tiles(const Factor* const* left, int second, std::int64_t apart,
                         const Stored* panel, std::int64_t row, std::int64_t count) {
  static_assert(sizeof(Factor) == 4 && sizeof(Stored) == 4 && R * C <= 4);
  // The last rows, filled up with zeros to sixteen rows.
  alignas(64) Stored last[kTileRows * C * 16];
  for (std::int64_t k = 0; k < count; k += kTileRows, panel += kTileRows * row) {
    const std::int64_t some = count - k;
    if (some < kTileRows) {
      std::memset(static_cast<void*>(last), 0, sizeof last);
      for (std::int64_t r = 0; r < some; ++r)
        std::copy_n(panel + r * row, C * 16, last + r * C * 16);
    }
    const Stored* const columns = some < kTileRows ? last : panel;
    const std::int64_t step = (some < kTileRows ? C * 16 : row) * std::int64_t(sizeof(Stored));
    TileUnit::load<4>(left[0] + k, apart);
    if constexpr (R > 1) TileUnit::load<5>(left[second] + k, apart);
    each_constant<C>([&](auto column) {
      constexpr int kColumn = column(), kRight = 6 + kColumn % 2;
      TileUnit::load<kRight>(columns + kColumn * 16, step);
      TileUnit::multiply<kColumn, 4, kRight>(Stored());
      if constexpr (R > 1) TileUnit::multiply<2 + kColumn, 5, kRight>(Stored());
    });
  }
}

/// How many rows are multiplied by a panel at the same time.
inline constexpr std::int64_t kRowsInTiles = 2 * kTileRows;

/// Multiplies at most `kRowsInTiles` rows of `left`, which are equally far apart, by S * 16
/// columns. For each sixteen columns of at most sixteen rows, start(tile, row, column) fills a tile
/// of sums, and finish(tile, row, column) empties it.
template <int S, class Factor, class Stored, class Start, class Finish>
inline void multiply_in_tiles(const Factor* const* left, std::int64_t rows, const Stored* panel,
                              std::int64_t row, std::int64_t count, Start start, Finish finish) {
  const TileScope scope;
  const std::int64_t apart = rows > 1 ? (left[1] - left[0]) * std::int64_t(sizeof(Factor)) : 0;
  const auto block = [&](auto blocks, auto columns, int column, int second) {
    constexpr int R = blocks(), C = columns();
    const auto each = [&](auto function) {
      each_constant<R * C>([&](auto i) {
        constexpr int kBlock = i() / C, kColumn = i() % C;
        function(std::integral_constant<int, 2 * kBlock + kColumn>(), kBlock * second,
                 column + kColumn);
      });
    };
    each(start);
    add_in_tiles<R, C>(left, second, apart, panel + column * 16, row, count);
    each(finish);
  };
  using One = std::integral_constant<int, 1>;
  using Two = std::integral_constant<int, 2>;
  const int first = static_cast<int>(rows > kTileRows ? (rows + 1) / 2 : rows);
  TileScope::shape(first, rows > kTileRows ? static_cast<int>(rows) - first : first);
  if (rows <= kTileRows) return block(One(), std::integral_constant<int, S>(), 0, 0);
  if constexpr (S > 1) block(Two(), Two(), 0, first);
  if constexpr (S > 3) block(Two(), Two(), 2, first);
  if constexpr (S % 2 == 1) block(Two(), One(), S - 1, first);
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
