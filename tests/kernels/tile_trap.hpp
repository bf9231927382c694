// Runs the instructions of AMX on a CPU without them: the handler of the signal that each of them
// raises decodes its bytes, and does what Intel's manual says (volume 2). Nothing here is the
// package's: sums are the CPU's own, in the mode that the manual names.
#pragma once

#include <immintrin.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace trap {

struct Tile {
  int rows, bytes;
  std::uint32_t words[16][16];
};
inline thread_local Tile tiles[8];
inline thread_local bool configured = false;
inline int trapped = 0;

[[noreturn]] inline void stop(const char* why) {
  std::fprintf(stderr, "a tile instruction would fault: %s\n", why);
  std::abort();
}

inline void configure(const std::uint8_t* from) {
  if (from[0] != 1 || from[1] != 0) stop("palette or start row");
  for (int i = 2; i < 16; ++i)
    if (from[i]) stop("reserved bytes");
  for (int i = 0; i < 8; ++i) {
    std::uint16_t bytes;
    std::memcpy(&bytes, from + 16 + 2 * i, 2);
    tiles[i] = {from[48 + i], bytes, {}};
    if (!tiles[i].rows || tiles[i].rows > 16 || !bytes || bytes > 64) stop("shape of a tile");
  }
  configured = true;
}

inline void load(Tile& to, const char* from, std::int64_t apart) {
  std::memset(to.words, 0, sizeof to.words);
  for (int r = 0; r < to.rows; ++r) std::memcpy(to.words[r], from + r * apart, to.bytes);
}

inline float number(std::uint32_t bits) {
  float a;
  std::memcpy(&a, &bits, sizeof a);
  return a;
}

/// Flushes subnormal numbers, and rounds to nearest even.
[[gnu::target("fma"), gnu::noinline]] inline void multiply_pairs(Tile& c, const Tile& a,
                                                                 const Tile& b) {
  const unsigned kept = _mm_getcsr();
  _mm_setcsr(0x1f80 | 0x8040);
  for (int m = 0; m < c.rows; ++m)
    for (int n = 0; n < c.bytes / 4; ++n) {
      __m128 even = _mm_setzero_ps(), odd = even;
      for (int k = 0; k < a.bytes / 4; ++k) {
        const std::uint32_t x = a.words[m][k], y = b.words[k][n];
        even = _mm_fmadd_ss(_mm_set_ss(number(x << 16)), _mm_set_ss(number(y << 16)), even);
        odd =
            _mm_fmadd_ss(_mm_set_ss(number(x >> 16 << 16)), _mm_set_ss(number(y >> 16 << 16)), odd);
      }
      const __m128 sum = _mm_add_ss(_mm_set_ss(number(c.words[m][n])), _mm_add_ss(even, odd));
      _mm_store_ss(reinterpret_cast<float*>(&c.words[m][n]), sum);
    }
  _mm_setcsr(kept);
}

inline void multiply_quads(Tile& c, const Tile& a, const Tile& b) {
  for (int m = 0; m < c.rows; ++m)
    for (int n = 0; n < c.bytes / 4; ++n)
      for (int k = 0; k < a.bytes; ++k) {
        const auto x = reinterpret_cast<const std::uint8_t*>(a.words[m])[k];
        const auto y = reinterpret_cast<const std::int8_t*>(&b.words[k / 4][n])[k % 4];
        c.words[m][n] += static_cast<std::uint32_t>(x * y);
      }
}

/// Runs the instruction at `at`; returns its bytes, 0 if it is not one of AMX.
inline int run(const std::uint8_t* at, greg_t* registers) {
  static constexpr int kOrder[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                     REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                     REG_R12, REG_R13, REG_R14, REG_R15};
  if (at[0] != 0xc4 || (at[1] & 0x1f) != 2 || at[2] & 0x84) return 0;  // 0F38, W0, 128 bits
  const int prefix = at[2] & 3, opcode = at[3], mod = at[4] >> 6, rm = at[4] & 7;
  const int reg = at[4] >> 3 & 7, third = ~at[2] >> 3 & 15;
  enum { kNone, k66, kF3, kF2 };
  if (mod == 3) {
    if (opcode == 0x49 && prefix == kNone && at[4] == 0xc0) return configured = false, 5;
    if (opcode != 0x49 && opcode != 0x5c && opcode != 0x5e) return 0;
    if (!configured) stop("no shapes");
    if (opcode == 0x49 && prefix == kF2) {
      std::memset(tiles[reg].words, 0, sizeof tiles[reg].words);
      return 5;
    }
    Tile& c = tiles[reg];
    const Tile &a = tiles[rm], &b = tiles[third & 7];
    if (reg == rm || reg == third || rm == third || third > 7) stop("the same tile");
    if (c.rows != a.rows || c.bytes != b.bytes || a.bytes / 4 != b.rows) stop("other shapes");
    if (opcode == 0x5c && prefix == kF3) return multiply_pairs(c, a, b), 5;
    if (opcode == 0x5e && prefix == k66) return multiply_quads(c, a, b), 5;
    return 0;
  }
  int size = 5;
  std::int64_t address = 0, apart = 0;
  const bool has_base = !(mod == 0 && (rm == 4 ? at[5] & 7 : rm) == 5);
  if (rm == 4) {
    const int index = (at[5] >> 3 & 7) | (at[1] & 0x40 ? 0 : 8);
    if (index != 4) apart = registers[kOrder[index]] << (at[5] >> 6);
    size = 6;
  }
  if (has_base) address = registers[kOrder[(rm == 4 ? at[5] & 7 : rm) | (at[1] & 0x20 ? 0 : 8)]];
  std::int32_t further = 0;
  if (mod == 1) further = static_cast<std::int8_t>(at[size++]);
  if (mod == 2 || !has_base) {
    std::memcpy(&further, at + size, 4);
    size += 4;
    if (!has_base && rm != 4) address = reinterpret_cast<std::int64_t>(at + size);
  }
  address += further;
  if (opcode == 0x49 && prefix == kNone && reg == 0)
    return configure(reinterpret_cast<const std::uint8_t*>(address + apart)), size;
  if (opcode != 0x4b || rm != 4) return 0;
  if (!configured) stop("no shapes");
  Tile& tile = tiles[reg];
  if (prefix == kF2) return load(tile, reinterpret_cast<const char*>(address), apart), size;
  if (prefix != kF3) return 0;
  for (int r = 0; r < tile.rows; ++r)
    std::memcpy(reinterpret_cast<char*>(address) + r * apart, tile.words[r], tile.bytes);
  return size;
}

inline void handle(int, siginfo_t*, void* context) {
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const int size = run(reinterpret_cast<const std::uint8_t*>(registers[REG_RIP]), registers);
  if (!size) signal(SIGILL, SIG_DFL);  // and comes back
  registers[REG_RIP] += size;
  __atomic_fetch_add(&trapped, 1, __ATOMIC_RELAXED);
}

/// Returns whether the CPU itself has the instructions and Linux permits them; else they are
/// trapped.
inline bool set() {
  constexpr int kRequest = 0x1023, kTiles = 18;
  if (syscall(SYS_arch_prctl, kRequest, kTiles) == 0) return true;
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGILL, &action, nullptr);
  return false;
}

}  // namespace trap
