/* ---- elementary functions, the same polynomials as on a CPU: the hardware's ex2.approx and
 * lg2.approx are coarser, and differ from what a machine without a GPU can test */

/* scale * 2^f for |f| <= 1/2 and a scale of 1 or 2 */
LUMC_FN float lumc_power(float scale, float f)
{
    float p = scale * 0.000153533f;
    p = p * f + scale * 0.00133953371f;
    p = p * f + scale * 0.00961838104f;
    p = p * f + scale * 0.0555032887f;
    p = p * f + scale * 0.240226462f;
    p = p * f + scale * 0.693147182f;
    return p * f + scale;
}
/* 2^x, at most 1.1 ulp (1.4 without fused multiply-add): x = n + f with n rounded by
 * the addition of 1.5*2^23 (the low bits of the sum are n), a polynomial of f, and 2^n as a product
 * of two powers, which gets overflow and denormals right. The 254 in the sum is the exponent bias
 * of both. */
LUMC_FN float lumc_exp2_f32(float x)
{
    x = -151.0f > x ? -151.0f : x;
    lumc_i32 n = lumc_bits(x + 12583166.0f);
    n = n < 0x4b40017f ? n : 0x4b40017f;
    float f = x - (lumc_float(n) - 12583166.0f);
    lumc_i32 half = n >> 1;
    return lumc_power(1.0f, f) * lumc_float((lumc_i32)((lumc_u32)half << 23))
                         * lumc_float((lumc_i32)((lumc_u32)(n - half) << 23));
}
/* the same; results below 2^-125 may be 0. As 2 * 2^f * 2^(n-1), overflow is where it should be:
 * 1.5*2^23 + 126 in the sum gives the exponent of 2^(n-1) */
LUMC_FN float lumc_exp2_ftz_f32(float x)
{
    x = -126.0f > x ? -126.0f : x;
    lumc_i32 n = lumc_bits(x + 12583038.0f);
    n = n < 0x4b4000ff ? n : 0x4b4000ff;
    float f = x - (lumc_float(n) - 12583038.0f);
    return lumc_power(2.0f, f) * lumc_float((lumc_i32)((lumc_u32)n << 23));
}
/* e^f for |f| <= ln(2)/2, times a scale of 1 or 2 */
LUMC_FN float lumc_growth(float scale, float f)
{
    float p = scale * 0.00138435977f;
    p = p * f + scale * 0.00837194453f;
    p = p * f + scale * 0.0416677581f;
    p = p * f + scale * 0.166664204f;
    p = p * f + scale * 0.499999906f;
    p = p * f + scale;
    return p * f + scale;
}
/* e^x, at most 1.2 ulp: as exp2, but x - n ln(2), with ln(2) in two parts, is exact where the
 * product of x and log2(e) would be rounded: at 80 that is 40 ulp of the result */
LUMC_FN float lumc_exp_f32(float x)
{
    x = -104.0f > x ? -104.0f : x;
    lumc_i32 n = lumc_bits(x * 1.44269504f + 12583166.0f);
    n = n < 0x4b40017f ? n : 0x4b40017f;
    float k = lumc_float(n) - 12583166.0f;
    float f = x - k * 0x1.63p-1f + k * 2.12194440e-4f;
    lumc_i32 half = n >> 1;
    return lumc_growth(1.0f, f) * lumc_float((lumc_i32)((lumc_u32)half << 23))
                          * lumc_float((lumc_i32)((lumc_u32)(n - half) << 23));
}
/* the same; results below 2^-125 may be 0 */
LUMC_FN float lumc_exp_ftz_f32(float x)
{
    x = -87.3365479f > x ? -87.3365479f : x;
    lumc_i32 n = lumc_bits(x * 1.44269504f + 12583038.0f);
    n = n < 0x4b4000ff ? n : 0x4b4000ff;
    float k = lumc_float(n) - 12583038.0f;
    float f = x - k * 0x1.63p-1f + k * 2.12194440e-4f;
    return lumc_growth(2.0f, f) * lumc_float((lumc_i32)((lumc_u32)n << 23));
}
LUMC_FN double lumc_exp_ftz_f64(double x) { return lumc_exp_f64(x); }
LUMC_FN double lumc_exp2_ftz_f64(double x) { return lumc_exp2_f64(x); }
LUMC_FN double lumc_decay_f64(double x) { return lumc_exp2_f64(x); }

/* log2(x), at most 1.4 ulp (1.5): x = 2^e * m with m in [sqrt(1/2), sqrt(2)), log(1 + f) as a
 * polynomial of f = m - 1 (Cephes), times log2(e) = 1 + 0.4427 in parts. */
LUMC_FN float lumc_log2_f32(float x)
{
    bool small = x < 0x1p-126f;
    lumc_i32 bits = lumc_bits(small ? x * 0x1p23f : x);
    lumc_i32 e = (lumc_i32)((lumc_u32)bits - 0x3f3504f3u) >> 23;
    float f = lumc_float((lumc_i32)((lumc_u32)bits - ((lumc_u32)e << 23))) - 1.0f;
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
    float edge = x == 0.0f ? -LUMC_INF_F32 : x < 0.0f ? LUMC_NAN_F32 : x;
    return x > 0.0f && x < LUMC_INF_F32 ? r : edge;
}

/* sin(x), correctly rounded but for rare cases, for every x: x/pi - n in double precision. From
 * 2^47 on x is scaled by 2^-24 (2^-48, ..), and 2^24/pi mod 2 (..) takes the place of 1/pi, in
 * parts of 28, 28 and 53 bits, whose products with the 24 bits of x are exact. */
#define LUMC_BY_SIZE(a, c0, c1, c2, c3, c4)                                                       \
    (a < 0x1p47f ? c0 : a < 0x1p71f ? c1 : a < 0x1p95f ? c2 : a < 0x1p119f ? c3 : c4)
LUMC_FN float lumc_sin_f32(float x)
{
    float size = x < 0 ? -x : x;
    float y = x * LUMC_BY_SIZE(size, 1.0f, 0x1p-24f, 0x1p-48f, 0x1p-72f, 0x1p-96f);
    double high = (double)y * LUMC_BY_SIZE(size, 0x1.45f3068p-2, 0x1.b72722p+0, 0x1.529fcp-5,
                                           0x1.3abe8ep-4, 0x1.f534ddcp-1);
    double middle = (double)y * LUMC_BY_SIZE(size, 0x1.727220ap-28, 0x1.529fc24p-29,
                                             0x1.3abe8fap-28, 0x1.a9a6eep-28, 0x1.b6c528p-34);
    double low = (double)y * LUMC_BY_SIZE(size, 0x1.29fc2757d1f53p-57, 0x1.abe8fa9a6ee07p-56,
                                          0x1.34ddc0db6295ap-57, 0x1.b6c52b3278872p-58,
                                          0x1.993c439041fe5p-57);
    double n = high + 0x1.8p52; /* rounds to an integer, in the low bits of the sum */
    double f = high - (n - 0x1.8p52) + middle;
    double n2 = f + 0x1.8p52;
    f = f - (n2 - 0x1.8p52) + low;
    lumc_i32 odd = (lumc_i32)(lumc_bits_f64(n) ^ lumc_bits_f64(n2));
    double z = f * f;
    double p = -0x1.cc2b88e2c82edp-8;
    p = p * z + 0x1.50100f3e23471p-4;
    p = p * z - 0x1.32d115d20135cp-1;
    p = p * z + 0x1.466bbfeb30e2fp+1;
    p = p * z - 0x1.4abbce500f10ap+2;
    p = p * z + 0x1.921fb54421998p+1;
    return lumc_float(lumc_bits((float)(p * f)) ^ (lumc_i32)((lumc_u32)odd << 31));
}
