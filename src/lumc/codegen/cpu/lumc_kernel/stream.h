/* ---- stores around the caches: a plain store first reads the line that it overwrites */

#define LUMC_PIECE 256 /* bytes: whole lines that one piece of a row is streamed in */
/* how many of the elements from p on come next: up to the start of a line, then whole pieces */
static inline long lumc_piece(const void *p, long size, long left)
{
    long head = (long)(-(uintptr_t)p & 63);
    return lumc_min(head ? (head + size - 1) / size : LUMC_PIECE / size, left);
}
#if __has_builtin(__builtin_nontemporal_store)
#define LUMC_STREAM(to, v) __builtin_nontemporal_store(v, to)
#define LUMC_LINE 16
#elif defined(__AVX512F__)
#define LUMC_STREAM(to, v) __builtin_ia32_movntps512((float *)(to), v)
#define LUMC_LINE 16
#elif defined(__AVX__)
#define LUMC_STREAM(to, v) __builtin_ia32_movntps256((float *)(to), v)
#define LUMC_LINE 8
#elif defined(__SSE__)
#define LUMC_STREAM(to, v) __builtin_ia32_movntps((float *)(to), v)
#define LUMC_LINE 4
#else
#define LUMC_STREAM(to, v) (*(to) = (v))
#define LUMC_LINE 4
#endif
typedef float lumc_line __attribute__((vector_size(LUMC_LINE * 4), may_alias));
static inline void lumc_stream(void *to, const void *from)
{
    _Pragma("GCC unroll 16") for (int i = 0; i < LUMC_PIECE / 4 / LUMC_LINE; i++)
        LUMC_STREAM((lumc_line *)to + i, ((const lumc_line *)from)[i]);
}
/* no other thread may see a later store before the streamed ones */
static inline void lumc_streamed(void)
{
#if defined(__SSE__)
    __builtin_ia32_sfence();
#endif
}
