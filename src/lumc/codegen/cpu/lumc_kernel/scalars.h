/* ---- scalars: what is the same for all lanes */

static const char lumc_zeros[1 << 14] __attribute__((aligned(64), unused)) = {0}; /* a row */

/* Hides how a value was chosen: of a loop over lanes compilers make two, one for either choice, and
 * vectorise one of them at most. */
#define LUMC_CHOSEN(value) __asm__ volatile("" : "+g"(value))
/* Hides how an index goes on: gcc 12 adds the wrong elements where it makes vectors of rows that are
 * read backwards and summed in order. */
#define LUMC_HIDE(index) __asm__("" : "+r"(index))

/* ---- bits */

static inline float lumc_float(int32_t bits)
{
    float f;
    __builtin_memcpy(&f, &bits, 4);
    return f;
}
static inline int32_t lumc_bits(float f)
{
    int32_t bits;
    __builtin_memcpy(&bits, &f, 4);
    return bits;
}
static inline double lumc_double(int64_t bits)
{
    double f;
    __builtin_memcpy(&f, &bits, 8);
    return f;
}
static inline int64_t lumc_bits_f64(double f)
{
    int64_t bits;
    __builtin_memcpy(&bits, &f, 8);
    return bits;
}

/* ---- indices */

static inline long lumc_min(long a, long b) { return a < b ? a : b; }
/* the largest of the shares that n are in, as alike as may be, each of most or fewer */
static inline long lumc_share(long n, long most)
{
    const long shares = (n + most - 1) / most;
    return (n + shares - 1) / shares;
}
static inline long lumc_clamp(long x, long lo, long hi) { return x < lo ? lo : x > hi ? hi : x; }
static inline long lumc_floor_div(long a, long b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
static inline long lumc_floor_mod(long a, long b) { return a - lumc_floor_div(a, b) * b; }
