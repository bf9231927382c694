// Cells against the formulas of ONNX's specification in double, sequence by sequence and unit by
// unit; and the same bits of each sequence alone, in any batch and layout, and on two threads.
#include <cstring>
#include <memory>
#include <type_traits>

#include "check.hpp"
#include "gru.hpp"
#include "lbr_gru.hpp"
#include "lstm.hpp"
#include "packing.hpp"
#include "quads.hpp"
#include "recurrent.hpp"
#include "rnn.hpp"
#include "team.hpp"
#include "tile_products.hpp"

using namespace onernn;
using Numbers = std::vector<double>;

/// Sizes that only the run knows: odd ones.
template <class Real, class Stored>
struct Odd : Traits<Real, Stored> {
  std::int64_t inputs = 7, units = 21, width = 21;
};
/// Sizes that the compiler knows, with panels side by side.
template <class Real, class Stored>
struct Even : Traits<Real, Stored> {
  static constexpr Fixed<40> inputs{};
  static constexpr Fixed<64> units{}, width{};
};
/// The same sizes, known to the run only.
template <class Real, class Stored>
struct EvenAtRun : Traits<Real, Stored> {
  std::int64_t inputs = 40, units = 64, width = 64;
};
template <class Real, class Stored>
struct Attention : Odd<Real, Stored> {
  static constexpr bool attention = true, replaces = true;
  HardSigmoid<Real> gate{Real(0.25), Real(0.5)};
};
template <class Real, class Stored>
struct Peephole : Odd<Real, Stored> {
  std::int64_t width = 18;
  static constexpr bool peephole = true, projection = true;
  Clip<Real> clip{Real(-0.75), Real(0.75)};
  Clip<Real> clip_cell{Real(-0.25), Real(0.375)};
};
template <class Real, class Stored>
struct Coupled : Odd<Real, Stored> {
  static constexpr bool input_forget = true;
  Elu<Real> output{Real(0.5)};
};
/// A row of x holds what goes into the gates.
template <class Real, class Stored>
struct Projected : Odd<Real, Stored> {
  std::int64_t inputs = 3 * 21;
};

/// The numbers of a layer as formulas have them: (K, G, O), and packed for the kernels.
template <class Cell>
struct Layer {
  using Real = typename Cell::Real;
  using Stored = typename Cell::Stored;
  static constexpr int G = Cell::kGates, B = Cell::kBiasRows;
  static constexpr bool kTwoProducts = G == 3 && B == 3;
  Cell cell;
  bool projected = false;
  std::int64_t I = cell.inputs(), O = cell.units(), R = cell.width();
  std::int64_t P = (O + 15) / 16, T = kTwoProducts ? 2 : G;
  std::vector<Real> input = numbers(I * G * O, 1), recurrent = numbers(R * G * O, 2);
  std::vector<Real> bias = numbers(B * O, 3), peephole = numbers(3 * O, 4),
                    project = numbers(O * R, 5);
  std::vector<Real> first = gates(0, T), second = gates(T, G);
  std::vector<Real> packed_bias = packed<Real>(bias, 1, B, O, 1);
  std::vector<Real> packed_peephole = packed<Real>(peephole, 1, 3, O, 1);
  std::vector<Stored> packed_input = packed<Stored>(input, I, G, O, beside(G, P));
  std::vector<Stored> packed_first = packed<Stored>(first, R, T, O, beside(T, P));
  std::vector<Stored> packed_second = packed<Stored>(second, R, G - T, O, beside(1, P));
  std::vector<Stored> packed_project = packed<Stored>(project, O, 1, R, beside(1, (R + 15) / 16));

  static std::vector<Real> numbers(std::int64_t count, int seed) {
    auto made = random_numbers<Real>(count, seed, 0.25);
    for (Real& v : made) v = exact(static_cast<float>(v));
    return made;
  }
  /// Of the recurrent matrix.
  std::vector<Real> gates(std::int64_t begin, std::int64_t end) const {
    std::vector<Real> out;
    for (std::int64_t k = 0; k < R; ++k)
      for (std::int64_t g = begin; g < end; ++g)
        for (std::int64_t o = 0; o < O; ++o) out.push_back(recurrent[(k * G + g) * O + o]);
    return out;
  }
  typename Cell::Weights weights() const {
    return {packed_bias.data(),     projected ? nullptr : packed_input.data(),
            packed_first.data(),    packed_second.data(),
            packed_peephole.data(), packed_project.data()};
  }
};

static double sigmoid_of(double a) { return 1 / (1 + std::exp(-a)); }

/// One word of one sequence, as the formulas say. Gates: u, r, o or i, f, c, o.
template <class Traits, class Cell>
static void step_of(const Layer<Cell>& layer, const double* x, double attention, Numbers& h,
                    Numbers& c) {
  constexpr int G = Cell::kGates;
  constexpr bool kLbr = Cell::kBiasRows == 4 && G == 3;
  const std::int64_t I = layer.I, O = layer.O, R = layer.R;
  const auto clip = [](double a, double low, double high) {
    return a < low ? low : a > high ? high : a;
  };
  constexpr bool kPeephole = Traits::peephole, kAttention = Traits::attention;
  const auto gate = [&](double a) {
    a = kPeephole ? clip(a, -0.75, 0.75) : a;
    return kAttention ? clip(0.25 * a + 0.5, 0, 1) : sigmoid_of(a);
  };
  const auto candidate = [&](double a) { return std::tanh(kPeephole ? clip(a, -0.75, 0.75) : a); };
  const auto from_x = [&](int g, std::int64_t o) {
    double sum = layer.bias[g * O + o];
    if (layer.projected) return sum + x[g * O + o];
    for (std::int64_t i = 0; i < I; ++i) sum += x[i] * layer.input[(i * G + g) * O + o];
    return sum;
  };
  const auto from_h = [&](int g, std::int64_t o, const Numbers& of) {
    double sum = 0;
    for (std::int64_t k = 0; k < R; ++k) sum += of[k] * layer.recurrent[(k * G + g) * O + o];
    return sum;
  };
  Numbers next(O);
  if constexpr (G == 1) {
    for (std::int64_t o = 0; o < O; ++o) next[o] = gate(from_x(0, o) + from_h(0, o, h));
  } else if constexpr (G == 3) {
    Numbers reset(O);
    for (std::int64_t o = 0; o < O; ++o) reset[o] = gate(from_x(1, o) + from_h(1, o, h)) * h[o];
    for (std::int64_t o = 0; o < O; ++o) {
      double u = gate(from_x(0, o) + from_h(0, o, h));
      if (kAttention) u *= 1 - attention;
      if (Traits::replaces) u = 1 - u;
      double sum = from_x(2, o);
      if (kLbr)
        sum += gate(from_x(1, o) + from_h(1, o, h)) * (from_h(2, o, h) + layer.bias[3 * O + o]);
      else
        sum += from_h(2, o, reset);
      next[o] = u * h[o] + (1 - u) * candidate(sum);
    }
  } else {
    for (std::int64_t o = 0; o < O; ++o) {
      const auto seen = [&](int row, double cell) {
        return kPeephole ? layer.peephole[row * O + o] * cell : 0.0;
      };
      const double i = gate(from_x(0, o) + from_h(0, o, h) + seen(0, c[o]));
      const double f =
          Traits::input_forget ? 1 - i : gate(from_x(1, o) + from_h(1, o, h) + seen(1, c[o]));
      c[o] = f * c[o] + i * candidate(from_x(2, o) + from_h(2, o, h));
      if (kPeephole) c[o] = clip(c[o], -0.25, 0.375);
      const double out = gate(from_x(3, o) + from_h(3, o, h) + seen(2, c[o]));
      next[o] = out * (Traits::input_forget ? (c[o] < 0 ? 0.5 * std::expm1(c[o]) : c[o])
                                            : std::tanh(c[o]));
    }
  }
  if (!Traits::projection) {
    h = next;
    return;
  }
  for (std::int64_t r = 0; r < R; ++r) {
    h[r] = 0;
    for (std::int64_t o = 0; o < O; ++o) h[r] += next[o] * layer.project[o * R + r];
  }
}

/// Everything that a run gives.
template <class Real>
struct Given {
  std::vector<Real> y, h, c;
  bool operator==(const Given& other) const {
    const auto same = [](const std::vector<Real>& a, const std::vector<Real>& b) {
      const std::size_t bytes = a.size() * sizeof(Real);
      return a.size() == b.size() && (!bytes || std::memcmp(a.data(), b.data(), bytes) == 0);
    };
    return same(y, other.y) && same(h, other.h) && same(c, other.c);
  }
};

template <class Cell>
static Given<typename Cell::Real> run(const Layer<Cell>& layer, const Batch& batch,
                                      std::int64_t words, const std::vector<typename Cell::Real>& x,
                                      const std::vector<typename Cell::Real>& attention,
                                      const std::vector<typename Cell::Real>& h,
                                      const std::vector<typename Cell::Real>& c, bool backwards,
                                      Team& team, Recurrent<Cell>* used = nullptr) {
  using Real = typename Cell::Real;
  const std::int64_t N = batch.sequences;
  Given<Real> out{std::vector<Real>(words * layer.R), std::vector<Real>(N * layer.R),
                  std::vector<Real>(N * layer.O)};
  Recurrent<Cell> fresh(used ? 0 : N, layer.cell);
  (used ? *used : fresh)
      .run(layer.weights(), batch,
           {x.data(), attention.data(), out.y.data(), layer.R, backwards, false},
           {h.data(), c.data(), out.h.data(), out.c.data()}, team);
  return out;
}

// More steps than are projected at once; sequences that end together and alone, and empty ones.
static const std::vector<std::int64_t> kOffsets = {0,  40, 40, 43, 44, 61, 63,
                                                   66, 75, 84, 85, 90, 95};

template <template <class> class Kernel, class Traits>
static void check_cell(bool backwards, double bound, bool projected = false) {
  using Cell = Kernel<Traits>;
  using Real = typename Cell::Real;
  Layer<Cell> layer;
  layer.projected = projected;
  const std::int64_t N = static_cast<std::int64_t>(kOffsets.size()) - 1, W = kOffsets.back();
  const auto numbers = [](std::int64_t count, int seed) {
    return random_numbers<Real>(count, seed);
  };
  const auto x = numbers(W * layer.I, 6), h = numbers(N * layer.R, 7), c = numbers(N * layer.O, 8);
  auto attention = numbers(W, 9);
  for (Real& a : attention) a = std::abs(a);
  Batching batching(N);
  Team alone(1);
  const auto all =
      run(layer, batching.lod(kOffsets.data(), N), W, x, attention, h, c, backwards, alone);

  for (std::int64_t n = 0; n < N; ++n) {
    Numbers exact_h(h.begin() + n * layer.R, h.begin() + (n + 1) * layer.R);
    Numbers exact_c(c.begin() + n * layer.O, c.begin() + (n + 1) * layer.O);
    const std::int64_t begin = kOffsets[n], length = kOffsets[n + 1] - begin;
    for (std::int64_t t = 0; t < length; ++t) {
      const std::int64_t w = begin + (backwards ? length - 1 - t : t);
      const Numbers word(x.begin() + w * layer.I, x.begin() + (w + 1) * layer.I);
      step_of<Traits>(layer, word.data(), attention[w], exact_h, exact_c);
      for (std::int64_t r = 0; r < layer.R; ++r)
        CHECK_NEAR(all.y[w * layer.R + r], exact_h[r], bound);
    }
    for (std::int64_t r = 0; r < layer.R; ++r)
      CHECK_NEAR(all.h[n * layer.R + r], exact_h[r], bound);
    if (Cell::kHasCellState)
      for (std::int64_t o = 0; o < layer.O; ++o)
        CHECK_NEAR(all.c[n * layer.O + o], exact_c[o], bound);

    // The same sequence alone.
    const auto slice = [](const std::vector<Real>& of, std::int64_t first, std::int64_t count) {
      return std::vector<Real>(of.begin() + first, of.begin() + first + count);
    };
    const std::int64_t own[] = {0, length};
    const Given<Real> want{slice(all.y, begin * layer.R, length * layer.R),
                           slice(all.h, n * layer.R, layer.R), slice(all.c, n * layer.O, layer.O)};
    CHECK(want == run(layer, batching.lod(own, 1), length,
                      slice(x, begin * layer.I, length * layer.I), slice(attention, begin, length),
                      slice(h, n * layer.R, layer.R), slice(c, n * layer.O, layer.O), backwards,
                      alone));
  }

  Team team(2);
  CHECK(all ==
        run(layer, batching.lod(kOffsets.data(), N), W, x, attention, h, c, backwards, team));
  Recurrent<Cell> used(N, layer.cell);  // what is left of the first run does not matter
  for (int again = 0; again < 2; ++again)
    CHECK(all == run(layer, batching.lod(kOffsets.data(), N), W, x, attention, h, c, backwards,
                     alone, &used));
}

/// Where products round inputs and states to bfloat16, the tolerance is bfloat16's.
template <class Real, class Stored>
static double bound_of() {
  if (std::is_same_v<Real, double>) return 1e-12;
  return std::is_same_v<typename FactorOf<Real, Stored>::Type, Real> ? 5e-6 : 2e-2;
}

template <template <class> class Kernel>
static void check_sizes() {
  check_cell<Kernel, Odd<float, float>>(false, bound_of<float, float>());
  check_cell<Kernel, Even<float, BrainPair>>(true, bound_of<float, BrainPair>());
  check_cell<Kernel, Odd<float, ByteQuad>>(true, bound_of<float, ByteQuad>());
  check_cell<Kernel, Even<float, ByteQuad>>(false, bound_of<float, ByteQuad>());
}

TEST(plain_cells) { check_sizes<Rnn>(); }
TEST(gru) { check_sizes<Gru>(); }
TEST(lbr_gru) { check_sizes<LbrGru>(); }
TEST(lstm) { check_sizes<Lstm>(); }
TEST(augru_with_other_functions) {
  check_cell<Gru, Attention<float, float>>(true, bound_of<float, float>());
  check_cell<LbrGru, Attention<float, float>>(false, bound_of<float, float>());
}
TEST(lstm_with_peepholes_projection_and_clips) {
  check_cell<Lstm, Peephole<float, BrainPair>>(false, bound_of<float, BrainPair>());
  check_cell<Lstm, Peephole<double, double>>(true, bound_of<double, double>());
  check_cell<Lstm, Peephole<float, ByteQuad>>(true, bound_of<float, ByteQuad>());
}
TEST(lstm_with_one_gate_for_two) {
  check_cell<Lstm, Coupled<float, Half>>(false, bound_of<float, Half>());
}
TEST(inputs_that_are_projected_already) {
  check_cell<Gru, Projected<float, float>>(false, bound_of<float, float>(), true);
  check_cell<Gru, Projected<float, BrainPair>>(true, bound_of<float, BrainPair>(), true);
}

TEST(sizes_may_be_known_to_the_compiler_or_to_the_run) {
  const Layer<Lstm<Even<float, float>>> constant;
  const Layer<Lstm<EvenAtRun<float, float>>> open;
  const std::int64_t N = static_cast<std::int64_t>(kOffsets.size()) - 1, W = kOffsets.back();
  const auto x = random_numbers<float>(W * 40, 1), h = random_numbers<float>(N * 64, 2);
  Batching batching(N);
  Team alone(1);
  const Batch batch = batching.lod(kOffsets.data(), N);
  CHECK(run(constant, batch, W, x, x, h, h, false, alone) ==
        run(open, batch, W, x, x, h, h, false, alone));
}

TEST(layouts_are_read_in_place_and_give_the_same_bits) {
  const Layer<Gru<Odd<float, float>>> layer;
  const std::int64_t lengths[] = {6, 4, 4, 1}, offsets[] = {0, 6, 10, 14, 15};  // the longest first
  const std::int64_t starts[] = {0, 4, 7, 10, 13, 14, 15}, I = layer.I, R = layer.R;
  const auto x = random_numbers<float>(24 * I, 1), h = random_numbers<float>(4 * R, 2);
  const auto none = random_numbers<float>(24, 3);
  Batching batching(4);
  Team alone(1);
  for (bool backwards : {false, true}) {
    const auto ragged = run(layer, batching.lod(offsets, 4), 15, x, none, h, h, backwards, alone);
    std::vector<float> sorted(15 * I);
    const auto packed_row = [&](std::int64_t n, std::int64_t t) { return starts[t] + n; };
    for (std::int64_t n = 0; n < 4; ++n)
      for (std::int64_t t = 0; t < lengths[n]; ++t)
        std::copy_n(x.data() + (offsets[n] + t) * I, I, sorted.data() + packed_row(n, t) * I);
    const auto packed =
        run(layer, batching.packed(starts, 6), 15, sorted, none, h, h, backwards, alone);
    CHECK(packed.h == ragged.h);
    for (std::int64_t n = 0; n < 4; ++n)
      for (std::int64_t t = 0; t < lengths[n]; ++t)
        CHECK(std::memcmp(packed.y.data() + packed_row(n, t) * R,
                          ragged.y.data() + (offsets[n] + t) * R, R * sizeof(float)) == 0);

    const std::int64_t even[] = {0, 6, 12, 18, 24};  // (N, T, I) is a batch of equal lengths
    const auto equal = run(layer, batching.lod(even, 4), 24, x, none, h, h, backwards, alone);
    CHECK(equal == run(layer, batching.ntc(6, 4), 24, x, none, h, h, backwards, alone));
    std::vector<float> turned(24 * I);
    for (std::int64_t n = 0; n < 4; ++n)
      for (std::int64_t t = 0; t < 6; ++t)
        std::copy_n(x.data() + (n * 6 + t) * I, I, turned.data() + (t * 4 + n) * I);
    const auto tnc = run(layer, batching.tnc(6, 4), 24, turned, none, h, h, backwards, alone);
    CHECK(tnc.h == equal.h);
    for (std::int64_t n = 0; n < 4; ++n)
      for (std::int64_t t = 0; t < 6; ++t)
        CHECK(std::memcmp(tnc.y.data() + (t * 4 + n) * R, equal.y.data() + (n * 6 + t) * R,
                          R * sizeof(float)) == 0);
  }
}

TEST(what_is_not_there_is_null_and_y_may_be_added_to) {
  const Layer<Lstm<Odd<float, float>>> layer;
  const std::int64_t W = 10, N = 2, R = layer.R, offsets[] = {0, 3, 10};
  const auto x = random_numbers<float>(W * layer.I, 1);
  const std::vector<float> zeros(N * R);
  Batching batching(N);
  Team alone(1);
  const Batch batch = batching.lod(offsets, N);
  const auto want = run(layer, batch, W, x, x, zeros, zeros, false, alone);
  Recurrent<Lstm<Odd<float, float>>> cells(N, layer.cell);
  std::vector<float> wide(W * 2 * R, 1.0f);
  cells.run(layer.weights(), batch, {x.data(), nullptr, wide.data() + R, 2 * R, false, true},
            {nullptr, nullptr, nullptr, nullptr}, alone);
  for (std::int64_t w = 0; w < W; ++w)
    for (std::int64_t r = 0; r < R; ++r) {
      CHECK(wide[w * 2 * R + r] == 1);
      CHECK(wide[(w * 2 + 1) * R + r] == 1 + want.y[w * R + r]);
    }
}

TEST(no_sequences_and_no_words_are_fine) {
  const Layer<Gru<Odd<float, float>>> layer;
  Batching batching(3);
  Team alone(1);
  const std::int64_t offsets[] = {0, 0, 0, 0};
  const auto h = random_numbers<float>(3 * layer.R, 1);
  CHECK(run(layer, batching.lod(offsets, 3), 0, {}, {}, h, h, false, alone).h == h);
  CHECK(run(layer, batching.lod(offsets, 0), 0, {}, {}, {}, {}, false, alone).h.empty());
  CHECK(run(layer, batching.tnc(0, 3), 0, {}, {}, h, h, true, alone).h == h);
  CHECK(batching.packed(offsets, 0).sequences == 0);
}
