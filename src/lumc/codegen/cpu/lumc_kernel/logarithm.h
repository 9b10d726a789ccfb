/* ---- logarithms to base 2 */

#if LUMC_ROOTS == 16
/* log2(x), at most 1.2 ulp: x = 2^e * m with m in [3/4, 3/2), and m = (1 + r) / c with c from a
 * table by the first four bits of m and -log2(c) from another. That is nearly a multiple of 2^-24,
 * so that small e are added exactly, and 0 around 1, where nothing cancels. No m of what is below 0,
 * e of 0 and infinity are infinite. */
static const lumc_iv lumc_inverses = {
    0x3f800000, 0x3f6a07c5, 0x3f5d5cbb, 0x3f5221d4, 0x3f47cbac, 0x3f3e8299, 0x3f35fae7, 0x3f2e4625,
    0x3fa72e64, 0x3fa0a2eb, 0x3f9aa5fa, 0x3f94dc15, 0x3f8fc715, 0x3f8acb77, 0x3f864a87, 0x3f800000};
static const lumc_fv lumc_logs = {
    0.0f,           0x1.091c2p-3f,  0x1.ad8968p-3f, 0x1.23aeecp-2f, 0x1.6e33bp-2f, 0x1.b481bp-2f,
    0x1.f82e1p-2f,  0x1.1c0cf8p-1f, -0x1.8a83fp-2f, -0x1.4f84ccp-2f, -0x1.17655cp-2f, -0x1.be12d8p-3f,
    -0x1.5770ep-3f, -0x1.de73bp-4f, -0x1.1b869p-4f, 0.0f};
static inline lumc_fv lumc_log2_fv(lumc_fv x)
{
    lumc_fv m = __builtin_ia32_getmantps512_mask(x, 15, x, -1, 4);
    lumc_fv e = __builtin_ia32_getexpps512_mask(x, x, -1, 4);
    e -= __builtin_ia32_getexpps512_mask(m, m, -1, 4);
    lumc_iv k = (lumc_iv)m >> 19;
    lumc_fv r = m * (lumc_fv)__builtin_shuffle(lumc_inverses, k) - 1.0f;
    lumc_fv p = ((0.263830320f * r - 0.361002948f) * r + 0.480959726f) * r - 0.721347509f;
    /* h and d are log2(e) + p*r, and what rounding takes from that */
    lumc_fv h = p * r + 1.44269502f, d = p * r + ((1.44269502f - h) + 1.92596299e-08f);
    return h * r + (d * r + (e + __builtin_shuffle(lumc_logs, k)));
}
#endif

/* log2(x), at most 1.3 ulp (1.5 without FMA): x = 2^e * m with m in [sqrt(1/2), sqrt(2)),
 * log(1 + f) as a polynomial of f = m - 1 (Cephes), times log2(e) = 1 + 0.4427 in parts. */
static inline float lumc_log2_f32(float x)
{
    int32_t small = x < 0x1p-126f;
    int32_t bits = lumc_bits(small ? x * 0x1p23f : x);
    int32_t e = (int32_t)((uint32_t)bits - 0x3f3504f3u) >> 23;
    float f = lumc_float((int32_t)((uint32_t)bits - ((uint32_t)e << 23))) - 1.0f;
    float z = f * f;
    float p = 7.0376836292e-2f;
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    float y = p * f * z - 0.5f * z;
    float r = y * 0.44269504088896341f + f * 0.44269504088896341f + y + f
            + (float)(e - (small ? 23 : 0));
    float edge = x == 0.0f ? -__builtin_inff() : x < 0.0f ? __builtin_nanf("") : x;
    return x > 0.0f && x < __builtin_inff() ? r : edge;
}
static inline void lumc_log2_n_f32(float *to, const float *from, long n)
{
#if LUMC_ROOTS == 16
    for (long i = 0; i < n; i += LUMC_ROOTS)
        *(lumc_fv *)(to + i) = lumc_log2_fv(*(const lumc_fv *)(from + i));
#else
    _Pragma("omp simd") for (long i = 0; i < n; i++) to[i] = lumc_log2_f32(from[i]);
#endif
}
