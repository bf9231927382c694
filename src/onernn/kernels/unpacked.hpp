// Matrices as frameworks keep them, and how some of their rows become panels.
//
// Frameworks write to their weights at any time and in any way. A product that reads the
// framework's own matrix never misses a write: it packs a few rows of a panel into a core's first
// cache, multiplies them, and goes on to the next ones. So it has the bits of a packed matrix.
#ifndef ONERNN_UNPACKED_HPP
#define ONERNN_UNPACKED_HPP

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "isa.hpp"
#include "lanes.hpp"
#include "stored.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// Row k and column o of gate g is gates[g][k * row + o * column]. Each gate has `columns` columns.
template <class Real>
struct Unpacked {
  const Real* gates[4];
  std::int64_t row, column, columns;
};

/// A matrix in panels or, if `unpacked` is not null, in a framework's layout.
template <class Real, class Stored>
struct Operand {
  const Stored* panels = nullptr;
  const Unpacked<Real>* unpacked = nullptr;
  explicit operator bool() const { return panels || unpacked; }
};

template <class Stored>
inline const Stored* panels_of_matrix(const Stored* matrix) {
  return matrix;
}
template <class Real, class Stored>
inline const Stored* panels_of_matrix(Operand<Real, Stored> matrix) {
  return matrix.panels;
}
/// Returns the address that identifies a matrix.
template <class Stored>
inline const void* identity_of(const Stored* matrix) {
  return matrix;
}
template <class Real, class Stored>
inline const void* identity_of(Operand<Real, Stored> matrix) {
  return matrix.unpacked ? static_cast<const void*>(matrix.unpacked) : matrix.panels;
}
template <class Matrix>
using StoredOf =
    std::remove_const_t<std::remove_pointer_t<decltype(panels_of_matrix(std::declval<Matrix>()))>>;

/// Says whether some rows of a matrix can be packed at a time. This is false for float16, because a
/// whole column may have to be refused, and for bytes, because the scale of a column needs its
/// largest number.
template <class Real, class Stored>
inline constexpr bool kReadsUnpacked =
    std::is_same_v<Real, Stored> || std::is_same_v<Stored, BrainPair>;

/// Defines the type of matrices in a stack of the library.
template <class Real, class Stored>
using MatrixOf =
    std::conditional_t<kReadsUnpacked<Real, Stored>, Operand<Real, Stored>, const Stored*>;

/// Loads four columns of sixteen rows. Rows are `apart` numbers apart.
template <class Real>
inline void turn(const Real* from, std::int64_t apart, Loops<Real> (&columns)[4]) {
  for (int j = 0; j < 4; ++j)
    for (int i = 0; i < 16; ++i) columns[j].v[i] = from[i * apart + j];
}

/// Writes at most four rows of sixteen columns in the layout of a panel, whose rows are `step`
/// stored numbers apart.
template <class Real>
inline void put_rows(const Lanes<Real> (&rows)[4], std::int64_t count, Real* to,
                     std::int64_t step) {
  for (std::int64_t j = 0; j < count; ++j) store(to + j * step, rows[j]);
}
inline void put_rows(const Floats (&rows)[4], std::int64_t count, BrainPair* to,
                     std::int64_t step) {
  for (std::int64_t j = 0; j < count; j += 2, to += step) {
    float even[16], odd[16];
    store(even, rows[j]);
    store(odd, rows[j + 1]);
    for (int i = 0; i < 16; ++i)
      to[i] = {static_cast<std::uint16_t>(brain_bits(even[i])),
               static_cast<std::uint16_t>(brain_bits(odd[i]))};
  }
}

/// Packs `count` rows of at most sixteen columns into rows of a panel, with zeros for missing
/// columns.
template <class Real, class Stored>
[[gnu::noinline]] void pack_rows(const Real* from, std::int64_t row, std::int64_t column,
                                 std::int64_t count, std::int64_t columns, Stored* to,
                                 std::int64_t step) {
  std::int64_t k = 0;
  const auto put = [&](const Lanes<Real>(&rows)[4]) {
    put_rows(rows, (std::min<std::int64_t>)(count - k, 4), to + k / kRowsOf<Stored> * step, step);
  };
  Lanes<Real> rows[4];
  if (row == 1 && columns >= 16)
    for (; k + 4 <= count; k += 4) {
      turn(from + k, column, rows);
      put(rows);
    }
  if (column == 1)
    for (; k < count; k += 4) {
      for (std::int64_t j = 0; j < 4; ++j)
        rows[j] = k + j < count ? load_some(from + (k + j) * row, columns) : broadcast(Real(0));
      put(rows);
    }
  for (; k < count; k += 4) {
    Real square[16][4] = {};
    for (std::int64_t o = 0; o < (std::min<std::int64_t>)(columns, 16); ++o)
      for (std::int64_t j = 0; j < (std::min<std::int64_t>)(count - k, 4); ++j)
        square[o][j] = from[(k + j) * row + o * column];
    turn(square[0], 4, rows);
    put(rows);
  }
}

/// Packs rows k to k + count of the columns of S sums, from panel p on with G gates per panel, in
/// the form that `multiply` reads.
template <int S, int G, class Real, class Stored>
inline void pack_panel(const Unpacked<Real>& matrix, std::int64_t p, std::int64_t k,
                       std::int64_t count, Stored* to) {
  for (int s = 0; s < S; ++s) {
    const std::int64_t o = (p + s / G) * 16;
    pack_rows(matrix.gates[s % G] + k * matrix.row + o * matrix.column, matrix.row, matrix.column,
              count, matrix.columns - o, to + s * 16, S * 16);
  }
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
