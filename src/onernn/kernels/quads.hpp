// Matrices of signed bytes, which are stored in fours of rows ("quads"), times rows of numbers that
// are rounded to bytes for the product. Sums are exact integers: the same on every instruction set.
//
// A row of numbers has its own step: its largest magnitude / 127. So a sequence has the same bits
// in any batch, and the relative error does not depend on the magnitude of a state. Calibrated
// layers have one step and one shift for all rows of x, and one step and one shift for all rows of
// h. If a number of a row is not finite, the row's step is NaN, and so is every sum of the row.
//
// Two rows come before each panel. The first one is what an integer sum starts with: minus the
// shift times the sum of its column, because vpdpbusd needs the shift to read unsigned bytes. The
// second one has the steps of the columns, as floats.
#ifndef ONERNN_QUADS_HPP
#define ONERNN_QUADS_HPP

#include <cstdint>

#include "codes.hpp"
#include "isa.hpp"
#include "lanes.hpp"
#include "memory.hpp"
#include "products.hpp"
#include "quad_lanes.hpp"
#include "stored.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// Rounds K numbers of a row to bytes.
inline void round_to_quads(const float* row, std::int64_t K, ByteScale scale, QuadFactor* to) {
  const Floats inverse = broadcast(put_head(row, K, scale.step, 127, false, to));
#if defined(ONERNN_NEON)
  std::memcpy(reinterpret_cast<char*>(to) - sizeof scale.shift, &scale.shift, sizeof scale.shift);
#endif
  const auto low = static_cast<float>(-scale.shift), high = static_cast<float>(255 - scale.shift);
  for (std::int64_t k = 0; k < K; k += 16)
    store_quads(to + k / 4, whole_of(sixteen_of(row, k, K) * inverse, low, high), scale.shift);
}

/// Rows of at most K numbers: in quads, or in digits if a matrix of codes is multiplied (`coded`).
template <>
class Rows<QuadFactor> {
 public:
  Rows(std::int64_t most, std::int64_t K, bool coded = false)
      : coded_(coded), rows_(most), made_(most * row_of(K)) {
    for (std::int64_t m = 0; m < most; ++m) rows_.data()[m] = made_.data() + m * row_of(K) + kHead;
  }

  void put(std::int64_t m, const float* row, std::int64_t K) {
    QuadFactor* const to = rows_.data()[m];
    if (coded_)
      round_to_digits(row, K, to);
    else
      round_to_quads(row, K, scale_, to);
  }
  /// Sets how the rows are rounded that `put` adds from now on.
  void scale(ByteScale scale) { scale_ = scale; }
  const QuadFactor* const* get() const { return rows_.data(); }

 private:
  static constexpr std::int64_t kHead = 64 / sizeof(QuadFactor);  // each row begins a cache line

  std::int64_t row_of(std::int64_t K) const {
    const std::int64_t quads = coded_ ? quads_with_digits(K) : (K + 15) / 16 * 4;
    return kHead + (quads + kHead - 1) / kHead * kHead;
  }

  bool coded_;
  ByteScale scale_;
  Memory<QuadFactor*> rows_;
  Memory<QuadFactor> made_;
};

/// Calls use(m, g, sum) with the sums of row m of `left` times columns g of a panel. A row of the
/// panel has S * 16 columns; rows of `left` have `count` quads. Not inlined: GCC would run out of
/// registers for the rows' addresses.
#if defined(ONERNN_NEON)
template <int M, int G, int S = G, class Use>
[[gnu::noinline]] void sum_quads(const QuadFactor* const* left, const ByteQuad* panel,
                                 std::int64_t count, Use use) {
  QuadSums sums[M][G];
  unrolled<M * G>([&](int i) { sums[i / G][i % G] = QuadSums{}; });
  multiply(sums, left, panel + 2 * S * 16, 4 * count, Fixed<S * 16>());
  if (count > 0) unrolled<M * G>([&](int i) { use(i / G, i % G, total(sums[i / G][i % G])); });
}
#else
template <int M, int G, int S = G, class Use>
[[gnu::noinline]] void sum_quads(const QuadFactor* const* left, const ByteQuad* panel,
                                 std::int64_t count, Use use) {
  // With few sums, additions would wait for each other, so each sum has two parts.
  constexpr int P = M * G * 3 < kSums<Ints> ? 2 : 1;
  Ints own[P * M][G];
  const QuadFactor* rows[M];
  for (int m = 0; m < M; ++m) {
    rows[m] = left[m];
    for (int g = 0; g < G; ++g) {
      own[m][g] = first_sums(panel + g * 16);
      if (P > 1) own[M * (P - 1) + m][g] = Ints{};
    }
  }
  if (count < 1) return;  // otherwise the sums would also be stored before the loop
  panel += 2 * S * 16;
  const auto add = [&](auto part, std::int64_t k) {
    const auto column = [&](int g) { return load_row(panel + (k * S + g) * 16, 0); };
    if constexpr (M == 1) {  // with more rows, the registers could not hold the widened columns
      const auto factor = broadcast(rows[0][k]);
      unrolled<G>([&](int g) { own[part][g] = multiply_add(factor, column(g), own[part][g]); });
    } else {
      QuadColumns columns[G];
      unrolled<G>([&](int g) { columns[g] = column(g); });
      unrolled<M>([&](int m) {
        const auto factor = broadcast(rows[m][k]);
        Ints(&sums)[G] = own[part * M + m];
        unrolled<G>([&](int g) { sums[g] = multiply_add(factor, columns[g], sums[g]); });
      });
    }
  };
  std::int64_t k = 0;
  if constexpr (P > 1)
    for (; k + 1 < count; k += 2) {
      add(Fixed<0>(), k);
      add(Fixed<1>(), k + 1);
    }
  for (; k < count; ++k) add(Fixed<0>(), k);
  for (int m = 0; m < M; ++m)
    for (int g = 0; g < G; ++g) use(m, g, P > 1 ? own[m][g] + own[M * (P - 1) + m][g] : own[m][g]);
}
#endif

/// How many sixteens of a panel's G * 16 columns are summed at a time: all G if registers hold the
/// sums of M rows, else 1.
template <int M, int G>
inline constexpr int kBeside = M * G <= (M == 1 ? kSums<Floats> : kSums<Ints>) ? G : 1;
/// The number of sums per row from which `in_blocks` finds how many rows are in a block: see
/// `kBeside`.
template <int G>
inline constexpr int kWide = kSums<Ints> / G > 1 ? G : 1;

/// The same for all G * 16 columns, and for a block of rows from `in_blocks<Ints, kWide<G>>`.
template <int M, int G, class Use>
inline void sum_panel(const QuadFactor* const* left, const ByteQuad* panel, std::int64_t count,
                      Use use) {
  constexpr int B = kBeside<M, G>;
  for (int first = 0; first < G; first += B)
    sum_quads<M, B, G>(left, panel + first * 16, count,
                       [=](int m, int g, Ints sum) { use(m, first + g, sum); });
}

#if defined(ONERNN_NEON)
/// Corrects sums if a row's bytes represent numbers that are `moved` larger: sum += `moved` times
/// the sum of the column, for each of G * 16 columns.
template <int G>
[[gnu::noinline]] void add_columns(Ints (&sums)[G], std::int32_t moved, const ByteQuad* panel,
                                   std::int64_t count) {
  QuadSums own[G] = {};
  panel += 2 * G * 16;
  for (std::int64_t k = 0; k < count; ++k)
    for (int g = 0; g < G; ++g, panel += 16)
      own[g] = multiply_add(broadcast(QuadFactor{{1, 1, 1, 1}}), load_row(panel, 0), own[g]);
  for (int g = 0; g < G; ++g)
    sums[g] = in_each([=](auto sum, auto all) { return vmlaq_n_s32(sum, all, moved); }, sums[g],
                      total(own[g]));
}

/// sums[m][g] += row m of `left` times the panel, multiplied by the steps of the row and of the
/// columns. For several rows, each sixteen columns are multiplied separately: then the registers
/// hold more rows.
template <int M, int G>
inline void multiply_quads(Floats (&sums)[M][G], const QuadFactor* const* left,
                           const ByteQuad* panel, std::int64_t count) {
  constexpr int kTogether = M == 1 && kSums<Ints> >= 4 ? G : 1;
  const std::int32_t moved = 128 - head_of(left[0]).shift;  // all rows have the same shift
  Ints columns[G] = {};
  if (moved != 0) add_columns<G>(columns, moved, panel, count);
  for (int first = 0; first < G; first += kTogether)
    sum_quads<M, kTogether, G>(left, panel + first * 16, count, [&](int m, int g, Ints sum) {
      const Floats step = broadcast(head_of(left[m]).step);
      Floats& to = sums[m][first + g];
      to = multiply_add(to_floats(sum + columns[first + g]),
                        step * load_steps(panel + (G + first + g) * 16), to);
    });
}
#else
/// sums[m][g] += row m of `left` times the panel, multiplied by the steps of the row and of the
/// columns.
template <int M, int G>
inline void multiply_quads(Floats (&sums)[M][G], const QuadFactor* const* left,
                           const ByteQuad* panel, std::int64_t count) {
  const ByteQuad* const steps = panel + G * 16;
  sum_quads<M, G>(left, panel, count, [&sums, left, steps](int m, int g, Ints sum) {
    const Floats step = broadcast(head_of(left[m]).step);
    sums[m][g] = multiply_add(to_floats(sum), step * load_steps(steps + g * 16), sums[m][g]);
  });
}
#endif

/// Multiplies by panel p of a matrix in the same way. Both the matrix and the rows are in quads, or
/// the matrix is in codes and the rows are in digits.
template <int M, int G, class Size, class Next>
inline void multiply_panel(Floats (&sums)[M][G], const QuadFactor* const* left,
                           const ByteQuad* matrix, std::int64_t p, Size K, Next) {
  if (!head_of(left[0]).coded)
    return multiply_quads(sums, left, panel_of<G>(matrix, p, K), (K + 3) / 4);
  for (int m = 0; m < M; ++m) multiply_codes(sums[m], left[m], matrix, p, K);
}

/// Calls use(row, g, sums) with sixteen sums at a time, for all rows of `left` times a panel of G *
/// 16 columns.
template <int G, class Factor, class Use>
inline void each_sum(const Factor* const* left, std::int64_t rows, const ByteQuad* panel,
                     std::int64_t count, Use use) {
  in_blocks<Ints, kWide<G>>(rows, [&](auto block, std::int64_t row) {
    sum_panel<block(), G>(left + row, panel, count,
                          [&use, row](int m, int g, Ints sum) { use(row + m, g, sum); });
  });
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
