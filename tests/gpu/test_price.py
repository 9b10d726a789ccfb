"""The price of kernels on NVIDIA GPUs: what an H200 was measured to take (docs/cuda.md), and what
the same price is with the counts of machine code instead of those of programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import kernel_zoo as zoo
import lumc.codegen.tile.program as ir
import mutating
from dealing import dealt, flash, narrowed, schedule, tiled, together
from gpu.ptx import module as ptx
from gpu.test_warpgroups import linear
from gpu.test_warpgroups import tiled as by_groups
from lumc.codegen.gpu import counts, expected, instructions, occupancy
from lumc.codegen.gpu.counts import Counter, Counts, count
from lumc.codegen.gpu.distribute import distribute
from lumc.codegen.gpu.expected import distributed_us
from lumc.codegen.gpu.occupancy import registers
from lumc.codegen.gpu.program import Distributed, steps_of
from lumc.codegen.text.headers import header_of
from lumc.frontend import Model, Tensor
from lumc.frontend.api.elementwise import where
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.link import cuda
from lumc.profile.choose import estimate
from lumc.profile.price import scheduled
from lumc.schedule.plan import KernelPlan
from lumc.schedule.schedule import Schedule, Stage
from lumc.search import search
from lumc.search.saturate import Limits

BENCH = Path(__file__).parents[2] / "bench"
N, F16 = 4096, DType.F16
HOPPER = resolve_target("cuda:sm_90")
OFF = 0.15  # of a measured time
NEAR = 1.1  # two measured times that the price need not tell apart


# ---- kernels as they were measured: docs/cuda.md, its table and the two that were before it


def planned(of: Callable[[Model], Tensor]) -> KernelPlan:
    """The one kernel of a graph."""
    g = Model()
    g.output("y", of(g))
    (plan,) = estimate(search(g.graph(), HOPPER, Limits())).kernels.values()
    return plan


def gelu() -> Kernel:
    """What becomes of the function in a graph: its polynomial is another one than the zoo's."""
    return planned(lambda g: g.input("x", (8192, N), "f16").gelu()).kernel


def causal(g: Model) -> Tensor:
    q, k, v = (g.input(name, (16, N, 128), "f16") for name in "qkv")
    i = g.arange(N)
    scores = (q @ k.transpose()) * 128**-0.5
    return where(i[:, None] < i[None, :], -math.inf, scores).softmax(-1) @ v


def rows(k: Kernel, stages: int) -> Schedule:
    """A row by each block of 256 threads."""
    tile = {k.axes[0]: 1}
    return schedule(k, tile, (Stage(),) * stages, 1, count=256, row=256, vector=8)


def ampere(k: Kernel) -> Schedule:
    """Products of single warps."""
    tile = {"m": 128, "n": 128, "k": 32}
    return schedule(k, tile, tiled(k, "mma", (4, 2)), count=256, vector=4, ring=3)


def one_row(k: Kernel) -> Schedule:
    return schedule(k, {"n": 1}, (Stage(),), 1, count=256, row=256, vector=8)


def columns(k: Kernel) -> Schedule:
    return schedule(k, {"n": 16, "m": 512}, (Stage(lanes="kept"),), 1, count=256, row=16)


def threads(k: Kernel) -> Schedule:
    tile = {"m": 64, "n": 64, "k": 16}
    return schedule(k, tile, tiled(k, "simt", (16, 16)), count=256, vector=4)


def heads(h: int, s: int, d: int) -> Kernel:
    return narrowed(zoo.attention(h, s, s, d, mask=False), F16)


MEASURED = {  # the kernel, its schedule, microseconds
    "softmax": (lambda: narrowed(zoo.softmax(8192, N), F16), partial(rows, stages=2), 34.6),
    "layer norm": (lambda: narrowed(zoo.layernorm(8192, N), F16), partial(rows, stages=2), 37.3),
    "sum over rows": (lambda: narrowed(zoo.column_sum(8192, N), F16), columns, 24.0),
    "1 x 4096 x 11008": (lambda: narrowed(zoo.gemv(11008, N), F16), one_row, 22.4),
    "gelu": (
        gelu,
        lambda k: schedule(k, {k.axes[-1]: 1024}, (), 1, count=256, row=256, vector=8),
        49.3,
    ),
    "product 1024^3, f32": (lambda: zoo.matmul(1024, 1024, 1024), threads, 75.8),
    "attention 32 x 1024 x 64": (
        lambda: heads(32, 1024, 64),
        lambda k: flash(k, (8, 1), 128, 128, "wgmma", count=256, vector=4, ring=2),
        32.7,
    ),
    "attention 16 x 4096 x 128": (
        lambda: heads(16, N, 128),
        lambda k: flash(k, (8, 1), 128, 128, "wgmma", count=256, vector=4, ring=2),
        320.4,
    ),
    "8 x 4096 x 11008": (
        lambda: linear(8, 11008, N, F16),
        lambda k: schedule(
            k,
            {"n": 128, "k": 64},
            tiled(k, "wgmma", (4, 1)),
            **{"count": 128, "vector": 4, "ring": 4},
        ),
        37.4,
    ),
    "512 x 4096 x 11008": (
        lambda: linear(512, 11008, N, F16),
        lambda k: by_groups(k, 128, 256, 4),
        119.2,
    ),
    "product 4096^3": (lambda: linear(N, N, N, F16), lambda k: by_groups(k, 128, 256, 4), 227.0),
    "product 4096^3, [k, n]": (
        lambda: narrowed(zoo.matmul(N, N, N), F16),
        lambda k: by_groups(k, 128, 256, 4),
        269.5,
    ),
    "product 1024^3": (
        lambda: linear(1024, 1024, 1024, F16),
        lambda k: by_groups(k, 64, 128, 4),
        9.8,
    ),
    "product 4096^3, by warps": (lambda: linear(N, N, N, F16), ampere, 599.0),
    "attention 16 x 4096 x 128, by warps": (
        lambda: heads(16, N, 128),
        lambda k: flash(k, (4, 1), 64, 64, count=128, vector=4),
        638.0,
    ),
}

SAME = {"product 4096^3", "product 4096^3, [k, n]"}  # now by as many instructions


@cache
def measured(name: str) -> tuple[Distributed, float]:
    kernel, how, us = MEASURED[name]
    k = kernel()
    return dealt(k, how(k), HOPPER), us


@pytest.mark.parametrize("name", MEASURED)
def test_a_measured_kernel(name: str) -> None:
    d, us = measured(name)
    assert distributed_us(d) == pytest.approx(us, rel=OFF)


@pytest.mark.parametrize(("one", "other"), list(combinations(MEASURED, 2)))
def test_two_measured_kernels_are_ranked(one: str, other: str) -> None:
    (d, us), (e, more) = measured(one), measured(other)
    if max(us, more) < NEAR * min(us, more):
        pytest.skip("times that are as good as the same")
    if {one, other} == SAME:
        pytest.skip(
            "what was measured had a third more instructions than the other; today's have not"
        )
    assert (distributed_us(d) < distributed_us(e)) is (us < more)


def test_a_loop_over_all_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Causal attention was measured before its loops ended where the mask does: 332.6 us."""
    plan = planned(causal)
    k, s = plan.kernel, plan.schedule
    assert sorted(s.tile.values()) == [1, 128, 128] and s.threads
    assert (s.threads.count, s.threads.ring) == (256, 2)
    half = distributed_us(dealt(k, s, HOPPER))
    monkeypatch.setattr(Target, "ends_early", False)
    whole = distributed_us(dealt(k, s, HOPPER))
    assert whole == pytest.approx(332.6, rel=OFF)
    assert 0.5 * whole < half < 0.6 * whole


# ---- the same by machine code


def code_cases() -> dict[str, Kernel]:
    """Of every family, at sizes that keep a GPU busy; in 16 bits where matrix units multiply."""
    z, half = zoo, partial(narrowed, kind=F16)
    found = [
        *(z.bias_gelu(N, N), half(z.bias_gelu(N, N)), z.transpose(N, N), z.turned_gelu(N, N)),
        *(z.pad_iota(N, 1000), z.reflected(N, 1000, 3), z.joined(2048, 1024, 512, "n")),
        *(z.side_by_side(2048, 3, 1024, "exp2"), z.rolled(2048, N, 5), z.chosen(2048, N)),
        *(z.embed(2048, 30000, 768), z.cast_chain(1 << 24, DType.I8, DType.F32)),
        *(z.add_in_place(N, N), z.softmax(8192, N), z.softmax(8192, 128), z.layernorm(8192, 1024)),
        *(z.norm_of_gelu(N, 1024), z.moments(N, 1024), z.stored_moments(8192, 1024)),
        *(z.column_sum(N, N), z.column_max(N, N), z.running(512, 1024, 1)),
        *(z.running(512, 128, 1024, "down"), z.average_pool(512, 64, 64), z.max_pool(512, 64, 64)),
        *(z.broadcast_sum(256, 256, 256), z.windows(64, 56, 56, 3, 1, True)),
        *(z.typed_rows(N, 1024, F16), z.matmul(1024, 1024, 1024), half(z.matmul(1024, 1024, 1024))),
        *(z.turned_matmul(1024, 1024, 1024), z.gemv(N, N), z.gemv(N, N, False)),
        *(half(z.linear_gelu(2048, 3072, 768)), half(z.head_linear(2048, 12, 64, 768))),
        *(half(z.rms_linear_residual(2048, 1024, 1024)), half(z.gated(2048, 1024, 1024))),
        *(half(z.scores(12, 512, 512, 64)), half(z.batched_matmul(12, 512, 512, 64))),
        *(z.conv(64, 64, 56, 56), half(z.qkv(2048, 768, 768))),
        *(half(z.attention(12, 512, 512, 64, mask=False)), z.attention(12, 512, 512, 64)),
        *(half(z.masked_attention(12, 512, 64)), z.decode(8, 4, 2048, 128)),
        *(z.attention_join(32, 4, 8, 128), z.byte_matmul(1024, 1024, 1024, True)),
        *(z.mixed_linear(1, N, N, DType.I8), z.levels(1, N, 128, 32, DType.U8, 4, "shifted")),
        z.scaled_blocks(512, 32, 32, 1024),
    ]
    return {f"{i:02} {k.name}": k for i, k in enumerate(found)}


def without_conflicts(addresses: Any, nbytes: int) -> int:
    """As machine code is counted, of which banks are not seen."""
    return max(1, len(addresses) * nbytes // 128)


def busy_share(d: Distributed) -> float:
    """Of the warps, how many a map does not end at once."""
    steps = list(steps_of(d.body))
    alone = len(steps) == 1 and isinstance(steps[0].op, ir.Map)
    return Counter(d).share(steps[0].points, steps[0].op.dst) if alone else 1.0


def by_code(d: Distributed, own: Counts, monkeypatch: pytest.MonkeyPatch) -> Counts:
    """How many times what is expected of a block its machine code does."""
    with monkeypatch.context() as patch:
        patch.setattr(counts, "turns", without_conflicts)
        seen = count(d)
    seen = replace(seen, issue=expected.block_of(d).counts.issue)
    pairs = {f: (getattr(own, f), getattr(seen, f)) for f in ("shared", "issue", "f32", "special")}
    return Counts(1.0, **{f: a / b if b else 1.0 for f, (a, b) in pairs.items()}, l2=1.0)


@pytest.fixture
def sass(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import sass

    return sass


def compiled(programs: list[Distributed], arch: str, folder: Path, sass: Any) -> Any:
    """The texts of their machine code, and what ptxas allotted, by symbols."""
    compiler = ptx.compiler()
    if compiler is None or sass.disassembler() is None:
        pytest.skip("needs NVIDIA's compiler and disassembler: pip install '.[gputest]'")
    (folder / "lumc_dev.h").write_text(header_of("cuda"))
    (folder / "k.cu").write_text(together(programs)[0])
    compiler.image(folder, "k.cu", arch, "k.cubin")
    figures = cuda.figures((folder / "k.cubin").read_bytes())
    return sass.kernels(sass.disassembled(folder / "k.cubin")), figures


def check_code(target: Target, sass: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The price is within 10 % of that by the instructions, sums, functions and bytes of shared
    memory of the machine code; of nine in ten kernels so many instructions were expected within a
    third, and as many registers."""
    programs = dict[str, Distributed]()
    for name, k in code_cases().items():
        s, program = scheduled(k, target)
        programs[name] = distribute(program, s.threads)
    code, figures = compiled(list(programs.values()), target.arch, folder, sass)
    off, counted, allotted = dict[str, float](), dict[str, float](), dict[str, float]()
    for i, (name, d) in enumerate(programs.items()):
        warp = sass.weighed(sass.executed(code[f"k{i}"], busy_share(d)))
        scale = by_code(d, warp * (d.threads.count / d.warp), monkeypatch)
        off[name] = distributed_us(d) / distributed_us(d, scale)
        counted[name], allotted[name] = scale.issue, registers(d) / figures[f"k{i}"].registers
    assert len(off) >= 50
    assert {n: x for n, x in off.items() if not 0.9 <= x <= 1.1} == {}
    for ratios, bound in ((counted, 1.33), (allotted, 2.0)):
        far = {n: round(x, 2) for n, x in ratios.items() if not 1 / bound <= x <= bound}
        assert len(far) <= len(off) / 10, far


@pytest.mark.timeout(600)
def test_prices_by_machine_code(sass: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_code(HOPPER, sass, tmp_path, monkeypatch)


@pytest.mark.deep
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("name", ["cuda:sm_80", "cuda:sm_89", "cuda:sm_120"])
def test_prices_by_machine_code_of_others(
    name: str, sass: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_code(resolve_target(name), sass, tmp_path, monkeypatch)


# ---- mutants


def hands() -> Iterator[bool]:
    """What is known without a measurement."""
    product, small = measured("product 4096^3")[0], measured("product 1024^3")[0]
    yield [occupancy.resident(d) for d in (product, small)] == [1, 2]  # 192 and 96 KB of 227
    f32, row = measured("product 1024^3, f32")[0], measured("1 x 4096 x 11008")[0]
    yield occupancy.resident(f32) == 4  # by registers: 64 of 256 threads
    yield occupancy.resident(row) == 8  # by threads: 256 of 2048
    s, program = scheduled(zoo.max_pool(64, 64, 64), HOPPER)
    yield occupancy.resident(distribute(program, s.threads)) == 2048 // 128
    # 64 rounds, whose products are under way while others are awaited; 128 x 256 x 64 each
    products = 64 * 2 * 128 * 256 * 64 / (4096 * 0.8)
    yield products < expected.block_of(product).chain < 1.1 * products


def test_occupancy() -> None:
    assert all(hands())


def holds() -> bool:
    rows = (measured(name) for name in MEASURED)
    return all(hands()) and all(abs(distributed_us(d) / us - 1) < OFF for d, us in rows)


MUTANTS = {
    "a processor has one block": (occupancy, "return max(1, min(by))", "return 1"),
    "no limit by registers": (occupancy, "gpu.registers // (d.threads.count * registers(d)),", ""),
    "no limit by threads": (occupancy, "most.threads // d.threads.count,", ""),
    "nothing is under way": (occupancy, "d.body, d.tiles) + ADDRESSES + more", "d.body, d.tiles)"),
    "blocks do not wait": (expected, "max(self.resident * busy, chain)", "self.resident * busy"),
    "the last turn is full": (expected, "ceil(rest / self.gpu.processors) * busy", "0.0"),
    "units are added": (expected, "busy = max(self._busy(r", "busy = sum(self._busy(r"),
    "no latency": (expected, 'if "memory" in memories:', "if False:"),
    "rings wait for nothing": (expected, "self.latency / ahead", "0.0"),
    "rings are not ahead": (expected, "self.latency / ahead", "self.latency"),
    "products wait for all": (expected, "= max(behind, others)", "= behind + others"),
    "products of warps wait for nothing": (
        expected,
        'busy["tensor"] + busy["shared"]',
        'max(busy["tensor"], busy["shared"])',
    ),
    "no second cache": (expected, "if r.l2:", "if False:"),
    "every block reads memory": (expected, "max(once, min(again, own * tiles))", "own * tiles"),
    "no memory": (expected, "_norm(cycles / mhz, memory)", "cycles / mhz"),
    "blocks share nothing": (expected, "if together else tiles)", "if 0 else tiles)"),
    "idle warps": (counts, "1 / prod(t.mod for t in alike)", "1.0"),
    "functions are their sums": (instructions, "BESIDE.get(e.attr[0], 0)", "0"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_dies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, old, new = MUTANTS[name]
    assert holds()
    mutating.replace(module, old, new, monkeypatch)
    assert not holds()
