/* Preloaded into a process, hides from all of its libraries what a CPU of the class CPU_CLASS
 * (avx2, avx512, avx512_vnni) lacks: so peers that have no setting for it are capped as well. Linux
 * makes cpuid fault (arch_prctl(2), ARCH_CPUID), and the handler answers in its place. Bits: Intel
 * SDM, volume 2, CPUID leaf 7.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { kArchCpuid = 0x1012, kFaults = 0, kAnswers = 1 };

#define BIT(n) (1u << (n))

struct Registers {
  uint32_t a, b, c, d;
};

/* By class: what leaf 7, subleaf 0 hides. No class has AMX, FP16 or VBMI. */
static const uint32_t kAvx512 =
    BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31);
static const uint32_t kVnni = BIT(11), kVbmi = BIT(1) | BIT(6) | BIT(12) | BIT(14);
static const uint32_t kAmxAndOthers =
    BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25);
/* Subleaf 1: AVX-VNNI, AVX512_BF16, AMX_FP16, AVX-IFMA; the 8 and 16 bit forms of AVX-VNNI, AVX10.
 */
static const uint32_t kLaterA = BIT(4) | BIT(5) | BIT(21) | BIT(23);
static const uint32_t kLaterD = BIT(4) | BIT(5) | BIT(8) | BIT(10) | BIT(19);

static int has_avx512, has_vnni;

static void answer(int signal_number, siginfo_t *info, void *context) {
  (void)info;
  greg_t *const registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  if (memcmp((const void *)registers[REG_RIP], "\x0f\xa2", 2) != 0) { /* no cpuid: a real fault */
    signal(signal_number, SIG_DFL);
    return;
  }
  const uint32_t leaf = (uint32_t)registers[REG_RAX], subleaf = (uint32_t)registers[REG_RCX];
  struct Registers r;
  syscall(SYS_arch_prctl, kArchCpuid, kAnswers);
  __cpuid_count(leaf, subleaf, r.a, r.b, r.c, r.d);
  syscall(SYS_arch_prctl, kArchCpuid, kFaults);
  if (leaf == 7 && subleaf == 0) {
    if (!has_avx512) r.b &= ~kAvx512;
    r.c &= ~(has_vnni ? kVbmi : kVbmi | kVnni);
    r.d &= ~kAmxAndOthers;
  } else if (leaf == 7 && subleaf == 1) {
    r.a &= ~kLaterA;
    r.d &= ~kLaterD;
  }
  registers[REG_RAX] = r.a;
  registers[REG_RBX] = r.b;
  registers[REG_RCX] = r.c;
  registers[REG_RDX] = r.d;
  registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
  const char *const class = getenv("CPU_CLASS");
  if (!class) return;
  has_vnni = strcmp(class, "avx512_vnni") == 0;
  has_avx512 = has_vnni || strcmp(class, "avx512") == 0;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, 0);
  syscall(SYS_arch_prctl, kArchCpuid, kFaults);
}
