// Products of row-major matrices, for training: rows times a matrix, and sums over all steps of the
// outer product of a row of one matrix and a row of another.
#ifndef ONERNN_MATRICES_HPP
#define ONERNN_MATRICES_HPP

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "isa.hpp"
#include "lanes.hpp"
#include "memory.hpp"
#include "products.hpp"
#include "stored.hpp"
#include "team.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// How many columns of a matrix are multiplied at the same time: kSixteens times sixteen.
inline constexpr int kSixteens = kSums<Floats> >= 16 ? 4 : 2;
inline constexpr std::int64_t kColumns = 16 * kSixteens;

/// A bfloat16 number of a matrix, stored as a float. Without an instruction that multiplies pairs,
/// each product would otherwise convert it again.
struct Brain {
  float v;
};
inline Floats load(const Brain* p) { return load(&p->v); }
#if defined(ONERNN_PAIRS)
using Brains = BrainPair;
#else
using Brains = Brain;
#endif

/// Stores sixteen columns of one row, or of two rows, in the layout of a matrix.
inline void store_row(const float* row, const float*, float* to) { std::copy_n(row, 16, to); }
inline void store_row(const float* even, const float* odd, BrainPair* to) {
  std::uint32_t bits[16];
  for (int i = 0; i < 16; ++i) bits[i] = brain_bits(even[i]) | brain_bits(odd[i]) << 16;
  std::memcpy(to, bits, sizeof bits);
}
inline void store_row(const float* row, const float*, Brain* to) {
  std::uint32_t bits[16];
  for (int i = 0; i < 16; ++i) bits[i] = brain_bits(row[i]) << 16;
  std::memcpy(to, bits, sizeof bits);
}

/// Copies sixteen rows and columns of a matrix. If it has only `rows` rows or `columns` columns,
/// the rest are zeros. Rows of the matrix are `row` numbers apart, columns `column` numbers.
inline void take_square(const float* from, std::int64_t row, std::int64_t column, std::int64_t rows,
                        std::int64_t columns, float (&to)[16][16]) {
  if (rows < 16 || columns < 16) std::memset(to, 0, sizeof to);
  rows = (std::min<std::int64_t>)(rows, 16);
  columns = (std::min<std::int64_t>)(columns, 16);
  if (column == 1)
    for (std::int64_t k = 0; k < rows; ++k) std::copy_n(from + k * row, columns, to[k]);
  else
    for (std::int64_t c = 0; c < columns; ++c)
      for (std::int64_t k = 0; k < rows; ++k) to[k][c] = from[c * column + k * row];
}

/// A matrix of at most (K, C) numbers, in panels of `kColumns` columns; zeros fill the last panel.
template <class Stored>
class Matrix {
 public:
  Matrix(std::int64_t K, std::int64_t C) : K_(K), C_(C), panels_(size(K, C)) {}
  /// Copies K rows and C columns, see `fill`; if `from` is null, the matrix is empty.
  Matrix(const float* from, std::int64_t row, std::int64_t column, std::int64_t K, std::int64_t C)
      : Matrix(from ? K : 0, C) {
    if (from) fill(from, row, column, K, C);
  }

  /// Copies K rows and C columns; `row` and `column` are distances, see `take_square`.
  void fill(const float* from, std::int64_t row, std::int64_t column, std::int64_t K,
            std::int64_t C) {
    constexpr std::int64_t R = kRowsOf<Stored>;
    K_ = K;
    C_ = C;
    for (std::int64_t c = 0; c < C; c += 16) {
      Stored* to = panels_.data() + size(K, c - c % kColumns) + c % kColumns;
      std::int64_t k = 0;
      if (column == 1 && C - c >= 16)
        for (; k + R <= K; k += R, to += kColumns) {
          const float* one = from + k * row + c;
          store_row(one, one + row, to);
        }
      for (; k < K; k += 16) {
        float square[16][16];
        take_square(from + k * row + c * column, row, column, K - k, C - c, square);
        for (std::int64_t r = 0; r < 16 && k + r < K; r += R, to += kColumns)
          store_row(square[r], square[r + R - 1], to);
      }
    }
  }
  /// Returns the panel that begins with column c.
  const Stored* panel(std::int64_t c) const { return panels_.data() + size(K_, c); }
  std::int64_t rows() const { return K_; }
  std::int64_t columns() const { return C_; }

 private:
  static std::int64_t size(std::int64_t K, std::int64_t C) {
    return (K + kRowsOf<Stored> - 1) / kRowsOf<Stored> * ((C + kColumns - 1) / kColumns) * kColumns;
  }
  std::int64_t K_, C_;
  Memory<Stored> panels_;
};

/// Computes y = x (rows, K) times a panel, or y += that product if `added`. Rows of y are `y_row`
/// numbers apart; only their first `columns` numbers are written.
template <class Factor, class Stored>
void times_panel(const Factor* const* x, std::int64_t rows, const Stored* panel, std::int64_t K,
                 float* y, std::int64_t y_row, std::int64_t columns, bool added) {
  in_blocks<Floats, kSixteens>(rows, [&](auto block, std::int64_t row) {
    constexpr int M = block();
    Floats sums[M][kSixteens];
    const auto each = [&](auto function) {
      for (int m = 0; m < M; ++m)
        for (int b = 0; b < kSixteens; ++b)
          function(sums[m][b], y + (row + m) * y_row + b * 16, columns - b * 16);
    };
    each([added](Floats& sum, const float* at, std::int64_t count) {
      sum = added && count > 0 ? load_some(at, count) : broadcast(0.0f);
    });
    multiply(sums, x + row, panel, K);
    each([](const Floats& sum, float* at, std::int64_t count) {
      if (count > 0) store_some<float>(at, sum, count);
    });
  });
}

/// Divides a matrix of results into panels of columns. If there are fewer than two panels per
/// member of a team, each panel is divided into parts of rows.
struct Tiles {
  Tiles(std::int64_t rows, std::int64_t columns, std::int64_t members)
      : rows(rows),
        panels((columns + kColumns - 1) / kColumns),
        parts(parts_of(rows, panels, members)) {}
  std::int64_t rows, panels, parts;

  std::int64_t count() const { return panels * parts; }
  std::int64_t column(std::int64_t tile) const { return tile / parts * kColumns; }
  std::int64_t row(std::int64_t tile) const { return rows * (tile % parts) / parts; }
  std::int64_t row_end(std::int64_t tile) const { return rows * (tile % parts + 1) / parts; }
};

/// Multiplies rows of at most K numbers by matrices.
template <class Stored>
class Products {
  using Factor = typename FactorOf<float, Stored>::Type;
  static constexpr std::int64_t kRows = 240;  // multiplied at once: they stay in the caches

 public:
  explicit Products(std::int64_t K) : left_(kRows, K) {}

  /// Computes y (rows, C) = x times a matrix, or y += that product if `added`. `x_row` and `y_row`
  /// are the distances between two rows. The team splits the panels, and the rows if there are few
  /// panels.
  void multiply(const float* x, std::int64_t x_row, std::int64_t rows, const Matrix<Stored>& matrix,
                float* y, std::int64_t y_row, bool added, Team& team) {
    const std::int64_t K = matrix.rows(), C = matrix.columns();
    for (std::int64_t row = 0; row < rows; row += kRows) {
      const std::int64_t some = (std::min)(kRows, rows - row);
      for (std::int64_t m = 0; m < some; ++m) left_.put(m, x + (row + m) * x_row, K);
      const Tiles tiles(some, C, team.members());
      team.split(tiles.count(), some * K * C / tiles.count(),
                 [&](std::int64_t tile, std::int64_t end) {
                   [[maybe_unused]] const Scope<Factor, Stored> scope{};
                   for (; tile < end; ++tile) {
                     const std::int64_t first = tiles.row(tile), c = tiles.column(tile);
                     times_panel(left_.get() + first, tiles.row_end(tile) - first, matrix.panel(c),
                                 K, y + (row + first) * y_row + c, y_row, C - c, added);
                   }
                 });
    }
  }

 private:
  Rows<Factor> left_;
};

/// Sums over steps of the outer product of a row of one matrix and a row of another, (I, C). The
/// team splits the elements of the result: one thread adds up each of them, in the order of steps.
template <class Stored>
class OuterProducts {
  using Factor = typename FactorOf<float, Stored>::Type;
  static constexpr std::int64_t kWords = 576;  // multiplied at once: they stay in the caches

 public:
  /// For rows of at most I numbers, and a team of `members` members.
  OuterProducts(std::int64_t I, std::int64_t words, std::int64_t members)
      : most_((std::min)(words, kWords)), turned_((I + 15) / 16 * 16 * most_), left_(I, most_) {
    // There are two pieces per member; each has its own memory for a panel.
    for (std::int64_t piece = 0; piece < (members > 1 ? 2 * members : 1); ++piece)
      panels_.emplace_back(most_, kColumns);
  }

  /// y (I, C) += the sum over all steps of the products of I numbers of a by C numbers of b.
  void add(const float* a, std::int64_t I, const float* b, std::int64_t b_row, std::int64_t C,
           std::int64_t words, float* y, std::int64_t y_row, Team& team) {
    for (std::int64_t w = 0; w < words; w += most_) {
      const std::int64_t some = (std::min)(most_, words - w);
      team.split((I + 15) / 16, some * 16 * 16, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin * 16; i < (std::min)(end * 16, I); i += 16) {
          for (std::int64_t k = 0; k < some; k += 16) {
            float square[16][16];
            take_square(a + (w + k) * I + i, 1, I, I - i, some - k, square);
            for (std::int64_t r = 0; r < 16; ++r)
              std::copy_n(square[r], (std::min<std::int64_t>)(16, some - k),
                          turned_.data() + (i + r) * some + k);
          }
          for (std::int64_t r = i; r < (std::min)(i + 16, I); ++r)
            left_.put(r, turned_.data() + r * some, some);
        }
      });
      const Tiles tiles(I, C, team.members());
      const std::int64_t pieces =
          (std::min)(tiles.count(), static_cast<std::int64_t>(panels_.size()));
      team.split(pieces, I * C * some / pieces, [&](std::int64_t piece, std::int64_t end) {
        [[maybe_unused]] const Scope<Factor, Stored> scope{};
        for (; piece < end; ++piece) {
          Matrix<Stored>& panel = panels_[static_cast<std::size_t>(piece)];
          std::int64_t tile = tiles.count() * piece / pieces;
          for (; tile < tiles.count() * (piece + 1) / pieces; ++tile) {
            const std::int64_t first = tiles.row(tile), c = tiles.column(tile);
            const std::int64_t columns = (std::min)(kColumns, C - c);
            panel.fill(b + w * b_row + c, b_row, 1, some, columns);
            times_panel(left_.get() + first, tiles.row_end(tile) - first, panel.panel(0), some,
                        y + first * y_row + c, y_row, columns, true);
          }
        }
      });
    }
  }

 private:
  std::int64_t most_;
  Memory<float> turned_;
  Rows<Factor> left_;
  std::vector<Matrix<Stored>> panels_;
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
