// Rows times a matrix.
//
// A matrix of K rows is stored in panels of columns. For each of the K rows, a panel has G times 16
// numbers. So a product reads the matrix once, front to back, and the sums of G gates of 16 units
// are in registers at the same time.
//
// A sum adds its products one after the other, from the first row of the matrix to the last one,
// whatever the batch. So a row has the same bits in any batch, and on any number of threads. Tiles
// (AMX) add 32 products of bfloat16 at a time, also in a fixed order.
#ifndef ONERNN_PRODUCTS_HPP
#define ONERNN_PRODUCTS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "isa.hpp"
#include "lanes.hpp"
#include "memory.hpp"
#include "pairs.hpp"
#include "serial.hpp"
#include "status.hpp"
#include "stored.hpp"
#include "unpacked.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// A size that the compiler knows. It can replace a size that is known only at run time.
template <std::int64_t N>
using Fixed = std::integral_constant<std::int64_t, N>;

/// Calls function(0) to function(N - 1) without a loop, so that GCC keeps small arrays in
/// registers.
template <int N, class Function>
inline void unrolled(Function function) {
#pragma GCC unroll 32
  for (int i = 0; i < N; ++i) function(i);
}

/// Returns how many panels of sixteen units there are.
constexpr std::int64_t panels_of(std::int64_t units) { return (units + 15) / 16; }
template <std::int64_t N>
constexpr Fixed<(N + 15) / 16> panels_of(Fixed<N>) {
  return {};
}

/// Returns how many panels are multiplied at the same time. Each number of a row is read once for
/// all of them; if it is used for four sums or more, reading it costs less than reading the panels.
template <int G>
constexpr int beside(std::int64_t panels) {
  return G == 1 && panels % 4 == 0 ? 4 : G <= 2 && panels % 2 == 0 ? 2 : 1;
}

/// Returns a number of a row in the type in which it is multiplied.
template <class Factor>
inline auto factor_of(Factor a) {
  return broadcast(a);
}

/// Loads row r of the rows that share sixteen stored numbers.
template <class Stored>
inline auto load_row(const Stored* p, int) {
  return load(p);
}

/// Returns how many stored numbers a panel of K rows has.
template <int G, class Stored>
constexpr std::int64_t panel_size(std::int64_t K) {
  return (kHeadRows<Stored> + (K + kRowsOf<Stored> - 1) / kRowsOf<Stored>)*G * 16;
}
/// Returns panel p of a matrix of K rows.
template <int G, class Stored>
inline const Stored* panel_of(const Stored* matrix, std::int64_t p, std::int64_t K) {
  return matrix + p * panel_size<G, Stored>(K);
}

/// Memory that is multiplied next: with every row of a panel, some of its cache lines are
/// prefetched.
struct Nothing {
  void row(std::int64_t) const {}
};
template <int kLines = 1>
struct Ahead {
  template <class Stored>
  Ahead(const Stored* next, std::int64_t stored)
      : first(reinterpret_cast<const char*>(next)), step(stored * sizeof(Stored)) {}
  const char* first;
  std::int64_t step;  // bytes between the prefetches of two rows
  void row(std::int64_t k) const {
#if defined(__GNUC__)
    for (int line = 0; line < kLines; ++line)
      __builtin_prefetch(first + k * step + line * 64, 0, 2);
#endif
  }
};

/// An object that a thread keeps while it multiplies numbers of these types: for tiles a TileScope.
template <class Factor, class Stored>
struct Scope {};

/// Where the columns of sum g are in a row: InOnePanel in a row of one panel, InPanels in rows of
/// several panels of G sums each.
struct InOnePanel {
  std::int64_t operator()(int g) const { return g * 16; }
};
template <int G>
struct InPanels {
  std::int64_t apart;
  std::int64_t operator()(int g) const { return g / G * apart + g % G * 16; }
};

#if defined(ONERNN_SQUARES)
/// Multiplies pairs or quads of two rows or more: see `multiply`.
template <int M, int G, class Sums, class Factor, class Stored, class Row, class Place>
inline void multiply_two_rows(Sums (&sums)[M][G], const Factor* const* left, const Stored* panel,
                              std::int64_t count, Row row, Place place);
#endif

/// sums[m][g] += row m of `left` (K numbers) times the panel, whose rows are `row` stored numbers
/// apart.
template <int M, int G, class Lanes, class Factor, class Stored, class Size,
          class Row = Fixed<G * 16>, class Next = Nothing, class Place = InOnePanel>
inline void multiply(Lanes (&sums)[M][G], const Factor* const* left, const Stored* panel, Size K,
                     Row row = {}, Next ahead = {}, Place place = {}) {
  constexpr int R = kRowsOf<Stored> / kRowsOf<Factor>;  // factors per stored row
  const std::int64_t count = (K + kRowsOf<Factor> - 1) / kRowsOf<Factor>;
  if (count < 1) return;  // otherwise the sums would also be stored before the loop
#if defined(ONERNN_SQUARES)
  if constexpr (kRowsOf<Factor> > 1 && M > 1)
    return multiply_two_rows(sums, left, panel, count, row, place);
#endif
  Lanes own[M][G];  // their address is not taken, so they stay in registers
  const Factor* rows[M];
  unrolled<M>([&](int m) { rows[m] = left[m]; });
  unrolled<M * G>([&](int i) { own[i / G][i % G] = sums[i / G][i % G]; });
  const auto add = [&](int r, std::int64_t k) {
    decltype(load_row(panel, 0)) columns[G];
    unrolled<G>([&](int g) { columns[g] = load_row(panel + place(g), r); });
    if constexpr (M > 1) unrolled<G>([&](int g) { columns[g] = kept(columns[g]); });
    unrolled<M>([&](int m) {
      const auto factor = factor_of(rows[m][k]);
      unrolled<G>([&](int g) { own[m][g] = multiply_add(factor, columns[g], own[m][g]); });
    });
  };
  for (std::int64_t k = 0; k < count; k += R, panel += row) {
    ahead.row(k / R);
    add(0, k);
    if constexpr (R > 1)
      if (k + 1 < count) add(1, k + 1);
  }
  unrolled<M * G>([&](int i) { sums[i / G][i % G] = own[i / G][i % G]; });
}

#if defined(ONERNN_SQUARES)
template <int M, int G, class Sums, class Factor, class Stored, class Row, class Place>
inline void multiply_two_rows(Sums (&sums)[M][G], const Factor* const* left, const Stored* panel,
                              std::int64_t count, Row row, Place place) {
  constexpr int kEven = M / 2 * 2;
  const std::int64_t even = count / 2 * 2;
  multiply_squares<kEven>(sums, left, panel, even, row, place);
  const auto one_by_one = [&](auto first, std::int64_t from, std::int64_t to) {
    constexpr int N = M - first();
    Sums own[N][G];
    unrolled<N * G>([&](int i) { own[i / G][i % G] = sums[first() + i / G][i % G]; });
    for (std::int64_t k = from; k < to; ++k)
      unrolled<N * G>([&](int i) {
        own[i / G][i % G] =
            multiply_add(factor_of(left[first() + i / G][k]),
                         load_row(panel + k * row + place(i % G), 0), own[i / G][i % G]);
      });
    unrolled<N * G>([&](int i) { sums[first() + i / G][i % G] = own[i / G][i % G]; });
  };
  if constexpr (M > kEven) one_by_one(Fixed<kEven>(), 0, even);
  if (even < count) one_by_one(Fixed<0>(), even, count);
}
#endif

/// How rows are rounded to quads: q = number / step + shift, from 0 to 255. If `step` is 0, each
/// row has its own step: its largest magnitude / 127.
struct ByteScale {
  float step = 0;
  std::int32_t shift = 128;
};

/// Rows of at most K numbers in the form that products read: unchanged, or rounded to pairs or
/// quads.
template <class Factor>
class Rows {
 public:
  Rows(std::int64_t most, std::int64_t, bool = false) : rows_(most) {}

  void put(std::int64_t m, const Factor* row, std::int64_t) { rows_.data()[m] = row; }
  const Factor* const* get() const { return rows_.data(); }
  void scale(ByteScale) {}

 private:
  Memory<const Factor*> rows_;
};

#if defined(ONERNN_PAIRS)
template <>
class Rows<BrainPair> {
 public:
  Rows(std::int64_t most, std::int64_t K, bool = false)
      : pairs_((K + 31) / 32 * 16), rows_(most), made_(most * pairs_) {
    for (std::int64_t m = 0; m < most; ++m) rows_.data()[m] = made_.data() + m * pairs_;
  }

  void put(std::int64_t m, const float* row, std::int64_t K) {
    round_to_pairs(row, K, made_.data() + m * pairs_);
  }
  const BrainPair* const* get() const { return rows_.data(); }
  void scale(ByteScale) {}

 private:
  std::int64_t pairs_;
  Memory<const BrainPair*> rows_;
  Memory<BrainPair> made_;
};

/// The same for rows that are not yet rounded: rounds kSome numbers of each row to pairs at a time.
template <int M, int G, class Row = Fixed<G * 16>, class Next = Nothing>
inline void multiply(Floats (&sums)[M][G], const float* const* left, const BrainPair* panel,
                     std::int64_t K, Row row = {}, Next = {}) {
  constexpr std::int64_t kSome = 256;
  BrainPair made[M][kSome / 2];
  const BrainPair* rows[M];
  for (std::int64_t k = 0; k < K; k += kSome) {
    const std::int64_t some = (std::min)(kSome, K - k);
    for (int m = 0; m < M; ++m) {
      round_to_pairs(left[m] + k, some, made[m]);
      rows[m] = made[m];
    }
    multiply(sums, rows, panel + k / 2 * row, some, row);
  }
}
#endif

/// sums[m][g] += row m of `left` times panel p of a matrix.
template <int M, int G, class Lanes, class Factor, class Stored, class Size, class Next>
inline void multiply_panel(Lanes (&sums)[M][G], const Factor* const* left, const Stored* matrix,
                           std::int64_t p, Size K, Next ahead) {
  multiply(sums, left, panel_of<G>(matrix, p, K), K, Fixed<G * 16>(), ahead);
}

/// Calls function(Fixed<M>, first row) for blocks of M rows that together cover all rows. M is as
/// large as possible: the registers must hold G sums for each row.
template <class Lanes, int G, class Function>
inline void in_blocks(std::int64_t rows, Function function) {
  constexpr int M = kSums<Lanes> / G > 8 ? 8 : kSums<Lanes> / G > 1 ? kSums<Lanes> / G : 1;
  std::int64_t row = 0;
  for (; row + M <= rows; row += M) function(Fixed<M>(), row);
  if constexpr (M > 4)
    for (; row + 4 <= rows; row += 4) function(Fixed<4>(), row);
  if constexpr (M > 3)
    for (; row + 3 <= rows; row += 3) function(Fixed<3>(), row);
  if constexpr (M > 2)
    for (; row + 2 <= rows; row += 2) function(Fixed<2>(), row);
  for (; row < rows; ++row) function(Fixed<1>(), row);
}

/// Calls function(Fixed<rows>), so that the compiler knows the number of rows, which is at most M.
template <int M, class Function>
inline void with_rows(std::int64_t rows, Function function) {
  if constexpr (M > 1)
    if (rows < M) return with_rows<M - 1>(rows, function);
  function(Fixed<M>());
}

/// Calls function(first, count) for parts that cover all rows. There are as few parts of at most
/// `most` rows as possible, of nearly the same size: in a small part, each addition would wait for
/// the one before.
template <class Function>
inline void in_parts(std::int64_t rows, std::int64_t most, Function function) {
  std::int64_t row = 0;
  for (std::int64_t parts = (rows + most - 1) / most; parts > 0; --parts) {
    const std::int64_t some = (rows - row + parts - 1) / parts;
    function(row, some);
    row += some;
  }
}

/// A product multiplies kRowsAtOnce rows by kDepth rows of a panel at a time. With their sums, both
/// stay in the caches of a core.
inline constexpr std::int64_t kRowsAtOnce = 24, kDepth = 64;
template <class Factor, class Stored>
inline constexpr std::int64_t kRowsTogether = kRowsAtOnce;

/// Adds to M rows of B sums, which are `sums_row` numbers apart: numbers of `left` from index
/// `from` on times K rows of a panel, see `multiply`. Not inlined, so that all cells share it.
template <int M, int B, class Real, class Factor, class Stored>
[[gnu::noinline]] void add_block(Real* sums, std::int64_t sums_row, const Factor* const* left,
                                 std::int64_t from, const Stored* panel, std::int64_t row,
                                 std::int64_t K, Ahead<B> ahead) {
  Lanes<Real> own[M][B];
  const Factor* rows[M];
  unrolled<M>([&](int m) { rows[m] = left[m] + from; });
  unrolled<M * B>([&](int i) { own[i / B][i % B] = load(sums + i / B * sums_row + i % B * 16); });
  multiply(own, rows, panel, K, row, ahead);
  unrolled<M * B>([&](int i) { store(sums + i / B * sums_row + i % B * 16, own[i / B][i % B]); });
}

/// sums (rows, S, 16) += `rows` rows of `left` times a panel of S sums per row. It is for cases in
/// which the registers cannot hold the sums of all gates for some rows: it multiplies one or two
/// gates at a time, for as many rows as the registers hold. `next`: the panel that is multiplied
/// next.
template <int S, class Real, class Factor, class Stored>
inline void add_by_gates(Real* sums, const Factor* const* left, std::int64_t rows,
                         const Stored* panel, std::int64_t K, const Stored* next) {
  using L = Lanes<Real>;
  constexpr std::int64_t kRow = S * 16;
  for (std::int64_t k = 0; k < K; k += kDepth) {
    const Stored* const part = panel + k / kRowsOf<Stored> * kRow;
    const Stored* const after = k + kDepth < K ? part + kDepth / kRowsOf<Stored> * kRow : next;
    const std::int64_t depth = (std::min)(kDepth, K - k);
    const auto gates = [&](auto together, int g, const auto* columns, std::int64_t step) {
      constexpr int N = together(), M = kSums<L> / N;
      in_parts(rows, M, [&](std::int64_t m, std::int64_t count) {
        with_rows<M>(count, [&](auto block) {
          add_block<block(), N>(sums + m * kRow + g * 16, kRow, left + m, k / kRowsOf<Factor>,
                                columns, step, depth, Ahead<N>(after + g * 16, kRow));
        });
      });
    };
    if constexpr (!std::is_same_v<Stored, Real> && std::is_same_v<decltype(load_row(part, 0)), L>)
      if (rows > kSums<L>) {  // narrow types are widened once for several blocks
        alignas(64) Real wide[kDepth * 16];
        for (int g = 0; g < S; ++g) {
          for (std::int64_t r = 0; r < depth; ++r)
            store(wide + r * 16, load_row(part + r / kRowsOf<Stored> * kRow + g * 16,
                                          static_cast<int>(r % kRowsOf<Stored>)));
          gates(Fixed<1>(), g, wide, 16);
        }
        continue;
      }
    int g = 0;
    if constexpr (S > 1)  // with few sums, additions would wait for each other
      if (rows <= kSums<L> / 2)
        for (; g + 2 <= S; g += 2) gates(Fixed<2>(), g, part + g * 16, kRow);
    for (; g < S; ++g) gates(Fixed<1>(), g, part + g * 16, kRow);
  }
}

/// A part of a product: some rows and one panel of S sums per row, or one row and some panels.
template <class Real, class Factor, class Stored, class Size>
struct Tile {
  Real* sums;  // (rows, panels, S, 16)
  const Stored* matrix;
  Size K;
  std::int64_t panel, panels;
  const Factor* const* left;
  std::int64_t row, rows;  // rows of `left`
  bool back;               // the panel before this one is multiplied next
};

/// Adds the products of a tile's rows and panels to its sums. All cells share this function,
/// because it takes longer to compile than all that the cells do with the sums.
template <int S, class Real, class Factor, class Stored, class Size>
[[gnu::noinline]] void add_tile(const Tile<Real, Factor, Stored, Size> tile) {
  using L = Lanes<Real>;
  constexpr bool kInRegisters = kRowsOf<Stored> == 4 || kSums<L> >= 24;
  // Storing the sums between parts of a panel does not pay for short sums, nor for rows whose sums
  // fit the registers. With few registers, not even the sums of one row fit.
  constexpr std::int64_t kShort = 48, kFew = S == 1 || kSums<L> < S ? 1 : kSums<L> / S;
  constexpr bool kNeverFits = kSums<L> < 4 && S != 3;
  // For one row, some panels are multiplied at the same time: as many as hide the latency of an
  // addition.
  constexpr int kMost = kHeadRows<Stored> > 0 ? 1 : (std::min)(kSums<L>, 6) / S;
  const Size K = tile.K;
  for (std::int64_t done = 0; done < tile.panels;) {
    const std::int64_t left = tile.panels - done;
    const auto sums_of = [&](std::int64_t at) { return tile.sums + at * S * 16; };
    const std::int64_t one = tile.back ? left - 1 : done, p = tile.panel + one;
    const Stored* const next = panel_of<S>(tile.matrix, tile.back ? p - 1 : p + 1, K);
    if constexpr (!kInRegisters)
      if (kNeverFits || (tile.rows > kFew && K >= kShort)) {
        add_by_gates<S>(sums_of(one), tile.left + tile.row, tile.rows,
                        panel_of<S>(tile.matrix, p, K), K, next);
        ++done;
        continue;
      }
    constexpr bool kAsStored = std::is_same_v<Factor, typename FactorOf<Real, Stored>::Type>;
    if constexpr (kMost > 1 && kAsStored && !(kNeverFits && !kInRegisters))
      if (tile.rows == 1 && left > 1) {
        with_rows<(std::min)(kMost, 4)>(left, [&](auto together) {
          constexpr int C = together();
          const std::int64_t at = tile.back ? left - C : done;
          Real* const sums = sums_of(at);
          L own[1][C * S];
          unrolled<C * S>([&](int s) { own[0][s] = load(sums + s * 16); });
          multiply(own, tile.left + tile.row, panel_of<S>(tile.matrix, tile.panel + at, K), K,
                   Fixed<S * 16>(), Nothing(),
                   InPanels<S>{panel_of<S>(tile.matrix, 1, K) - tile.matrix});
          unrolled<C * S>([&](int s) { store(sums + s * 16, own[0][s]); });
          done += C;
        });
        continue;
      }
#if defined(ONERNN_NEON)  // see multiply_quads
    constexpr int kBlock = kRowsOf<Stored> == 4 ? kSums<L> / kSums<Ints> : S;
#else
    constexpr int kBlock = S;
#endif
    if constexpr (!(kNeverFits && !kInRegisters))
      in_blocks<L, kBlock>(tile.rows, [&](auto block, std::int64_t m) {
        constexpr int M = block();
        Real* const sums = sums_of(one) + m * S * 16;
        L own[M][S];
        unrolled<M * S>([&](int i) { own[i / S][i % S] = load(sums + i * 16); });
        // The next panel is prefetched while this one is multiplied, a part of it with each block
        // of rows.
        constexpr std::int64_t kLine = 64 / sizeof(Stored);
        const std::int64_t row = tile.row + m;
        if constexpr (M < 4)
          multiply_panel(own, tile.left + row, tile.matrix, p, K, Nothing());
        else
          multiply_panel(own, tile.left + row, tile.matrix, p, K,
                         Ahead<>(next + row / M * kLine * (K / kRowsOf<Stored>), kLine));
        unrolled<M * S>([&](int i) { store(sums + i * 16, own[i / S][i % S]); });
      });
    ++done;
  }
}

/// Rows of a framework's matrix are packed for this many rows of `left` at a time.
inline constexpr std::int64_t kRowsInPlace = 64;

/// Adds one row of `left` times whole panels to S sums. The matrix is contiguous along its columns.
/// So its numbers are transposed in registers and added one after the other, and a product reads
/// sixteen streams of memory.
template <int S, int G, class Real>
inline void add_row_unpacked(Real* sums, const Unpacked<Real>& matrix, std::int64_t p,
                             std::int64_t K, const Real* left) {
  using L = Lanes<Real>;
  for (int s = 0; s < S; ++s) {
    const Real* const from = matrix.gates[s % G] + (p + s / G) * 16 * matrix.column;
    L own = load(sums + s * 16);
    const auto add = [&](const Real* rows, std::int64_t apart, std::int64_t k, std::int64_t count) {
      L columns[4];
      turn(rows, apart, columns);
      for (std::int64_t j = 0; j < count; ++j)
        own = multiply_add(broadcast(left[k + j]), columns[j], own);
    };
    std::int64_t k = 0;
    // Reads a whole cache line of each row at a time: rows whose distance is a power of two push
    // each other out of the cache.
    for (; k + 16 <= K; k += 16)
      unrolled<4>([&](int t) { add(from + k + 4 * t, matrix.column, k + 4 * t, 4); });
    for (; k + 4 <= K; k += 4) add(from + k, matrix.column, k, 4);
    if (k < K) {
      Real square[16][4] = {};
      for (std::int64_t o = 0; o < 16; ++o)
        std::copy_n(from + o * matrix.column + k, K - k, square[o]);
      add(square[0], 4, k, K - k);
    }
    store(sums + s * 16, own);
  }
}

/// Adds to `rows` rows of S sums: rows of `left` times the columns from panel p on, with G gates
/// per panel, of a framework's matrix. Not inlined, for the same reason as `add_tile`.
template <int S, int G, class Real, class Stored, class Factor>
[[gnu::noinline]] void add_unpacked(Real* sums, const Unpacked<Real>& matrix, std::int64_t p,
                                    std::int64_t K, const Factor* const* left, std::int64_t rows) {
  if constexpr (std::is_same_v<Stored, Real>)
    if (rows == 1 && matrix.row == 1 && matrix.columns >= (p + S / G) * 16)
      return add_row_unpacked<S, G>(sums, matrix, p, K, left[0]);
  alignas(64) Stored some[kDepth / kRowsOf<Stored> * S * 16];
  const Factor* part[kRowsInPlace];
  for (std::int64_t k = 0; k < K; k += kDepth) {
    const std::int64_t depth = (std::min)(kDepth, K - k);
    pack_panel<S, G>(matrix, p, k, depth, some);
    for (std::int64_t m = 0; m < rows; ++m) part[m] = left[m] + k / kRowsOf<Factor>;
    add_tile<S>(
        Tile<Real, Factor, Stored, std::int64_t>{sums, some, depth, 0, 1, part, 0, rows, false});
  }
}

/// Returns into how many parts the rows of a product are split, so that each member of a team has
/// two pieces or more. A part has at least eight rows: with fewer, the matrix would be read too
/// often.
constexpr std::int64_t parts_of(std::int64_t rows, std::int64_t groups, std::int64_t members) {
  if (groups >= 2 * members || members < 2) return 1;
  return (std::max)((std::min)(rows / 8, (2 * members + groups - 1) / groups), std::int64_t(1));
}

/// Calls finish(row, panel, sums) with the G sums of every row and panel: start(row, panel, g) plus
/// the row of `left` times the matrix.
///
/// The team splits the panels, so that each thread keeps its part of the matrix in its own cache,
/// and all rows are multiplied by a panel while it is there. If there are too few panels, the team
/// also splits the rows. `back`: goes from the last panel to the first one. If every second product
/// does so, it begins with the part of a large matrix that is still in the cache. Each `finish`
/// handles all sums at hand before the next `finish` begins, so that independent gate functions
/// overlap.
template <int G, class Real, class Factor, class Matrix, class Size, class Panels, class Team,
          class Start, class... Finish>
inline void product(Matrix given, Size K, Panels panels, const Factor* const* left,
                    std::int64_t rows, Team& team, bool back, Start start, Finish... finish) {
  using Stored = StoredOf<Matrix>;
  const Stored* const matrix = panels_of_matrix(given);
  const int B = beside<G>(panels);
  const std::int64_t groups = panels / B, parts = parts_of(rows, groups, team.members());
  const std::int64_t each_part = (rows * K * B * G * 16 + parts - 1) / parts;
  const std::int64_t bytes = B * panel_size<G, Stored>(K) * std::int64_t(sizeof(Stored));
  if (team.counts(groups * parts, parts, each_part, identity_of(given), bytes)) return;
  team.split(groups * parts, each_part, [=](std::int64_t begin, std::int64_t stop) {
    constexpr std::int64_t kSome = 8;
    constexpr bool kMayBeInPlace = !std::is_pointer_v<Matrix>;
    constexpr std::int64_t kRows = kRowsTogether<Factor, Stored>;
    [[maybe_unused]] const Scope<Factor, Stored> scope{};
    alignas(64) Real sums[(kMayBeInPlace ? kRowsInPlace : kRows) * 4 * 16];
    std::int64_t together = kRows;
    if constexpr (kMayBeInPlace)
      if (given.unpacked) together = kRowsInPlace;
    const std::int64_t most = rows == 1 ? kSome : 1;
    for (std::int64_t done = 0, some; done < stop - begin; done += some) {
      some = parts > 1 ? 1 : (std::min)(most, stop - begin - done);
      const std::int64_t piece = back ? stop - done - some : begin + done;
      const std::int64_t low = piece / parts, part = piece % parts, from = rows * part / parts;
      in_parts(rows * (part + 1) / parts - from, together,
               [&](std::int64_t at, std::int64_t count) {
                 const std::int64_t row = from + at;
                 const auto each = [&](const auto& use) {
                   for (std::int64_t m = 0; m < count; ++m)
                     for (std::int64_t q = 0; q < some * B; ++q)
                       use(row + m, low * B + q, sums + (m * some * B + q) * G * 16);
                 };
                 each([&](std::int64_t n, std::int64_t p, Real* own) {
                   for (int g = 0; g < G; ++g) store(own + g * 16, start(n, p, g));
                 });
                 const auto add = [&](auto sums_a_row) {
                   constexpr int S = sums_a_row();
                   if constexpr (kMayBeInPlace)
                     if (given.unpacked) {
                       for (std::int64_t q = 0; q < some; ++q)
                         add_unpacked<S, G, Real, Stored>(sums + q * S * 16, *given.unpacked,
                                                          (low + q) * B, K, left + row, count);
                       return;
                     }
                   add_tile<S>(Tile<Real, Factor, Stored, Size>{sums, matrix, K, low, some, left,
                                                                row, count, back});
                 };
                 if constexpr (G == 1)
                   if (B == 4) add(Fixed<4>());
                 if constexpr (G <= 2)
                   if (B == 2) add(Fixed<2 * G>());
                 if (B == 1) add(Fixed<G>());
                 const auto finished = [&](const auto& one) {
                   each([&](std::int64_t n, std::int64_t p, const Real* own) {
                     Lanes<Real> gates[G];
                     for (int g = 0; g < G; ++g) gates[g] = load(own + g * 16);
                     one(n, p, gates);
                   });
                 };
                 (finished(finish), ...);
               });
    }
  });
}

/// Calls use(row, column, sums, count) with up to sixteen sums from a column on. The sums are bias
/// (C; null: zeros) + x (rows, K) times a matrix of C columns, in panels of G times 16 columns.
template <int G, class Real, class Stored, class Team, class Use>
inline void each_product(const Real* x, std::int64_t rows, std::int64_t K, const Stored* matrix,
                         Optional<const Real> bias, std::int64_t C, Team& team, Use use) {
  team.split((C + G * 16 - 1) / (G * 16), rows * K * G * 16,
             [&](std::int64_t begin, std::int64_t end) {
               Serial own;
               for (std::int64_t p = begin; p < end; ++p) {
                 const std::int64_t columns = (std::min)(std::int64_t(G * 16), C - p * G * 16);
                 Real first[G * 16] = {};
                 if (bias) std::copy_n(bias + p * G * 16, columns, first);
                 for (std::int64_t row = 0; row < rows; row += kRowsAtOnce) {
                   const Real* left[kRowsAtOnce];
                   const std::int64_t some = (std::min)(kRowsAtOnce, rows - row);
                   for (std::int64_t m = 0; m < some; ++m) left[m] = x + (row + m) * K;
                   product<G, Real>(
                       panel_of<G>(matrix, p, K), K, Fixed<1>(), left, some, own, false,
                       [&](std::int64_t, std::int64_t, int g) { return load(first + g * 16); },
                       [&](std::int64_t m, std::int64_t, const Lanes<Real>* sums) {
                         for (int g = 0; g * 16 < columns; ++g)
                           use(row + m, (p * G + g) * 16, sums[g],
                               (std::min)(std::int64_t(16), columns - g * 16));
                       });
                 }
               }
             });
}

/// y (rows, C) = the sums of `each_product`.
template <int G, class Real, class Stored, class Team>
inline void dense(Real* y, const Real* x, std::int64_t rows, std::int64_t K, const Stored* matrix,
                  Optional<const Real> bias, std::int64_t C, Team& team) {
  each_product<G>(x, rows, K, matrix, bias, C, team,
                  [=](std::int64_t row, std::int64_t column, Lanes<Real> sums, std::int64_t some) {
                    store_some(y + row * C + column, sums, some);
                  });
}

/// Returns the scalar product of two rows; sixteen partial sums are independent.
template <class T>
T scalar_product(const T* x, const T* y, std::int64_t count) {
  constexpr std::int64_t kSums = 16;
  T sums[kSums] = {}, total = 0;
  std::int64_t k = 0;
  for (; k + kSums <= count; k += kSums)
    for (std::int64_t at = 0; at < kSums; ++at) sums[at] += x[k + at] * y[k + at];
  for (; k < count; ++k) total += x[k] * y[k];
  for (const T sum : sums) total += sum;
  return total;
}

/// out (rows, columns), of 16 columns or more: alpha times x (rows, inner) times y (inner,
/// columns).
/// The last columns may be computed twice, to the same bits.
template <class T>
void product_of_rows(T* out, const T* x, const T* y, std::int64_t rows, std::int64_t inner,
                     std::int64_t columns, double alpha) {
  using L = Lanes<T>;
  const L factor = broadcast(static_cast<T>(alpha));
  const auto some = [=](auto wide, std::int64_t column) {
    constexpr int G = wide();
    in_blocks<L, G>(rows, [=](auto block, std::int64_t row) {
      constexpr int M = block();
      const T* left[M];
      L sums[M][G];
      unrolled<M>([&](int m) { left[m] = x + (row + m) * inner; });
      unrolled<M * G>([&](int i) { sums[i / G][i % G] = broadcast(T()); });
      multiply(sums, left, y + column, inner, columns);
      unrolled<M * G>([&](int i) {
        store(out + (row + i / G) * columns + column + i % G * 16, sums[i / G][i % G] * factor);
      });
    });
  };
  std::int64_t column = 0;
  for (; column + 64 <= columns; column += 64) some(Fixed<4>(), column);
  for (; column < columns; column += 16) some(Fixed<1>(), (std::min)(column, columns - 16));
}

/// out (batch, rows, columns): alpha times x (batch, rows, inner) times y (batch, inner, columns),
/// each transposed if an argument says so. The matrices are not packed.
template <class T>
void product(T* out, const T* x, const T* y, std::int64_t batch, std::int64_t rows,
             std::int64_t inner, std::int64_t columns, std::int64_t x_turned, std::int64_t y_turned,
             double alpha) {
  for (std::int64_t b = 0; b < batch; ++b, x += rows * inner, y += inner * columns) {
    if (!x_turned && !y_turned && columns >= 16) {
      product_of_rows(out, x, y, rows, inner, columns, alpha);
      out += rows * columns;
      continue;
    }
    for (std::int64_t i = 0; i < rows; ++i, out += columns) {
      if (y_turned && !x_turned) {
        for (std::int64_t j = 0; j < columns; ++j)
          out[j] = static_cast<T>(alpha) * scalar_product(x + i * inner, y + j * inner, inner);
        continue;
      }
      std::fill_n(out, columns, T(0));
      for (std::int64_t k = 0; k < inner; ++k) {
        const T factor = static_cast<T>(alpha) * x[x_turned ? k * rows + i : i * inner + k];
        if (y_turned)
          for (std::int64_t j = 0; j < columns; ++j) out[j] += factor * y[j * inner + k];
        else
          for (std::int64_t j = 0; j < columns; ++j) out[j] += factor * y[k * columns + j];
      }
    }
  }
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
