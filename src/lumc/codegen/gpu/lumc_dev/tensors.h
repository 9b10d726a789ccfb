/* ---- copies of whole tiles by tensor maps (TMA of sm_90a)
 *
 * One thread asks for a tile, and a barrier in shared memory counts the bytes that have arrived.
 * Tiles of 16-bit elements lie in panels as warpgroups read them; what lies outside of the tensor
 * is zero. BLOCKS blocks that follow one another (a cluster) may share a tile: each fetches its
 * part of the rows for all of them, to the same place. */

/* CUtensorMap, which the driver makes */
struct __attribute__((aligned(64))) lumc_map {
    lumc_u64 words[16];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* `n` barriers that wait for one thread and for what it asks for; lumc_sync_blocks comes before
 * anything else is done with them */
LUMC_FN void lumc_arrivals(lumc_u64 *bars, int n)
{
    if (threadIdx.x == 0)
    {
        for (int i = 0; i < n; i++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
                         :: "r"(lumc_shared_address(bars + i)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
}
/* All threads of BLOCKS blocks come here before one goes on. Of several this orders what is done and
 * waited for, as products are, and barriers that lumc_arrivals has made: no stores, for which there
 * are fences of the whole GPU otherwise. */
template <int BLOCKS> LUMC_FN void lumc_sync_blocks(void)
{
    if (BLOCKS == 1)
        __syncthreads();
    else
    {
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    }
}
/* before so many bytes are asked for */
LUMC_FN void lumc_expect(lumc_u64 *bar, int bytes)
{
    if (threadIdx.x == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     :: "r"(lumc_shared_address(bar)), "r"(bytes) : "memory");
}
LUMC_FN void lumc_asked(void) {}
/* until they are there; the parity is 0 at first, and another one every time */
template <int PENDING> LUMC_FN void lumc_arrived(lumc_u64 *bar, lumc_u32 parity)
{
    lumc_u32 done;
    do
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(lumc_shared_address(bar)), "r"(parity) : "memory");
    while (!done);
}
#define LUMC_TENSOR "cp.async.bulk.tensor."
#define LUMC_COUNTED ".shared::cluster.global.tile.mbarrier::complete_tx::bytes"
/* the box of a map at these elements, for this block or, each at the same place, for all BLOCKS */
template <int BLOCKS>
LUMC_FN void lumc_copy_box(void *to, const lumc_map &map, lumc_u64 *bar, int x, int y)
{
    if (BLOCKS == 1)
        asm volatile(LUMC_TENSOR "2d" LUMC_COUNTED " [%0], [%1, {%3, %4}], [%2];"
                     :: "r"(lumc_shared_address(to)), "l"(&map), "r"(lumc_shared_address(bar)),
                        "r"(x), "r"(y) : "memory");
    else
        asm volatile(LUMC_TENSOR "2d" LUMC_COUNTED ".multicast::cluster"
                     " [%0], [%1, {%3, %4}], [%2], %5;"
                     :: "r"(lumc_shared_address(to)), "l"(&map), "r"(lumc_shared_address(bar)),
                        "r"(x), "r"(y), "h"((lumc_u16)((1 << BLOCKS) - 1)) : "memory");
}
template <int BLOCKS>
LUMC_FN void lumc_copy_box(void *to, const lumc_map &map, lumc_u64 *bar, int x, int y, int z)
{
    if (BLOCKS == 1)
        asm volatile(LUMC_TENSOR "3d" LUMC_COUNTED " [%0], [%1, {%3, %4, %5}], [%2];"
                     :: "r"(lumc_shared_address(to)), "l"(&map), "r"(lumc_shared_address(bar)),
                        "r"(x), "r"(y), "r"(z) : "memory");
    else
        asm volatile(LUMC_TENSOR "3d" LUMC_COUNTED ".multicast::cluster"
                     " [%0], [%1, {%3, %4, %5}], [%2], %6;"
                     :: "r"(lumc_shared_address(to)), "l"(&map), "r"(lumc_shared_address(bar)),
                        "r"(x), "r"(y), "r"(z), "h"((lumc_u16)((1 << BLOCKS) - 1)) : "memory");
}
/* ROWS rows of WIDE elements, from x, y and, of three axes, z on, to panels that lie `apart`
 * elements. Other GPUs find x = y = 0 at `from`, and there `height` rows of `width` elements,
 * `stride` elements from one to the next. */
template <int WIDE, int ROWS, int BLOCKS, class T, class... Z>
LUMC_FN void lumc_copy_tile(const lumc_map &map, lumc_u64 *bar, T *to, int apart, const T *, int,
                            int, int, int x, int y, Z... z)
{
    const int part = (int)(blockIdx.x % BLOCKS) * (ROWS / BLOCKS);
    if (threadIdx.x == 0)
        LUMC_UNROLL for (int p = 0; p < WIDE / 64; p++) lumc_copy_box<BLOCKS>(
            to + p * apart + part * 64, map, bar, x + p * 64, y + part, z...);
}
#else /* other GPUs, and the emulator: every block copies all of it, by all of its threads */
LUMC_FN void lumc_arrivals(lumc_u64 *, int) {}
LUMC_FN void lumc_expect(lumc_u64 *, int) {}
LUMC_FN void lumc_asked(void) { lumc_cp_async_commit(); }
#ifdef LUMC_EMU /* at the line of the caller */
template <int BLOCKS> LUMC_FN void lumc_sync_blocks(int line = __builtin_LINE()) { lumc_sync(line); }
template <int PENDING>
LUMC_FN void lumc_arrived(lumc_u64 *, lumc_u32, int line = __builtin_LINE())
{
    lumc_cp_async_wait<PENDING>();
    lumc_sync(line);
}
#else
template <int BLOCKS> LUMC_FN void lumc_sync_blocks(void) { lumc_sync(); }
template <int PENDING> LUMC_FN void lumc_arrived(lumc_u64 *, lumc_u32)
{
    lumc_cp_async_wait<PENDING>();
    lumc_sync();
}
#endif
template <int WIDE, int ROWS, int BLOCKS, class M, class T, class... Z>
LUMC_PART void lumc_copy_tile(const M &map, lumc_u64 *, T *to, int apart, const T *from, int width,
                              int height, int stride, int x, int y, Z...)
{
#ifdef LUMC_EMU
    lumc_emu::look_at_map(map, from, width, height, (lumc_i64)stride * sizeof(T), ROWS / BLOCKS);
#endif
    for (int i = (int)threadIdx.x; i < ROWS * (WIDE / 8); i += (int)blockDim.x)
    {
        const int row = i / (WIDE / 8), column = i % (WIDE / 8) * 8;
        const int at = column / 64 * apart + row * 64 + column % 64;
        const int left = y + row < height ? width - x - column : 0;
        const T *p = from + (left > 0 ? (lumc_i64)(y + row) * stride + x + column : 0);
        lumc_cp_async<16>(to + (at ^ (at >> 3 & 56)), p, left > 8 ? 16 : left > 0 ? left * 2 : 0);
    }
}
#endif
