// What this library is, and what this CPU runs. Nothing here needs more than any x86-64 has.
#include "exported.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

std::uint32_t onernn_abi() { return ONERNN_ABI; }

const char* onernn_isa() { return ONERNN_LIBRARY_ISA; }

const char* onernn_cpu() {
#if defined(__x86_64__)
  // CPUID, and XGETBV for the registers that the operating system keeps.
  __builtin_cpu_init();
#define ONERNN_HAS __builtin_cpu_supports
  if (!ONERNN_HAS("sse4.2") || !ONERNN_HAS("popcnt")) return "";
  unsigned a, b, c = 0, d;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);  // GCC 10 has no name for it
  if (!ONERNN_HAS("avx2") || !ONERNN_HAS("fma") || !f16c) return "v2";
  if (!ONERNN_HAS("avx512f") || !ONERNN_HAS("avx512bw") || !ONERNN_HAS("avx512vl") ||
      !ONERNN_HAS("avx512dq"))
    return "avx2";
  if (!ONERNN_HAS("avx512vnni") || !ONERNN_HAS("avx512bf16")) return "avx512";
  return "avx512_bf16";
#else
  return "portable";
#endif
}
