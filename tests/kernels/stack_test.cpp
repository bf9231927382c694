// Stacks that only the run knows against layers that are put together here, of cells that the
// compiler knows: the same bits.
#include "library/stack.hpp"

#include "check.hpp"
#include "gru.hpp"
#include "library/division.cpp"
#include "lstm.hpp"
#include "packing.hpp"
#include "recurrent.hpp"
#include "team.hpp"

using namespace onernn;

static onernn_spec plain(std::int64_t inputs, std::int64_t units, std::int32_t layers,
                         std::int32_t directions) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  onernn_spec spec{};
  spec.layers = layers;
  spec.directions = directions;
  spec.inputs = inputs;
  spec.units = spec.width = units;
  spec.gate = {ONERNN_SIGMOID, 0, 0};
  spec.candidate = spec.output = {ONERNN_TANH, 0, 0};
  spec.gate_clip = spec.cell_high = kNone;
  spec.cell_low = -kNone;
  return spec;
}

/// Packed numbers one behind the other, and where each begins.
struct Numbers {
  std::vector<float> all;
  std::int64_t add(std::int64_t K, std::int64_t G, std::int64_t O) {
    const auto found =
        packed<float>(random_numbers<float>(K * G * O, ++seed, 0.25), K, G, O, beside(G, 2));
    const auto place = static_cast<std::int64_t>(all.size() * sizeof(float));
    all.insert(all.end(), found.begin(), found.end());
    return place;
  }
  const float* at(std::int64_t place) const { return all.data() + place / 4; }
  int seed = 0;
};

constexpr std::int64_t kInputs = 7, kUnits = 18, kN = 4, kW = 60;
static const std::int64_t kOffsets[] = {0, 41, 41, 44, kW};

template <std::int64_t kReads>
struct Known : Traits<float> {
  static constexpr Fixed<kReads> inputs{};
  static constexpr Fixed<kUnits> units{}, width{};
};

struct Layers {
  onernn_spec spec;
  Numbers numbers;
  std::vector<onernn_part> parts;
  std::vector<float> x = random_numbers<float>(kW * kInputs, 1);
  std::vector<float> h = random_numbers<float>(4 * kN * kUnits, 2), c = h;
  std::vector<float> y, h_n = std::vector<float>(h.size()), c_n = h_n;

  explicit Layers(const onernn_spec& told) : spec(told) {
    const std::int64_t handed_on = spec.joined && !spec.added ? 2 * kUnits : kUnits;
    y.resize(kW * kUnits * (spec.added ? 1 : 2));
    for (int i = 0; i < 4; ++i)
      parts.push_back({numbers.add(1, 4, kUnits),
                       numbers.add(i < 2 ? kInputs : handed_on, 4, kUnits),
                       numbers.add(kUnits, 4, kUnits), -1, -1, -1, 0, 0, 0, 0});
  }

  /// One layer and direction of an LSTM, as the compiler knows it.
  template <std::int64_t kReads>
  std::vector<float> one(int part, const std::vector<float>& reads) {
    using Cell = Lstm<Known<kReads>>;
    Batching batching(kN);
    Team alone(1);
    const auto& place = parts[part];
    std::vector<float> out(kW * kUnits);
    Recurrent<Cell>(kN).run({numbers.at(place.bias), numbers.at(place.input),
                             numbers.at(place.recurrent), nullptr, nullptr, nullptr},
                            batching.lod(kOffsets, kN),
                            {reads.data(), nullptr, out.data(), kUnits, part % 2 == 1, false},
                            {h.data() + part * kN * kUnits, c.data() + part * kN * kUnits,
                             h_n.data() + part * kN * kUnits, c_n.data() + part * kN * kUnits},
                            alone);
    return out;
  }

  /// y and both final states.
  std::vector<float> run(int threads, bool again = false) {
    Stack<Lstm, float, float> stack({spec, parts.data(), numbers.all.data(), threads});
    const std::int64_t few[] = {0, 3};
    if (again) stack.run({ONERNN_LOD, 0, 1, few}, arrays(), nullptr, nullptr);
    stack.run({ONERNN_LOD, 0, kN, kOffsets}, arrays(), nullptr, nullptr);
    return given();
  }
  onernn_arrays arrays() {
    return {x.data(), nullptr, h.data(), c.data(), y.data(), h_n.data(), c_n.data(), nullptr};
  }
  std::vector<float> given() const {
    std::vector<float> all = y;
    all.insert(all.end(), h_n.begin(), h_n.end());
    all.insert(all.end(), c_n.begin(), c_n.end());
    return all;
  }
};

static std::vector<float> beside(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> out;
  for (std::int64_t w = 0; w < kW; ++w) {
    out.insert(out.end(), a.begin() + w * kUnits, a.begin() + (w + 1) * kUnits);
    out.insert(out.end(), b.begin() + w * kUnits, b.begin() + (w + 1) * kUnits);
  }
  return out;
}
static std::vector<float> sum(std::vector<float> a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

static void check(Layers& layers) {
  const auto want = layers.given();
  for (int threads : {1, 2})
    for (bool again : {false, true}) CHECK(layers.run(threads, again) == want);
}

TEST(directions_side_by_side) {
  onernn_spec spec = plain(kInputs, kUnits, 2, 2);
  spec.joined = 1;
  Layers layers(spec);
  const auto both = beside(layers.one<kInputs>(0, layers.x), layers.one<kInputs>(1, layers.x));
  layers.y = beside(layers.one<2 * kUnits>(2, both), layers.one<2 * kUnits>(3, both));
  check(layers);
}
TEST(directions_added) {
  onernn_spec spec = plain(kInputs, kUnits, 2, 2);
  spec.joined = spec.added = 1;
  Layers layers(spec);
  const auto both = sum(layers.one<kInputs>(0, layers.x), layers.one<kInputs>(1, layers.x));
  layers.y = sum(layers.one<kUnits>(2, both), layers.one<kUnits>(3, both));
  check(layers);
}
TEST(directions_that_meet_at_the_end) {
  Layers layers(plain(kInputs, kUnits, 2, 2));
  const auto left = layers.one<kInputs>(0, layers.x), right = layers.one<kInputs>(1, layers.x);
  layers.y = beside(layers.one<kUnits>(2, left), layers.one<kUnits>(3, right));
  check(layers);
}

/// Sequences of a padded batch give the bits that they give one behind the other, and nothing
/// behind them is read or written.
static void check_padded(bool batch_major) {
  onernn_spec spec = plain(kInputs, kUnits, 2, 2);
  spec.joined = 1;
  Layers layers(spec);
  const auto want = layers.run(1);
  constexpr std::int64_t kT = 41, kRow = 2 * kUnits;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x(kT * kN * kInputs, kNan), y(kT * kN * kRow, 7);
  std::vector<std::int64_t> lengths(kN);
  const auto row = [&](std::int64_t n, std::int64_t t) {
    return batch_major ? n * kT + t : t * kN + n;
  };
  for (std::int64_t n = 0; n < kN; ++n) {
    lengths[n] = kOffsets[n + 1] - kOffsets[n];
    for (std::int64_t t = 0; t < lengths[n]; ++t)
      std::copy_n(layers.x.data() + (kOffsets[n] + t) * kInputs, kInputs,
                  x.data() + row(n, t) * kInputs);
  }
  Stack<Lstm, float, float> stack({spec, layers.parts.data(), layers.numbers.all.data(), 1});
  onernn_arrays arrays = layers.arrays();
  arrays.x = x.data();
  arrays.y = y.data();
  stack.run({batch_major ? ONERNN_NTC : ONERNN_TNC, kT, kN, lengths.data()}, arrays, nullptr,
            nullptr);
  for (std::int64_t n = 0; n < kN; ++n)
    for (std::int64_t t = 0; t < kT; ++t)
      for (std::int64_t o = 0; o < kRow; ++o)
        CHECK(y[row(n, t) * kRow + o] == (t < lengths[n] ? want[(kOffsets[n] + t) * kRow + o] : 7));
  const auto states = layers.given();
  CHECK(std::equal(states.begin() + kW * kRow, states.end(), want.begin() + kW * kRow));
}
TEST(padded_sequences) {
  check_padded(false);
  check_padded(true);
}

/// A function that only the run knows gives the bits of the one that the compiler knows.
template <class Real, class Function>
static void check_function(std::int32_t kind, const Function& known) {
  const AnyFunction<Real> any(onernn_function{kind, 0.375, 0.25});
  auto numbers = random_numbers<Real>(48, kind, 4);
  numbers[3] = 0, numbers[20] = Real(-200), numbers[40] = Real(200);
  for (std::size_t i = 0; i < 48; i += 16) {
    Real want[16], got[16];
    store(want, known(load(numbers.data() + i)));
    store(got, any(load(numbers.data() + i)));
    CHECK(std::memcmp(want, got, sizeof want) == 0);
  }
}
template <class Real>
static void check_functions() {
  const Real alpha = Real(0.375), beta = Real(0.25);
  check_function<Real>(ONERNN_IDENTITY, Identity<Real>{});
  check_function<Real>(ONERNN_SIGMOID, Sigmoid<Real>{});
  check_function<Real>(ONERNN_TANH, Tanh<Real>{});
  check_function<Real>(ONERNN_RELU, Relu<Real>{});
  check_function<Real>(ONERNN_AFFINE, Affine<Real>{alpha, beta});
  check_function<Real>(ONERNN_SCALEDTANH, ScaledTanh<Real>{alpha, beta});
  check_function<Real>(ONERNN_HARDSIGMOID, HardSigmoid<Real>{alpha, beta});
  check_function<Real>(ONERNN_SOFTSIGN, Softsign<Real>{});
  check_function<Real>(ONERNN_SOFTPLUS, Softplus<Real>{});
  check_function<Real>(ONERNN_LEAKYRELU, LeakyRelu<Real>{alpha});
  check_function<Real>(ONERNN_THRESHOLDEDRELU, ThresholdedRelu<Real>{alpha});
  check_function<Real>(ONERNN_ELU, Elu<Real>{alpha});
}
TEST(functions_known_to_the_run) {
  check_functions<float>();
  check_functions<double>();
}
TEST(clips_known_to_the_run) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = HUGE_VALF;
  const auto numbers = [](float a, float b) {
    std::vector<float> out(16, a);
    out[15] = b;
    return out;
  };
  const auto given = numbers(3, kNan);
  float got[16];
  store(got, AnyClip<float>{-kInf, kInf, false}(load(given.data())));
  CHECK(std::memcmp(got, given.data(), sizeof got) == 0);
  store(got, AnyClip<float>{-2, 2, false}(load(given.data())));
  CHECK(got[0] == 2 && got[15] != got[15]);
  store(got, AnyClip<float>{-2, 2, true}(load(given.data())));
  CHECK(got[0] == 2 && got[15] == -2);
}
