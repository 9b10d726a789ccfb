/* ---- what the hardware has no instruction for, and clang no library: remainders, and the
 * elementary functions of f64, at most 3 ulp */

/* a * 2^steps mod b, of numbers below 2^(64 - ROOM) */
template <int ROOM> LUMC_FN lumc_u64 lumc_remainder(lumc_u64 a, lumc_u64 b, int steps)
{
    for (a %= b; steps > 0; steps -= ROOM) a = (a << (steps < ROOM ? steps : ROOM)) % b;
    return a;
}
/* the remainder of a by b with the sign of a, exactly: of their significands as whole numbers, of
 * which b's is 1 at 2^LEAST when its exponent is 1 */
#define LUMC_MODULO(name, type, bits_of, of_bits, whole, FRACTION, MOST, LEAST, ROOM)             \
    LUMC_FN type lumc_mod_##name(type a, type b)                                                  \
    {                                                                                             \
        const lumc_u64 top = (lumc_u64)1 << FRACTION;                                             \
        const lumc_u64 x = (lumc_u64)bits_of(a), y = (lumc_u64)bits_of(b);                        \
        const int p = (int)(x >> FRACTION & MOST), q = (int)(y >> FRACTION & MOST);               \
        const int i = p ? p : 1, j = q ? q : 1;                                                   \
        const lumc_u64 m = (x & (top - 1)) | (p ? top : 0), n = (y & (top - 1)) | (q ? top : 0);  \
        if (a != a || b != b || p == MOST || !n) return (type)(LUMC_NAN_F32);                     \
        if (q == MOST || i < j) return a;                                                         \
        const int e = j - 1 + LEAST; /* of the least bit of b, and of the result */               \
        const type unit = of_bits(e > LEAST + FRACTION ? (whole)(e + MOST / 2) << FRACTION        \
                                                       : (whole)1 << (e - LEAST));                \
        const type rest = (type)lumc_remainder<ROOM>(m, n, i - j) * unit;                         \
        return (lumc_i64)x < 0 ? -rest : rest;                                                    \
    }
LUMC_MODULO(f32, float, lumc_bits, lumc_float, lumc_i32, 23, 255, -149, 40)
LUMC_MODULO(f64, double, lumc_bits_f64, lumc_double, lumc_i64, 52, 2047, -1074, 11)

/* f times 2^n for |n| <= 2000: as two products, which round once */
LUMC_FN double lumc_scaled(double f, int n)
{
    const int half = n >> 1;
    return f * lumc_double((lumc_i64)(half + 1023) << 52) *
           lumc_double((lumc_i64)(n - half + 1023) << 52);
}
/* e^r for |r| <= ln(2)/2: the series, whose next term is below 2^-57 */
LUMC_FN double lumc_growth_f64(double r)
{
    double p = 1.0 / 6227020800;
    p = p * r + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    return p * r * r + r + 1.0;
}
/* x = n + f; n is in the low bits of the sum with 1.5*2^52 */
LUMC_FN double lumc_exp2_f64(double x)
{
    x = x < -1100.0 ? -1100.0 : x > 1100.0 ? 1100.0 : x;
    const double n = x + 0x1.8p52;
    const double f = x - (n - 0x1.8p52);
    return lumc_scaled(lumc_growth_f64(f * 0.69314718055994531), (int)lumc_bits_f64(n));
}
/* x = n ln(2) + r, with ln(2) in two parts: products with the first one, of 32 bits, are exact */
LUMC_FN double lumc_exp_f64(double x)
{
    x = x < -800.0 ? -800.0 : x > 800.0 ? 800.0 : x;
    const double n = x * 1.4426950408889634 + 0x1.8p52;
    const double k = n - 0x1.8p52;
    const double r = x - k * 0x1.62e42feep-1 - k * 0x1.a39ef35793c76p-33;
    return lumc_scaled(lumc_growth_f64(r), (int)lumc_bits_f64(n));
}
/* x = 2^e * m with m in [sqrt(1/2), sqrt(2)): log(m) = 2 artanh(s), s = (m - 1)/(m + 1), by its
 * series, whose next term is below 2^-57 */
LUMC_FN double lumc_log2_f64(double x)
{
    const bool small = x < 0x1p-1022;
    const lumc_i64 bits = lumc_bits_f64(small ? x * 0x1p54 : x);
    const lumc_i64 e = (bits - 0x3fe6a09e667f3bcd) >> 52;
    const double m = lumc_double(bits - (e << 52));
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = 1.0 / 21;
    p = p * z + 1.0 / 19;
    p = p * z + 1.0 / 17;
    p = p * z + 1.0 / 15;
    p = p * z + 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    const double log = (p * z * s + s) * 2.8853900817779268; /* 2/ln(2) */
    const double edge = x == 0.0 ? -LUMC_INF_F64 : x < 0.0 ? LUMC_NAN_F64 : x;
    return x > 0.0 && x < LUMC_INF_F64 ? log + (double)(e - (small ? 54 : 0)) : edge;
}

/* x/pi mod 2 in units of 2^-191, of x = m * 2^(52 + exponent), as six words, the greatest first:
 * m times 192 bits of 1/pi, from the first one that counts (Payne and Hanek, 1983) */
LUMC_FN void lumc_turns(lumc_u32 (&turns)[6], lumc_u64 m, int exponent)
{
    static const lumc_u32 inverse[40] = {
        0,          0,          0,          0x517cc1b7, 0x27220a94, 0xfe13abe8, 0xfa9a6ee0,
        0x6db14acc, 0x9e21c820, 0xff28b1d5, 0xef5de2b0, 0xdb92371d, 0x2126e970, 0x03249775,
        0x04e8c90e, 0x7f0ef58e, 0x5894d39f, 0x74411afa, 0x975da242, 0x74ce3813, 0x5a2fbf20,
        0x9cc8eb1c, 0xc1a99cfa, 0x4e422fc5, 0xdefc941d, 0x8ffc4bff, 0xef02cc07, 0xf79788c5,
        0xad05368f, 0xb69b3f67, 0x93e584db, 0xa7a31fb3, 0x4f2ff516, 0xba93dd63, 0xf5f2f8bd,
        0x9e839cfb, 0xc5294975, 0x35fdafd8, 0x8fc6ae84, 0x2b019823};
    const int first = exponent + 95, at = first >> 5, shift = 32 - (first & 31);
    lumc_u32 word[6];
    LUMC_UNROLL for (int i = 0; i < 6; i++)
        word[i] = (lumc_u32)(((lumc_u64)inverse[at + i] << 32 | inverse[at + i + 1]) >> shift);
    lumc_u64 sum = 0;
    LUMC_UNROLL for (int i = 5; i >= 0; i--, sum >>= 32)
    {
        sum += (m & 0xffffffff) * word[i];
        turns[i] = (lumc_u32)sum;
    }
    sum = 0;
    LUMC_UNROLL for (int i = 4; i >= 0; i--, sum >>= 32)
    {
        sum += (m >> 32) * word[i + 1] + turns[i];
        turns[i] = (lumc_u32)sum;
    }
}
/* sin(r) for |r| <= pi/2: the series, whose next term is below 2^-59 */
LUMC_FN double lumc_wave_f64(double r)
{
    const double z = r * r;
    double p = 1.0 / 51090942171709440000.0;
    p = p * z - 1.0 / 121645100408832000;
    p = p * z + 1.0 / 355687428096000;
    p = p * z - 1.0 / 1307674368000;
    p = p * z + 1.0 / 6227020800;
    p = p * z - 1.0 / 39916800;
    p = p * z + 1.0 / 362880;
    p = p * z - 1.0 / 5040;
    p = p * z + 1.0 / 120;
    p = p * z - 1.0 / 6;
    return p * z * r + r;
}
/* sin(x) for every x: |x|/pi = n + f, and sin(pi f) = sin(pi (1 - f)) */
LUMC_FN double lumc_sin_f64(double x)
{
    const lumc_i64 bits = lumc_bits_f64(x);
    const int exponent = (int)(bits >> 52 & 2047) - 1075;
    if (exponent < -52) return lumc_wave_f64(x); /* |x| < 1 */
    if (exponent == 972) return LUMC_NAN_F64;
    lumc_u32 t[6];
    lumc_turns(t, (bits & 0xfffffffffffff) | 0x10000000000000, exponent);
    lumc_u64 high = (lumc_u64)t[0] << 33 | (lumc_u64)t[1] << 1 | t[2] >> 31;
    lumc_u64 low = (lumc_u64)t[2] << 33 | (lumc_u64)t[3] << 1 | t[4] >> 31;
    if (high >> 63) high = ~high, low = ~low;
    const double f = (double)high * 0x1p-64 + (double)low * 0x1p-128;
    const double size = lumc_wave_f64(f * 3.1415926535897931);
    return (bits < 0) ^ (t[0] >> 31) ? -size : size;
}
