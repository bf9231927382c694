// Convolutions over the rows and columns of x (N, C, H, W), and transposed convolutions. A place is
// one position of the window, which is one element of y.
//
// A convolution is the product of a matrix of weights and a matrix that has the elements of the
// window at each place. The second matrix is never written: its elements are read from x, or from a
// copy of x with zeros around it, at distances (`taps`) that are the same for all places. Sums add
// their products in one order, channel after channel. So a place has the same bits in any batch and
// on any number of threads.
#ifndef ONERNN_CONVOLUTIONS_HPP
#define ONERNN_CONVOLUTIONS_HPP

#include <algorithm>
#include <cstdint>

#include "axes.hpp"
#include "isa.hpp"
#include "lanes.hpp"
#include "moves.hpp"
#include "products.hpp"
#include "windows.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// Adds to the sums of M channels at B * 16 neighbouring places: sums[m][b] += weight m of each of
/// K rows, which are `row` numbers apart, times the places' elements at that tap. Without kAll
/// there are only `count` places.
template <int M, int B, bool kAll, class Real>
inline void sum_channels(Lanes<Real> (&sums)[M][B], const Real* from, const std::int64_t* taps,
                         const Real* weights, std::int64_t row, std::int64_t K,
                         std::int64_t count) {
  Lanes<Real> own[M][B];
  for (int m = 0; m < M; ++m)
    for (int b = 0; b < B; ++b) own[m][b] = sums[m][b];
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

/// Describes one group of a convolution. `panels` has K rows for each G * 16 of the M output
/// channels.
template <class Real>
struct Group {
  const Real* from;  // the first element of the first place's window
  const std::int64_t* taps;
  const Real* panels;
  std::int64_t K, M;
  const Real* bias;  // null: zeros
  Real least;        // the lower bound of results
  Real* y;

  Real begin(std::int64_t m) const { return bias ? bias[m] : Real(); }
  Lanes<Real> result(Lanes<Real> sums) const { return maximum(broadcast(least), sums); }
};

/// Copies the elements of the window at a place, for each of C channels; outside of x they are
/// zeros.
template <class Real>
void see(Real* row, const Real* x, std::int64_t C, const Windows& w, std::int64_t place) {
  const std::int64_t down = place / w.column.out * w.row.stride - w.row.before;
  const std::int64_t right = place % w.column.out * w.column.stride - w.column.before;
  const Range high = inside(w.row.in, w.row.size, w.row.dilation, down);
  const Range wide = inside(w.column.in, w.column.size, w.column.dilation, right);
  const std::int64_t taps = w.taps(), seen = w.seen(), count = wide.end - wide.begin;
  if ((high.end - high.begin) * count < taps) std::fill_n(row, C * taps, Real());
  for (std::int64_t i = high.begin; i < high.end; ++i) {
    const std::int64_t first = right + wide.begin * w.column.dilation;
    const Real* const from = x + (down + i * w.row.dilation) * w.column.in + first;
    Real* const to = row + i * w.column.size + wide.begin;
    if (C < count)
      for (std::int64_t c = 0; c < C; ++c)
        copy_steps(to + c * taps, from + c * seen, w.column.dilation, count);
    else  // the inner loop is the longer one
      for (std::int64_t j = 0; j < count; ++j)
        for (std::int64_t c = 0; c < C; ++c)
          to[c * taps + j] = from[c * seen + j * w.column.dilation];
  }
}

/// Computes the channels of one group if images have few places. Copies the windows of all N images
/// to `rows`, and multiplies these rows by the panels. `x_image` and `y_image` are the distances
/// between two images in x and in y.
template <int G, class Real, class Team>
void convolve_few(const Group<Real>& of, Real* rows, std::int64_t N, std::int64_t x_image,
                  std::int64_t y_image, const Windows& w, Team& team) {
  const std::int64_t places = w.places(), all = N * places;
  for (std::int64_t first = 0; first < all; first += kRowsAtOnce) {
    const std::int64_t some = (std::min)(kRowsAtOnce, all - first);
    for (std::int64_t m = 0; m < some; ++m)
      see(rows + m * of.K, of.from + (first + m) / places * x_image, of.K / w.taps(), w,
          (first + m) % places);
    each_product<G>(
        rows, some, of.K, of.panels, of.bias, of.M, team,
        [&](std::int64_t m, std::int64_t channel, Lanes<Real> sums, std::int64_t count) {
          const std::int64_t row = first + m;
          Real* const to = of.y + row / places * y_image + channel * places + row % places;
          sums = of.result(sums);
          if (places == 1) return store_some(to, sums, count);
          Real v[16];
          store(v, sums);
          for (std::int64_t i = 0; i < count; ++i) to[i * places] = v[i];
        });
  }
}

/// Stores the sums of `some` places from `column` on. Places are counted in rows of `stride`, but
/// only the first `width` of each row are elements of y.
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

/// Computes all channels at all places of an image. Places are counted along the rows of the input:
/// the sums that lie between two rows of y are computed and thrown away. kSome places are
/// multiplied by kTaps rows of a panel at a time, so that their elements and sums stay in the L1
/// cache.
template <int G, class Real, class Team>
void convolve_many(const Group<Real>& of, const Windows& w, const Surroundings& around,
                   Team& team) {
  using L = Lanes<Real>;
  constexpr int kBeside = kSums<L> >= 24 ? 3 : 1;
  constexpr std::int64_t kParts = kBeside == 1 ? 4 : 2, kSome = kParts * kBeside * 16;
  constexpr std::int64_t kTaps = 128;
  const std::int64_t width = w.column.out, stride = around.columns, places = w.places();
  const std::int64_t all = (w.row.out - 1) * stride + width;
  const auto run = [&](std::int64_t first, std::int64_t p) {
    alignas(64) Real sums_of[G * 16 * kSome];
    const std::int64_t end = (std::min)(all, first + kSome);
    const std::int64_t channels = (std::min)(std::int64_t(G * 16), of.M - p * G * 16);
    for (std::int64_t k = 0; k < of.K || k == 0; k += kTaps)
      in_blocks<L, kBeside>(channels, [&](auto block, std::int64_t channel) {
        constexpr int M = block();
        const std::int64_t m0 = p * G * 16 + channel;
        const Real* const weights = of.panels + (p * of.K + k) * G * 16 + channel;
        std::int64_t row = first / stride, column = first % stride, at = first;
        const auto next = [&](auto beside, auto whole, std::int64_t some) {
          constexpr int B = beside();
          L sums[M][B];
          Real* const held = sums_of + channel * kSome + at - first;
          for (int m = 0; m < M; ++m)
            for (int b = 0; b < B; ++b)
              sums[m][b] = k == 0 ? broadcast(of.begin(m0 + m)) : load(held + m * kSome + b * 16);
          sum_channels<M, B, whole(), Real>(sums, of.from + at, of.taps + k, weights, G * 16,
                                            (std::min)(kTaps, of.K - k), some);
          at += B * 16;
          if (k + kTaps < of.K) {
            for (int m = 0; m < M; ++m)
              for (int b = 0; b < B; ++b) store(held + m * kSome + b * 16, sums[m][b]);
            return;
          }
          for (int b = 0; b < B; ++b) {
            Real* const to = of.y + m0 * places + row * width + column;
            for (int m = 0; m < M; ++m) sums[m][b] = of.result(sums[m][b]);
            if (stride == width || column + 16 <= width)
              for (int m = 0; m < M; ++m) store_some(to + m * places, sums[m][b], some);
            else
              for (int m = 0; m < M; ++m)
                store_around(to + m * places, sums[m][b], column, some, width, stride);
            for (column += 16; column >= stride; column -= stride) ++row;
          }
        };
        while (at + kBeside * 16 <= end) next(Fixed<kBeside>(), std::true_type(), 16);
        while (at + 16 <= end) next(Fixed<1>(), std::true_type(), 16);
        if (at < end) next(Fixed<1>(), std::false_type(), end - at);
      });
  };
  team.split((all + kSome - 1) / kSome, kSome * of.K * of.M,
             [&](std::int64_t begin, std::int64_t end) {
               for (; begin < end; ++begin)
                 for (std::int64_t p = 0; p * G * 16 < of.M; ++p) run(begin * kSome, p);
             });
}

/// Adds to the sums of M places, which are `row` numbers apart: the places' elements at `count`
/// taps times `count` rows of a panel, for B * 16 channels.
template <int M, int B, class Real>
[[gnu::noinline]] void add_places(Real* sums, const Real* const* from, const std::int64_t* taps,
                                  const Real* weights, std::int64_t row, std::int64_t count,
                                  Ahead<> ahead) {
  Lanes<Real> own[M][B];
  const Real* places[M];
  unrolled<M>([&](int m) { places[m] = from[m]; });
  unrolled<M * B>([&](int i) { own[i / B][i % B] = load(sums + i / B * row + i % B * 16); });
  for (std::int64_t k = 0; k < count; ++k, weights += row) {
    const std::int64_t tap = taps[k];
    ahead.row(k);
    Lanes<Real> channels[B];
    unrolled<B>([&](int b) { channels[b] = kept(load(weights + b * 16)); });
    unrolled<M>([&](int m) {
      const auto factor = broadcast(places[m][tap]);
      unrolled<B>([&](int b) { own[m][b] = multiply_add(factor, channels[b], own[m][b]); });
    });
  }
  unrolled<M * B>([&](int i) { store(sums + i / B * row + i % B * 16, own[i / B][i % B]); });
}

/// How many places are multiplied by how many rows of a panel at a time: these rows stay in the L1
/// cache, a panel in the L2 cache.
inline constexpr std::int64_t kWidePlaces = 96, kWideTaps = 64;

/// Computes panel p's channels at `count` places from `first` on. The lanes of a register are
/// channels.
template <int G, class Real>
void convolve_panel(const Group<Real>& of, const Windows& w, const Surroundings& around,
                    std::int64_t p, std::int64_t first, std::int64_t count) {
  using L = Lanes<Real>;
  constexpr int B = kSums<L> >= 16 ? G : 1, M = kSums<L> / B > 8 ? 8 : kSums<L> / B;
  constexpr std::int64_t kRow = G * 16;
  alignas(64) Real sums[kWidePlaces * kRow];
  const Real* from[kWidePlaces];
  const std::int64_t channels = (std::min)(kRow, of.M - p * kRow), width = w.column.out;
  Real begin[kRow] = {};
  if (of.bias) std::copy_n(of.bias + p * kRow, channels, begin);
  std::int64_t column = first % width;
  const Real* at = of.from + first / width * around.columns + column;
  for (std::int64_t i = 0; i < count; ++i, ++at, ++column) {
    if (column == width) {
      column = 0;
      at += around.columns - width;
    }
    from[i] = at;
    std::copy_n(begin, kRow, sums + i * kRow);
  }
  for (std::int64_t k = 0; k < of.K; k += kWideTaps) {
    const Real* const rows = of.panels + (p * of.K + k) * kRow;
    const std::int64_t taps = (std::min)(kWideTaps, of.K - k);
    const Real* next = rows + taps * kRow;  // prefetched meanwhile
    for (int g = 0; g < G; g += B)
      in_parts(count, M, [&](std::int64_t i, std::int64_t some) {
        const bool comes = next < rows + (taps + kWideTaps) * kRow;
        with_rows<M>(some, [&](auto block) {
          add_places<block(), B>(sums + i * kRow + g * 16, from + i, of.taps + k, rows + g * 16,
                                 kRow, taps, Ahead<>(comes ? next : rows, comes ? 16 : 0));
        });
        next += kWideTaps * 16;
      });
  }
  const std::int64_t places = w.places();
  for (std::int64_t m = 0; m < channels; m += 4)
    for (std::int64_t i = 0; i < count; i += 16) {
      L columns[4];
      turn(sums + i * kRow + m, kRow, columns);
      Real* const to = of.y + (p * kRow + m) * places + first + i;
      for (std::int64_t j = 0; j < 4 && m + j < channels; ++j)
        store_some(to + j * places, of.result(columns[j]), count - i);
    }
}

/// The same as `convolve_many`, except that the lanes of a register are channels, not places.
template <int G, class Real, class Team>
void convolve_wide(const Group<Real>& of, const Windows& w, const Surroundings& around,
                   Team& team) {
  const std::int64_t places = w.places(), pieces = (places + kWidePlaces - 1) / kWidePlaces;
  const std::int64_t panels = (of.M + G * 16 - 1) / (G * 16);
  constexpr std::int64_t kHalf = kWidePlaces / 2;  // a multiple of 16 and of the places in a block
  const auto first = [=](std::int64_t piece) {
    return (std::min)(places, (places + kHalf - 1) / kHalf * piece / pieces * kHalf);
  };
  // Small matrices stay in the L2 cache, so all panels multiply one piece of the image before the
  // next piece is read.
  const bool small = panels * of.K * G * 16 * std::int64_t(sizeof(Real)) <= 1 << 18;
  team.split(panels * pieces, places / pieces * of.K * G * 16,
             [&](std::int64_t begin, std::int64_t end) {
               for (; begin < end; ++begin) {
                 const std::int64_t piece = small ? begin / panels : begin % pieces;
                 convolve_panel<G>(of, w, around, small ? begin % panels : begin / pieces,
                                   first(piece), first(piece + 1) - first(piece));
               }
             });
}

/// Packs the weights of all groups, (groups * M, K), for `convolve`: K rows for each G * 16
/// channels of a group, with zeros for missing channels.
template <int G, class Real>
void pack(Real* panels, const Real* weights, std::int64_t groups, std::int64_t M, std::int64_t K) {
  for (std::int64_t group = 0; group < groups; ++group)
    for (std::int64_t first = 0; first < M; first += G * 16)
      for (std::int64_t k = 0; k < K; ++k)
        for (std::int64_t m = first; m < first + G * 16; ++m)
          *panels++ = m < M ? weights[(group * M + m) * K + k] : Real();
}

/// Convolution: y (N, M, ...) = bias (M; null: zeros) + the windows of x (N, C, ...) times the
/// weights of their group, which `pack` has packed. `rectified`: negative results become 0. Scratch
/// memory: `seen` holds an image with zeros around it or, if there are few places, kRowsAtOnce
/// windows; `taps` holds one number for each weight of an output channel.
template <int G, class Real, class Team>
void convolve(Real* y, const Real* x, const Real* panels, Optional<const Real> bias, Real* seen,
              std::int64_t* taps, std::int64_t N, const Dims& x_sizes, const Dims& y_sizes,
              const Dims& window, std::int64_t groups, std::int64_t rectified, Team& team) {
  const Windows w(x_sizes, y_sizes, window);
  if (w.places() < 1) return;
  const std::int64_t C = x_sizes[0] / groups, M = y_sizes[0] / groups, K = C * w.taps();
  const std::int64_t panel = (M + G * 16 - 1) / (G * 16) * K * G * 16;
  const std::int64_t x_image = x_sizes[0] * w.seen(), y_image = y_sizes[0] * w.places();
  const auto group = [&](std::int64_t at, const Real* from, Real* to) {
    return Group<Real>{from,
                       taps,
                       panels + at * panel,
                       K,
                       M,
                       bias ? bias + at * M : nullptr,
                       rectified ? Real() : lowest<Real>(),
                       to + at * M * w.places()};
  };
  if (w.are_few(M)) {
    for (std::int64_t at = 0; at < groups; ++at)
      convolve_few<G>(group(at, x + at * C * w.seen(), y), seen, N, x_image, y_image, w, team);
    return;
  }
  const Surroundings around(w);
  for (std::int64_t k = 0; k < K; ++k)
    taps[k] = k < w.taps() ? around.tap(w, k / w.column.size, k % w.column.size)
                           : taps[k - w.taps()] + around.channel();
  for (std::int64_t n = 0; n < N; ++n, x += x_image, y += y_image) {
    if (around.copied) around.copy(seen, x, x_sizes[0], w, n == 0);
    const Real* const from = around.copied ? seen : x;
    const auto run = [&](std::int64_t at, auto& threads) {
      const auto own = group(at, from + at * C * around.channel(), y);
      if (w.are_wide(M, K))
        convolve_wide<G>(own, w, around, threads);
      else
        convolve_many<G>(own, w, around, threads);
    };
    if (groups == 1) {
      run(0, team);
    } else {
      team.split(groups, w.places() * K * M, [&](std::int64_t begin, std::int64_t end) {
        Team alone(1);  // not Serial: all functions would be compiled a second time for it
        for (std::int64_t at = begin; at < end; ++at) run(at, alone);
      });
    }
  }
}

/// Transposed convolution: y (N, M, ...) = bias (M; null: zeros) + the sum of what each element of
/// x (N, C, ...) times the weights (C, M / groups, ...) adds to its window. The window moves over
/// y; its places are elements of x.
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
