/* ---- sines */

/* sin(x), correctly rounded but for rare cases, for every x: x/pi - n in double precision. From
 * 2^47 on x is scaled by 2^-24 (2^-48, ..), and 2^24/pi mod 2 (..) takes the place of 1/pi, in
 * parts of 28, 28 and 53 bits, whose products with the 24 bits of x are exact. */
#define LUMC_BY_SIZE(a, c0, c1, c2, c3, c4)                                                       \
    (a < 0x1p47f ? c0 : a < 0x1p71f ? c1 : a < 0x1p95f ? c2 : a < 0x1p119f ? c3 : c4)
static inline float lumc_sin_f32(float x)
{
    float size = x < 0 ? -x : x;
    float y = x * LUMC_BY_SIZE(size, 1.0f, 0x1p-24f, 0x1p-48f, 0x1p-72f, 0x1p-96f);
    double high = (double)y * (double)LUMC_BY_SIZE(size, 0x1.45f3068p-2, 0x1.b72722p+0,
                                                   0x1.529fcp-5, 0x1.3abe8ep-4, 0x1.f534ddcp-1);
    double middle = (double)y * LUMC_BY_SIZE(size, 0x1.727220ap-28, 0x1.529fc24p-29,
                                             0x1.3abe8fap-28, 0x1.a9a6eep-28, 0x1.b6c528p-34);
    double low = (double)y * LUMC_BY_SIZE(size, 0x1.29fc2757d1f53p-57, 0x1.abe8fa9a6ee07p-56,
                                          0x1.34ddc0db6295ap-57, 0x1.b6c52b3278872p-58,
                                          0x1.993c439041fe5p-57);
    double n = high + 0x1.8p52; /* rounds to an integer, in the low bits of the sum */
    double f = high - (n - 0x1.8p52) + middle;
    double n2 = f + 0x1.8p52;
    f = f - (n2 - 0x1.8p52) + low;
    int32_t odd = (int32_t)(lumc_bits_f64(n) ^ lumc_bits_f64(n2));
    double z = f * f;
    double p = -0x1.cc2b88e2c82edp-8;
    p = p * z + 0x1.50100f3e23471p-4;
    p = p * z - 0x1.32d115d20135cp-1;
    p = p * z + 0x1.466bbfeb30e2fp+1;
    p = p * z - 0x1.4abbce500f10ap+2;
    p = p * z + 0x1.921fb54421998p+1;
    return lumc_float(lumc_bits((float)(p * f)) ^ (int32_t)((uint32_t)odd << 31));
}
