"""Mutants of the header of CUDA kernels: every line of assembly, and what goes with it, changed."""

from __future__ import annotations

# types that are shuffled, and those of numpy
SHUFFLED = {"float": "f4", "double": "f8", "lumc_i32": "i4", "lumc_u32": "u4"}
SHUFFLED |= {"lumc_i64": "i8", "lumc_u64": "u8"}

ORDER = '"=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])'
TURNED = ORDER.replace('"=r"(r[1]), "=r"(r[2])', '"=r"(r[2]), "=r"(r[1])')
LOADED = '{%0,%1,%2,%3}, [%4];"\n                     : '
WGMMA_A = '"r"(add), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])'
FENCE = '{ asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }'
WAIT = 'asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");'
GROUPS_WAIT = 'asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");'
COMMIT = 'asm volatile("cp.async.commit_group;" ::: "memory");'
GROUPS_COMMIT = 'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");'
MINE, OTHER = "__shfl_xor_sync(~0u, v, lanes)", "__shfl_down_sync(~0u, v, lanes)"
# name: which check of test_ptx_kernels has to find it, what is in the header, what is there then
MUTANTS: dict[str, tuple[str, str, str]] = {
    # functions
    "the greater of NaN": (
        "functions",
        "max.NaN.f32",
        "max.f32",
    ),
    "the least on top": (
        "functions",
        "return fmaxf(a, b)",
        "return fminf(a, b)",
    ),
    "top of doubles": (
        "functions",
        "return b > a ? b : a; }\nLUMC_FN double lumc_max",
        "return b < a ? b : a; }\nLUMC_FN double lumc_max",
    ),
    "logarithms for powers": (
        "functions",
        "ex2.approx.ftz.f32",
        "lg2.approx.ftz.f32",
    ),
    "denormal powers": (
        "functions",
        "ex2.approx.ftz.f32",
        "ex2.approx.f32",
    ),
    "+0 is added": (
        "functions",
        "add.rn.f32 %0, %1, 0f80000000",
        "add.rn.f32 %0, %1, 0f00000000",
    ),
    "+0 is added to doubles": (
        "functions",
        "__dadd_rn(x, -0.0)",
        "__dadd_rn(x, 0.0)",
    ),
    "a product that is not rounded": (
        "differences",
        'asm("add.rn.f32 %0, %1, 0f80000000;" : "=f"(y) : "f"(x));',
        "y = x;",
    ),
    "a product of doubles that is not rounded": (
        "differences",
        "__dadd_rn(x, -0.0)",
        "x",
    ),
    "a root by its inverse": (
        "functions",
        "__fsqrt_rn(x)",
        "x * rsqrtf(x)",
    ),
    "a narrow root": (
        "functions",
        "__dsqrt_rn(x)",
        "(double)__fsqrt_rn((float)x)",
    ),
    "a quick quotient": (
        "functions",
        "__frcp_rn(x)",
        "__fdividef(1.0f, x)",
    ),
    "a narrow quotient": (
        "functions",
        "__drcp_rn(x)",
        "(double)__frcp_rn((float)x)",
    ),
    "remainder of the other": (
        "functions",
        "fmodf(a, b)",
        "fmodf(b, a)",
    ),
    "words without their bits": (
        "functions",
        "lop3.b32 %0, %1, %2, %3, 0xea",
        "lop3.b32 %0, %1, %2, %3, 0xc0",
    ),
    "the mask for the bits": (
        "functions",
        "lop3.b32 %0, %1, %2, %3, 0xea",
        "lop3.b32 %0, %1, %3, %2, 0xea",
    ),
    "f16 is read as bf16": (
        "functions",
        "cvt.f32.f16 %0",
        "cvt.f32.bf16 %0",
    ),
    "bf16 for f16": (
        "functions",
        '"cvt.rn.f16.f32',
        '"cvt.rn.bf16.f32',
    ),
    "f16 for bf16": (
        "functions",
        '"cvt.rn.bf16.f32',
        '"cvt.rn.f16.f32',
    ),
    "halves of f16 exchanged": (
        "functions",
        "cvt.rn.f16x2.f32 %0, %1, %2",
        "cvt.rn.f16x2.f32 %0, %2, %1",
    ),
    "halves of bf16 exchanged": (
        "functions",
        "cvt.rn.bf16x2.f32 %0, %1, %2",
        "cvt.rn.bf16x2.f32 %0, %2, %1",
    ),
    "words of bf16": (
        "functions",
        "cvt.rn.f16x2",
        "cvt.rn.bf16x2",
    ),
    "words of f16": (
        "functions",
        "cvt.rn.bf16x2",
        "cvt.rn.f16x2",
    ),
    "tf32 is cut off": (
        "functions",
        "cvt.rna.tf32.f32 %0, %1",
        "and.b32 %0, %1, 0xffffe000",
    ),
    # operations of a warp
    **{
        f"another lane's {t}": (
            "shuffles",
            f"({t} v, int lanes) {{ return {MINE}",
            f"({t} v, int lanes) {{ return {OTHER}",
        )
        for t in SHUFFLED
    },
    "left rows exchanged": (
        "hardware",
        '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0])',
        '"r"(a[1]), "r"(a[0]), "r"(a[2]), "r"(a[3]), "r"(b[0])',
    ),
    "left steps exchanged": (
        "hardware",
        '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0])',
        '"r"(a[0]), "r"(a[2]), "r"(a[1]), "r"(a[3]), "r"(b[0])',
    ),
    "right steps exchanged": (
        "hardware",
        '"r"(b[0]), "r"(b[1])',
        '"r"(b[1]), "r"(b[0])',
    ),
    "results exchanged": (
        "hardware",
        '"=" letter(d[0]), "=" letter(d[1])',
        '"=" letter(d[1]), "=" letter(d[0])',
    ),
    "addends exchanged": (
        "hardware",
        "letter(c[0]), letter(c[1]), letter(c[2])",
        "letter(c[0]), letter(c[2]), letter(c[1])",
    ),
    "f16 is multiplied as bf16": (
        "hardware",
        "row.col.f32.f16.f16.f32",
        "row.col.f32.bf16.bf16.f32",
    ),
    "bf16 is multiplied as f16": (
        "hardware",
        "row.col.f32.bf16.bf16.f32",
        "row.col.f32.f16.f16.f32",
    ),
    "bytes without a sign": (
        "hardware",
        "s32.s8.s8.s32",
        "s32.u8.u8.s32",
    ),
    "rows of all products exchanged": (
        "hardware",
        "{%4,%5,%6,%7},{%8,%9},",
        "{%5,%4,%6,%7},{%8,%9},",
    ),
    "tf32 as f16": (
        "hardware",
        "m16n8k8.row.col.f32.tf32.tf32.f32",
        "m16n8k16.row.col.f32.f16.f16.f32",
    ),
    "matrices are never turned": (
        "hardware",
        "m8n8.x4.trans.shared",
        "m8n8.x4.shared",
    ),
    "matrices are always turned": (
        "hardware",
        "m8n8.x4.shared",
        "m8n8.x4.trans.shared",
    ),
    "matrices in another order": (
        "hardware",
        f"x4.shared.b16 {LOADED}{ORDER}",
        f"x4.shared.b16 {LOADED}{TURNED}",
    ),
    "turned ones in another order": (
        "hardware",
        f"x4.trans.shared.b16 {LOADED}{ORDER}",
        f"x4.trans.shared.b16 {LOADED}{TURNED}",
    ),
    "no barrier of a warp": (
        "hardware",
        "{ __syncwarp(); }",
        "{}",
    ),
    "16 bytes are all valid": (
        "hardware",
        '[%0], [%1], 16, %2;"',
        '[%0], [%1], 16; // %2"',
    ),
    "few bytes are all valid": (
        "hardware",
        '[%0], [%1], %2, %3;"',
        '[%0], [%1], %2; // %3"',
    ),
    "8 of 16 bytes": (
        "hardware",
        "cp.async.cg.shared.global [%0], [%1], 16",
        "cp.async.ca.shared.global [%0], [%1], 8",
    ),
    "always 4 bytes": (
        "hardware",
        "cp.async.ca.shared.global [%0], [%1], %2",
        "cp.async.ca.shared.global [%0], [%1], 4",
    ),
    "no group is made": (
        "hardware",
        COMMIT,
        "",
    ),
    "a group less is waited for": (
        "hardware",
        WAIT,
        WAIT.replace('"n"(N)', '"n"(N + 1)'),
    ),
    "nothing is waited for": (
        "hardware",
        WAIT,
        "",
    ),
    "another place in shared memory": (
        "hardware",
        "(lumc_u32)__cvta_generic_to_shared(p)",
        "(lumc_u32)__cvta_generic_to_shared(p) + 16",
    ),
    # barriers and rings of kernels
    "no barrier of a block": (
        "kernels",
        "{ __syncthreads(); }",
        "{ __syncwarp(); }",
    ),
    "a ring that waits too little": (
        "kernels",
        WAIT,
        WAIT.replace('"n"(N)', '"n"(N + 1)'),
    ),
    "a ring without groups": (
        "kernels",
        COMMIT,
        "",
    ),
    "edges of copies": (
        "kernels",
        '[%0], [%1], 16, %2;"',
        '[%0], [%1], 16; // %2"',
    ),
    "shared memory at any 16 bytes": (
        "groups",
        "__align__(1024)",
        "__align__(16)",
    ),
    # products of warpgroups
    "no fence of the proxy": (
        "groups",
        FENCE,
        "{}",
    ),
    "no fence of registers": (
        "groups",
        'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");',
        "",
    ),
    "products in no group": (
        "groups",
        GROUPS_COMMIT,
        "",
    ),
    "products are not waited for": (
        "groups",
        GROUPS_WAIT,
        "",
    ),
    "a group of products less": (
        "groups",
        GROUPS_WAIT,
        GROUPS_WAIT.replace('"n"(N)', '"n"(N + 1)'),
    ),
    "threads of the second warpgroup are of the first": (
        "groups",
        "__shfl_sync(~0u, tid >> 7, 0)",
        "__shfl_sync(~0u, tid >> 8, 0)",
    ),
    "start of a descriptor": (
        "groups",
        "lumc_shared_address(p) >> 4 &",
        "lumc_shared_address(p) >> 5 &",
    ),
    "panels lie nearer": (
        "groups",
        "(apart >> 3 & 0x3fff)",
        "(apart >> 4 & 0x3fff)",
    ),
    "eight rows are 512 bytes": (
        "groups",
        "(1024 >> 4) << 32",
        "(512 >> 4) << 32",
    ),
    "swizzle of 64 bytes": (
        "groups",
        "(lumc_u64)1 << 62",
        "(lumc_u64)2 << 62",
    ),
    "pieces where they were": (
        "groups",
        "return j ^ (j >> 3 & 56);",
        "return j;",
    ),
    "sums when there are none": (
        "groups",
        "setp.ne.b32 p",
        "setp.eq.b32 p",
    ),
    "products are subtracted": (
        "groups",
        ', p, 1, 1, " R3',
        ', p, 1, -1, " R3',
    ),
    "right before left in the text": (
        "groups",
        'LUMC_D##SUMS "}, " R1 ", " R2',
        'LUMC_D##SUMS "}, " R2 ", " R1',
    ),
    "rows of the left exchanged": (
        "groups",
        'LUMC_D##SUMS "}, {" R1 "," R2',
        'LUMC_D##SUMS "}, {" R2 "," R1',
    ),
    "both turned alike": (
        "groups",
        '"n"(TA), "n"(TB)',
        '"n"(TB), "n"(TA)',
    ),
    "right before left": (
        "groups",
        '"l"(a), "l"(b)',
        '"l"(b), "l"(a)',
    ),
    "words of the left exchanged": (
        "groups",
        WGMMA_A,
        WGMMA_A.replace('"r"(a[1]), "r"(a[2])', '"r"(a[2]), "r"(a[1])'),
    ),
    "rows of the right, turned": (
        "groups",
        '"r"(a[3]), "l"(b),          \\\n                           "n"(TB)',
        '"r"(a[3]), "l"(b),          \\\n                           "n"(!TB)',
    ),
    "sums exchanged": (
        "groups",
        '"+f"(d[i + 1]), "+f"(d[i + 2])',
        '"+f"(d[i + 2]), "+f"(d[i + 1])',
    ),
    "f16 groups as bf16": (
        "groups",
        'LUMC_WGMMAS(lumc_f16, ".f16.f16")',
        'LUMC_WGMMAS(lumc_f16, ".bf16.bf16")',
    ),
    "bf16 groups as f16": (
        "groups",
        'LUMC_WGMMAS(lumc_bf16, ".bf16.bf16")',
        'LUMC_WGMMAS(lumc_bf16, ".f16.f16")',
    ),
}
