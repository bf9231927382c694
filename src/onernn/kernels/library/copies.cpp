// Compares memory with a copy of it: callers notice that it was written to.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "exported.hpp"

namespace {

constexpr std::int64_t kTurns = 1024, kLeast = 256, kLine = 64;

bool is_same(const onernn_copy& copy, std::int64_t turn, std::int64_t turns) {
  const auto* memory = static_cast<const char*>(copy.memory);
  const auto* held = static_cast<const char*>(copy.held);
  const std::int64_t part = (copy.bytes + kTurns - 1) / kTurns;
  const std::int64_t slice = std::max(kLeast, (part + kLine - 1) / kLine * kLine);
  const std::int64_t slices = (copy.bytes + slice - 1) / slice;
  if (turns >= slices) return !std::memcmp(memory, held, std::size_t(copy.bytes));
  for (const std::int64_t end = turn + turns; turn < end; ++turn) {
    const std::int64_t begin = turn % slices * slice;
    if (std::memcmp(memory + begin, held + begin, std::size_t(std::min(slice, copy.bytes - begin))))
      return false;
  }
  return true;
}

}  // namespace

int32_t onernn_unchanged(const onernn_copy* copies, int32_t count, int64_t turn, int64_t turns) {
  return std::all_of(copies, copies + count,
                     [=](const onernn_copy& each) { return is_same(each, turn, turns); });
}
