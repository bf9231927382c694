// Rows times a matrix.
//
// A matrix of K rows is stored panel by panel: for each of its rows G times 16 numbers, so that a
// product reads it once, front to back, and G gates of 16 units are in registers together.
//
// A sum adds its products one after the other, from the first row of the matrix to the last one,
// whatever the batch: a row gives the same bits alone and among others, and on any number of
// threads.
#ifndef ONERNN_PRODUCTS_HPP
#define ONERNN_PRODUCTS_HPP

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "isa.hpp"
#include "lanes.hpp"
#include "memory.hpp"
#include "pairs.hpp"
#include "status.hpp"
#include "stored.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// A number that the compiler knows, in the place of one that only the run knows.
template <std::int64_t N>
using Fixed = std::integral_constant<std::int64_t, N>;

/// Panels of sixteen for so many units.
constexpr std::int64_t panels_of(std::int64_t units) { return (units + 15) / 16; }
template <std::int64_t N>
constexpr Fixed<(N + 15) / 16> panels_of(Fixed<N>) {
  return {};
}

/// function(Fixed<B>), B panels side by side: each number of a row is read again for every panel;
/// with four sums or more to add it to, that costs less than reading the panel.
template <int G, class Function>
inline void side_by_side(std::int64_t panels, Function function) {
  if (G == 1 && panels % 4 == 0) {
    if constexpr (G == 1) function(Fixed<4>());
  } else if (G <= 2 && panels % 2 == 0) {
    if constexpr (G <= 2) function(Fixed<2>());
  } else {
    function(Fixed<1>());
  }
}
template <int G, std::int64_t N, class Function>
inline void side_by_side(Fixed<N>, Function function) {
  function(Fixed<(G == 1 && N % 4 == 0) ? 4 : (G <= 2 && N % 2 == 0) ? 2 : 1>());
}

/// Row r of those that are in sixteen stored numbers.
template <class Stored>
inline auto load_row(const Stored* p, int) {
  return load(p);
}

/// Panel p of a matrix of K rows.
template <int G, class Stored>
inline const Stored* panel_of(const Stored* matrix, std::int64_t p, std::int64_t K) {
  const std::int64_t rows = kHeadRows<Stored> + (K + kRowsOf<Stored> - 1) / kRowsOf<Stored>;
  return matrix + p * rows * G * 16;
}

/// sums[m][g] += row m of `left` (K numbers) times the panel.
template <int M, int G, class Lanes, class Factor, class Stored, class Size>
inline void multiply(Lanes (&sums)[M][G], const Factor* const* left, const Stored* panel, Size K) {
  constexpr int R = kRowsOf<Stored> / kRowsOf<Factor>;  // factors a stored row
  const std::int64_t count = (K + kRowsOf<Factor> - 1) / kRowsOf<Factor>;
  if (count < 1) return;  // else the sums would be stored before the loop, too
  Lanes own[M][G];        // nobody has their address: they stay in registers
  const Factor* rows[M];
  for (int m = 0; m < M; ++m) {
    rows[m] = left[m];
    for (int g = 0; g < G; ++g) own[m][g] = sums[m][g];
  }
  const auto add = [&](auto r, std::int64_t k) {
    decltype(load_row(panel, 0)) column[G];
    for (int g = 0; g < G; ++g) column[g] = load_row(panel + g * 16, r);
    for (int m = 0; m < M; ++m) {
      const auto factor = broadcast(rows[m][k]);
      for (int g = 0; g < G; ++g) own[m][g] = multiply_add(factor, column[g], own[m][g]);
    }
  };
  for (std::int64_t k = 0; k < count; k += R, panel += G * 16) {
    add(Fixed<0>(), k);
    if constexpr (R > 1)
      if (k + 1 < count) add(Fixed<1>(), k + 1);
  }
  for (int m = 0; m < M; ++m)
    for (int g = 0; g < G; ++g) sums[m][g] = own[m][g];
}

/// How rows are rounded to quads: q = number / step + shift, from 0 to 255. A step of 0: the
/// row's largest magnitude / 127.
struct ByteScale {
  float step = 0;
  std::int32_t shift = 128;
};

/// Rows of at most K numbers as products read them: as they stand, or rounded to pairs or quads.
template <class Factor>
class Rows {
 public:
  Rows(std::int64_t most, std::int64_t, int = 0) : rows_(most) {}

  void put(std::int64_t m, const Factor* row, std::int64_t) { rows_.data()[m] = row; }
  const Factor* const* get() const { return rows_.data(); }
  void scale(ByteScale) {}

 private:
  Memory<const Factor*> rows_;
};

#if defined(__AVX512F__) && defined(__AVX512BF16__)
template <>
class Rows<BrainPair> {
 public:
  Rows(std::int64_t most, std::int64_t K, int = 0)
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

/// As above, of rows as they stand: some of each at a time are rounded to pairs.
template <int M, int G>
inline void multiply(Floats (&sums)[M][G], const float* const* left, const BrainPair* panel,
                     std::int64_t K) {
  constexpr std::int64_t kSome = 256;
  BrainPair made[M][kSome / 2];
  const BrainPair* rows[M];
  for (std::int64_t k = 0; k < K; k += kSome) {
    const std::int64_t some = (std::min)(kSome, K - k);
    for (int m = 0; m < M; ++m) {
      round_to_pairs(left[m] + k, some, made[m]);
      rows[m] = made[m];
    }
    multiply(sums, rows, panel + k / 2 * G * 16, some);
  }
}
#endif

/// sums[m][g] += row m of `left` times panel p of a matrix.
template <int M, int G, class Lanes, class Factor, class Stored, class Size>
inline void multiply_panel(Lanes (&sums)[M][G], const Factor* const* left, const Stored* matrix,
                           std::int64_t p, Size K) {
  multiply(sums, left, panel_of<G>(matrix, p, K), K);
}

/// function(Fixed<M>, first row) over all rows, with as large an M as has its G sums in registers.
template <class Lanes, int G, class Function>
inline void in_blocks(std::int64_t rows, Function function) {
  constexpr int M = kSums<Lanes> / G > 8 ? 8 : kSums<Lanes> / G > 1 ? kSums<Lanes> / G : 1;
  std::int64_t row = 0;
  for (; row + M <= rows; row += M) function(Fixed<M>(), row);
  if constexpr (M > 4)
    for (; row + 4 <= rows; row += 4) function(Fixed<4>(), row);
  if constexpr (M > 2)
    for (; row + 2 <= rows; row += 2) function(Fixed<2>(), row);
  for (; row < rows; ++row) function(Fixed<1>(), row);
}

/// finish(row, panel, sums) with the G sums of every row and panel, which are start(row, panel, g)
/// plus row m of `left` times the matrix. The team splits the panels, so that each thread keeps its
/// part of the matrix in its own cache, and all rows go through a panel while it is there. `back`:
/// from the last panel to the first one. Every second time so, a matrix that is larger than the
/// cache is read first where it was read last.
template <int G, class Real, class Factor, class Stored, class Size, class Panels, class Team,
          class Start, class Finish>
inline void product(const Stored* matrix, Size K, Panels panels, const Factor* const* left,
                    std::int64_t rows, Team& team, Start start, Finish finish, bool back = false) {
  side_by_side<G>(panels, [&](auto beside) {
    constexpr int B = beside();
    team.split(panels / B, [&](std::int64_t first, std::int64_t end) {
      const Start begin(start);  // nobody has their address: what they hold is read once
      const Finish use(finish);
      for (std::int64_t i = first; i < end; ++i) {
        const std::int64_t p = back ? first + end - 1 - i : i;
        in_blocks<Lanes<Real>, B * G>(rows, [&](auto block, std::int64_t row) {
          constexpr int M = block();
          Lanes<Real> sums[M][B * G];
          for (int m = 0; m < M; ++m)
            for (int q = 0; q < B; ++q)
              for (int g = 0; g < G; ++g) sums[m][q * G + g] = begin(row + m, p * B + q, g);
          multiply_panel(sums, left + row, matrix, p, K);
          for (int m = 0; m < M; ++m)
            for (int q = 0; q < B; ++q) use(row + m, p * B + q, sums[m] + q * G);
        });
      }
    });
  });
}

/// y (rows, C) = bias (C; null: zeros) + x (rows, K) times a matrix of C columns, in panels of G
/// times 16.
template <int G, class Real, class Stored, class Team>
inline void dense(Real* y, const Real* x, std::int64_t rows, std::int64_t K, const Stored* matrix,
                  Optional<const Real> bias, std::int64_t C, Team& team) {
  team.split((C + G * 16 - 1) / (G * 16), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      Real first[G * 16] = {};
      if (bias)
        std::copy_n(bias + p * G * 16, (std::min)(std::int64_t(G * 16), C - p * G * 16), first);
      in_blocks<Lanes<Real>, G>(rows, [&](auto block, std::int64_t row) {
        constexpr int M = block();
        Lanes<Real> sums[M][G];
        const Real* left[M];
        for (int m = 0; m < M; ++m) {
          left[m] = x + (row + m) * K;
          for (int g = 0; g < G; ++g) sums[m][g] = load(first + g * 16);
        }
        multiply(sums, left, panel_of<G>(matrix, p, K), K);
        for (int m = 0; m < M; ++m)
          for (int g = 0; g < G; ++g) {
            const std::int64_t column = (p * G + g) * 16;
            if (column < C) store_some(y + (row + m) * C + column, sums[m][g], C - column);
          }
      });
    }
  });
}

/// Of two rows, in sixteen sums side by side.
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

/// out (batch, rows, columns): alpha times x (batch, rows, inner) times y (batch, inner, columns),
/// each turned where that is said. Matrices as they stand, none is packed.
template <class T>
void product(T* out, const T* x, const T* y, std::int64_t batch, std::int64_t rows,
             std::int64_t inner, std::int64_t columns, std::int64_t x_turned, std::int64_t y_turned,
             double alpha) {
  for (std::int64_t b = 0; b < batch; ++b, x += rows * inner, y += inner * columns)
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

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
