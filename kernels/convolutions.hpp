// Convolutions over the rows and columns of x (N, C, H, W), and their way back.
//
// A convolution is a product of a matrix of weights and of what windows see at each place. That
// matrix is never written: its numbers are those of x, or of a copy with zeros around it, at
// distances (`taps`) that are the same for all places. Sums add their products in one order,
// channel after channel, so a place has the same bits in any batch and on any number of threads.
#ifndef ONERNN_CONVOLUTIONS_HPP
#define ONERNN_CONVOLUTIONS_HPP

#include <algorithm>
#include <cstdint>

#include "isa.hpp"
#include "lanes.hpp"
#include "moves.hpp"
#include "products.hpp"
#include "serial.hpp"
#include "windows.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

template <class Real>
inline void copy_steps(Real* to, const Real* from, std::int64_t step, std::int64_t count) {
  if (step == 1 && count > 16)
    std::copy_n(from, count, to);
  else if (step == 2)
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[2 * i];
  else
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i * step];
}

/// How windows find their elements: those of x as they stand, or of a copy with zeros around. The
/// copy is made of rows * columns `phases`: each has every so manieth row and column, so that
/// neighbouring places of a window that strides see neighbours.
struct Surroundings {
  std::int64_t phase_rows, phase_columns, rows, columns;
  bool copied;

  /// `apart`: neighbours for windows that stride.
  Surroundings(const Windows& w, bool apart)
      : phase_rows(apart ? w.row.stride : 1), phase_columns(apart ? w.column.stride : 1) {
    const auto count = [](const Window& one, std::int64_t phases) {
      return (one.out - 1) * (one.stride / phases) + (one.extent() - 1) / phases + 1;
    };
    copied = phase_rows * phase_columns > 1 || !w.stay_inside();
    rows = copied ? count(w.row, phase_rows) : w.row.in;
    columns = copied ? count(w.column, phase_columns) : w.column.in;
  }
  std::int64_t phase() const { return rows * columns; }
  std::int64_t channel() const { return phase_rows * phase_columns * phase(); }

  /// From the first element that a window sees to that of a tap.
  std::int64_t tap(const Windows& w, std::int64_t row, std::int64_t column) const {
    row *= w.row.dilation;
    column *= w.column.dilation;
    return (row % phase_rows * phase_columns + column % phase_columns) * phase() +
           row / phase_rows * columns + column / phase_columns;
  }
  /// From the first place to another.
  std::int64_t place(const Windows& w, std::int64_t row, std::int64_t column) const {
    return row * (w.row.stride / phase_rows) * columns + column * (w.column.stride / phase_columns);
  }

  /// The copy of so many planes of x; `first`: with the zeros around them, which stay.
  template <class Real>
  void copy(Real* to, const Real* x, std::int64_t planes, const Windows& w, bool first) const {
    for (std::int64_t a = 0; a < phase_rows; ++a)
      for (std::int64_t b = 0; b < phase_columns; ++b, to += phase()) {
        const std::int64_t down = a - w.row.before, right = b - w.column.before;
        const Range high = inside(w.row.in, rows, phase_rows, down);
        const Range wide = inside(w.column.in, columns, phase_columns, right);
        const std::int64_t from = down * w.column.in + right + wide.begin * phase_columns;
        for (std::int64_t c = 0; c < planes; ++c) {
          Real* const own = to + c * channel();
          if (first) std::fill_n(own, high.begin * columns, Real());
          for (std::int64_t r = high.begin; r < high.end; ++r) {
            Real* const row = own + r * columns;
            if (first) std::fill_n(row, wide.begin, Real());
            copy_steps(row + wide.begin, x + c * w.seen() + r * phase_rows * w.column.in + from,
                       phase_columns, wide.end - wide.begin);
            if (first) std::fill(row + wide.end, row + columns, Real());
          }
          if (first) std::fill(own + high.end * columns, own + phase(), Real());
        }
      }
  }
};

/// Sums of a few places, sixteen channels side by side: sums[m][g] = first (G * 16) + what place m
/// sees times the panel of K rows.
template <int M, int G, class Real>
inline void sum_places(Lanes<Real> (&sums)[M][G], const Real* first, const Real* const* from,
                       const std::int64_t* taps, const Real* panel, std::int64_t K) {
  Lanes<Real> own[M][G];  // nobody has their address: they stay in registers
  const Real* at[M];
  for (int m = 0; m < M; ++m) {
    at[m] = from[m];
    for (int g = 0; g < G; ++g) own[m][g] = load(first + g * 16);
  }
  for (std::int64_t k = 0; k < K; ++k, panel += G * 16) {
    Lanes<Real> column[G];
    for (int g = 0; g < G; ++g) column[g] = load(panel + g * 16);
    for (int m = 0; m < M; ++m) {
      const auto factor = broadcast(at[m][taps[k]]);
      for (int g = 0; g < G; ++g) own[m][g] = multiply_add(factor, column[g], own[m][g]);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int g = 0; g < G; ++g) sums[m][g] = own[m][g];
}

/// Sums of a few channels, sixteen places side by side: sums[m][b] = first[m] + weight m of each of
/// K rows, which are `row` numbers long, times what places see. `count`: of places, where not all
/// are there.
template <int M, int B, bool kAll, class Real>
inline void sum_channels(Lanes<Real> (&sums)[M][B], const Real* first, const Real* from,
                         const std::int64_t* taps, const Real* weights, std::int64_t row,
                         std::int64_t K, std::int64_t count) {
  Lanes<Real> own[M][B];
  for (int m = 0; m < M; ++m)
    for (int b = 0; b < B; ++b) own[m][b] = broadcast(first[m]);
  for (std::int64_t k = 0; k < K; ++k, weights += row) {
    const Real* const at = from + taps[k];
    Lanes<Real> column[B];
    for (int b = 0; b < B; ++b) column[b] = kAll ? load(at + b * 16) : load_some(at, count);
    for (int m = 0; m < M; ++m) {
      const auto factor = broadcast(weights[m]);
      for (int b = 0; b < B; ++b) own[m][b] = multiply_add(factor, column[b], own[m][b]);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int b = 0; b < B; ++b) sums[m][b] = own[m][b];
}

/// The channels of one group: `panels` has K rows for each G * 16 of M channels.
template <class Real>
struct Group {
  const Real* from;    // what the first place of the first image sees
  std::int64_t image;  // to the next image
  const std::int64_t* taps;
  const Real* panels;
  std::int64_t K, M;
  const Real* bias;  // or null
  Real* y;
  std::int64_t y_image;

  Real begin(std::int64_t m) const { return bias ? bias[m] : Real(); }
};

/// All channels at a few places of `images` images.
template <int G, class Real, class Team>
void convolve_few(const Group<Real>& of, std::int64_t images, const Windows& w,
                  const Surroundings& around, Team& team) {
  const std::int64_t places = w.places(), width = w.column.out;
  team.split((of.M + G * 16 - 1) / (G * 16), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      const std::int64_t channels = (std::min)(std::int64_t(G * 16), of.M - p * G * 16);
      Real first[G * 16] = {};
      for (std::int64_t m = 0; m < channels; ++m) first[m] = of.begin(p * G * 16 + m);
      in_blocks<Lanes<Real>, G>(images * places, [&](auto block, std::int64_t row) {
        constexpr int M = block();
        Lanes<Real> sums[M][G];
        const Real* from[M];
        Real* to[M];
        for (int m = 0; m < M; ++m) {
          const std::int64_t image = (row + m) / places, place = (row + m) % places;
          from[m] = of.from + image * of.image + around.place(w, place / width, place % width);
          to[m] = of.y + image * of.y_image + p * G * 16 * places + place;
        }
        sum_places<M, G, Real>(sums, first, from, of.taps, of.panels + p * of.K * G * 16, of.K);
        for (int m = 0; m < M; ++m)
          for (int g = 0; g < G; ++g) {
            const std::int64_t count = (std::min)(std::int64_t(16), channels - g * 16);
            if (count < 1) continue;
            if (places == 1) {
              store_some(to[m] + g * 16, sums[m][g], count);
              continue;
            }
            Real v[16];
            store(v, sums[m][g]);
            for (std::int64_t i = 0; i < count; ++i) to[m][(g * 16 + i) * places] = v[i];
          }
      });
    }
  });
}

/// Stores what is there of `some` places from a column on: rows have `width` of them, of `stride`
/// that are counted.
template <class Real>
inline void store_around(Real* y, Lanes<Real> sums, std::int64_t column, std::int64_t some,
                         std::int64_t width, std::int64_t stride) {
  Real v[16];
  store(v, sums);
  y -= column;
  for (std::int64_t i = 0; i < some; i += stride - column, column = 0, y += width) {
    const std::int64_t count = (std::min)(some - i, width - column);
    if (count > 0) store_some<Real>(y + column, load_some(v + i, count), count);
  }
}

/// All channels at all places of an image. Places are counted along the rows of what is seen:
/// those between two rows of y are computed and thrown away. Some places at a time go through all
/// weights, so that neither leaves the caches.
template <int G, class Real, class Team>
void convolve_many(const Group<Real>& of, const Windows& w, const Surroundings& around,
                   Team& team) {
  constexpr int kBeside = kSums<Lanes<Real>> >= 24 ? 3 : kSums<Lanes<Real>> >= 6 ? 2 : 1;
  constexpr std::int64_t kSome = 4 * 16 * kBeside;
  const std::int64_t width = w.column.out, stride = around.columns, places = w.places();
  const std::int64_t all = (w.row.out - 1) * stride + width;
  const auto run = [&](std::int64_t first) {
    const std::int64_t end = (std::min)(all, first + kSome);
    const std::int64_t first_row = first / stride, first_column = first % stride;
    for (std::int64_t p = 0; p * G * 16 < of.M; ++p) {
      const std::int64_t channels = (std::min)(std::int64_t(G * 16), of.M - p * G * 16);
      in_blocks<Lanes<Real>, kBeside>(channels, [&](auto block, std::int64_t channel) {
        constexpr int M = block();
        const std::int64_t m0 = p * G * 16 + channel;
        const Real* const weights = of.panels + p * of.K * G * 16 + channel;
        Real* const y = of.y + m0 * places;
        Real begin[M];
        for (int m = 0; m < M; ++m) begin[m] = of.begin(m0 + m);
        std::int64_t row = first_row, column = first_column, at = first;
        const auto next = [&](auto beside, auto whole, std::int64_t some) {
          constexpr int B = beside();
          Lanes<Real> sums[M][B];
          sum_channels<M, B, whole(), Real>(sums, begin, of.from + at, of.taps, weights, G * 16,
                                            of.K, some);
          for (int b = 0; b < B; ++b) {
            Real* const to = y + row * width + column;
            if (stride == width || column + 16 <= width)
              for (int m = 0; m < M; ++m) store_some<Real>(to + m * places, sums[m][b], some);
            else
              for (int m = 0; m < M; ++m)
                store_around(to + m * places, sums[m][b], column, some, width, stride);
            for (column += 16; column >= stride; column -= stride) ++row;
          }
          at += B * 16;
        };
        while (at + kBeside * 16 <= end) next(Fixed<kBeside>(), std::true_type(), 16);
        while (at + 16 <= end) next(Fixed<1>(), std::true_type(), 16);
        if (at < end) next(Fixed<1>(), std::false_type(), end - at);
      });
    }
  };
  team.split((all + kSome - 1) / kSome, [&](std::int64_t begin, std::int64_t end) {
    for (; begin < end; ++begin) run(begin * kSome);
  });
}

/// Weights of one group after the other, (groups * M, K), as convolutions read them: for every
/// G * 16 channels K rows, with zeros where no channel is.
template <int G, class Real>
void pack(Real* panels, const Real* weights, std::int64_t groups, std::int64_t M, std::int64_t K) {
  for (std::int64_t group = 0; group < groups; ++group)
    for (std::int64_t first = 0; first < M; first += G * 16)
      for (std::int64_t k = 0; k < K; ++k)
        for (std::int64_t m = first; m < first + G * 16; ++m)
          *panels++ = m < M ? weights[(group * M + m) * K + k] : Real();
}

/// Where so few places stand side by side, channels do.
inline constexpr std::int64_t kFew = 8;

/// y (N, M, ...) = bias (M; null: zeros) + what windows over x (N, C, ...) see times the weights of
/// `groups`, see `pack`. Memory of its own: `copied` for `together` images with their surroundings,
/// `taps` for one number for each weight of a channel.
template <int G, class Real, class Team>
void convolve(Real* y, const Real* x, const Real* panels, Optional<const Real> bias, Real* copied,
              std::int64_t* taps, std::int64_t N, const Dims& x_sizes, const Dims& y_sizes,
              const Dims& window, std::int64_t groups, std::int64_t together, Team& team) {
  const Windows w(x_sizes, y_sizes, window);
  if (w.places() < 1) return;
  const bool few = w.places() <= kFew;
  const Surroundings around(w, !few);
  const std::int64_t C = x_sizes[0] / groups, M = y_sizes[0] / groups, K = C * w.taps();
  std::int64_t* tap = taps;
  for (std::int64_t c = 0; c < C; ++c)
    for (std::int64_t i = 0; i < w.row.size; ++i)
      for (std::int64_t j = 0; j < w.column.size; ++j)
        *tap++ = c * around.channel() + around.tap(w, i, j);
  const std::int64_t panel = (M + G * 16 - 1) / (G * 16) * K * G * 16;
  for (std::int64_t n = 0; n < N;) {
    const std::int64_t images = !few ? 1 : around.copied ? (std::min)(together, N - n) : N;
    const Real* from = x + n * x_sizes[0] * w.seen();
    if (around.copied) {
      around.copy(copied, from, images * x_sizes[0], w, n == 0);
      from = copied;
    }
    const auto run = [&](std::int64_t group, auto& threads) {
      const Group<Real> of{from + group * C * around.channel(),
                           x_sizes[0] * around.channel(),
                           taps,
                           panels + group * panel,
                           K,
                           M,
                           bias ? bias + group * M : nullptr,
                           y + (n * groups + group) * M * w.places(),
                           groups * M * w.places()};
      if (few)
        convolve_few<G>(of, images, w, around, threads);
      else
        convolve_many<G>(of, w, around, threads);
    };
    if (groups == 1) {
      run(0, team);
    } else {
      team.split(groups, [&](std::int64_t begin, std::int64_t end) {
        Serial alone;
        for (std::int64_t group = begin; group < end; ++group) run(group, alone);
      });
    }
    n += images;
  }
}

/// y (N, M, ...) = bias (M; null: zeros) + the way back of a convolution whose weights are
/// (C, M / groups, ...): what each place of x (N, C, ...) adds to its window in y. The window's
/// places are elements of x, and it goes over y.
template <class Real>
void convolve_back(Real* y, const Real* x, const Real* weights, Optional<const Real> bias,
                   std::int64_t N, const Dims& x_sizes, const Dims& y_sizes, const Dims& window,
                   std::int64_t groups) {
  const Windows w(y_sizes, x_sizes, window);
  const std::int64_t C = x_sizes[0] / groups, M = y_sizes[0] / groups;
  for (std::int64_t n = 0; n < N; ++n)
    for (std::int64_t group = 0; group < groups; ++group)
      for (std::int64_t m = 0; m < M; ++m, y += w.seen()) {
        std::fill_n(y, w.seen(), bias ? bias[group * M + m] : Real());
        for (std::int64_t c = group * C; c < (group + 1) * C; ++c) {
          const Real* weight = weights + (c * M + m) * w.taps();
          for (std::int64_t i = 0; i < w.row.size; ++i)
            for (std::int64_t j = 0; j < w.column.size; ++j, ++weight)
              each_seen(w, i, j, [&](std::int64_t place, std::int64_t at, std::int64_t count) {
                const Real* const from = x + (n * x_sizes[0] + c) * w.places() + place;
                for (std::int64_t k = 0; k < count; ++k)
                  y[at + k * w.column.stride] += from[k] * *weight;
              });
        }
      }
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
