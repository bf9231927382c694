// Products in tiles: further overloads of functions of products.hpp, matrices.hpp and quads.hpp,
// for matrices of bfloat16 and of bytes. Every source that includes this header calls them.
//
// A layer in bfloat16 uses tiles for every batch size, because tiles add in a different order. Sums
// of bytes are exact. So a single row of bytes does not use tiles: it is as fast without them.
#ifndef ONERNN_TILE_PRODUCTS_HPP
#define ONERNN_TILE_PRODUCTS_HPP

#include "isa.hpp"

#if defined(ONERNN_TILES)
#include <algorithm>
#include <cstdint>

#include "lanes.hpp"
#include "matrices.hpp"
#include "products.hpp"
#include "quads.hpp"
#include "stored.hpp"
#include "tiles.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

template <>
struct Scope<BrainPair, BrainPair> : TileScope {};
template <>
inline constexpr std::int64_t kRowsTogether<BrainPair, BrainPair> = kRowsInTiles;

/// Adds to rows of S * 16 sums, which are `sums_row` numbers apart: `rows` rows of `left` times K
/// rows of a panel, which are `row` stored numbers apart. If not `added`, the product replaces the
/// sums.
template <int S>
inline void add_pairs(float* sums, std::int64_t sums_row, const BrainPair* const* left,
                      std::int64_t rows, const BrainPair* panel, std::int64_t row, std::int64_t K,
                      bool added = true) {
  constexpr std::int64_t kBytes = sizeof(float);
  in_parts(rows, kRowsInTiles, [&](std::int64_t from, std::int64_t count) {
    float* const first = sums + from * sums_row;
    multiply_in_tiles<S>(
        left + from, count, panel, row, (K + 1) / 2,
        [=](auto tile, int m, int column) {
          if (added)
            TileUnit::load<tile()>(first + m * sums_row + column * 16, sums_row * kBytes);
          else
            TileUnit::zero<tile()>();
        },
        [=](auto tile, int m, int column) {
          TileUnit::store<tile()>(first + m * sums_row + column * 16, sums_row * kBytes);
        });
  });
}

/// Uses tiles for any number of rows, so that a row has the same bits in any batch.
template <int S, class Size>
[[gnu::noinline]] void add_tile(const Tile<float, BrainPair, BrainPair, Size> tile) {
  for (std::int64_t done = 0; done < tile.panels; ++done) {
    const std::int64_t one = tile.back ? tile.panels - 1 - done : done;
    add_pairs<S>(tile.sums + one * S * 16, tile.panels * S * 16, tile.left + tile.row, tile.rows,
                 panel_of<S>(tile.matrix, tile.panel + one, tile.K), S * 16, tile.K);
  }
}

/// Multiplies in the same way for training.
inline void times_panel(const BrainPair* const* x, std::int64_t rows, const BrainPair* panel,
                        std::int64_t K, float* y, std::int64_t y_row, std::int64_t columns,
                        bool added) {
  if (columns >= kColumns)
    return add_pairs<kSixteens>(y, y_row, x, rows, panel, kColumns, K, added);
  in_parts(rows, kRowsInTiles, [&](std::int64_t from, std::int64_t count) {
    alignas(64) float sums[kRowsInTiles * kColumns] = {};
    for (std::int64_t m = 0; added && m < count; ++m)
      std::copy_n(y + (from + m) * y_row, columns, sums + m * kColumns);
    add_pairs<kSixteens>(sums, kColumns, x + from, count, panel, kColumns, K);
    for (std::int64_t m = 0; m < count; ++m)
      std::copy_n(sums + m * kColumns, columns, y + (from + m) * y_row);
  });
}

#if defined(ONERNN_VNNI)
template <>
struct Scope<QuadFactor, ByteQuad> : TileScope {};
template <>
inline constexpr std::int64_t kRowsTogether<QuadFactor, ByteQuad> = kRowsInTiles;

/// sums (rows, G, 16) of at most `kRowsInTiles` rows of `left` times a panel.
template <int G>
[[gnu::noinline]] void sum_in_tiles(std::int32_t* sums, const QuadFactor* const* left,
                                    std::int64_t rows, const ByteQuad* panel, std::int64_t count) {
  multiply_in_tiles<G>(
      left, rows, panel + 2 * G * 16, G * 16, count,
      [=](auto tile, int, int g) { TileUnit::load<tile()>(panel + g * 16, 0); },
      [=](auto tile, int m, int g) { TileUnit::store<tile()>(sums + (m * G + g) * 16, G * 64); });
}

template <int G, class Use>
inline void each_sum(const QuadFactor* const* left, std::int64_t rows, const ByteQuad* panel,
                     std::int64_t count, Use use) {
  if (rows < 2) return each_sum<G, QuadFactor, Use>(left, rows, panel, count, use);
  in_parts(rows, kRowsInTiles, [&](std::int64_t from, std::int64_t some) {
    alignas(64) std::int32_t sums[kRowsInTiles * G * 16];
    sum_in_tiles<G>(sums, left + from, some, panel, count);
    for (std::int64_t i = 0; i < some * G; ++i)
      use(from + i / G, static_cast<int>(i % G), integers(sums + i * 16));
  });
}

/// Tiles do not multiply single rows, nor rows in digits.
template <int S, class Size>
[[gnu::noinline]] void add_tile(const Tile<float, QuadFactor, ByteQuad, Size> tile) {
  const QuadFactor* const* const rows = tile.left + tile.row;
  if (tile.rows < 2 || head_of(rows[0]).coded)
    return add_tile<S, float, QuadFactor, ByteQuad, Size>(tile);
  const ByteQuad* const panel = panel_of<S>(tile.matrix, tile.panel, tile.K);
  each_sum<S>(rows, tile.rows, panel, (tile.K + 3) / 4, [&](std::int64_t m, int s, Ints sum) {
    const Floats step = broadcast(head_of(rows[m]).step);
    float* const to = tile.sums + (m * S + s) * 16;
    store(to, multiply_add(to_floats(sum), step * load_steps(panel + (S + s) * 16), load(to)));
  });
}
#endif

}  // namespace ONERNN_ISA
}  // namespace onernn
#endif

#endif
