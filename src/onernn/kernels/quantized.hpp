// Quantized numbers: q stands for (q - zero point) * scale. Sums of products are exact integers.
// Formulas: ONNX operator specification; the LSTM is ONNX Runtime's DynamicQuantizeLSTM, for each
// sequence by itself.
#ifndef ONERNN_QUANTIZED_HPP
#define ONERNN_QUANTIZED_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "formulas.hpp"
#include "functions.hpp"
#include "isa.hpp"
#include "memory.hpp"
#include "products.hpp"
#include "quads.hpp"
#include "status.hpp"
#include "windows.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// Returns x / scale, rounded to the nearest integer (ties to even), plus `zero`, within `low` and
/// `high`.
inline float whole_within(float x, float scale, float zero, float low, float high) {
  const float whole = std::nearbyint(x / scale) + zero;
  return whole < low ? low : whole > high ? high : whole;
}

/// The scale and zero point of unsigned bytes. The scale is NaN if numbers are not finite.
struct Parameters {
  float scale, zero;
};

/// Rounds sixteen numbers to bytes; NaN becomes 0.
inline Floats bytes_of(Floats x, Parameters in) {
  const Floats whole = round_to_even(x / broadcast(in.scale)) + broadcast(in.zero);
  return minimum(maximum(whole, broadcast(0.0f)), broadcast(255.0f));
}

/// The range of some numbers, extended so that it contains 0.
class Range255 {
 public:
  void add(const float* x, std::int64_t count) {
    Floats low = low_, high = high_, rest = rest_;
    for (std::int64_t k = 0; k < count; k += 16) {
      // The zeros after the last number change no range.
      const Floats v = load_some(x + k, count - k);
      low = minimum(v, low);
      high = maximum(v, high);
      rest = rest + (v - v);  // 0, or NaN if a number is not finite
    }
    low_ = low, high_ = high, rest_ = rest;
  }
  /// Returns the parameters of the range. The scale is 1 if the range is empty, or too narrow for a
  /// float to divide by.
  Parameters parameters() const {
    const auto folded = [](Floats lanes, auto function) {
      float v[16];
      store(v, lanes);
      for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) v[i] = function(v[i], v[i + half]);
      return v[0];
    };
    const float low = folded(low_, [](float a, float b) { return (std::min)(a, b); });
    const float high = folded(high_, [](float a, float b) { return (std::max)(a, b); });
    const float rest = folded(rest_, [](float a, float b) { return a + b; });
    const float step = (high - low) / 255;
    if (!(rest == 0 && step < std::numeric_limits<float>::infinity()))
      return {std::numeric_limits<float>::quiet_NaN(), 0};
    const float scale = step > 0 ? step : 1;
    return {scale, whole_within(-low, scale, 0, 0, 255)};
  }

 private:
  Floats low_ = broadcast(0.0f), high_ = broadcast(0.0f), rest_ = broadcast(0.0f);
};

/// Quantizes x with the scale and zero point of its range; `scale` and `zero` may be null.
inline Status dynamic_quantize(std::uint8_t* y, float* scale, std::uint8_t* zero, const float* x,
                               std::int64_t count) {
  Range255 range;
  range.add(x, count);
  const Parameters found = range.parameters();
  if (found.scale != found.scale) return Status::no_bytes;
  for (std::int64_t i = 0; i < count; ++i)
    y[i] = static_cast<std::uint8_t>(whole_within(x[i], found.scale, found.zero, 0, 255));
  if (scale) *scale = found.scale;
  if (zero) *zero = static_cast<std::uint8_t>(found.zero);
  return Status::ok;
}

/// Checks that all scales are finite and not 0.
inline Status are_scales(const float* scale, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    if (scale[i] == 0 || scale[i] - scale[i] != 0) return Status::no_bytes;
  return Status::ok;
}

/// y (outer, count, inner): each index of the axis `count` has its own scale and zero point.
template <class T>
Status quantize(T* y, const float* x, const float* scale, Optional<const T> zero,
                std::int64_t outer, std::int64_t count, std::int64_t inner) {
  constexpr float kLow = (std::numeric_limits<T>::min)(), kHigh = (std::numeric_limits<T>::max)();
  if (are_scales(scale, count) != Status::ok) return Status::no_bytes;
  float rest = 0;
  for (std::int64_t i = 0; i < outer; ++i)
    for (std::int64_t c = 0; c < count; ++c, x += inner, y += inner) {
      const float step = scale[c], shift = zero ? zero[c] : T();
      for (std::int64_t k = 0; k < inner; ++k) {
        rest += x[k] == x[k] ? 0.0f : 1.0f;
        y[k] = static_cast<T>(whole_within(x[k] == x[k] ? x[k] : 0, step, shift, kLow, kHigh));
      }
    }
  return rest > 0 ? Status::no_bytes : Status::ok;
}

template <class T>
Status dequantize(float* y, const T* x, const float* scale, Optional<const T> zero,
                  std::int64_t outer, std::int64_t count, std::int64_t inner) {
  if (are_scales(scale, count) != Status::ok) return Status::no_bytes;
  for (std::int64_t i = 0; i < outer; ++i)
    for (std::int64_t c = 0; c < count; ++c, x += inner, y += inner) {
      const std::int32_t shift = zero ? zero[c] : T();
      for (std::int64_t k = 0; k < inner; ++k) y[k] = static_cast<float>(x[k] - shift) * scale[c];
    }
  return Status::ok;
}

/// Returns how many quads a row of K bytes takes.
constexpr std::int64_t quads_of(std::int64_t K) { return (K + 3) / 4; }

/// Rows of K bytes in the form that products read, where 128 is the zero point. Each row also
/// stores how far its own zero point is from 128, the sum of its numbers after the zero point is
/// subtracted, and its scale.
class ByteRows {
 public:
  ByteRows(std::int64_t most, std::int64_t K)
      : K_(K), quads_((K + 63) / 64 * 16), rows_(most), made_(most * quads_), told_(most) {
    for (std::int64_t m = 0; m < most; ++m) rows_.data()[m] = made_.data() + m * quads_;
  }

  /// Puts bytes unchanged. 128 is added to signed bytes and their zero point.
  template <class T>
  void put(std::int64_t m, const T* row, int zero) {
    constexpr int kShift = std::is_signed_v<T> ? 0 : 128;
    QuadFactor* const to = made_.data() + m * quads_;
    if constexpr (sizeof(QuadFactor) == 4) {  // bytes, one after the other
      auto* const bytes = reinterpret_cast<std::uint8_t*>(to);
      for (std::int64_t k = 0; k < K_; ++k)
        bytes[k] = static_cast<std::uint8_t>(row[k] - kShift + kByteZero);
    } else {
      const std::int64_t whole = K_ / 4;
      for (std::int64_t q = 0; q < whole; ++q)
        for (int i = 0; i < 4; ++i) put_byte(to[q], i, row[q * 4 + i] - kShift);
      for (std::int64_t k = whole * 4; k < K_; ++k) put_byte(to[whole], k % 4, row[k] - kShift);
    }
    std::int32_t sum = 0;
    for (std::int64_t k = 0; k < K_; ++k) sum += row[k];
    told_.data()[m] = {kShift - zero, sum - static_cast<std::int32_t>(K_) * zero, 1};
  }
  /// Quantizes numbers and puts the bytes.
  void round(std::int64_t m, const float* row, Parameters in) {
    QuadFactor* const to = made_.data() + m * quads_;
    Floats sums = broadcast(0.0f);  // exact: each lane sums a sixteenth of the row
    for (std::int64_t k = 0; k < K_; k += 16) {
      const Floats whole = bytes_of(load_some(row + k, K_ - k), in);
      store_quads(to + k / 4, whole - broadcast(128.0f), 128);
      sums = sums + (whole - broadcast(in.zero));
    }
    float parts[16];
    store(parts, sums);
    std::int32_t sum = 0;
    for (const float part : parts) sum += static_cast<std::int32_t>(part);
    told_.data()[m] = {128 - static_cast<std::int32_t>(in.zero), sum, in.scale};
  }
  const QuadFactor* const* get() const { return rows_.data(); }
  float scale(std::int64_t m) const { return told_.data()[m].scale; }

  /// Returns sixteen sums of row m without the parts of the zero points. `zeros`: the columns' zero
  /// points; null: none. `head`: the row before the columns in their panel, which is -128 times
  /// their sums.
  Ints unshifted(std::int64_t m, Ints sums, const ByteQuad* head,
                 Optional<const std::int32_t> zeros) const {
    // Unsigned, because sums wrap around.
    using Wrapping [[gnu::vector_size(64)]] = std::uint32_t;
    using Signed [[gnu::vector_size(64)]] = std::int32_t;
    const Told& row = told_.data()[m];
    Wrapping sum;
    Signed start;
    std::memcpy(&sum, &sums, sizeof sum);
    std::memcpy(&start, head, sizeof start);
    sum -= reinterpret_cast<Wrapping>(start >> 7) * static_cast<std::uint32_t>(row.shift);
    if (zeros) {
      Wrapping zero;
      std::memcpy(&zero, zeros, sizeof zero);
      sum -= zero * static_cast<std::uint32_t>(row.sum);
    }
    std::memcpy(&sums, &sum, sizeof sums);
    return sums;
  }

 private:
  struct Told {
    std::int32_t shift, sum;
    float scale;
  };
  std::int64_t K_, quads_;
  Memory<const QuadFactor*> rows_;
  Memory<QuadFactor> made_;
  Memory<Told> told_;
};

inline const ByteQuad* as_quads(const std::int8_t* bytes) {
  return reinterpret_cast<const ByteQuad*>(bytes);
}

/// Calls use(row, column, sums) with sixteen sums at a time, for all rows times panels of G * 16
/// columns.
template <int G, class Team, class Use>
void sums_of_bytes(const ByteRows& rows, std::int64_t count, std::int64_t K,
                   const std::int8_t* panels, std::int64_t columns,
                   Optional<const std::int32_t> zeros, Team& team, Use use) {
  team.split((columns + G * 16 - 1) / (G * 16), count * K * G * 4,
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t p = begin; p < end; ++p) {
                 const ByteQuad* const panel = panel_of<G>(as_quads(panels), p, K);
                 each_sum<G>(rows.get(), count, panel, quads_of(K),
                             [=, &rows](std::int64_t row, int g, Ints sums) {
                               const std::int64_t column = (p * G + g) * 16;
                               use(row, column,
                                   rows.unshifted(row, sums, panel + g * 16,
                                                  zeros ? zeros + column : zeros));
                             });
               }
             });
}

/// y (rows, columns) = x (rows, K) times a matrix of bytes, in panels of G * 16 columns.
template <int G, class T, class Team>
inline void dense_bytes(std::int32_t* y, const T* x, Optional<const T> zero, std::int64_t rows,
                        std::int64_t K, const std::int8_t* panels,
                        Optional<const std::int32_t> zeros, std::int64_t columns, Team& team) {
  ByteRows bytes(rows, K);
  for (std::int64_t m = 0; m < rows; ++m) bytes.put(m, x + m * K, zero ? *zero : 0);
  sums_of_bytes<G>(bytes, rows, K, panels, columns, zeros, team,
                   [=](std::int64_t row, std::int64_t column, Ints sums) {
                     std::int32_t* const to = y + row * columns + column;
                     if (column + 16 <= columns)
                       std::memcpy(to, &sums, sizeof sums);
                     else if (column < columns)
                       std::memcpy(to, &sums, (columns - column) * sizeof *to);
                   });
}

/// y (M, places) = windows times weights. The windows are read from `seen`, (rows, `columns`, C)
/// bytes with the zero point `zero`. The weights are in panels of G * 16 channels; rows of a panel
/// are (taps, C).
template <int G, class Team>
void convolve_seen(std::int32_t* y, const std::uint8_t* seen, std::int64_t columns, std::int64_t C,
                   std::int64_t M, int zero, const std::int8_t* panels,
                   Optional<const std::int32_t> zeros, const Windows& w, Team& team) {
  constexpr std::int64_t kSome = 48;
  const std::int64_t K = C * w.taps(), places = w.places();
  // A row of a window is contiguous, unless its elements have a distance above 1.
  const std::int64_t runs = w.column.dilation == 1 ? 1 : w.column.size, run = K / w.row.size / runs;
  team.split(
      (places + kSome - 1) / kSome, kSome * K * M / 4, [&](std::int64_t begin, std::int64_t end) {
        ByteRows rows(kSome, K);
        Memory<std::uint8_t> window(K);
        Team alone(1);  // not Serial: all functions would be compiled a second time for it
        for (; begin < end; ++begin) {
          const std::int64_t first = begin * kSome, some = (std::min)(kSome, places - first);
          for (std::int64_t m = 0; m < some; ++m) {
            const std::int64_t down = (first + m) / w.column.out * w.row.stride;
            const std::int64_t right = (first + m) % w.column.out * w.column.stride;
            std::uint8_t* to = window.data();
            for (std::int64_t i = 0; i < w.row.size; ++i)
              for (std::int64_t j = 0; j < runs; ++j, to += run) {
                const std::int64_t row = (down + i * w.row.dilation) * columns;
                std::memcpy(to, seen + (row + right + j * w.column.dilation) * C, run);
              }
            rows.put(m, window.data(), zero);
          }
          sums_of_bytes<G>(rows, some, K, panels, M, zeros, alone,
                           [=](std::int64_t row, std::int64_t channel, Ints sums) {
                             std::int32_t v[16];
                             std::memcpy(v, &sums, sizeof v);
                             std::int32_t* const to = y + channel * places + first + row;
                             const std::int64_t count = (std::min)(std::int64_t(16), M - channel);
                             for (std::int64_t i = 0; i < count; ++i) to[i * places] = v[i];
                           });
        }
      });
}

/// y (N, M, ...) = the windows of x (N, C, ...) times the weights of their group, in the panels of
/// `convolve_seen`. Padding around x counts as its zero point. `seen`: memory for the channels of
/// one group, with the padding that windows read.
template <int G, class T, class Team>
void convolve_bytes(std::int32_t* y, const T* x, Optional<const T> zero, const std::int8_t* panels,
                    Optional<const std::int32_t> zeros, std::uint8_t* seen, std::int64_t N,
                    const Dims& x_sizes, const Dims& y_sizes, const Dims& window,
                    std::int64_t groups, Team& team) {
  const Windows w(x_sizes, y_sizes, window);
  if (w.places() < 1) return;
  constexpr int kShift = std::is_signed_v<T> ? 128 : 0;
  const int around = (zero ? *zero : 0) + kShift;
  const std::int64_t C = x_sizes[0] / groups, M = y_sizes[0] / groups;
  const std::int64_t rows = w.row.span(), columns = w.column.span();
  const Range high = inside(w.row.in, rows, 1, -w.row.before);
  const Range wide = inside(w.column.in, columns, 1, -w.column.before);
  const std::int64_t channels = (M + G * 16 - 1) / (G * 16) * G * 16;
  const std::int64_t stored = (kHeadRows<ByteQuad> + quads_of(C * w.taps())) * channels * 4;
  for (std::int64_t i = 0; i < N * groups; ++i, x += C * w.seen(), y += M * w.places()) {
    std::fill_n(seen, rows * columns * C, static_cast<std::uint8_t>(around));
    for (std::int64_t r = high.begin; r < high.end; ++r)
      for (std::int64_t c = 0; c < C; ++c) {
        const T* const from = x + c * w.seen() + (r - w.row.before) * w.column.in - w.column.before;
        std::uint8_t* const to = seen + r * columns * C + c;
        for (std::int64_t j = wide.begin; j < wide.end; ++j)
          to[j * C] = static_cast<std::uint8_t>(from[j] + kShift);
      }
    const std::int64_t group = i % groups;
    convolve_seen<G>(y, seen, columns, C, M, around, panels + group * stored,
                     zeros ? zeros + group * channels : zeros, w, team);
  }
}

/// ONNX Runtime's DynamicQuantizeLSTM. y (T, directions, N, O), y_h and y_c (directions, N, O).
/// Null may be passed for y_h, y_c, `lengths`, h, c, zero points. A direction's matrices are panels
/// of sixteen units with their gates i, o, f and c next to each other; the columns' scales are in
/// the panels' heads. Zero points and bias have the same order; peepholes are stored for sixteen
/// units of i, o and f at a time. `clip`: 0 if nothing is clipped. `backwards`: the first direction
/// runs backwards. `tied`: f is 1 - i. `together` is not 0: one scale for all sequences, like ONNX
/// Runtime on one thread. Then padding up to the longest sequence counts, and so do the states of a
/// sequence until the step after its last; if it is 2, also later states. `fed`: memory for the
/// gates of all steps.
template <class Team>
inline Status quantized_lstm(float* y, float* y_h, float* y_c, float* fed, const float* x,
                             const std::int32_t* lengths, const float* h, const float* c,
                             std::int64_t T, std::int64_t N, std::int64_t I, std::int64_t O,
                             std::int64_t directions, std::int64_t backwards, const std::int8_t* w,
                             const std::int8_t* r, const std::int32_t* w_zeros,
                             const std::int32_t* r_zeros, const float* bias, const float* peepholes,
                             double clip, std::int64_t tied, std::int64_t together, Team& team) {
  const std::int64_t panels = panels_of(O), wide = panels * 64;
  Memory<std::int64_t> length(N), active(N);
  std::int64_t most = 0;
  for (std::int64_t n = 0; n < N; ++n) {
    length.data()[n] = lengths ? lengths[n] : T;
    if (length.data()[n] < 0 || length.data()[n] > T) return Status::bad_lengths;
    most = (std::max)(most, length.data()[n]);
  }
  ByteRows words(T * N, I), states(N, O);
  Range255 batch;
  if (together) batch.add(x, most * N * I);
  for (std::int64_t n = 0; n < N; ++n) {
    Range255 range = batch;
    for (std::int64_t t = 0; t < length.data()[n]; ++t) range.add(x + (t * N + n) * I, I);
    const Parameters in = range.parameters();
    for (std::int64_t t = 0; t < length.data()[n]; ++t)
      words.round(t * N + n, x + (t * N + n) * I, in);
    for (std::int64_t t = length.data()[n]; t < T; ++t)
      for (std::int64_t d = 0; d < directions; ++d)
        std::fill_n(y + ((t * directions + d) * N + n) * O, O, 0.0f);
  }
  Memory<float> now(2 * N * panels * 16);
  const float bound = clip > 0 ? static_cast<float>(clip) : std::numeric_limits<float>::infinity();
  const Clip<float> within{-bound, bound};
  const auto of_sigmoid = [=](Floats a) {
    return together ? each<float>(a, rational_sigmoid<float>) : sigmoid(a);
  };
  const auto of_tanh = [=](Floats a) {
    return together ? each<float>(a, rational_tanh<float>) : tanh(a);
  };
  for (std::int64_t d = 0; d < directions; ++d) {
    const bool back = d == 1 || backwards;
    const std::int64_t head = kHeadRows<ByteQuad>;
    const std::int8_t* const own_w = w + d * (head + quads_of(I)) * wide * 4;
    const std::int8_t* const own_r = r + d * (head + quads_of(O)) * wide * 4;
    const float *const own_bias = bias + d * wide, *const own_p = peepholes + d * panels * 48;
    const auto scaled = [](Ints sums, float step, const ByteQuad* steps) {
      return to_floats(sums) * (broadcast(step) * load_steps(steps));
    };
    sums_of_bytes<4>(words, T * N, I, own_w, wide, w_zeros ? w_zeros + d * wide : w_zeros, team,
                     [=, &words](std::int64_t row, std::int64_t column, Ints sums) {
                       const ByteQuad* const panel = panel_of<4>(as_quads(own_w), column / 64, I);
                       store(fed + row * wide + column,
                             scaled(sums, words.scale(row), panel + 64 + column % 64));
                     });
    float *const own_h = now.data(), *const own_c = own_h + N * panels * 16;
    for (std::int64_t n = 0; n < N; ++n) {
      const std::int64_t from = (d * N + n) * O, to = n * panels * 16;
      for (std::int64_t o = 0; o < O; ++o) {
        own_h[to + o] = h ? h[from + o] : 0;
        own_c[to + o] = c ? c[from + o] : 0;
      }
    }
    for (std::int64_t t = 0; t < most; ++t) {
      std::int64_t running = 0;
      for (std::int64_t n = 0; n < N; ++n)
        if (t < length.data()[n]) active.data()[running++] = n;
      Range255 all;
      for (std::int64_t n = 0; together && n < N; ++n)
        if (t <= length.data()[n] || (together == 2 && length.data()[n]))
          all.add(own_h + n * panels * 16, O);
      for (std::int64_t m = 0; m < running; ++m) {
        Range255 range = all;
        const float* const row = own_h + active.data()[m] * panels * 16;
        range.add(row, O);
        states.round(m, row, range.parameters());
      }
      team.split(panels, running * O * 16, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t k = begin; k < end; ++k) {
          // Every second step reads the matrix backwards. So a step begins with the part of a large
          // matrix that is still in the cache.
          const std::int64_t p = t % 2 ? begin + end - 1 - k : k;
          const ByteQuad* const panel = panel_of<4>(as_quads(own_r), p, O);
          const float *const b = own_bias + p * 64, *const peephole = own_p + p * 48;
          const auto step = [&](auto most, std::int64_t first, auto some) {
            float sums[most()][64];
            each_sum<4>(states.get() + first, some, panel, quads_of(O),
                        [&](std::int64_t m, int g, Ints sum) {
                          sum = states.unshifted(
                              first + m, sum, panel + g * 16,
                              r_zeros ? r_zeros + d * wide + p * 64 + g * 16 : r_zeros);
                          store(sums[m] + g * 16,
                                scaled(sum, states.scale(first + m), panel + 64 + g * 16));
                        });
            for (std::int64_t m = 0; m < some; ++m) {
              const std::int64_t n = active.data()[first + m];
              const std::int64_t at = back ? length.data()[n] - 1 - t : t;
              const float* const more = fed + (at * N + n) * wide + p * 64;
              float* const cell = own_c + (n * panels + p) * 16;
              const auto gate = [&](int g) {
                return load(more + g * 16) + load(sums[m] + g * 16) + load(b + g * 16);
              };
              const Floats before = load(cell);
              const Floats i = of_sigmoid(within(gate(0) + load(peephole) * before));
              const Floats f = tied ? broadcast(1.0f) - i
                                    : of_sigmoid(within(gate(2) + load(peephole + 32) * before));
              const Floats now_c = f * before + i * of_tanh(within(gate(3)));
              const Floats o = of_sigmoid(within(gate(1) + load(peephole + 16) * now_c));
              const Floats now_h = o * of_tanh(now_c);
              store(cell, now_c);
              store(own_h + (n * panels + p) * 16, now_h);  // the bytes of the old h have been read
              store_some(y + ((at * directions + d) * N + n) * O + p * 16, now_h, O - p * 16);
            }
          };
          if (running == 1)  // as a constant for the compiler: most streams have one sequence
            step(Fixed<1>(), 0, Fixed<1>());
          else
            in_parts(running, kRowsAtOnce, [&step](std::int64_t first, std::int64_t some) {
              step(Fixed<kRowsAtOnce>(), first, some);
            });
        }
      });
    }
    for (std::int64_t n = 0; n < N; ++n)
      for (std::int64_t o = 0; o < O; ++o) {  // a sequence without steps ends with zeros
        const std::int64_t to = (d * N + n) * O + o, from = n * panels * 16 + o;
        if (y_h) y_h[to] = length.data()[n] ? own_h[from] : 0;
        if (y_c) y_c[to] = length.data()[n] ? own_c[from] : 0;
      }
  }
  return Status::ok;
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
