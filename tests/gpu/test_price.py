"""The price of kernels on NVIDIA GPUs: what an H200 was measured to take (docs/cuda.md), and what
the same price is with the counts of machine code instead of those of programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from pathlib import Path

import pytest

import kernel_zoo as zoo
import mutating
from dealing import dealt, flash, narrowed, schedule, tiled
from gpu.test_tensor_maps import whole
from gpu.test_warpgroups import linear
from gpu.test_warpgroups import tiled as by_groups
from lumc.codegen.gpu import counts, expected, instructions, occupancy
from lumc.codegen.gpu.distribute import distribute
from lumc.codegen.gpu.expected import distributed_us
from lumc.codegen.gpu.program import Distributed
from lumc.frontend import Model, Tensor
from lumc.frontend.api.elementwise import where
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.profile.choose import estimate
from lumc.profile.price import cheaper, least_price_us, price_us, scheduled
from lumc.schedule.first import first_schedules
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
    # pairs that share an operand; counted in their machine code: instructions of a block
    pair, alone = pairs(), distributed_us(product)
    yield distributed_us(pair) < 0.8 * alone
    yield abs(expected.block_of(pair).counts.issue / PAIR - 1) < 0.1

    # by counts 442 and 663 us; 64 x 64 has five blocks of a processor to hide what they wait for:
    # the price cannot tell them apart
    wide, small = map(distributed_us, tiles_of_warps())
    yield 1 / NEAR < wide / small < NEAR


PAIR = 23234  # by nvcc 13 for sm_90


@cache
def tiles_of_warps() -> list[Distributed]:
    """A product of 4096^3 on an A100 in blocks of 256 x 152, and of 64 x 64."""
    k, target = linear(N, N, N, F16), resolve_target("cuda:sm_80")
    found = [s for s in first_schedules(k, target) if s.stages[0].fragment == "mma"]
    every = {(s.tile["m"], s.tile["n"]): s for s in found}
    return [dealt(k, every[tile], target) for tile in ((256, 152), (64, 64))]


@cache
def pairs() -> Distributed:
    """A product of 4096^3 whose tiles are copied whole, the second operand's for two blocks."""
    k = linear(N, N, N, F16)
    return dealt(*whole(k, by_groups(k, 128, 256, 4), 2), HOPPER)


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
        'busy["shared"] * first + max(',
        "max(",
    ),
    "products of warps wait for all": (expected, "if several else 1.0", "if False else 1.0"),
    "one warp goes on alone": (expected, "self.counter.warps > self.rates.issue", "True"),
    "no second cache": (expected, "counts.l2 / self.second", "0.0 / self.second"),
    "every block reads memory": (expected, "max(once, min(again, own * tiles))", "own * tiles"),
    "no memory": (expected, "_norm(cycles / mhz, memory)", "cycles / mhz"),
    "blocks share nothing": (expected, "if together else tiles)", "if 0 else tiles)"),
    "pairs fetch apart": (expected, "t.each / t.blocks", "t.each"),
    "all warps ask": (instructions, "return ASKED * step", "return ASKED * counter.warps * step"),
    "idle warps": (counts, "1 / prod(t.mod for t in alike)", "1.0"),
    "functions are their sums": (instructions, "BESIDE.get(e.attr[0], 0)", "0"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_dies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, old, new = MUTANTS[name]
    assert holds()
    mutating.replace(module, old, new, monkeypatch)
    assert not holds()


# ---- what it decides


def test_the_tiles_of_a_large_product() -> None:
    """Of 4096^3 in f16: pairs of blocks of 128 x 256 are cheapest, as the second cache limits what
    shares nothing; then the larger of two tiles of warpgroups, before products of single warps, but
    for tiles of 64 rows; products of threads are the last."""
    k = linear(N, N, N, F16)
    us = dict[tuple[str, int, int], float]()
    for s in first_schedules(k, HOPPER):
        if s.stages[0].form == "contract":
            key = s.stages[0].fragment, s.tile["m"], s.tile["n"]
            us.setdefault(key, price_us(k, HOPPER, s))
    order = sorted(us, key=lambda key: us[key])
    assert order[:3] == [("wgmma", *t) for t in ((128, 256), (256, 176), (128, 128))]
    assert order[3] == ("mma", 256, 128)
    assert [key[0] for key in order[-3:]] == ["simt"] * 3
    assert us["wgmma", 128, 256] < 0.5 * us["mma", 128, 128]


def test_a_default_that_a_later_guess_betters() -> None:
    """Threads of the first guess meet in the banks of an operand that lies along the sum; none of
    the kernels that were measured changes."""
    k = zoo.turned_matmul(1024, 1024, 1024)
    first, _ = scheduled(k, HOPPER)
    best = cheaper(k, HOPPER, first)
    assert price_us(k, HOPPER, best) < 0.87 * price_us(k, HOPPER, first)
    for name, (kernel, how, _) in MEASURED.items():
        known = kernel()
        if how(known) == scheduled(known, HOPPER)[0]:
            assert cheaper(known, HOPPER, how(known)) == how(known), name


def test_a_default_of_machines_that_were_not_measured() -> None:
    k = zoo.turned_matmul(1024, 1024, 1024)
    for name in ("cuda:sm_80", "cuda:sm_120", "metal:apple9", "hip:gfx942"):
        target = resolve_target(name)
        first, _ = scheduled(k, target)
        assert cheaper(k, target, first) is first


def test_what_a_block_cannot_hold_has_no_price() -> None:
    k = zoo.softmax(64, 256)
    s, _ = scheduled(k, HOPPER)
    assert s.threads
    large = replace(s, threads=replace(s.threads, count=2048))
    assert price_us(k, HOPPER, large) == math.inf


@pytest.mark.parametrize("name", ["cuda:sm_80", "cuda:sm_89", "cuda:sm_90", "cuda:sm_120"])
def test_no_price_is_below_the_least(name: str) -> None:
    """The least price rules candidates out before they are lowered."""
    target = resolve_target(name)
    for k in (
        *(family(*shapes[-1]) for family, shapes in zoo.FAMILIES.items()),
        zoo.scores(8, 512, 512, 64),
    ):
        assert least_price_us(k, target) <= price_us(k, target) * (1 + 1e-9), k.name
    for k in (zoo.bias_gelu(N, 1024), zoo.softmax(N, 1024), zoo.transpose(2048, 2048)):
        assert least_price_us(k, target) <= price_us(k, target) * (1 + 1e-9), k.name
