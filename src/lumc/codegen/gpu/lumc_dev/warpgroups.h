/* ---- products of warpgroups (wgmma of sm_90a), from panels of shared memory
 *
 * A tile of 16-bit elements whose rows have a multiple of 64 lies in panels of 64 elements: all
 * rows of a panel follow one another, 128 bytes each. Within a row, pieces of 16 bytes are
 * exchanged by the number of the row (the 128-byte swizzle of the PTX ISA, section "Matrix
 * descriptor"), so that eight rows of one piece lie in different banks. A tile begins at a multiple
 * of 1024 bytes. */

/* where element `i` of a tile of ROWS rows of WIDE lies */
template <int WIDE, int ROWS> LUMC_FN int lumc_panel(int i)
{
    int j = WIDE == 64 ? i : i / WIDE * 64 + i % WIDE / 64 * (ROWS * 64) + i % 64;
    return j ^ (j >> 3 & 56);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* what was stored to shared memory is there for the products that follow a barrier */
LUMC_FN void lumc_fence_async(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/* registers of sums and left operands are as they were written */
LUMC_FN void lumc_wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
LUMC_FN void lumc_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* until at most N of the groups of products are under way */
template <int N> LUMC_FN void lumc_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* which warpgroup a thread is of: so that the compiler knows that it is the same in a warp */
LUMC_FN int lumc_warpgroup(unsigned tid) { return (int)__shfl_sync(~0u, tid >> 7, 0); }
/* eight rows are 1024 bytes, panels `apart` elements. What is `at` elements behind `p` has the same
 * descriptor and an address that is greater, which no address in shared memory carries out of its
 * 14 bits */
LUMC_FN lumc_u64 lumc_descriptor(const void *p, int at, int apart)
{
    return ((lumc_u64)(lumc_shared_address(p) >> 4 & 0x3fff) |
            (lumc_u64)(apart >> 3 & 0x3fff) << 16 | (lumc_u64)(1024 >> 4) << 32 |
            (lumc_u64)1 << 62) + (lumc_u64)(at >> 3);
}
template <class T, int N> struct lumc_group;
/* the operands of all sums: their numbers, tens by tens, and their places */
#define LUMC_TEN(t)                                                                               \
    "%" t "0,%" t "1,%" t "2,%" t "3,%" t "4,%" t "5,%" t "6,%" t "7,%" t "8,%" t "9,"
#define LUMC_20 LUMC_TEN("") LUMC_TEN("1")
#define LUMC_50 LUMC_20 LUMC_TEN("2") LUMC_TEN("3") LUMC_TEN("4")
#define LUMC_90 LUMC_50 LUMC_TEN("5") LUMC_TEN("6") LUMC_TEN("7") LUMC_TEN("8")
#define LUMC_100 LUMC_90 LUMC_TEN("9")
#define LUMC_D8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define LUMC_D16 LUMC_TEN("") "%10,%11,%12,%13,%14,%15"
#define LUMC_D24 LUMC_20 "%20,%21,%22,%23"
#define LUMC_D32 LUMC_20 LUMC_TEN("2") "%30,%31"
#define LUMC_D40 LUMC_20 LUMC_TEN("2") "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39"
#define LUMC_D48 LUMC_20 LUMC_TEN("2") LUMC_TEN("3") "%40,%41,%42,%43,%44,%45,%46,%47"
#define LUMC_D56 LUMC_50 "%50,%51,%52,%53,%54,%55"
#define LUMC_D64 LUMC_50 LUMC_TEN("5") "%60,%61,%62,%63"
#define LUMC_D72 LUMC_50 LUMC_TEN("5") LUMC_TEN("6") "%70,%71"
#define LUMC_D80 LUMC_50 LUMC_TEN("5") LUMC_TEN("6") "%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define LUMC_D88 LUMC_50 LUMC_TEN("5") LUMC_TEN("6") LUMC_TEN("7") "%80,%81,%82,%83,%84,%85,%86,%87"
#define LUMC_D96 LUMC_90 "%90,%91,%92,%93,%94,%95"
#define LUMC_D104 LUMC_100 "%100,%101,%102,%103"
#define LUMC_D112 LUMC_100 LUMC_TEN("10") "%110,%111"
#define LUMC_D120 LUMC_100 LUMC_TEN("10") "%110,%111,%112,%113,%114,%115,%116,%117,%118,%119"
#define LUMC_D128                                                                                 \
    LUMC_100 LUMC_TEN("10") LUMC_TEN("11") "%120,%121,%122,%123,%124,%125,%126,%127"
#define LUMC_S4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define LUMC_S8(i) LUMC_S4(i), LUMC_S4(i + 4)
#define LUMC_S32(i) LUMC_S8(i), LUMC_S8(i + 8), LUMC_S8(i + 16), LUMC_S8(i + 24)
#define LUMC_SUMS8 LUMC_S8(0)
#define LUMC_SUMS16 LUMC_S8(0), LUMC_S8(8)
#define LUMC_SUMS24 LUMC_SUMS16, LUMC_S8(16)
#define LUMC_SUMS32 LUMC_S32(0)
#define LUMC_SUMS40 LUMC_S32(0), LUMC_S8(32)
#define LUMC_SUMS48 LUMC_SUMS40, LUMC_S8(40)
#define LUMC_SUMS56 LUMC_SUMS48, LUMC_S8(48)
#define LUMC_SUMS64 LUMC_S32(0), LUMC_S32(32)
#define LUMC_SUMS72 LUMC_SUMS64, LUMC_S8(64)
#define LUMC_SUMS80 LUMC_SUMS72, LUMC_S8(72)
#define LUMC_SUMS88 LUMC_SUMS80, LUMC_S8(80)
#define LUMC_SUMS96 LUMC_SUMS64, LUMC_S32(64)
#define LUMC_SUMS104 LUMC_SUMS96, LUMC_S8(96)
#define LUMC_SUMS112 LUMC_SUMS104, LUMC_S8(104)
#define LUMC_SUMS120 LUMC_SUMS112, LUMC_S8(112)
#define LUMC_SUMS128 LUMC_SUMS96, LUMC_S32(96)
/* N lanes have SUMS sums in a thread; R0.. are the operands after these */
#define LUMC_WGMMA(T, N, SUMS, shape, R0, R1, R2, R3, R4, R5, R6)                                 \
    template <> struct lumc_group<T, N> {                                                         \
        template <int TA, int TB>                                                                 \
        LUMC_FN static void multiply(float (&d)[SUMS], lumc_u64 a, lumc_u64 b, int add)           \
        {                                                                                         \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, " R0 ", 0;"                              \
                         "wgmma.mma_async.sync.aligned." shape " {" LUMC_D##SUMS "}, " R1 ", " R2 \
                         ", p, 1, 1, " R3 ", " R4 "; }"                                           \
                         : LUMC_SUMS##SUMS                                                        \
                         : "r"(add), "l"(a), "l"(b), "n"(TA), "n"(TB));                           \
        }                                                                                         \
        template <int TB>                                                                         \
        LUMC_FN static void multiply(float (&d)[SUMS], const lumc_u32 (&a)[4], lumc_u64 b,        \
                                     int add)                                                     \
        {                                                                                         \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, " R0 ", 0;"                              \
                         "wgmma.mma_async.sync.aligned." shape " {" LUMC_D##SUMS "}, {" R1 "," R2 \
                         "," R3 "," R4 "}, " R5 ", p, 1, 1, " R6 "; }"                            \
                         : LUMC_SUMS##SUMS                                                        \
                         : "r"(add), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),          \
                           "n"(TB));                                                              \
        }                                                                                         \
    };
#define LUMC_WGMMAS(T, types)                                                                     \
    LUMC_WGMMA(T, 16, 8, "m64n16k16.f32" types, "%8", "%9", "%10",                                \
               "%11", "%12", "%13", "%14")                                                        \
    LUMC_WGMMA(T, 32, 16, "m64n32k16.f32" types, "%16", "%17", "%18",                             \
               "%19", "%20", "%21", "%22")                                                        \
    LUMC_WGMMA(T, 48, 24, "m64n48k16.f32" types, "%24", "%25", "%26",                             \
               "%27", "%28", "%29", "%30")                                                        \
    LUMC_WGMMA(T, 64, 32, "m64n64k16.f32" types, "%32", "%33", "%34",                             \
               "%35", "%36", "%37", "%38")                                                        \
    LUMC_WGMMA(T, 80, 40, "m64n80k16.f32" types, "%40", "%41", "%42",                             \
               "%43", "%44", "%45", "%46")                                                        \
    LUMC_WGMMA(T, 96, 48, "m64n96k16.f32" types, "%48", "%49", "%50",                             \
               "%51", "%52", "%53", "%54")                                                        \
    LUMC_WGMMA(T, 112, 56, "m64n112k16.f32" types, "%56", "%57", "%58",                           \
               "%59", "%60", "%61", "%62")                                                        \
    LUMC_WGMMA(T, 128, 64, "m64n128k16.f32" types, "%64", "%65", "%66",                           \
               "%67", "%68", "%69", "%70")                                                        \
    LUMC_WGMMA(T, 144, 72, "m64n144k16.f32" types, "%72", "%73", "%74",                           \
               "%75", "%76", "%77", "%78")                                                        \
    LUMC_WGMMA(T, 160, 80, "m64n160k16.f32" types, "%80", "%81", "%82",                           \
               "%83", "%84", "%85", "%86")                                                        \
    LUMC_WGMMA(T, 176, 88, "m64n176k16.f32" types, "%88", "%89", "%90",                           \
               "%91", "%92", "%93", "%94")                                                        \
    LUMC_WGMMA(T, 192, 96, "m64n192k16.f32" types, "%96", "%97", "%98",                           \
               "%99", "%100", "%101", "%102")                                                     \
    LUMC_WGMMA(T, 208, 104, "m64n208k16.f32" types, "%104", "%105", "%106",                       \
               "%107", "%108", "%109", "%110")                                                    \
    LUMC_WGMMA(T, 224, 112, "m64n224k16.f32" types, "%112", "%113", "%114",                       \
               "%115", "%116", "%117", "%118")                                                    \
    LUMC_WGMMA(T, 240, 120, "m64n240k16.f32" types, "%120", "%121", "%122",                       \
               "%123", "%124", "%125", "%126")                                                    \
    LUMC_WGMMA(T, 256, 128, "m64n256k16.f32" types, "%128", "%129", "%130",                       \
               "%131", "%132", "%133", "%134")
LUMC_WGMMAS(lumc_f16, ".f16.f16")
LUMC_WGMMAS(lumc_bf16, ".bf16.bf16")

/* d = a @ b, to which d is added if `add`, of 64 rows, N lanes and 16 steps, by the 128 threads of a
 * warpgroup, each with the sums that lumc_mma gives it: those of 16 rows by its warp. These steps
 * begin `a_at` and `b_at` elements behind `a` and `b` in their panels; A_TURNED, B_TURNED: whose rows run along rows and
 * lanes, not along the steps. */
template <class T, int N, bool A_TURNED, bool B_TURNED>
LUMC_FN void lumc_wgmma(float (&d)[N / 2], const T *a, int a_at, int a_apart, const T *b, int b_at,
                        int b_apart, bool add)
{
    lumc_group<T, N>::template multiply<A_TURNED, B_TURNED>(
        d, lumc_descriptor(a, a_at, a_apart), lumc_descriptor(b, b_at, b_apart), add);
}
/* the same with the words of `a` that lumc_mma takes */
template <class T, int N, bool B_TURNED>
LUMC_FN void lumc_wgmma(float (&d)[N / 2], const lumc_u32 (&a)[4], const T *b, int b_at,
                        int b_apart, bool add)
{
    lumc_group<T, N>::template multiply<B_TURNED>(d, a, lumc_descriptor(b, b_at, b_apart), add);
}
#else /* other GPUs, and the emulator: the same by the products of warps */
LUMC_FN void lumc_fence_async(void) {}
LUMC_FN void lumc_wgmma_fence(void) {}
LUMC_FN void lumc_wgmma_commit(void) {}
LUMC_FN int lumc_warpgroup(unsigned tid) { return (int)(tid >> 7); }
template <int N> LUMC_FN void lumc_wgmma_wait(void) {}

/* element (i, k) of an operand: its address, with the pieces exchanged as the hardware does */
template <class T, bool TURNED> LUMC_PART lumc_u32 lumc_paneled(const T *p, int apart, int i, int k)
{
    lumc_u64 at = (lumc_u64)(TURNED ? p + i / 64 * apart + k * 64 + i % 64 : p + i * 64 + k);
    return ((const T *)(at ^ (at >> 3 & 112)))->bits;
}
template <class T, bool TURNED>
LUMC_PART lumc_u32 lumc_paneled_pair(const T *p, int apart, int i, int k)
{
    return lumc_paneled<T, TURNED>(p, apart, i, k) |
           lumc_paneled<T, TURNED>(p, apart, i, k + 1) << 16;
}
template <class T, int N, bool B_TURNED>
LUMC_PART void lumc_wgmma(float (&d)[N / 2], const lumc_u32 (&a)[4], const T *b, int b_at,
                          int b_apart, bool add)
{
    const int g = threadIdx.x / 4 % 8, t = threadIdx.x % 4 * 2;
    LUMC_UNROLL for (int j = 0; j < N / 8; j++)
    {
        lumc_u32 words[2];
        float sums[4];
        LUMC_UNROLL for (int q = 0; q < 2; q++)
            words[q] = lumc_paneled_pair<T, B_TURNED>(b + b_at, b_apart, j * 8 + g, t + q * 8);
        LUMC_UNROLL for (int q = 0; q < 4; q++) sums[q] = add ? d[j * 4 + q] : 0.0f;
        lumc_mma<T>(sums, a, words, sums);
        LUMC_UNROLL for (int q = 0; q < 4; q++) d[j * 4 + q] = sums[q];
    }
}
template <class T, int N, bool A_TURNED, bool B_TURNED>
LUMC_PART void lumc_wgmma(float (&d)[N / 2], const T *a, int a_at, int a_apart, const T *b,
                          int b_at, int b_apart, bool add)
{
    const int g = threadIdx.x / 4 % 8 + threadIdx.x / 32 % 4 * 16, t = threadIdx.x % 4 * 2;
    lumc_u32 words[4];
    LUMC_UNROLL for (int q = 0; q < 4; q++)
        words[q] = lumc_paneled_pair<T, A_TURNED>(a + a_at, a_apart, g + q % 2 * 8, t + q / 2 * 8);
    lumc_wgmma<T, N, B_TURNED>(d, words, b, b_at, b_apart, add);
}
#endif
