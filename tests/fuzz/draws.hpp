// Numbers by chance, the same ones in every run, and memory that has an exact size.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

inline std::uint64_t drawn_state = 88172645463325252u;
inline std::uint64_t any() {
  drawn_state ^= drawn_state << 13;
  drawn_state ^= drawn_state >> 7;
  return drawn_state ^= drawn_state << 17;
}
inline std::uint64_t any_below(std::uint64_t end) { return any() % end; }
/// True once in so many times.
inline bool one_in(std::uint64_t times) { return any() % times == 0; }

inline void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

/// So many bytes and not one more, zeros at first, `past` bytes after a multiple of 64. No bytes
/// stand behind others, as allocators give one byte where none is wanted.
class Exact {
 public:
  explicit Exact(std::size_t bytes, std::size_t past = 0)
      : bytes_(bytes), past_(bytes > 0 ? past : past + 64) {
    check(!posix_memalign(&all_, 64, bytes_ + past_), "no memory");
    std::memset(data(), 0, bytes);
  }
  ~Exact() { std::free(all_); }
  Exact(const Exact&) = delete;
  unsigned char* data() const { return static_cast<unsigned char*>(all_) + past_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* all_ = nullptr;
  std::size_t bytes_, past_;
};
