/* sha256.c - FIPS 180-4, with the SHA instructions of x86 where the CPU has them. */
#include "internal.h"
#include <string.h>

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void blocks_plain(uint32_t state[8], const uint8_t *p, size_t n) {
  for (; n; --n, p += 64) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; ++i)
      w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 |
             p[4 * i + 3];
    for (int i = 16; i < 64; ++i) {
      uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) +
             (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; ++i) {
      uint32_t a = s[0], e = s[4];
      uint32_t t = s[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & s[5]) ^ (~e & s[6])) +
                   K[i] + w[i];
      uint32_t u =
          (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
      memmove(s + 1, s, 7 * sizeof *s);
      s[4] += t;
      s[0] = t + u;
    }
    for (int i = 0; i < 8; ++i) state[i] += s[i];
  }
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>

static int has_sha(void) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 9 & 1) || !(c >> 19 & 1))
    return 0; /* SSSE3, SSE4.1 */
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1;
}

/* The state lives in two registers, ABEF and CDGH, as the instructions want it. */
__attribute__((target("sha,ssse3,sse4.1"))) static void blocks_sha(uint32_t state[8],
                                                                   const uint8_t *p, size_t n) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll);
  __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
  __m128i high = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
  __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xf0);
  for (; n; --n, p += 64) {
    __m128i w[4], a = abef, c = cdgh;
    for (int i = 0; i < 4; ++i)
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(p + 16 * i)), swap);
    for (int i = 0; i < 16; ++i) {
      if (i >= 4) { /* w[i] from the four vectors before it */
        __m128i t = _mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]);
        t = _mm_add_epi32(t, _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4));
        w[i & 3] = _mm_sha256msg2_epu32(t, w[(i + 3) & 3]);
      }
      __m128i k = _mm_add_epi32(w[i & 3], _mm_loadu_si128((const __m128i *)(K + 4 * i)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(k, 0x0e));
    }
    abef = _mm_add_epi32(abef, a);
    cdgh = _mm_add_epi32(cdgh, c);
  }
  low = _mm_shuffle_epi32(abef, 0x1b);
  high = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(low, high, 0xf0));
  _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(high, low, 8));
}
#else
static int has_sha(void) { return 0; }
#define blocks_sha blocks_plain
#endif

static void blocks(uint32_t state[8], const uint8_t *p, size_t n) {
  static int fast = -1; /* every thread would store the same value */
  int use = __atomic_load_n(&fast, __ATOMIC_RELAXED);
  if (use < 0) __atomic_store_n(&fast, use = has_sha(), __ATOMIC_RELAXED);
  (use ? blocks_sha : blocks_plain)(state, p, n);
}

void sha256_start(struct sha256 *h) {
  static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(h->state, initial, sizeof initial);
  h->bytes = 0;
}

void sha256_add(struct sha256 *h, const void *data, size_t size) {
  const uint8_t *p = data;
  size_t have = h->bytes % 64;
  h->bytes += size;
  if (have) {
    size_t take = size < 64 - have ? size : 64 - have;
    memcpy(h->block + have, p, take);
    p += take, size -= take;
    if (have + take < 64) return;
    blocks(h->state, h->block, 1);
  }
  blocks(h->state, p, size / 64);
  if (size % 64) memcpy(h->block, p + size / 64 * 64, size % 64);
}

void sha256_hex(struct sha256 *h, char hex[65]) {
  uint64_t bits = h->bytes * 8;
  uint8_t tail[72] = {0x80};
  size_t pad = (h->bytes % 64 < 56 ? 56 : 120) - h->bytes % 64;
  for (int i = 0; i < 8; ++i) tail[pad + i] = (uint8_t)(bits >> (56 - 8 * i));
  sha256_add(h, tail, pad + 8);
  for (int i = 0; i < 64; ++i)
    hex[i] = "0123456789abcdef"[h->state[i / 8] >> (28 - i % 8 * 4) & 15];
  hex[64] = 0;
}
