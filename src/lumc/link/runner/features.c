/* features.c - what this CPU can do, under the names that the linker writes into a plan: the
 * compiler's macros in lower case (__AVX512VNNI__ -> avx512vnni). */
#include "internal.h"
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* `state`: the bits of XCR0 that the operating system must have enabled to save the registers. */
enum { EAX, EBX, ECX, EDX, PLAIN = 0, YMM = 0x06, ZMM = 0xe6, TILES = 0x60000 };
static const struct {
  const char *name;
  unsigned leaf, subleaf, reg, bit, state;
} features[] = {
    {"sse3", 1, 0, ECX, 0, PLAIN},
    {"ssse3", 1, 0, ECX, 9, PLAIN},
    {"sse4_1", 1, 0, ECX, 19, PLAIN},
    {"sse4_2", 1, 0, ECX, 20, PLAIN},
    {"movbe", 1, 0, ECX, 22, PLAIN},
    {"popcnt", 1, 0, ECX, 23, PLAIN},
    {"lzcnt", 0x80000001, 0, ECX, 5, PLAIN},
    {"bmi", 7, 0, EBX, 3, PLAIN},
    {"bmi2", 7, 0, EBX, 8, PLAIN},
    {"fma", 1, 0, ECX, 12, YMM},
    {"avx", 1, 0, ECX, 28, YMM},
    {"f16c", 1, 0, ECX, 29, YMM},
    {"avx2", 7, 0, EBX, 5, YMM},
    {"avxvnni", 7, 1, EAX, 4, YMM},
    {"gfni", 7, 0, ECX, 8, PLAIN},
    {"avx512f", 7, 0, EBX, 16, ZMM},
    {"avx512dq", 7, 0, EBX, 17, ZMM},
    {"avx512ifma", 7, 0, EBX, 21, ZMM},
    {"avx512cd", 7, 0, EBX, 28, ZMM},
    {"avx512bw", 7, 0, EBX, 30, ZMM},
    {"avx512vl", 7, 0, EBX, 31, ZMM},
    {"avx512vbmi", 7, 0, ECX, 1, ZMM},
    {"avx512vbmi2", 7, 0, ECX, 6, ZMM},
    {"avx512vnni", 7, 0, ECX, 11, ZMM},
    {"avx512bitalg", 7, 0, ECX, 12, ZMM},
    {"avx512vpopcntdq", 7, 0, ECX, 14, ZMM},
    {"avx512fp16", 7, 0, EDX, 23, ZMM},
    {"avx512bf16", 7, 1, EAX, 5, ZMM},
    {"amx_bf16", 7, 0, EDX, 22, TILES},
    {"amx_tile", 7, 0, EDX, 24, TILES},
    {"amx_int8", 7, 0, EDX, 25, TILES},
};

const char *cpu_arch(void) { return "x86_64"; }

static unsigned enabled_states(void) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0; /* no OSXSAVE */
  __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return a;
}

static int has(const char *name) {
  for (size_t i = 0; i < sizeof features / sizeof *features; ++i)
    if (!strcmp(features[i].name, name)) {
      unsigned r[4], want = features[i].state;
      return __get_cpuid_count(features[i].leaf, features[i].subleaf, r, r + 1, r + 2, r + 3) &&
             r[features[i].reg] >> features[i].bit & 1 && (enabled_states() & want) == want;
    }
  return 0;
}
#elif defined(__aarch64__)
const char *cpu_arch(void) { return "aarch64"; }

#if defined(__linux__)
#include <sys/auxv.h>
static int has(const char *name) { /* bits of the Linux ABI, asm/hwcap.h */
  unsigned long one = getauxval(AT_HWCAP), two = getauxval(AT_HWCAP2);
  if (!strcmp(name, "neon")) return one >> 1 & 1;
  if (!strcmp(name, "fp16")) return (one >> 9 & 1) && (one >> 10 & 1);
  if (!strcmp(name, "dotprod")) return one >> 20 & 1;
  if (!strcmp(name, "sve")) return one >> 22 & 1;
  if (!strcmp(name, "i8mm")) return two >> 13 & 1;
  if (!strcmp(name, "bf16")) return two >> 14 & 1;
  return 0;
}
#elif defined(__APPLE__)
#include <sys/sysctl.h>
static int has(const char *name) {
  static const char *const known[][2] = {{"fp16", "hw.optional.arm.FEAT_FP16"},
                                         {"dotprod", "hw.optional.arm.FEAT_DotProd"},
                                         {"i8mm", "hw.optional.arm.FEAT_I8MM"},
                                         {"bf16", "hw.optional.arm.FEAT_BF16"}};
  int value = 0;
  size_t size = sizeof value;
  if (!strcmp(name, "neon")) return 1;
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (!strcmp(known[i][0], name)) return !sysctlbyname(known[i][1], &value, &size, 0, 0) && value;
  return 0;
}
#endif
#else
const char *cpu_arch(void) { return "generic"; }
static int has(const char *name) {
  (void)name;
  return 0;
}
#endif

const char *cpu_lacks(const char *const *names, size_t n) {
  for (size_t i = 0; i < n; ++i)
    if (!has(names[i])) return names[i];
  return NULL;
}
