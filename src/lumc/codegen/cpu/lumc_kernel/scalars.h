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
/* what the part with most has, when tiles of n rows, each ``others`` times, are dealt in order */
static inline long lumc_largest(long n, long tile, long others, long parts)
{
    const long total = (n + tile - 1) / tile * others;
    long largest = 0, before = 0;
    for (long part = 1; part <= parts; part++) {
        const long end = total * part / parts, row = end / others * tile;
        const long here = row < n ? row * others + end % others * lumc_min(tile, n - row) : n * others;
        largest = here - before > largest ? here - before : largest;
        before = here;
    }
    return largest;
}
/* rows of a tile, most or fewer, in whole units: fewer where the parts get shares so that are more
 * alike by an eighth, as each tile reads again what all rows read */
static inline long lumc_tile(long n, long most, long unit, long others, long parts)
{
    const long tiles = (n + most - 1) / most;
    long tile = most, least = parts > 1 && tiles < 4 * parts ? lumc_largest(n, most, others, parts) : 0;
    for (long count = tiles; least && count < tiles + lumc_min(parts, 8); count++) {
        const long some = ((n + count - 1) / count + unit - 1) / unit * unit;
        const long here = lumc_largest(n, some, others, parts);
        if (some < tile && here < least - least / 8) tile = some, least = here;
    }
    return tile;
}
static inline long lumc_clamp(long x, long lo, long hi) { return x < lo ? lo : x > hi ? hi : x; }
static inline long lumc_floor_div(long a, long b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
static inline long lumc_floor_mod(long a, long b) { return a - lumc_floor_div(a, b) * b; }
