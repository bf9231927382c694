// Training against the formulas in double: outputs word by word, and each gradient as the slope of
// a loss, which a central difference of the formulas gives.
#define ONERNN_LATE_MEMBERS
#include "library/training.hpp"

#include <algorithm>
#include <iterator>

#include "check.hpp"
#include "late.hpp"
#include "tile_products.hpp"

using namespace onernn;
using Numbers = std::vector<double>;

/// All that a loss depends on, and the gradients by y and by the final states that define it.
struct Problem {
  onernn_spec layer;
  std::vector<std::int64_t> lengths;  // the longest first
  bool has_input;
  Numbers x, attention, input, recurrent, bias, peephole, projection, h, c;
  Numbers dy, dh, dc;

  std::vector<Numbers*> parameters() {
    return {&x, &attention, &input, &recurrent, &bias, &peephole, &projection, &h, &c};
  }
  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths.size()); }
  /// Where each step begins in the sorted packed rows.
  std::vector<std::int64_t> begin() const {
    std::vector<std::int64_t> out{0};
    for (std::int64_t t = 0; t < lengths[0]; ++t)
      out.push_back(out.back() + std::count_if(lengths.begin(), lengths.end(),
                                               [t](std::int64_t length) { return length > t; }));
    return out;
  }
};

static bool is_gru(const onernn_spec& is) {
  return is.cell == ONERNN_GRU || is.cell == ONERNN_LBR_GRU;
}

static double value(const onernn_function& function, double a) {
  switch (function.kind) {
    case ONERNN_SIGMOID:
      return 1 / (1 + std::exp(-a));
    case ONERNN_TANH:
      return std::tanh(a);
    case ONERNN_RELU:
      return a > 0 ? a : 0;
    default:
      return a;
  }
}

/// y of every word by the formulas, and the loss.
static double loss_of(const Problem& p, Numbers* y) {
  const onernn_spec& is = p.layer;
  const std::int64_t I = is.inputs, O = is.units, R = is.width, G = gates_of(is);
  const auto begin = p.begin();
  double loss = 0;
  y->assign(static_cast<std::size_t>(begin.back() * R), 0);
  for (std::int64_t n = 0; n < p.sequences(); ++n) {
    Numbers h(p.h.begin() + n * R, p.h.begin() + (n + 1) * R);
    Numbers c(p.c.begin() + n * O, p.c.begin() + (n + 1) * O);
    for (std::int64_t k = 0; k < p.lengths[n]; ++k) {
      const std::int64_t w = begin[is.backwards ? p.lengths[n] - 1 - k : k] + n;
      Numbers of_x(G * O), of_h(G * O), next(O);
      for (std::int64_t q = 0; q < G * O; ++q) {
        of_x[q] = p.bias[q] + (p.has_input ? 0 : p.x[w * I + q]);
        for (std::int64_t i = 0; p.has_input && i < I; ++i)
          of_x[q] += p.x[w * I + i] * p.input[i * G * O + q];
        for (std::int64_t r = 0; r < R; ++r) of_h[q] += h[r] * p.recurrent[r * G * O + q];
      }
      const auto sum = [&](std::int64_t g, std::int64_t o) {
        return of_x[g * O + o] + of_h[g * O + o];
      };
      for (std::int64_t o = 0; o < O; ++o) {
        if (is.cell == ONERNN_RNN) next[o] = value(is.gate, sum(0, o));
        if (is.cell == ONERNN_LSTM) {
          const auto seen = [&](std::int64_t row) { return p.peephole[row * O + o] * c[o]; };
          const double i = value(is.gate, sum(0, o) + seen(0));
          const double f = is.input_forget ? 1 - i : value(is.gate, sum(1, o) + seen(1));
          c[o] = f * c[o] + i * value(is.candidate, sum(2, o));
          c[o] = std::clamp(c[o], is.cell_low, is.cell_high);
          next[o] = value(is.gate, sum(3, o) + seen(2)) * value(is.output, c[o]);
        }
        if (is_gru(is)) {
          double candidate = 0;
          if (is.cell == ONERNN_LBR_GRU) {
            const double r = value(is.gate, sum(1, o));
            candidate = of_x[2 * O + o] + r * (of_h[2 * O + o] + p.bias[3 * O + o]);
          } else {
            candidate = of_x[2 * O + o];
            for (std::int64_t q = 0; q < O; ++q)
              candidate += value(is.gate, sum(1, q)) * h[q] * p.recurrent[q * 3 * O + 2 * O + o];
          }
          double keep = (1 - p.attention[w]) * value(is.gate, sum(0, o));
          if (is.replaces) keep = 1 - keep;
          next[o] = keep * h[o] + (1 - keep) * value(is.candidate, candidate);
        }
      }
      h.assign(R, 0);
      for (std::int64_t r = 0; r < R; ++r) {
        if (!is.projection) h[r] = next[r];
        for (std::int64_t o = 0; is.projection && o < O; ++o)
          h[r] += next[o] * p.projection[o * R + r];
        (*y)[w * R + r] = h[r];
        loss += h[r] * p.dy[w * R + r];
      }
    }
    for (std::int64_t r = 0; r < R; ++r) loss += h[r] * p.dh[n * R + r];
    for (std::int64_t o = 0; o < O; ++o) loss += c[o] * p.dc[n * O + o];
  }
  return loss;
}

/// So many floats, as doubles.
static Numbers numbers(std::int64_t count, int seed, double bound) {
  const auto made = random_numbers<float>(count, seed, bound);
  return Numbers(made.begin(), made.end());
}

static Problem problem_of(const onernn_spec& is, std::vector<std::int64_t> lengths,
                          bool has_input = true) {
  const std::int64_t I = is.inputs, O = is.units, R = is.width, G = gates_of(is);
  Problem p{is, lengths, has_input, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  const std::int64_t W = p.begin().back(), N = p.sequences();
  p.x = numbers(W * I, 1, 1);
  p.attention = numbers(W, 2, is.attention ? 0.5 : 0);
  p.input = numbers(I * G * O, 3, 0.3);
  p.recurrent = numbers(R * G * O, 4, 0.3);
  p.bias = numbers(4 * O, 5, 0.3);
  p.peephole = numbers(3 * O, 6, is.peephole ? 0.3 : 0);
  p.projection = numbers(O * R, 7, 0.3);
  p.h = numbers(N * R, 8, 1);
  p.c = numbers(N * O, 9, 1);
  p.dy = numbers(W * R, 10, 1);
  p.dh = numbers(N * R, 11, 1);
  p.dc = numbers(N * O, 12, is.cell == ONERNN_LSTM ? 1 : 0);
  return p;
}

/// What training gives: y (rows of `width` + 3 numbers, of which training writes the first ones),
/// and the gradients by all parameters, those by the weights added to ones.
struct Results {
  std::vector<float> y;
  std::vector<std::vector<float>> gradients;
};

template <class Stored>
static Results train(Problem& p, std::int64_t groups, Team& team) {
  const auto floats = [](const Numbers& a) { return std::vector<float>(a.begin(), a.end()); };
  const onernn_spec& is = p.layer;
  const std::int64_t O = is.units, R = is.width, G = gates_of(is), y_row = R + 3;
  const auto begin = p.begin();
  const std::size_t W = static_cast<std::size_t>(begin.back());
  std::vector<std::vector<float>> given;
  for (const Numbers* one : p.parameters()) given.push_back(floats(*one));
  const Training<Stored> training(
      is,
      {p.has_input ? given[2].data() : nullptr, given[3].data(), given[4].data(),
       is.peephole ? given[5].data() : nullptr, is.projection ? given[6].data() : nullptr},
      1);

  std::vector<float> gates(W * G * O), before(W * R), one(W * O), two(W * O), three(W * O);
  onernn_trained words{};
  words.tape = {given[0].data(), given[1].data(), gates.data(), before.data(),
                one.data(),      two.data(),      three.data()};
  const Steps steps{begin.data(), static_cast<std::int64_t>(begin.size()) - 1};
  Results out{std::vector<float>(W * y_row, 7), {}};
  words.y = out.y.data();
  words.y_row = y_row;
  words.h = given[7].data();
  words.c = given[8].data();
  training.forward(steps, words, groups, team);
  for (const Numbers* each : p.parameters()) out.gradients.emplace_back(each->size(), 1.0f);
  auto& found = out.gradients;
  std::vector<float> dy = floats(p.dy);
  found[7] = floats(p.dh);
  found[8] = floats(p.dc);
  words.y = dy.data();
  words.y_row = R;
  words.h = found[7].data();
  words.c = found[8].data();
  words.dx = found[0].data();
  words.dattention = found[1].data();
  words.gradients = {found[2].data(), found[3].data(), found[4].data(),
                     is.peephole ? found[5].data() : nullptr, found[6].data()};
  training.backward(steps, words, groups, team);
  return out;
}

/// `bound`: of what outputs and gradients may be wrong by, relative to 1 or to their size.
template <class Stored>
static void check(Problem p, double bound) {
  const onernn_spec& is = p.layer;
  const std::int64_t O = is.units, R = is.width, G = gates_of(is), y_row = R + 3;
  const std::size_t W = static_cast<std::size_t>(p.begin().back());
  const bool own_bias = is.cell == ONERNN_LBR_GRU;
  Team alone(1);
  const auto [y, found] = train<Stored>(p, 0, alone);
  Numbers want;
  loss_of(p, &want);
  for (std::size_t w = 0; w < W; ++w) {
    for (std::int64_t r = 0; r < R; ++r) CHECK_NEAR(y[w * y_row + r], want[w * R + r], bound);
    for (std::int64_t r = R; r < y_row; ++r) CHECK(y[w * y_row + r] == 7);
  }

  const std::int32_t there[] = {true,          is.attention, p.has_input,
                                true,          true,         is.peephole,
                                is.projection, true,         is.cell == ONERNN_LSTM};
  for (std::size_t kind = 0; kind < std::size(there); ++kind) {
    if (!there[kind]) continue;
    Numbers& moved = *p.parameters()[kind];
    const std::size_t count = kind == 4 && !own_bias ? G * O : moved.size();
    for (std::size_t i = 0; i < count; i += count > 200 ? 11 : 1) {
      const double at = moved[i], step = 1e-5;
      moved[i] = at + step;
      const double high = loss_of(p, &want);
      moved[i] = at - step;
      const double low = loss_of(p, &want);
      moved[i] = at;
      const double started = kind >= 2 && kind <= 6 ? 1 : 0;
      CHECK_NEAR(found[kind][i] - started, (high - low) / (2 * step), bound);
    }
  }
}

static onernn_spec layer_of(std::int32_t cell, std::int64_t inputs, std::int64_t units) {
  onernn_spec out{};
  out.cell = cell;
  out.inputs = inputs;
  out.units = out.width = units;
  out.gate.kind = ONERNN_SIGMOID;
  out.candidate.kind = out.output.kind = ONERNN_TANH;
  out.cell_low = -INFINITY;
  out.cell_high = INFINITY;
  return out;
}

// Sums of up to 80 products and some more roundings each, through 5 steps.
constexpr double kFloat = 1e-5;
// Factors are rounded to 2^-9; a gradient has a sum of about 10 of them, and steps add to it.
constexpr double kBrain = 0.05;

TEST(gradients_are_slopes_of_the_formulas) {
  for (const std::int32_t cell : {ONERNN_RNN, ONERNN_GRU, ONERNN_LBR_GRU, ONERNN_LSTM})
    for (const bool backwards : {false, true}) {
      onernn_spec layer = layer_of(cell, 7, 19);
      layer.backwards = backwards;
      check<float>(problem_of(layer, {5, 3, 3, 1}), kFloat);
      check<BrainPair>(problem_of(layer, {5, 3, 3, 1}), kBrain);
    }
}

TEST(attention_and_an_update_gate_that_replaces) {
  for (const std::int32_t cell : {ONERNN_GRU, ONERNN_LBR_GRU})
    for (const bool replaces : {false, true}) {
      onernn_spec layer = layer_of(cell, 3, 17);
      layer.attention = true;
      layer.replaces = replaces;
      check<float>(problem_of(layer, {4, 2}), kFloat);
    }
}

TEST(peepholes_projections_and_coupled_gates) {
  onernn_spec layer = layer_of(ONERNN_LSTM, 5, 18);
  layer.peephole = layer.projection = true;
  layer.width = 33;
  check<float>(problem_of(layer, {4, 2, 2}), kFloat);
  layer.width = 3;
  layer.input_forget = true;
  layer.backwards = true;
  check<float>(problem_of(layer, {4, 2, 2}), kFloat);
  check<BrainPair>(problem_of(layer, {4, 2, 2}), kBrain);
}

TEST(a_clipped_cell_state_has_slope_1_inside_and_0_outside) {
  for (const bool nan_is_low : {false, true}) {
    onernn_spec layer = layer_of(ONERNN_LSTM, 5, 18);
    layer.cell_low = -0.2f;
    layer.cell_high = 0.3f;
    layer.cell_nan_is_low = nan_is_low;
    layer.peephole = nan_is_low;
    check<float>(problem_of(layer, {4, 2, 2}), kFloat);
  }
}

TEST(other_functions_and_an_input_that_is_projected) {
  onernn_spec layer = layer_of(ONERNN_LSTM, 4 * 16, 16);
  layer.gate.kind = ONERNN_TANH;
  layer.candidate.kind = ONERNN_IDENTITY;
  layer.output.kind = ONERNN_SIGMOID;
  check<float>(problem_of(layer, {3, 1}, false), kFloat);
  layer = layer_of(ONERNN_RNN, 2, 65);
  layer.gate.kind = ONERNN_RELU;
  check<float>(problem_of(layer, {3}), kFloat);
}

TEST(any_team_and_any_groups_of_sequences_give_the_same_bits) {
  for (const std::int32_t cell : {ONERNN_RNN, ONERNN_GRU, ONERNN_LBR_GRU, ONERNN_LSTM}) {
    onernn_spec layer = layer_of(cell, 70, 35);
    layer.attention = is_gru(layer);
    layer.backwards = cell == ONERNN_GRU;
    layer.peephole = layer.projection = cell == ONERNN_LSTM;
    if (layer.projection) layer.width = 67;
    Problem p = problem_of(layer, {31, 15, 14, 14, 9, 5, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 1, 1});
    const auto same = [&p](auto stored) {
      Team alone(1);
      const Results one = train<decltype(stored)>(p, 0, alone);
      struct Division {
        int members;
        std::int64_t groups;
      };
      for (const auto [members, groups] : {Division{2, 0}, {3, 2}, {7, 0}, {7, 5}, {64, 18}}) {
        Team team(-members);
        const Team::Lead lead(team);
        const Late late(members == 7 ? 100 : 0);
        const Results many = train<decltype(stored)>(p, groups, team);
        CHECK(many.y == one.y && many.gradients == one.gradients);
      }
    };
    same(float());
    same(BrainPair());
  }
}

TEST(sums_over_more_words_than_are_taken_at_once) {
  constexpr std::int64_t I = 21, C = 83, W = 1200;
  const auto a = random_numbers<float>(W * I, 1), b = random_numbers<float>(W * (C + 2), 2);
  std::vector<float> y(I * (C + 1), 1.0f);
  Team team(3);
  OuterProducts<float> sums(I, W, team.members());
  sums.add(a.data(), I, b.data(), C + 2, C, W, y.data(), C + 1, team);
  for (std::int64_t i = 0; i < I; ++i) {
    for (std::int64_t c = 0; c < C; ++c) {
      double want = 1;
      for (std::int64_t w = 0; w < W; ++w) want += double(a[w * I + i]) * b[w * (C + 2) + c];
      // Sums of up to 32 are rounded 1200 times, each time by 1e-6: by chance to 4e-5.
      CHECK_NEAR(y[i * (C + 1) + c], want, 2e-4);
    }
    CHECK(y[i * (C + 1) + C] == 1);
  }
}

/// Of numbers whose sums are exact, also in bfloat16: they replace what y holds, or are added.
template <class Stored>
static void check_products_of_rows() {
  constexpr std::int64_t K = 33, C = 149, W = 70;  // columns of whole panels, and others
  auto a = random_numbers<float>(W * K, 1), b = random_numbers<float>(K * C, 2);
  for (auto* numbers : {&a, &b})
    for (float& v : *numbers) v = std::round(v * 128) / 128;
  const Matrix<Stored> matrix(b.data(), C, 1, K, C);
  Products<Stored> products(K);
  Team team(3);
  for (const bool added : {false, true}) {
    std::vector<float> y(W * (C + 1), 1.0f);
    products.multiply(a.data(), K, W, matrix, y.data(), C + 1, added, team);
    for (std::int64_t w = 0; w < W; ++w) {
      for (std::int64_t c = 0; c < C; ++c) {
        double want = added;
        for (std::int64_t k = 0; k < K; ++k) want += double(a[w * K + k]) * b[k * C + c];
        CHECK(y[w * (C + 1) + c] == want);
      }
      CHECK(y[w * (C + 1) + C] == 1);
    }
  }
}
TEST(products_of_rows_replace_what_was_there_or_are_added) {
  check_products_of_rows<float>();
  check_products_of_rows<Brains>();
}

TEST(a_rounding_to_bfloat16_keeps_what_is_no_number) {
  CHECK(brain_bits(NAN) >> 7 == (brain_bits(NAN) >> 15 ? 0x1ff : 0xff) && brain_bits(NAN) & 0x7f);
  CHECK(brain_bits(INFINITY) == 0x7f80 && brain_bits(-INFINITY) == 0xff80);
  CHECK(brain_bits(1.00390625f) == 0x3f80 && brain_bits(1.01171875f) == 0x3f82);  // ties to even
}
