/* rows.c - blocks of values that ranks exchange: taken out, put together, reduced. */
#include "ranks.h"
#include <string.h>

/* Rows of a block, one of `of` side by side, into memory without gaps; or back. */
void take_rows(const uint8_t *from, size_t outer, int of, int block, size_t row, uint8_t *to) {
  for (size_t i = 0; i < outer; ++i) memcpy(to + i * row, from + (i * (size_t)of + (size_t)block) * row, row);
}
void put_rows(const uint8_t *from, size_t outer, int of, int block, size_t row, uint8_t *to) {
  for (size_t i = 0; i < outer; ++i) memcpy(to + (i * (size_t)of + (size_t)block) * row, from + i * row, row);
}

/* 16 bits in the order of their values; `infinite`: the greatest that is a number. */
static int32_t ordered(uint16_t bits) { return bits & 0x8000 ? -(bits & 0x7fff) : bits; }
static void greater_halves(uint16_t *to, const uint16_t *other, size_t n, uint16_t infinite) {
  for (size_t i = 0; i < n; ++i)
    if ((to[i] & 0x7fff) <= infinite && ((other[i] & 0x7fff) > infinite || ordered(other[i]) > ordered(to[i])))
      to[i] = other[i];
}

#define REDUCE(type, sum)                                                     \
  {                                                                           \
    type *a = (type *)(void *)to;                                             \
    const type *b = (const type *)(const void *)other;                        \
    if (op == SUM_OP)                                                         \
      for (size_t i = 0; i < n; ++i) a[i] = (type)((sum)a[i] + (sum)b[i]);    \
    else                                                                      \
      for (size_t i = 0; i < n; ++i) a[i] = a[i] >= b[i] || a[i] != a[i] ? a[i] : b[i]; \
    return;                                                                   \
  }

/* n elements and others into the first; whole numbers wrap, NaN stays. */
void reduce_rows(int dtype, uint64_t op, uint8_t *to, const uint8_t *other, size_t n) {
  switch (dtype) {
  case LUMC_F32: REDUCE(float, float)
  case LUMC_F64: REDUCE(double, double)
  case LUMC_I64: REDUCE(int64_t, uint64_t)
  case LUMC_I32: REDUCE(int32_t, uint32_t)
  case LUMC_I16: REDUCE(int16_t, uint32_t)
  case LUMC_I8: REDUCE(int8_t, uint32_t)
  case LUMC_U64: REDUCE(uint64_t, uint64_t)
  case LUMC_U32: REDUCE(uint32_t, uint32_t)
  case LUMC_U16: REDUCE(uint16_t, uint32_t)
  case LUMC_F16: greater_halves((void *)to, (const void *)other, n, 0x7c00); return;
  case LUMC_BF16: greater_halves((void *)to, (const void *)other, n, 0x7f80); return;
  default: REDUCE(uint8_t, uint32_t)
  }
}
