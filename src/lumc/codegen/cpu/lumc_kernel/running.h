/* ---- sums of all elements up to one, in place, from a sum before them; what they end with */

#if !defined(__has_builtin)
#define __has_builtin(name) 0
#endif
#if __has_builtin(__builtin_shufflevector)
#define LUMC_UP(v, ...) v += __builtin_shufflevector((__typeof__(v)){0}, v, __VA_ARGS__)
#if LUMC_LANES >= 16
typedef lumc_f32x16 lumc_run;
#elif LUMC_LANES >= 8
typedef lumc_f32x8 lumc_run;
#else
typedef lumc_f32x4 lumc_run;
#endif
/* every lane is added to the one, two, four.. lanes above it */
static inline lumc_run lumc_run_f32(lumc_run v)
{
#if LUMC_LANES >= 16
    LUMC_UP(v, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30);
    LUMC_UP(v, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29);
    LUMC_UP(v, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27);
    LUMC_UP(v, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23);
#elif LUMC_LANES >= 8
    LUMC_UP(v, 7, 8, 9, 10, 11, 12, 13, 14);
    LUMC_UP(v, 6, 7, 8, 9, 10, 11, 12, 13);
    LUMC_UP(v, 4, 5, 6, 7, 8, 9, 10, 11);
#else
    LUMC_UP(v, 3, 4, 5, 6);
    LUMC_UP(v, 2, 3, 4, 5);
#endif
    return v;
}
#endif
static inline float lumc_run_sum_f32(float *p, long n, float sum)
{
    long i = 0;
#if __has_builtin(__builtin_shufflevector) && LUMC_LANES >= 4
    for (; i + LUMC_LANES <= n; i += LUMC_LANES) {
        const lumc_run v = lumc_run_f32(*(const lumc_run *)(p + i));
        *(lumc_run *)(p + i) = v + sum;
        sum += v[LUMC_LANES - 1]; /* of the vector alone: the next one waits for one addition */
    }
#endif
    for (; i < n; i++)
        p[i] = sum += p[i];
    return sum;
}
