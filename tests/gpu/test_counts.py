"""What a block asks of its processor: counts of whole kernels by hand, of their machine code where
NVIDIA's compiler is at hand, and the resource that follows from them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import mutating
from dealing import dealt, flash, narrowed, schedule, tiled
from gpu.ptx import module as ptx
from gpu.test_warpgroups import linear
from gpu.test_warpgroups import tiled as by_groups
from kernel_zoo import attention, gemv, levels, matmul, rms_linear_residual, softmax
from lumc.codegen.generate import DIALECTS
from lumc.codegen.gpu import counts
from lumc.codegen.gpu.counts import Counts, count, turns
from lumc.codegen.gpu.distribute import distribute
from lumc.codegen.gpu.limits import limits_us, times_us
from lumc.codegen.gpu.operations import print_kernel
from lumc.codegen.gpu.program import Distributed, steps_of
from lumc.codegen.text.headers import header_of
from lumc.codegen.tile.lower import lower
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.profile.price import scheduled
from lumc.schedule.schedule import Schedule, Stage

BENCH = Path(__file__).parents[2] / "bench"
N = 4096
HOPPER, AMPERE = resolve_target("cuda:sm_90"), resolve_target("cuda:sm_80")


def chosen(k: Kernel, target: Target) -> tuple[Schedule, Distributed]:
    s, program = scheduled(k, target)
    return s, distribute(program, s.threads)


# ---- turns of shared memory, by its banks


@pytest.mark.parametrize(
    ("addresses", "nbytes", "times"),
    [
        ([4 * t for t in range(32)], 4, 1),
        ([0] * 32, 4, 1),  # one word for all
        ([8 * t for t in range(32)], 4, 2),
        ([128 * t for t in range(32)], 4, 32),  # all in one bank
        ([132 * t for t in range(32)], 4, 1),
        ([2 * t for t in range(32)], 2, 1),  # halves of words
        ([8 * t for t in range(32)], 8, 2),  # 256 bytes
        ([16 * t for t in range(32)], 16, 4),
        # 16 bytes to rows of 64 that are 80 apart: of two rows, four banks are the same
        ([t // 4 * 80 + t % 4 * 16 for t in range(32)], 16, 8),
        ([t // 8 * 144 + t % 8 * 16 for t in range(32)], 16, 4),
        ([80 * t for t in range(8)], 16, 1),  # eight rows of a matrix
        ([64 * t for t in range(8)], 16, 4),
    ],
)
def test_turns(addresses: list[int], nbytes: int, times: int) -> None:
    assert turns(addresses, nbytes) == times


# ---- whole kernels by hand


def product_of_warpgroups() -> tuple[Counts, Counts]:
    """What is counted, and what there is to count in a block of 128 x 256 of a product of f16 in
    steps of 64: two warpgroups, eight warps."""
    k = linear(N, N, N, DType.F16)
    s = by_groups(k, 128, 256, 4)
    assert s.tile == {"m": 128, "n": 256, "k": 64}
    d = dealt(k, s, HOPPER)
    copied = (128 + 256) * N * 2  # bytes to shared memory
    read = 2 * (N // 16) * (64 + 256) * 32  # of 16 steps each group reads 64 rows and 256 lanes
    pieces, instructions = copied // 16 // 32, 8 * (N // 16)
    stores, barriers = 128 * 256 // 2 // 32, 8 * (N // 64)
    byhand = Counts(
        tensor=2 * 128 * 256 * N,
        shared=copied + read,
        issue=pieces + instructions + stores + barriers,
        l2=copied + 128 * 256 * 2,
    )
    return count(d), byhand


def product_of_warps() -> tuple[Counts, Counts]:
    """A block of 256 x 128 in steps of 32: eight warps with 64 x 64 each."""
    k = linear(N, N, N, DType.F16)
    s = schedule(k, {"m": 256, "n": 128, "k": 32}, tiled(k, "mma", (4, 2)), count=256, ring=3)
    d = dealt(k, s, AMPERE)
    copied, steps = (256 + 128) * N * 2, N // 16
    loads = 8 * steps * (4 + 4)  # of 16 x 16 elements, four along the rows and the lanes of a warp
    products = 8 * steps * 4 * 8  # of 16 x 8 results
    issue = copied // 16 // 32 + loads + products + 256 * 128 // 2 // 32 + 8 * (N // 32)
    byhand = Counts(
        tensor=2 * 256 * 128 * N,
        shared=copied + loads * 512,
        issue=issue,
        l2=copied + 256 * 128 * 2,
    )
    return count(d), byhand


def product_of_tf32() -> tuple[Counts, Counts]:
    """Four warps with 32 x 32 results, an element at a time; rows are 144 bytes and neighbours read
    every second word: of two rows, two banks are the same."""
    k, s = linear(64, 64, 64, DType.F32), {"m": 64, "n": 64, "k": 32}
    mine = schedule(k, s, tiled(k, "mma", (2, 2)), vector=4)
    found = count(dealt(k, mine, resolve_target("cuda:sm_80+tf32")))
    loads = 4 * (64 // 8) * (2 * 4 + 4 * 2)
    return Counts(shared=found.shared), Counts(shared=loads * 2 * 128 + 128 * 64 * 4)


def product_of_threads() -> tuple[Counts, Counts]:
    """256 threads with 8 x 8 results of f32 each, in a block of 128 x 128."""
    k = matmul(256, 512, 128)
    s = schedule(
        k, {"m": 128, "n": 128, "k": 16}, tiled(k, "simt", (16, 16)), count=256, pad=0, vector=4
    )
    found = count(dealt(k, s, AMPERE))
    return replace(found, shared=0, issue=0), Counts(f32=128 * 128 * 128 / 32, l2=found.l2)


def weights() -> tuple[Counts, Counts]:
    """Attention of one head, 64 rows in four warps: in each of four tiles a thread has 32 weights,
    which are powers of the hardware, and rescales the sums of two rows; then it divides these. This
    schedule sums the weights in a walk of its own: scores and weights are made twice."""
    k = narrowed(attention(1, 64, 256, 64, mask=False), DType.F16)
    found = count(dealt(k, flash(k, (4, 1), 64, 64, ring=2), AMPERE))
    byhand = Counts(tensor=3 * 2 * 64 * 256 * 64, special=4 * (2 * 4 * (32 + 2) + 2))
    return Counts(tensor=found.tensor, special=found.special), byhand


def scales() -> tuple[Counts, Counts]:
    """Rows that are scaled as they are copied: each of 256 threads has an element of 32 rows in
    every round, whose roots and reciprocals are made once, before the loop over the sum."""
    k = narrowed(rms_linear_residual(2048, 1024, 1024), DType.F16)
    s, d = chosen(k, AMPERE)
    assert s.tile == {"m": 256, "n": 80, "k": 32} and d.threads.count == 256
    return Counts(special=count(d).special), Counts(special=8 * 32 * 2)


def row() -> tuple[Counts, Counts]:
    """A sum of 4,096 products by 256 threads, which are part of it; the threads of each of eight
    warps meet in five steps."""
    k = gemv(8, 4096)
    s = schedule(k, {"n": 1}, (Stage(),), 1, count=256, row=256, vector=4)
    return Counts(f32=count(dealt(k, s, HOPPER)).f32), Counts(f32=4096 / 32 + 8 * 5)


CASES = (
    *(product_of_warpgroups, product_of_warps, product_of_tf32, product_of_threads),
    *(weights, scales, row),
)
BY_HAND = {f.__name__: f for f in CASES}


@pytest.mark.parametrize("name", BY_HAND)
def test_counts_by_hand(name: str) -> None:
    found, byhand = BY_HAND[name]()
    assert found == byhand


def without_conflicts(addresses: Sequence[int], nbytes: int) -> int:
    return max(1, len(addresses) * nbytes // 128)


MUTANTS = {
    "a loop goes round once": ("* prod(n for _, n in loop.turns)", "* 1"),
    "no barrier of a ring": ("self.warps * (slots > 1)", "0"),
    "halves of products": ("lanes * 2 * unit_rows", "lanes * unit_rows"),
    "a warp reads for all of its group": ("times / GROUP * nbytes", "times * nbytes"),
    "a left operand that is not read": ('"shared" else 0', '"shared" and False else 0'),
    "no conflicts": ("max(banks.count(b) for b in set(banks))", "1"),
    "right operands one by one": ("roles.b, (lanes + 1) // 2", "roles.b, lanes"),
    "copies take two instructions": ("issue=0 if ahead else 1", "issue=1"),
    "pieces of rows stay": ("return tile.swizzle.at(at)", "return at"),
    "all steps of other axes": ("c.size * steps", "c.size"),
    "powers are computed": ('"decay": (0, 1)', '"decay": (12, 0)'),
    "what does not change is made in every round": ("/ self.outside(e, op)", "/ 1"),
    "products that are summed are apart": ("kids += [(e,) for e in summed]", ""),
    "threads that meet add nothing": ("f32=(n + meets) * is_sum", "f32=n * is_sum"),
    "what changes is made once": (" | {a for a, made in self.stored.items() if names & made}", ""),
    "stores are not seen": ("[*reads(step), *stores_of(step)]", "reads(step)"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_dies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutating.replace(counts, *MUTANTS[name], monkeypatch)
    assert any(found != byhand for found, byhand in (f() for f in BY_HAND.values()))


# ---- which resource limits


def test_the_largest_tile_that_its_turns_allow() -> None:
    """Shared memory limits blocks of 64 x 128 on an A100: larger ones are chosen, and of as many
    lanes as leave few processors without one of them."""
    s, program = scheduled(linear(N, N, N, DType.F16), AMPERE)
    found = limits_us(program, s.threads)
    assert next(iter(found)) == "tensor cores"
    small = linear(2048, 2048, N, DType.F16)
    assert scheduled(small, AMPERE)[0].tile == {"m": 256, "n": 80, "k": 32}  # 208 blocks
    k = linear(N, N, N, DType.F16)
    known = schedule(k, {"m": 64, "n": 128, "k": 32}, tiled(k, "mma", (2, 2)), count=128, ring=3)
    before = dealt(k, known, AMPERE)
    times = times_us(count(before), before.program.tiles, AMPERE)
    assert times["tensor cores"] / times["shared memory"] == pytest.approx(8 / 9)


def test_memory_limits_rows() -> None:
    s, program = scheduled(softmax(8192, 4096), HOPPER)
    assert next(iter(limits_us(program, s.threads))) == "memory"


def test_words_are_half_a_byte_for_each_number() -> None:
    """256 rows of 1,024 numbers of 4 bits, a scale of f16 for 32 of them, one row of f32."""
    s, program = scheduled(levels(1, 256, 32, 32, DType.U8, 4), HOPPER)
    nbytes = 256 * 1024 / 2 + 256 * 32 * 2 + 1024 * 4 + 256 * 4
    assert limits_us(program, s.threads)["memory"] == pytest.approx(nbytes / 4800e3)


def test_machines_whose_rates_are_not_known() -> None:
    for name in ("cuda:sm_100", "metal:apple7", "hip:gfx942"):
        s, program = scheduled(softmax(64, 256), resolve_target(name))
        assert limits_us(program, s.threads) == {}


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import gpu_bounds

    return gpu_bounds


@cache
def limited(bounds: Any, name: str, target: Target) -> dict[str, float]:
    """The least microseconds of what ``--estimate`` chooses."""
    plan = bounds.chosen(bounds.ROWS[name].graph(), target)
    return limits_us(lower(plan.kernel, plan.schedule, target), plan.schedule.threads)


SHARES = [(n, t, 0.95) for n in ("product", "product_kn") for t in (AMPERE, HOPPER)]
SHARES += [("attention", HOPPER, 0.75), ("causal", HOPPER, 0.75)]


@pytest.mark.parametrize(("name", "target", "least"), SHARES)
def test_a_share_of_the_tensor_cores(name: str, target: Target, least: float, bounds: Any) -> None:
    """Of a whole launch, by the estimate alone."""
    gpu, us = target.gpu, limited(bounds, name, target)
    assert gpu and gpu.rates
    peak = bounds.ROWS[name].flops / gpu.processors / gpu.rates.tensor / gpu.rates.mhz
    assert peak / max(us.values()) >= least


def test_masked_tiles_are_no_work(bounds: Any) -> None:
    causal, whole = (limited(bounds, name, HOPPER) for name in ("causal", "attention"))
    assert causal["tensor cores"] <= 0.55 * whole["tensor cores"]


@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
def test_memory_limits_one_row(name: str, bounds: Any) -> None:
    assert next(iter(limited(bounds, name, HOPPER))) == "memory"


# ---- machine code

LOOP = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDSM.16.M88.4 R4, [R2] ;
        /*0020*/              @!PT LDS RZ, [RZ] ;
        /*0030*/               @P0 BRA `(.L_x_0) ;
        /*0040*/                   LDGSTS.E.BYPASS.128 [R9], desc[UR8][R6.64] ;
.L_x_0:
        /*0050*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0060*/                   HGMMA.64x256x16.F32 R24, gdesc[UR12], R24 ;
        /*0070*/                   HGMMA.64x128x16.F32 R24, R4, gdesc[UR4], R24, gsb0 ;
        /*0080*/                   FFMA R3, R3, R5, R7 ;
        /*0090*/                   MUFU.EX2 R3, R3 ;
        /*00a0*/              @!P0 BRA `(.L_x_1) ;
        /*00b0*/                   EXIT ;
.L_x_2:
        /*00c0*/                   BRA `(.L_x_2) ;
"""


@pytest.fixture
def sass(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import sass

    return sass


def test_a_loop_of_machine_code(sass: Any) -> None:
    """Ten instructions; a warp has 16 of 64 rows, and a quarter of what its group reads."""
    code, found = sass.main_loop(LOOP)
    assert found and len(code) == 10 and sass.products(code) == 3
    tensor = 2 * 16 * 8 * 16 + 2 * 16 * 256 * 16 + 2 * 16 * 128 * 16
    shared = 512 + 512 + (256 + 64) * 32 / 4 + 128 * 32 / 4
    assert sass.counted(code) == Counts(tensor, shared, issue=10, f32=1, special=1)
    asks = ".L_x_3:\n" + "        /*0090*/                   NOP ;\n" * 20
    asks += "        /*0090*/               @P0 BRA.U.ANY `(.L_x_3) ;\n"
    nested = LOOP.replace("        /*0090*/ ", asks + "        /*0090*/ ")
    assert len(sass.main_loop(nested)[0]) == 10 + 21
    skipped = LOOP.replace("LDGSTS.E.BYPASS.128 [R9], desc[UR8][R6.64]", "UTMALDG.2D [UR8], [UR4]")
    one, _ = sass.main_loop(skipped)
    assert [x.startswith("UTMALDG") for x in one] == [x.alone for x in one]
    assert sass.counted(one, 8).issue == 9 + 1 / 8
    waits = (
        "        /*0030*/              @!P1 BRA `(.L_x_9) ;\n.L_x_8:\n"  # its way back is no loop
    )
    behind = ".L_x_9:\n        /*00c8*/                   BRA `(.L_x_8) ;\n.L_x_2:"
    results = "        /*00b0*/                   STG.E.64 desc[UR60][R2.64], R14 ;\n" * 20
    waiting = LOOP.replace("        /*0030*/ ", waits + "        /*0030*/ ")
    waiting = waiting.replace("        /*00b0*/ ", results + "        /*00b0*/ ")
    assert len(sass.main_loop(waiting.replace(".L_x_2:", behind))[0]) == 10 + 1
    once = LOOP.replace("@!P0 BRA `(.L_x_1)", "NOP")
    assert sass.main_loop(once) == (sass.main_loop(once)[0], False)
    assert len(sass.main_loop(once)[0]) == 12


CHOSEN = {
    "product": lambda: linear(N, N, N, DType.F16),
    "attention": lambda: narrowed(attention(16, N, N, 128, mask=False), DType.F16),
}


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("target", [AMPERE, HOPPER], ids=lambda t: t.arch)
def test_counts_of_machine_code(name: str, target: Target, sass: Any, tmp_path: Path) -> None:
    """Products and shared memory as the program's, but for conflicts and what lies before the loop;
    not fewer instructions; and nothing is spilled."""
    compiler = ptx.compiler()
    if compiler is None or sass.disassembler() is None:
        pytest.skip("needs NVIDIA's compiler and disassembler: pip install '.[gputest]'")
    s, d = chosen(CHOSEN[name](), target)
    (tmp_path / "lumc_dev.h").write_text(header_of("cuda"))
    text, _ = print_kernel(d, DIALECTS["cuda"], "k")
    (tmp_path / "k.cu").write_text(text)
    compiler.image(tmp_path, "k.cu", target.arch, "k.cubin")
    figures = next(iter(ptx.cuda.figures((tmp_path / "k.cubin").read_bytes()).values()))
    assert figures.local_bytes == 0
    code, found = sass.main_loop(sass.disassembled(tmp_path / "k.cubin"))
    assert found
    written = re.search(r"LUMC_UNROLL_(\d+)", text)  # rounds that are one of the loop
    rounds = N // s.tile["k" if name == "product" else "j"] // (int(written[1]) if written else 1)
    warps = d.threads.count // d.warp
    own = sass.counted(code, warps) * (warps * rounds)
    with pytest.MonkeyPatch.context() as patch:  # as if banks never met
        patch.setattr(counts, "turns", without_conflicts)
        seen = count(d)
    assert own.tensor == seen.tensor
    asked = sum(s.bulk.nbytes for s in steps_of(d.body) if s.bulk) * N // s.tile.get("k", 1)
    assert own.shared + asked == pytest.approx(seen.shared, rel=0.1)  # no instruction names them
    assert seen.issue <= own.issue and seen.special == pytest.approx(own.special, rel=0.05)


@pytest.mark.deep
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("name", ["cuda:sm_80", "cuda:sm_89", "cuda:sm_90", "cuda:sm_120"])
def test_limits_are_those_of_machine_code(
    name: str, bounds: Any, sass: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the ten kernels of docs/gpu-bounds.md, within 10 %: with the products, shared memory,
    instructions and functions that the machine code has, as if banks never met. What memory moves
    only programs say."""
    if ptx.compiler() is None or sass.disassembler() is None:
        pytest.skip("needs NVIDIA's compiler and disassembler: pip install '.[gputest]'")
    monkeypatch.setattr(counts, "turns", without_conflicts)
    target, off = resolve_target(name), dict[str, float]()
    for row in bounds.ROWS.values():
        m = bounds.made(row, target, tmp_path)
        assert m.figures.local_bytes == 0
        by_code = bounds.longest_us(m, replace(m.own, l2=m.counts.l2))
        off[row.says] = bounds.longest_us(m, m.counts) / by_code
    assert len(off) == 10 and all(0.9 < x < 1.1 for x in off.values()), off
