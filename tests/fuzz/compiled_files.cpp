// Damaged compiled files: an error or a result comes of each, and no byte beyond its memory is
// touched. Checksums are made right again, or nothing else would ever be read.
//
// With libFuzzer, or by itself: compiled_files COUNT FILES... damages each file COUNT times.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "draws.hpp"
#include "library/kernels.h"

namespace {

using Bytes = std::vector<unsigned char>;

std::int64_t word_at(const Bytes& file, std::size_t at) {
  std::int64_t word;
  std::memcpy(&word, file.data() + 8 * at, 8);
  return word;
}
void put(Bytes& file, std::size_t at, std::int64_t word) {
  std::memcpy(file.data() + 8 * at, &word, 8);
}

/// A word of the file becomes another one that stands in it, or nearly, or far away.
void damage(Bytes& file) {
  const std::size_t words = file.size() / 8;
  if (words < 6) return;
  const std::size_t most = std::size_t(std::min<std::int64_t>(
      std::max<std::int64_t>(word_at(file, 4), 6), static_cast<std::int64_t>(words)));
  const std::size_t at = any() % 50 ? 5 + any() % (most - 5) : any() % words;
  const std::int64_t now = word_at(file, at);
  const std::int64_t far[] = {
      0, 1, -1, 2, INT64_MAX, INT64_MIN, std::int64_t(1) << 31, std::int64_t(1) << 40};
  switch (any() % 6) {
    case 0:
      return put(file, at, now == INT64_MAX ? 0 : now + 1);
    case 1:
      return put(file, at, now == INT64_MIN ? 0 : now - 1);
    case 2:
      return put(file, at, far[any() % 8]);
    case 3:
      return put(file, at, word_at(file, 5 + any() % (most - 5)));
    case 4:
      return put(file, at, static_cast<std::int64_t>(any() % 64));
    default:
      return put(file, at, now ^ (std::int64_t(1) << any() % 64));
  }
}

/// What a program would do with a file; whether its model ran.
bool use(Bytes file) {
  if (file.size() >= 40) {
    put(file, 3, static_cast<std::int64_t>(file.size()));
    put(file, 2, onernn_checksum(file.data() + 24, static_cast<std::int64_t>(file.size()) - 24));
  }
  onernn_model* model = nullptr;
  if (onernn_open_bytes(file.data(), static_cast<std::int64_t>(file.size()), 1, &model)) {
    check(!model && *onernn_message(), "an error without words");
    return false;
  }
  onernn_stream* stream = nullptr;
  bool ran = false;
  if (!onernn_stream_open(model, &stream)) {
    check(!onernn_limit(stream, 1 << 20, 2000), "limits");
    const std::int32_t inputs = onernn_inputs(model), values = inputs + onernn_outputs(model);
    std::vector<std::vector<double>> memory(static_cast<std::size_t>(inputs));
    const std::int64_t rows = 6, offsets[] = {0, 2, rows};
    for (std::int32_t value = 0; value < inputs; ++value) {
      std::vector<std::int64_t> dims;
      std::int64_t count = 1;
      for (std::int32_t axis = 0; axis < onernn_rank(model, value); ++axis) {
        const std::int64_t size = onernn_dim(model, value, axis);
        const std::int64_t open = one_in(8) ? static_cast<std::int64_t>(any_below(6)) : 3 + !axis;
        dims.push_back(size >= 0 ? size : onernn_levels(model, value) && !axis ? rows : open);
        if (__builtin_mul_overflow(count, dims.back(), &count) || count > 1 << 20) count = -1;
        if (count < 0) break;
      }
      if (count < 0) continue;  // an input that is missing
      auto& own = memory[static_cast<std::size_t>(value)];
      own.assign(static_cast<std::size_t>(count) + 1, 0.0);
      for (double& one : own) one = any() % 3 ? 0 : 5e-320;  // integers up to some thousands
      onernn_give(stream, value, own.data(), dims.data());
      const std::int32_t levels = onernn_levels(model, value);
      for (std::int32_t level = 0; level < levels; ++level)
        onernn_give_offsets(stream, value, level, offsets, level + 1 < levels ? 1 : 2);
    }
    for (int times = 0; times < 2; ++times) {
      if (onernn_run(stream)) {
        check(*onernn_message(), "an error without words");
        continue;
      }
      ran = true;
      for (std::int32_t value = inputs; value < values; ++value) {
        std::int64_t bytes = 1;
        for (std::int32_t axis = 0; axis < onernn_rank(model, value); ++axis)
          bytes *= onernn_size(stream, value, axis);
        const auto* const numbers =
            static_cast<const unsigned char*>(onernn_numbers(stream, value));
        volatile unsigned char sum = 0;
        for (std::int64_t at = 0; at < bytes; ++at) sum = sum + numbers[at];
        for (std::int32_t level = 0; level < onernn_levels(model, value); ++level)
          check(*onernn_offsets(stream, value, level) == 0, "offsets");
      }
    }
  }
  onernn_stream_close(stream);
  onernn_close(model);
  return ran;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  use(Bytes(data, data + size));
  return 0;
}

#ifdef ONERNN_ALONE
int main(int count, char** arguments) {
  const long times = count > 1 ? std::atol(arguments[1]) : 0;
  long ran = 0, all = 0, whole_ran = 0;
  for (int at = 2; at < count; ++at) {
    std::ifstream in(arguments[at], std::ios::binary);
    const Bytes whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    whole_ran += use(whole);
    for (long time = 0; time < times; ++time, ++all) {
      Bytes file = whole;
      if (one_in(64)) file.resize(any() % file.size());
      for (std::uint64_t left = one_in(3) ? 3 : 1; left > 0; --left) damage(file);
      ran += use(std::move(file));
    }
  }
  std::printf("%ld damaged files, %ld of them still ran; %ld of %d whole ones\n", all, ran,
              whole_ran, count - 2);
}
#else
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  drawn_state ^= seed + 1;
  if (any() % 4 == 0) return LLVMFuzzerMutate(data, size, most);
  Bytes file(data, data + size);
  damage(file);
  std::copy(file.begin(), file.end(), data);
  return size;
}
#endif
