// Products: right in every storage, and each row has the same bits alone and in any block.
#include "products.hpp"

#include <cstring>

#include "check.hpp"
#include "packing.hpp"
#include "quads.hpp"
#include "quantized.hpp"
#include "serial.hpp"
#include "tile_products.hpp"

using namespace onernn;

template <class Real, class Stored, int G, class Matrix, class Panels>
static std::vector<Real> sums_of(const Matrix& matrix, const std::vector<Real>& x,
                                 std::int64_t rows, std::int64_t K, Panels panels,
                                 bool coded = false) {
  using Factor = typename FactorOf<Real, Stored>::Type;
  Rows<Factor> left(rows, K, coded);
  for (std::int64_t m = 0; m < rows; ++m) left.put(m, x.data() + m * K, K);
  const std::int64_t O = 16 * panels;
  std::vector<Real> sums(static_cast<std::size_t>(rows * G * O));
  Serial alone;
  product<G, Real>(
      matrix, K, panels, left.get(), rows, alone,
      rows % 2 != 0,  // either way gives the same bits
      [](std::int64_t, std::int64_t, int g) { return broadcast(Real(g)); },
      [&](std::int64_t m, std::int64_t p, const Lanes<Real>* of) {
        for (int g = 0; g < G; ++g) store(sums.data() + (m * G + g) * O + p * 16, of[g]);
      });
  return sums;
}

template <class Real, class Stored, int G, class Panels>
static std::vector<Real> sums_of(const std::vector<Stored>& matrix, const std::vector<Real>& x,
                                 std::int64_t rows, std::int64_t K, Panels panels,
                                 bool coded = false) {
  return sums_of<Real, Stored, G>(matrix.data(), x, rows, K, panels, coded);
}

template <class Real, class Stored, int G, std::int64_t P>
static void check_product(std::int64_t K, std::int64_t rows = 15) {
  const std::int64_t O = P * 16;
  std::vector<Real> numbers = random_numbers<Real>(K * G * O, 1),
                    x = random_numbers<Real>(rows * K, 2);
  for (Real& v : numbers) v = exact(static_cast<float>(v));
  for (Real& v : x) v = exact(static_cast<float>(v));
  const auto matrix = packed<Stored>(numbers, K, G, O, beside(G, P));
  const auto all = sums_of<Real, Stored, G>(matrix, x, rows, K, P);
  CHECK(all == sums_of<Real, Stored, G>(matrix, x, rows, K, Fixed<P>()));
  for (std::int64_t m = 0; m < rows; ++m)
    for (int g = 0; g < G; ++g)
      for (std::int64_t o = 0; o < O; ++o) {
        double want = g;
        for (std::int64_t k = 0; k < K; ++k)
          want +=
              static_cast<double>(x[m * K + k]) * static_cast<double>(numbers[(k * G + g) * O + o]);
        CHECK_NEAR(all[(m * G + g) * O + o], want, 3e-6);
      }
  // Other rows of other numbers, so that sums round: blocks of every size must agree.
  x = random_numbers<Real>(rows * K, 3);
  const auto together = sums_of<Real, Stored, G>(matrix, x, rows, K, P);
  for (std::int64_t count = 1; count <= rows; ++count)
    for (std::int64_t first = 0; first + count <= rows; first += 3) {
      const std::vector<Real> part(x.begin() + first * K, x.begin() + (first + count) * K);
      const auto own = sums_of<Real, Stored, G>(matrix, part, count, K, P);
      CHECK(std::memcmp(own.data(), together.data() + first * G * O, own.size() * sizeof own[0]) ==
            0);
    }
}

template <class Real, class Stored>
static void check_products() {
  for (std::int64_t K : {1, 2, 5, 33, 70}) {
    check_product<Real, Stored, 1, 4>(K);
    check_product<Real, Stored, 2, 3>(K);
    check_product<Real, Stored, 3, 2>(K);
  }
}

TEST(products_of_floats) {
  check_products<float, float>();
  check_product<float, float, 1, 2>(16);
  check_product<float, float, 2, 2>(16);
  check_product<float, float, 4, 1>(16);
}
TEST(products_of_halves) { check_products<float, Half>(); }
TEST(products_of_pairs) {
  check_products<float, BrainPair>();
#if defined(ONERNN_TILES)
  for (std::int64_t K : {15, 17, 64, 100}) check_product<float, BrainPair, 3, 1>(K, 40);
  check_product<float, BrainPair, 2, 2>(33, 35);
#endif
}
TEST(products_of_doubles) { check_products<double, double>(); }

/// A matrix where a framework keeps it gives the bits of its panels, whichever of its axes stands
/// close together; around its numbers there are others.
template <class Real, class Stored, int G>
static void check_unpacked(std::int64_t K, std::int64_t O) {
  const std::int64_t rows = 9, panels = (O + 15) / 16;
  const auto numbers = random_numbers<Real>(K * G * O, 1), x = random_numbers<Real>(rows * K, 2);
  const auto matrix = packed<Stored>(numbers, K, G, O, beside(G, panels));
  for (const auto& [row, column] :
       {std::pair(std::int64_t(1), K), std::pair(std::int64_t(1), K + 3),
        std::pair(O + 2, std::int64_t(1)), std::pair(2 * O, std::int64_t(2))}) {
    const std::int64_t gate = K * row + O * column;
    std::vector<Real> memory(static_cast<std::size_t>(G * gate),
                             std::numeric_limits<Real>::quiet_NaN());
    Unpacked<Real> unpacked{{}, row, column, O};
    for (int g = 0; g < G; ++g) {
      Real* const first = memory.data() + (G - 1 - g) * gate;
      unpacked.gates[g] = first;
      for (std::int64_t k = 0; k < K; ++k)
        for (std::int64_t o = 0; o < O; ++o)
          first[k * row + o * column] = numbers[static_cast<std::size_t>((k * G + g) * O + o)];
    }
    for (std::int64_t count : {std::int64_t(1), rows}) {
      const auto want = sums_of<Real, Stored, G>(matrix.data(), x, count, K, panels);
      const Operand<Real, Stored> in_place{nullptr, &unpacked};
      CHECK(want == sums_of<Real, Stored, G>(in_place, x, count, K, panels));
    }
  }
}
template <class Real, class Stored>
static void check_unpacked() {
  for (std::int64_t K : {1, 4, 7, 128, 131, 261})
    for (std::int64_t O : {1, 16, 21, 32, 64}) {
      check_unpacked<Real, Stored, 1>(K, O);
      check_unpacked<Real, Stored, 2>(K, O);
      check_unpacked<Real, Stored, 3>(K, O);
      check_unpacked<Real, Stored, 4>(K, O);
    }
}

TEST(matrices_that_are_read_in_place_give_the_bits_of_their_panels) {
  check_unpacked<float, float>();
  check_unpacked<float, BrainPair>();
  check_unpacked<double, double>();
}

/// Whole numbers, the largest ones among them and next to each other: sums are exact, and sums of
/// two products do not fit 16 bits.
template <int G, std::int64_t P>
static void check_bytes(std::int64_t K) {
  const std::int64_t O = P * 16, rows = 35;
  const auto whole = [](std::int64_t count, int seed) {
    auto made = random_numbers<float>(count, seed, 400);
    for (float& v : made) v = std::round(std::fmin(std::fmax(v, -127), 127));
    return made;
  };
  auto numbers = whole(K * G * O, 1), x = whole(rows * K, 2);
  for (std::int64_t o = 0; o < G * O; ++o) numbers[o] = o % 2 ? 127 : -127;
  for (std::int64_t m = 0; m < rows; ++m) {
    x[m * K] = 127;
    for (std::int64_t k = 0; k < K; ++k) x[m * K + k] /= static_cast<float>(1 << m % 9);
  }
  const auto got =
      sums_of<float, ByteQuad, G>(packed<ByteQuad>(numbers, K, G, O, beside(G, P)), x, rows, K, P);
  for (std::int64_t m = 0; m < rows; ++m)
    for (int g = 0; g < G; ++g)
      for (std::int64_t o = 0; o < O; ++o) {
        double want = g;
        for (std::int64_t k = 0; k < K; ++k)
          want +=
              static_cast<double>(x[m * K + k]) * static_cast<double>(numbers[(k * G + g) * O + o]);
        CHECK(got[(m * G + g) * O + o] == static_cast<float>(want));
      }
}

TEST(products_of_bytes_are_exact_sums_on_every_instruction_set) {
  for (std::int64_t K : {1, 2, 3, 4, 5, 16, 33, 70, 301}) {
    check_bytes<1, 4>(K);
    check_bytes<2, 3>(K);
    check_bytes<3, 2>(K);
    check_bytes<4, 1>(K);
  }
}

template <int G, class T>
static void check_dense_bytes(std::int64_t K, std::int64_t C) {
  constexpr int kLow = std::numeric_limits<T>::min(), kHigh = std::numeric_limits<T>::max();
  const std::int64_t rows = 35;
  const auto whole = [](std::int64_t count, int seed, int low, int high) {
    auto made = random_numbers<float>(count, seed, 400);  // many are at the ends
    for (float& v : made) v = std::round(std::fmin(std::fmax(v, low), high));
    return made;
  };
  auto numbers = whole(K * C, 1, -127, 127);
  for (std::int64_t c = 0; c < C; ++c) numbers[c] = c % 2 ? 127 : -127;  // steps of 1
  const auto matrix = packed<ByteQuad>(numbers, K, 1, C, G);
  const auto wide = whole(rows * K, 2, kLow, kHigh), shifts = whole(C + 64, 3, -128, 127);
  const std::vector<T> x(wide.begin(), wide.end());
  const std::vector<std::int32_t> zeros(shifts.begin(), shifts.end());
  const std::int32_t* given = K % 2 ? zeros.data() : nullptr;
  const T zero = kHigh - 3;
  std::vector<std::int32_t> y(rows * C + 1, -1);
  Serial alone;
  dense_bytes<G>(y.data(), x.data(), &zero, rows, K,
                 reinterpret_cast<const std::int8_t*>(matrix.data()), given, C, alone);
  CHECK(y.back() == -1);  // nothing behind the columns that are there
  for (std::int64_t m = 0; m < rows; ++m)
    for (std::int64_t c = 0; c < C; ++c) {
      std::int64_t want = 0;
      for (std::int64_t k = 0; k < K; ++k)
        want += (x[m * K + k] - zero) *
                (static_cast<std::int64_t>(numbers[k * C + c]) - (given ? given[c] : 0));
      CHECK(y[m * C + c] == want);
    }
}

TEST(dense_products_of_bytes_take_zero_points_and_any_number_of_columns) {
  for (std::int64_t K : {1, 6, 16, 35, 300}) {
    check_dense_bytes<1, std::uint8_t>(K, 7);
    check_dense_bytes<2, std::int8_t>(K, 32);
    check_dense_bytes<3, std::uint8_t>(K, 41);
    check_dense_bytes<4, std::int8_t>(K, 70);
  }
}

TEST(a_row_in_bytes_is_the_nearest_in_steps_of_its_own) {
  const std::int64_t K = 37, O = 48;  // the identity: what is multiplied comes out
  std::vector<float> identity(K * O);
  for (std::int64_t k = 0; k < K; ++k) identity[k * O + k] = 1;
  const auto matrix = packed<ByteQuad>(identity, K, 1, O, 1);
  const float infinity = std::numeric_limits<float>::infinity();
  for (float largest : {1e-20f, 0.25f, 1.0f, 3.0f, 1e30f}) {
    auto x = random_numbers<float>(5 * K, 1, largest);
    std::fill_n(x.begin() + 2 * K, K, 0.0f);
    x[3 * K + 36] = infinity;
    x[4 * K + 2] = std::numeric_limits<float>::quiet_NaN();
    const auto got = sums_of<float, ByteQuad, 1>(matrix, x, 5, K, 3);
    for (std::int64_t m = 0; m < 5; ++m) {
      float most = 0;
      for (std::int64_t k = 0; k < K; ++k) most = std::fmax(most, std::fabs(x[m * K + k]));
      for (std::int64_t k = 0; k < K; ++k) {
        const float one = got[m * O + k];
        if (m < 3)
          CHECK(std::fabs(one - x[m * K + k]) <= most / 254 * 1.0001f);
        else
          CHECK(one != one);  // told, and in no other row
      }
    }
  }
}

/// Whole numbers (K, G, O) as codes, in one group; the step of a column is 1, 2 or 4.
static std::vector<ByteQuad> packed_codes(const std::vector<float>& numbers, std::int64_t K,
                                          std::int64_t G, std::int64_t O, std::int64_t B) {
  std::vector<ByteQuad> out;
  for (std::int64_t first = 0; first < O; first += 16 * B) {
    const auto columns = [&](auto number) {
      for (std::int64_t c = 0; c < B * G * 16; ++c)
        out.push_back(number(c / 16 % G, first + c / 16 / G * 16 + c % 16));
    };
    columns([&](std::int64_t, std::int64_t o) {
      const auto step = static_cast<float>(1 << o % 3);
      ByteQuad quad;
      std::memcpy(&quad, &step, sizeof step);
      return quad;
    });
    for (std::int64_t k = 0; k < K; k += 4)
      columns([&](std::int64_t g, std::int64_t o) {
        ByteQuad quad;
        for (std::int64_t i = 0; i < 4; ++i) {
          const float number = k + i < K ? numbers[((k + i) * G + g) * O + o] : 0;
          quad.v[i] = static_cast<std::int8_t>(static_cast<int>(number) + 128);
        }
        return quad;
      });
  }
  return out;
}

/// Rows of whole numbers of 24 bits: their sums are exact, and rounded to float32 only.
template <int G, std::int64_t P>
static void check_codes(std::int64_t K) {
  const std::int64_t O = P * 16, rows = 5;
  const float low = -128, high = 127, most = 127 << 16;
  auto numbers = random_numbers<float>(K * G * O, 1, 2 * high),
       x = random_numbers<float>(rows * K, 2, most);
  for (float& v : numbers) v = std::round(std::fmin(std::fmax(v, low), high));
  for (float& v : x) v = std::round(v);
  for (std::int64_t m = 0; m < rows; ++m) x[m * K + m % K] = m % 2 ? most : -most;
  for (std::int64_t o = 0; o < G * O; ++o) numbers[o] = o % 2 ? high : low;
  const auto matrix = packed_codes(numbers, K, G, O, beside(G, P));
  const auto all = sums_of<float, ByteQuad, G>(matrix, x, rows, K, P, true);
  for (std::int64_t m = 0; m < rows; ++m)
    for (int g = 0; g < G; ++g)
      for (std::int64_t o = 0; o < O; ++o) {
        double want = g, sizes = 1;
        for (std::int64_t k = 0; k < K; ++k) {
          const double one = static_cast<double>(x[m * K + k]) *
                             static_cast<double>(numbers[(k * G + g) * O + o]) *
                             static_cast<double>(1 << o % 3);
          want += one;
          sizes += std::fabs(one);
        }
        CHECK_NEAR(all[(m * G + g) * O + o] / sizes, want / sizes, 1e-6);
      }
  for (std::int64_t m = 0; m < rows; ++m) {
    const std::vector<float> own(x.begin() + m * K, x.begin() + (m + 1) * K);
    const auto alone = sums_of<float, ByteQuad, G>(matrix, own, 1, K, P, true);
    CHECK(std::memcmp(alone.data(), all.data() + m * G * O, alone.size() * sizeof alone[0]) == 0);
  }
}

TEST(products_of_codes_keep_24_bits_of_a_row) {
  for (std::int64_t K : {1, 3, 8, 9, 64, 65, 133}) {
    check_codes<1, 4>(K);
    check_codes<2, 3>(K);
    check_codes<3, 2>(K);
    check_codes<4, 1>(K);
  }
}

template <class Stored, int G>
static void check_dense(std::int64_t K, std::int64_t C) {
  const std::int64_t rows = 35;
  auto numbers = random_numbers<float>(K * C, 1), x = random_numbers<float>(rows * K, 2);
  for (float& v : numbers) v = exact(v);
  for (float& v : x) v = exact(v);
  const auto matrix = packed<Stored>(numbers, K, 1, C, G);
  const auto given = random_numbers<float>(C, 3);
  const float* bias = K % 2 ? given.data() : nullptr;
  Serial alone;
  std::vector<float> y(rows * C + 1, -1), last(C);
  dense<G>(y.data(), x.data(), rows, K, matrix.data(), bias, C, alone);
  CHECK(y.back() == -1);  // nothing behind the columns that are there
  for (std::int64_t m = 0; m < rows; ++m)
    for (std::int64_t c = 0; c < C; ++c) {
      double want = bias ? bias[c] : 0;
      for (std::int64_t k = 0; k < K; ++k)
        want += static_cast<double>(x[m * K + k]) * numbers[k * C + c];
      CHECK_NEAR(y[m * C + c], want, 3e-6);
    }
  dense<G>(last.data(), x.data() + (rows - 1) * K, 1, K, matrix.data(), bias, C, alone);
  CHECK(std::memcmp(last.data(), y.data() + (rows - 1) * C, C * sizeof last[0]) == 0);
}

template <class Stored>
static void check_denses() {
  for (std::int64_t K : {1, 31, 256, 301, 520}) {
    check_dense<Stored, 1>(K, 7);
    check_dense<Stored, 2>(K, 32);
    check_dense<Stored, 4>(K, 70);
  }
}

TEST(dense_products_have_any_number_of_columns) {
  check_denses<float>();
  check_denses<Half>();
#if !defined(ONERNN_TILES)  // dense products are in programs, which have no permission for tiles
  check_denses<BrainPair>();
#endif
}
