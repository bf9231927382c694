// Convolutions and pools: what the definition says, element by element, for odd sizes.
#include "convolutions.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include "check.hpp"
#include "pools.hpp"
#include "serial.hpp"

using namespace onernn;

namespace {

struct Case {
  std::int64_t N, C, M, groups, H, W, KH, KW, SH, SW, DH, DW, top, left, bottom, right;

  static std::int64_t places(std::int64_t in, std::int64_t size, std::int64_t stride,
                             std::int64_t dilation, std::int64_t pads) {
    const std::int64_t over = in + pads - dilation * (size - 1) - 1;
    return over < 0 ? 0 : over / stride + 1;
  }
  std::int64_t OH() const { return places(H, KH, SH, DH, top + bottom); }
  std::int64_t OW() const { return places(W, KW, SW, DW, left + right); }
  std::int64_t taps() const { return C / groups * KH * KW; }
  Dims x() const { return {3, {C, H, W}}; }
  Dims y() const { return {3, {M, OH(), OW()}}; }
  Dims window() const { return {8, {KH, KW, SH, SW, DH, DW, top, left}}; }
  std::int64_t size() const { return N * M * OH() * OW(); }
  /// A rounding of a number near one for every product of the longest sum.
  double near() const {
    return 1e-5 + std::ldexp(double((std::max)(C, M) / groups * KH * KW), -24);
  }
  std::int64_t seen() const {
    const std::int64_t copied =
        (OH() + DH * (KH - 1) / SH) * SH * (OW() + DW * (KW - 1) / SW) * SW * C;
    return OH() * OW() <= 8 && M / groups >= 16 ? kRowsAtOnce * taps() : copied;
  }
  /// function(n, group, m, place in y, c, place in x, place in a channel's weights): all products.
  template <class Function>
  void each(Function function) const {
    for (std::int64_t n = 0; n < N; ++n)
      for (std::int64_t m = 0; m < M; ++m)
        for (std::int64_t oh = 0; oh < OH(); ++oh)
          for (std::int64_t ow = 0; ow < OW(); ++ow)
            for (std::int64_t c = 0; c < C / groups; ++c)
              for (std::int64_t i = 0; i < KH; ++i)
                for (std::int64_t j = 0; j < KW; ++j) {
                  const std::int64_t h = oh * SH + i * DH - top, w = ow * SW + j * DW - left;
                  if (h < 0 || h >= H || w < 0 || w >= W) continue;
                  const std::int64_t channel = m / (M / groups) * (C / groups) + c;
                  function(((n * M + m) * OH() + oh) * OW() + ow,
                           ((n * C + channel) * H + h) * W + w, m, (c * KH + i) * KW + j);
                }
  }
};

const std::vector<Case> kCases = {
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0},
    {2, 3, 5, 1, 1, 9, 1, 3, 1, 1, 1, 1, 0, 1, 0, 1},
    {3, 5, 70, 1, 1, 4, 1, 3, 1, 2, 1, 1, 0, 1, 0, 1},
    {29, 3, 18, 1, 2, 4, 3, 2, 2, 1, 1, 2, 1, 1, 1, 0},
    {3, 8, 40, 2, 1, 6, 1, 3, 1, 1, 1, 1, 0, 1, 0, 1},
    {1, 60, 20, 1, 5, 33, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1},
    {1, 1, 33, 1, 1, 640, 1, 256, 1, 128, 1, 1, 0, 0, 0, 0},
    {1, 1, 18, 1, 1, 700, 1, 32, 1, 16, 1, 1, 0, 0, 0, 0},
    {2, 4, 24, 1, 9, 33, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1},
    {1, 4, 24, 1, 9, 34, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1},
    {1, 4, 17, 1, 10, 34, 2, 2, 2, 2, 1, 1, 0, 0, 0, 0},
    {1, 3, 16, 1, 7, 29, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0},
    {1, 3, 16, 1, 7, 29, 1, 1, 2, 3, 1, 1, 0, 0, 0, 0},
    {1, 3, 16, 1, 7, 29, 1, 1, 2, 3, 1, 1, 1, 2, 1, 2},
    {2, 6, 6, 6, 8, 21, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1},
    {2, 6, 12, 6, 8, 21, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1},
    {1, 6, 9, 3, 6, 22, 2, 3, 1, 2, 2, 3, 1, 3, 0, 1},
    {1, 2, 3, 1, 5, 5, 5, 5, 1, 1, 1, 1, 0, 0, 0, 0},
    {1, 2, 3, 1, 2, 2, 3, 3, 1, 1, 1, 1, 5, 7, 6, 4},
    {1, 2, 3, 1, 2, 2, 3, 3, 4, 5, 2, 3, 9, 7, 6, 8},
    {1, 2, 3, 1, 3, 2, 3, 3, 1, 1, 2, 1, 0, 0, 0, 0},
    {0, 2, 3, 1, 3, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1},
    {1, 0, 3, 1, 3, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1},
    {2, 3, 4, 1, 3, 1, 2, 1, 1, 1, 1, 1, 0, 0, 0, 0},
    {1, 2, 65, 1, 1, 50, 1, 5, 1, 3, 1, 2, 0, 2, 0, 9},
    {2, 60, 70, 1, 9, 25, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1},
    {1, 128, 72, 2, 17, 13, 3, 3, 2, 1, 1, 2, 1, 1, 1, 1},
    {1, 31, 37, 1, 5, 7, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0},
};

template <class Real, int G>
std::vector<Real> convolved(const Case& of, const std::vector<Real>& x, const std::vector<Real>& w,
                            const Real* bias, bool rectified = false) {
  const std::int64_t M = of.M / of.groups, wide = (M + G * 16 - 1) / (G * 16) * G * 16;
  std::vector<Real> panels(static_cast<std::size_t>(of.groups * wide * of.taps())),
      seen(static_cast<std::size_t>(of.seen())), y(static_cast<std::size_t>(of.size()));
  std::vector<std::int64_t> taps(static_cast<std::size_t>(of.taps()));
  pack<G>(panels.data(), w.data(), of.groups, M, of.taps());
  Serial alone;
  convolve<G>(y.data(), x.data(), panels.data(), bias, seen.data(), taps.data(), of.N, of.x(),
              of.y(), of.window(), of.groups, rectified, alone);
  return y;
}

template <class Real>
void check_convolutions() {
  for (const Case& of : kCases) {
    const auto x = random_numbers<Real>(of.N * of.C * of.H * of.W, 1);
    const auto w = random_numbers<Real>(of.M * of.taps(), 2), bias = random_numbers<Real>(of.M, 3);
    std::vector<double> want(static_cast<std::size_t>(of.size()));
    for (std::size_t at = 0; at < want.size(); ++at)
      want[at] = bias[at / static_cast<std::size_t>(of.OH() * of.OW()) % bias.size()];
    of.each([&](std::int64_t y, std::int64_t at, std::int64_t m, std::int64_t k) {
      want[y] += double(x[at]) * double(w[m * of.taps() + k]);
    });
    const auto got = convolved<Real, 1>(of, x, w, bias.data());
    CHECK(got.size() == want.size());
    for (std::size_t at = 0; at < want.size(); ++at) CHECK_NEAR(got[at], want[at], of.near());
    CHECK(got == (convolved<Real, 2>(of, x, w, bias.data())));
    CHECK(got == (convolved<Real, 4>(of, x, w, bias.data())));
    auto positive = got;
    for (Real& each : positive) each = (std::max)(each, Real());
    CHECK(positive == (convolved<Real, 4>(of, x, w, bias.data(), true)));
    if (of.N > 1) {  // an image alone
      Case one = of;
      one.N = 1;
      const auto alone = convolved<Real, 1>(one, x, w, bias.data());
      CHECK(std::memcmp(alone.data(), got.data(), alone.size() * sizeof(Real)) == 0);
    }
  }
}

TEST(convolutions_of_floats) { check_convolutions<float>(); }
TEST(convolutions_of_doubles) { check_convolutions<double>(); }

TEST(convolutions_without_bias_begin_with_zero) {
  const Case of = kCases[5];
  const auto x = random_numbers<float>(of.N * of.C * of.H * of.W, 1),
             w = random_numbers<float>(of.M * of.taps(), 2);
  const std::vector<float> zeros(static_cast<std::size_t>(of.M));
  CHECK((convolved<float, 1>(of, x, w, nullptr)) == (convolved<float, 1>(of, x, w, zeros.data())));
}

TEST(ways_back) {
  for (const Case& of : kCases) {
    if (of.size() == 0) continue;
    const auto x = random_numbers<float>(of.size(), 1),
               w = random_numbers<float>(of.M * of.taps(), 2),
               bias = random_numbers<float>(of.C, 3);
    std::vector<double> want(static_cast<std::size_t>(of.N * of.C * of.H * of.W));
    std::vector<float> got(want.size());
    for (std::size_t at = 0; at < want.size(); ++at)
      want[at] = bias[at / static_cast<std::size_t>(of.H * of.W) % bias.size()];
    of.each([&](std::int64_t y, std::int64_t at, std::int64_t m, std::int64_t k) {
      want[at] += double(x[y]) * double(w[m * of.taps() + k]);
    });
    convolve_back(got.data(), x.data(), w.data(), bias.data(), of.N, of.y(), of.x(), of.window(),
                  of.groups);
    for (std::size_t at = 0; at < want.size(); ++at) CHECK_NEAR(got[at], want[at], of.near());
  }
}

TEST(pools) {
  for (Case of : kCases) {
    of.M = of.groups = of.C;
    if (of.C == 0 || std::max(of.top, of.bottom) >= of.KH || std::max(of.left, of.right) >= of.KW)
      continue;
    const auto x = random_numbers<float>(of.N * of.C * of.H * of.W, 1);
    const std::size_t size = static_cast<std::size_t>(of.size());
    std::vector<double> sums(size), counts(size),
        tops(size, -std::numeric_limits<double>::infinity());
    of.each([&](std::int64_t y, std::int64_t at, std::int64_t, std::int64_t) {
      sums[y] += x[at];
      counts[y] += 1;
      tops[y] = std::fmax(tops[y], x[at]);
    });
    std::vector<float> top(size), mean(size), padded(size);
    max_pool(top.data(), x.data(), of.N * of.C, of.x(), of.y(), of.window());
    average_pool(mean.data(), x.data(), of.N * of.C, of.x(), of.y(), of.window(), -1, -1);
    average_pool(padded.data(), x.data(), of.N * of.C, of.x(), of.y(), of.window(), of.bottom,
                 of.right);
    for (std::size_t at = 0; at < size; ++at) {
      CHECK(top[at] == static_cast<float>(tops[at]));
      if (counts[at] > 0) CHECK_NEAR(mean[at], sums[at] / counts[at], 1e-5);
      CHECK_NEAR(padded[at], sums[at] / static_cast<double>(of.KH * of.KW), 1e-5);
    }
  }
}

TEST(normalized_groups) {
  const std::int64_t N = 2, C = 6, inner = 37;
  const auto x = random_numbers<float>(N * C * inner, 1), scale = random_numbers<float>(C, 2),
             bias = random_numbers<float>(C, 3);
  for (const std::int64_t groups : {1, 2, 6}) {
    std::vector<float> y(x.size());
    group_norm(y.data(), x.data(), scale.data(), bias.data(), N, C, inner, groups, 1e-5);
    const std::int64_t count = C / groups * inner;
    for (std::int64_t at = 0; at < N * C * inner; ++at) {
      const float* const own = x.data() + at / count * count;
      double mean = 0, variance = 0;
      for (std::int64_t k = 0; k < count; ++k) mean += own[k] / static_cast<double>(count);
      for (std::int64_t k = 0; k < count; ++k)
        variance += (own[k] - mean) * (own[k] - mean) / static_cast<double>(count);
      const std::int64_t c = at / inner % C;
      CHECK_NEAR(y[at], (x[at] - mean) / std::sqrt(variance + 1e-5) * scale[c] + bias[c], 1e-5);
    }
  }
}

}  // namespace
