"""Mutants of the part of the header that copies by tensor maps."""

from __future__ import annotations

# name: what is in the header, what is there then; cases of test_ptx_kernels find them
MUTANTS: dict[str, tuple[str, str, str]] = {
    "a barrier that waits for two threads": (
        "maps",
        "mbarrier.init.shared::cta.b64 [%0], 1;",
        "mbarrier.init.shared::cta.b64 [%0], 2;",
    ),
    "one barrier for all slots": (
        "maps",
        "lumc_shared_address(bars + i)",
        "lumc_shared_address(bars)",
    ),
    "barriers that are not shown": (
        "maps",
        'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");',
        "",
    ),
    "blocks do not arrive": (
        "maps",
        'asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");',
        "",
    ),
    "blocks do not wait for each other": (
        "maps",
        'asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");',
        "",
    ),
    "a block by itself does not wait": (
        "maps",
        "    if (BLOCKS == 1)\n        __syncthreads();",
        "    if (BLOCKS == 1)\n        __syncwarp();",
    ),
    "pairs of blocks as if alone": (
        "maps",
        "    if (BLOCKS == 1)\n        __syncthreads();",
        "    if (BLOCKS <= 2)\n        __syncthreads();",
    ),
    "half of the bytes are expected": (
        "maps",
        '"r"(lumc_shared_address(bar)), "r"(bytes) : "memory");',
        '"r"(lumc_shared_address(bar)), "r"(bytes / 2) : "memory");',
    ),
    "nothing is expected": (
        "maps",
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;",
        "// %0 %1",
    ),
    "the other parity": (
        "maps",
        '"r"(lumc_shared_address(bar)), "r"(parity) :',
        '"r"(lumc_shared_address(bar)), "r"(parity ^ 1) :',
    ),
    "what has not arrived is there": (
        "maps",
        "selp.u32 %0, 1, 0, p;",
        "selp.u32 %0, 1, 1, p;",
    ),
    "nobody looks": (
        "maps",
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;",
        "setp.eq.u32 p, %1, %1; mov.u32 %0, %2;",
    ),
    "one look is enough": (
        "maps",
        "    while (!done);",
        "    while (0);",
    ),
    "rows for columns": (
        "maps",
        "[%1, {%3, %4}], [%2];",
        "[%1, {%4, %3}], [%2];",
    ),
    "rows for columns of shared ones": (
        "maps",
        "[%1, {%3, %4}], [%2], %5;",
        "[%1, {%4, %3}], [%2], %5;",
    ),
    "matrices for rows": (
        "maps",
        "[%1, {%3, %4, %5}], [%2];",
        "[%1, {%3, %5, %4}], [%2];",
    ),
    "matrices for rows of shared ones": (
        "maps",
        "[%1, {%3, %4, %5}], [%2], %6;",
        "[%1, {%3, %5, %4}], [%2], %6;",
    ),
    "each for itself": (
        "maps",
        '.multicast::cluster"\n                     " [%0], [%1, {%3, %4}], [%2], %5;"',
        '"\n                     " [%0], [%1, {%3, %4}], [%2]; // %5"',
    ),
    "each for itself, of three axes": (
        "maps",
        '.multicast::cluster"\n                     " [%0], [%1, {%3, %4, %5}], [%2], %6;"',
        '"\n                     " [%0], [%1, {%3, %4, %5}], [%2]; // %6"',
    ),
    "only for the first block": (
        "maps",
        '"h"((lumc_u16)((1 << BLOCKS) - 1))',
        '"h"((lumc_u16)1)',
    ),
    "bytes are counted elsewhere": (
        "maps",
        '"r"(lumc_shared_address(bar)),\n                        "r"(x), "r"(y)',
        '"r"(lumc_shared_address(bar + 1)),\n                        "r"(x), "r"(y)',
    ),
    "copies to where the barrier is": (
        "maps",
        '"r"(lumc_shared_address(to)), "l"(&map)',
        '"r"(lumc_shared_address(bar)), "l"(&map)',
    ),
    "the map of the next buffer": (
        "maps",
        '"l"(&map)',
        '"l"(&map + 1)',
    ),
    "both blocks fetch the same part": (
        "maps",
        "(int)(blockIdx.x % BLOCKS) *",
        "(int)(blockIdx.x % 1) *",
    ),
    "parts on top of each other": (
        "maps",
        "to + p * apart + part * 64, map",
        "to + p * apart, map",
    ),
    "panels on top of each other": (
        "maps",
        "to + p * apart + part * 64, map",
        "to + part * 64, map",
    ),
    "the same panel again": (
        "maps",
        "bar, x + p * 64, y + part",
        "bar, x, y + part",
    ),
    "the same rows again": (
        "maps",
        "bar, x + p * 64, y + part",
        "bar, x + p * 64, y",
    ),
    "a warp asks": (
        "maps",
        "    if (threadIdx.x == 0)\n        LUMC_UNROLL for",
        "    if (threadIdx.x < 32)\n        LUMC_UNROLL for",
    ),
    "nobody asks": (
        "maps",
        "    if (threadIdx.x == 0)\n        LUMC_UNROLL for",
        "    if (threadIdx.x == 1024)\n        LUMC_UNROLL for",
    ),
}
