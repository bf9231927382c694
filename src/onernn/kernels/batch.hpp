// A batch, which says at which rows of an array its sequences are. Kernels read the rows in place,
// without padding.
//
// Step t of sequence n is row first[n] + t * stride, or first[n] + start[t] if `start` is not null.
// This describes LoD (one sequence after the other), TNC, NTC, and PyTorch's packed layout (all
// first steps, then all second steps, and so on).
#ifndef ONERNN_BATCH_HPP
#define ONERNN_BATCH_HPP

#include <algorithm>
#include <cstdint>

#include "isa.hpp"
#include "memory.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

struct Batch {
  std::int64_t sequences, stride;
  const std::int64_t* start;   // Null, or per step: replaces t * stride.
  const std::int64_t* first;   // (N): the row of each sequence's first step.
  const std::int64_t* length;  // (N): how many steps each sequence has.
  const std::int64_t* order;   // (N): indices of the sequences, the longest one first.

  /// Returns the row of step t of sequence n.
  std::int64_t row(std::int64_t n, std::int64_t t) const {
    return first[n] + (start ? start[t] : t * stride);
  }
};

/// Makes batches of at most `most` sequences. A batch is valid until the next one is made.
class Batching {
 public:
  explicit Batching(std::int64_t most) : first_(most), length_(most), order_(most) {}

  /// T steps of N sequences, time-major: (T, N, C). Of sequence n only the first lengths[n] steps
  /// count; all if `lengths` is null.
  Batch tnc(std::int64_t T, std::int64_t N, const std::int64_t* lengths = nullptr) {
    return dense(T, N, lengths, 1, N);
  }

  /// The same with sequences first: (N, T, C).
  Batch ntc(std::int64_t T, std::int64_t N, const std::int64_t* lengths = nullptr) {
    return dense(T, N, lengths, T, 1);
  }

  /// N sequences one after the other; sequence n begins at offsets[n].
  Batch lod(const std::int64_t* offsets, std::int64_t N) {
    std::int64_t *first = first_.data(), *length = length_.data(), *order = order_.data();
    for (std::int64_t n = 0; n < N; ++n) {
      first[n] = offsets[n];
      length[n] = offsets[n + 1] - offsets[n];
      order[n] = n;
    }
    sort(N);
    return {N, 1, nullptr, first, length, order};
  }

  /// PyTorch's PackedSequence: the rows of step t begin at starts[t] and end at starts[t + 1]. A
  /// step never has more rows than the step before it. In each step that sequence n reaches, it is
  /// row n.
  Batch packed(const std::int64_t* starts, std::int64_t T) {
    const std::int64_t N = T ? starts[1] - starts[0] : 0;
    for (std::int64_t n = 0, t = T; n < N; ++n) {
      while (starts[t] - starts[t - 1] <= n) --t;
      length_.data()[n] = t;
      first_.data()[n] = order_.data()[n] = n;
    }
    return {N, 0, starts, first_.data(), length_.data(), order_.data()};
  }

 private:
  Batch dense(std::int64_t T, std::int64_t N, const std::int64_t* lengths, std::int64_t next,
              std::int64_t stride) {
    for (std::int64_t n = 0; n < N; ++n) {
      first_.data()[n] = n * next;
      length_.data()[n] = lengths ? lengths[n] : T;
      order_.data()[n] = n;
    }
    if (lengths) sort(N);
    return {N, stride, nullptr, first_.data(), length_.data(), order_.data()};
  }

  /// Sorts the sequences by length, the longest one first.
  void sort(std::int64_t N) {
    const std::int64_t* length = length_.data();
    std::sort(order_.data(), order_.data() + N, [length](std::int64_t a, std::int64_t b) {
      return length[a] != length[b] ? length[a] > length[b] : a < b;
    });
  }

  Memory<std::int64_t> first_, length_, order_;
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
