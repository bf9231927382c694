// Sequences of different lengths: sequence n of a value is its rows offsets[n] to offsets[n + 1],
// of `inner` numbers each. Formulas: Paddle's sequence operators.
#ifndef ONERNN_SEQUENCES_HPP
#define ONERNN_SEQUENCES_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "axes.hpp"
#include "formulas.hpp"
#include "isa.hpp"
#include "status.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

using Offsets = const std::int64_t*;

/// Checks that offsets begin at 0, end at the number of steps and never decrease.
inline Status sound(Offsets offsets, std::int64_t count, std::int64_t words) {
  for (std::int64_t n = 0; n < count; ++n)
    if (offsets[n] > offsets[n + 1]) return Status::bad_lengths;
  return offsets[0] == 0 && offsets[count] == words ? Status::ok : Status::bad_lengths;
}

/// Returns the number of steps of the longest sequence.
inline std::int64_t longest(Offsets offsets, std::int64_t count) {
  std::int64_t most = 0;
  for (std::int64_t n = 0; n < count; ++n) most = (std::max)(most, offsets[n + 1] - offsets[n]);
  return most;
}

/// Sets `size` to the number of steps of the longest sequence.
inline void find_longest(std::int64_t& size, Offsets offsets, std::int64_t count) {
  size = longest(offsets, count);
}

/// Copies offsets from an input of the model, and checks them.
template <class I>
Status take_offsets(std::int64_t* offsets, const I* given, std::int64_t count, std::int64_t words) {
  if (count < 0) return Status::bad_lengths;
  std::copy_n(given, count + 1, offsets);
  return sound(offsets, count, words);
}

/// Appends the offsets of one value to `before` offsets; `rows` steps come before its first step.
inline void append_offsets(std::int64_t* offsets, Offsets from, std::int64_t before,
                           std::int64_t rows, std::int64_t count) {
  for (std::int64_t n = 0; n <= count; ++n) offsets[before + n] = rows + from[n];
}

/// Appends `count` elements of x after the first `before` elements of out.
template <class T>
void append(T* out, const T* x, std::int64_t before, std::int64_t count) {
  std::copy_n(x, count, out + before);
}

/// Adds the offsets of one value to the offsets of joined sequences. The first value sets these.
inline void add_offsets(std::int64_t* offsets, Offsets from, std::int64_t count,
                        std::int64_t first) {
  for (std::int64_t n = 0; n <= count; ++n) offsets[n] = from[n] + (first ? 0 : offsets[n]);
}

/// Appends sequence n of x to sequence n of out. `ends` holds the row at which each sequence of out
/// ends so far, and is updated.
template <class T>
void join(T* out, std::int64_t* ends, Offsets offsets, const T* x, Offsets from, std::int64_t count,
          std::int64_t inner, std::int64_t first) {
  for (std::int64_t n = 0; n < count; ++n) {
    if (first) ends[n] = offsets[n];
    const std::int64_t length = from[n + 1] - from[n];
    std::copy_n(x + from[n] * inner, length * inner, out + ends[n] * inner);
    ends[n] += length;
  }
}

template <class I>
void lengths(I* out, Offsets offsets, std::int64_t count) {
  for (std::int64_t n = 0; n < count; ++n) out[n] = static_cast<I>(offsets[n + 1] - offsets[n]);
}

/// Returns the row of step t of sequence n in a padded array.
inline std::int64_t padded_row(std::int64_t n, std::int64_t t, std::int64_t time,
                               std::int64_t count, std::int64_t time_major) {
  return time_major ? t * count + n : n * time + t;
}

/// Pads sequences to out, (time, count, inner) or (count, time, inner). The padding is *value, or
/// one step of values if `word` is set, or zeros if `value` is null.
template <class T>
Status pad(T* out, const T* x, Offsets offsets, Optional<const T> value, std::int64_t word,
           std::int64_t time, std::int64_t count, std::int64_t inner, std::int64_t time_major) {
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t begin = offsets[n], length = offsets[n + 1] - begin;
    if (length > time) return Status::bad_lengths;
    for (std::int64_t t = 0; t < time; ++t) {
      T* to = out + padded_row(n, t, time, count, time_major) * inner;
      if (t < length)
        std::copy_n(x + (begin + t) * inner, inner, to);
      else if (word)
        std::copy_n(value, inner, to);
      else
        std::fill_n(to, inner, value ? *value : T());
    }
  }
  return Status::ok;
}

/// Copies the steps of a padded array, sequence by sequence, and counts them.
template <class T, class I>
Status unpad(T* out, const T* x, const I* lengths, std::int64_t* offsets, std::int64_t& words,
             std::int64_t time, std::int64_t count, std::int64_t inner, std::int64_t time_major) {
  offsets[0] = 0;
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t length = lengths[n];
    if (length < 0 || length > time) return Status::bad_lengths;
    for (std::int64_t t = 0; t < length; ++t)
      std::copy_n(x + padded_row(n, t, time, count, time_major) * inner, inner,
                  out + (offsets[n] + t) * inner);
    offsets[n + 1] = offsets[n] + length;
  }
  words = offsets[count];
  return Status::ok;
}

/// How `pool` makes one row from the steps of a sequence.
enum : std::int64_t { kFirstWord = 0, kLastWord = 1, kMax = 2, kSum = 3, kAverage = 4, kSqrt = 5 };

/// out (count, inner) = one row per sequence; `empty` is the value for a sequence without steps.
template <class T>
void pool(T* out, const T* x, Offsets offsets, std::int64_t count, std::int64_t inner,
          std::int64_t kind, double empty) {
  for (std::int64_t n = 0; n < count; ++n, out += inner) {
    const std::int64_t begin = offsets[n], end = offsets[n + 1];
    if (begin == end) {
      std::fill_n(out, inner, static_cast<T>(empty));
      continue;
    }
    std::copy_n(x + (kind == kLastWord ? end - 1 : begin) * inner, inner, out);
    if (kind == kFirstWord || kind == kLastWord) continue;
    for (std::int64_t row = begin + 1; row < end; ++row)
      for (std::int64_t k = 0; k < inner; ++k) {
        const T next = x[row * inner + k];
        out[k] = kind == kMax ? most(out[k], next) : static_cast<T>(out[k] + next);
      }
    const auto length = static_cast<T>(end - begin);
    if (kind == kAverage || kind == kSqrt)
      for (std::int64_t k = 0; k < inner; ++k)
        out[k] = static_cast<T>(out[k] / (kind == kSqrt ? std::sqrt(length) : length));
  }
}

template <class T>
void reverse_sentences(T* out, const T* x, Offsets offsets, std::int64_t count,
                       std::int64_t inner) {
  for (std::int64_t n = 0; n < count; ++n)
    for (std::int64_t k = offsets[n], from = offsets[n + 1] - 1; from >= offsets[n]; ++k, --from)
      std::copy_n(x + from * inner, inner, out + k * inner);
}

/// Softmax over the steps of each sequence. x has one number per step.
template <class T>
void sentence_softmax(T* out, const T* x, Offsets offsets, std::int64_t count) {
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t begin = offsets[n];
    softmax(out + begin, x + begin, 1, offsets[n + 1] - begin, 1);
  }
}

/// out (steps, length, inner) = for each step, `length` neighbouring steps, of which the first one
/// is `start` steps away. Steps outside of the sequence are zeros.
template <class T>
void context(T* out, const T* x, Offsets offsets, std::int64_t count, std::int64_t inner,
             std::int64_t length, std::int64_t start) {
  for (std::int64_t n = 0; n < count; ++n)
    for (std::int64_t row = offsets[n]; row < offsets[n + 1]; ++row)
      for (std::int64_t k = 0; k < length; ++k, out += inner) {
        const std::int64_t from = row + k + start;
        if (from >= offsets[n] && from < offsets[n + 1])
          std::copy_n(x + from * inner, inner, out);
        else
          std::fill_n(out, inner, T());
      }
}

/// Repeats row n as often as sequence n has steps.
template <class T>
void expand(T* out, const T* x, Offsets offsets, std::int64_t count, std::int64_t inner) {
  for (std::int64_t n = 0; n < count; ++n)
    for (std::int64_t k = offsets[n]; k < offsets[n + 1]; ++k)
      std::copy_n(x + n * inner, inner, out + k * inner);
}

/// Says whether a is larger than b. NaN counts as larger than every number, the same as in NumPy.
template <class T>
inline bool beyond(T a, T b) {
  return !(a <= b) && b == b;
}

/// Computes the Viterbi path: the tags of each sequence with the highest score; ties go to the
/// lower tag. emission (steps, tags). transition (tags + 2, tags) has the scores of starting with a
/// tag, of ending with it, and then of going from tag i to tag j. Formula: Paddle's operator
/// crf_decoding. `best` (2, tags) and `came_from` (steps, tags) are scratch memory.
template <class T>
void viterbi(std::int64_t* out, const T* emission, const T* transition, Offsets offsets,
             std::int64_t count, std::int64_t tags, T* best, std::int32_t* came_from) {
  const T *starts = transition, *ends = transition + tags, *moves = transition + 2 * tags;
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t begin = offsets[n], end = offsets[n + 1];
    if (begin == end) continue;
    T *now = best, *next = best + tags;
    for (std::int64_t j = 0; j < tags; ++j) now[j] = starts[j] + emission[begin * tags + j];
    for (std::int64_t w = begin + 1; w < end; ++w, std::swap(now, next)) {
      std::int32_t* from = came_from + w * tags;
      for (std::int64_t j = 0; j < tags; ++j) next[j] = now[0] + moves[j];
      std::fill_n(from, tags, 0);
      for (std::int64_t i = 1; i < tags; ++i)
        for (std::int64_t j = 0; j < tags; ++j) {
          const T score = now[i] + moves[i * tags + j];
          const bool better = beyond(score, next[j]);
          from[j] = better ? static_cast<std::int32_t>(i) : from[j];
          next[j] = better ? score : next[j];
        }
      for (std::int64_t j = 0; j < tags; ++j) next[j] += emission[w * tags + j];
    }
    std::int64_t tag = 0;
    for (std::int64_t j = 1; j < tags; ++j)
      if (beyond(now[j] + ends[j], now[tag] + ends[tag])) tag = j;
    for (std::int64_t w = end - 1; w >= begin; --w) {
      out[w] = tag;
      if (w > begin) tag = came_from[w * tags + tag];
    }
  }
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
