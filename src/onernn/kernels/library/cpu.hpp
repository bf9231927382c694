// Finds the instruction sets that this CPU runs. This code itself runs on any x86-64 CPU and on any
// 64-bit ARM CPU.
#ifndef ONERNN_CPU_HPP
#define ONERNN_CPU_HPP

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace {

/// Names of instruction sets, with spaces between them.
struct Names {
  char text[96] = "";
  void add(const char* name) {
    if (*text) std::strcat(text, " ");
    std::strcat(text, name);
  }
};

#if defined(__x86_64__)
/// Asks Linux for permission to use tiles, because their state is larger than the default limit of
/// a process; Linux may refuse. Once granted, all threads and forked children have the permission.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

Names runnable() {
  // Does not use __builtin_cpu_supports: with some runtimes of Clang it knows no feature at all.
  struct Leaf {
    unsigned a = 0, b = 0, c = 0, d = 0;
    Leaf(unsigned leaf, unsigned part) { __get_cpuid_count(leaf, part, &a, &b, &c, &d); }
  };
  const auto all = [](unsigned found, unsigned wanted) { return (found & wanted) == wanted; };
  const Leaf first(1, 0), seventh(7, 0), more(7, 1);
  unsigned kept = 0, rest;  // the registers that the operating system saves
  if (first.c & bit_OSXSAVE) __asm__("xgetbv" : "=a"(kept), "=d"(rest) : "c"(0));
  constexpr unsigned kYmm = 0x06, kZmm = 0xe6, kAvxVnni = 1 << 4;
  constexpr unsigned k512 = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;

  Names out;
  if (!all(first.c, bit_SSE4_2 | bit_POPCNT)) return out;
  out.add("v2");
  if (!all(kept, kYmm) || !all(first.c, bit_AVX | bit_FMA | bit_F16C)) return out;
  if (!all(seventh.b, bit_AVX2)) return out;
  out.add("avx2");
  if (all(more.a, kAvxVnni)) out.add("avx2_vnni");
  if (!all(kept, kZmm) || !all(seventh.b, k512)) return out;
  out.add("avx512");
  if (!all(seventh.c, bit_AVX512VNNI)) return out;
  out.add("avx512_vnni");
  if (!all(more.a, bit_AVX512BF16)) return out;
  out.add("avx512_bf16");
  constexpr unsigned kTiles = 3u << 17, kAmx = 1u << 22 | 1u << 24 | 1u << 25;
  if (all(kept, kTiles) && all(seventh.d, kAmx) && may_use_tiles()) out.add("avx512_amx");
  return out;
}
#elif defined(__aarch64__)
Names runnable() {
  // Bits as numbers: the headers of old systems do not name the newer features. kV82 has the
  // features of ARMv8.2 that a compiler uses by itself: CRC32, atomics and RDM.
  constexpr unsigned long kV82 = 1ul << 7 | 1ul << 8 | 1ul << 12, kDotProd = 1ul << 20;
  constexpr unsigned long kI8mm = 1ul << 13, kBf16 = 1ul << 14;
  const auto all = [](unsigned long found, unsigned long wanted) {
    return (found & wanted) == wanted;
  };
  Names out;
  out.add("neon");
  if (!all(getauxval(AT_HWCAP), kV82 | kDotProd)) return out;
  out.add("neon_dotprod");
  if (all(getauxval(AT_HWCAP2), kI8mm | kBf16)) out.add("neon_i8mm_bf16");
  return out;
}
#else
Names runnable() {
  Names out;
  out.add("portable");
  return out;
}
#endif

}  // namespace

#endif
