"""Loops over tiles that end where masks leave no step: on emulators, against numpy in float64."""

from __future__ import annotations

import math
import operator
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import dealing
import emulator
import msl
from dealing import cuda, dealt, flash, narrowed, random_dealt, refusal, schedule
from gpu import address_spaces
from gpu.msl_lint import lint
from kernel_zoo import c, kernel, plus, random_inputs, x
from kernels import TOLERANCE, worst
from lumc.codegen.count import of_program
from lumc.codegen.generate import DIALECTS
from lumc.codegen.gpu import barriers
from lumc.codegen.gpu.operations import print_kernel
from lumc.codegen.text.headers import header_of
from lumc.codegen.text.writer import Writer
from lumc.codegen.tile import spans
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.program import Block, Loop, Program
from lumc.frontend import Model
from lumc.frontend.api.elementwise import where
from lumc.frontend.api.tensor import Tensor
from lumc.graph.expr import add, mul
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.masked import Mask
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, binary, iota, wsum
from lumc.profile.choose import estimate
from lumc.profile.price import program_us, scheduled
from lumc.schedule.schedule import Schedule, Stage
from lumc.search import search
from lumc.search.saturate import Limits
from masked_kernels import FORMS, Window, attended, attention, multiplied, product

Array = np.ndarray
Case = tuple[Kernel, Schedule, Window]
CAUSAL, CACHED, SLIDING = Window(), Window(end=41), Window(first=-20)
LATER = Window(first=40, end=70)  # the first rows see the tiles in the middle, the last ones none
FEW = Window(first=20, end=36)  # the last rows see none
ALL = Window(first=-(1 << 12), end=None)


def wanted(case: Case, inputs: Mapping[str, Array]) -> Array:
    made, _, window = case
    if "Q" in inputs:
        return attended(inputs, window)
    return multiplied(inputs, window, "sum" if made.name == "banded" else "max")


def check(
    cases: Sequence[Case], folder: Path, checked: bool = True, orders: Sequence[str] = ("random",)
) -> None:
    """Compile these together, run them, compare."""
    module, grids = dealing.build([dealt(k, s) for k, s, _ in cases], folder, checked)
    for i, case in enumerate(cases):
        made, chosen, _ = case
        inputs, kind = random_inputs(made, i), made.buffer("out").dtype
        want = wanted(case, inputs)
        for order in orders:
            got = dealing.run(module, f"k{i}", made, grids[i], inputs, order)["out"]
            error = worst(got, want, kind)
            about = f"{made.name} {i}, {order}: {error:.1e}, {chosen}"
            assert error < 2 * TOLERANCE.get(kind, 1e-5), about


def plain(shape: tuple[int, int, int, int], window: Window, how: str, q: int, j: int) -> Case:
    """Attention on plain threads."""
    k = attention(*shape, window, how)
    return k, flash(k, (16, 4), q, j, "simt", count=64, row=4), window


def halves(
    shape: tuple[int, int, int, int], window: Window, q: int, j: int, **threads: int
) -> Case:
    """On matrix units, whose operands are f16; copies run ahead of the loop in a ring."""
    k = narrowed(attention(*shape, window), DType.F16)
    return k, flash(k, (q // 16, 1), q, j, count=2 * q, vector=8, **threads), window


def banded(m: int, n: int, k: int, window: Window, tile: Mapping[str, int], op: str) -> Case:
    made = product(m, n, k, window, op)
    return made, schedule(made, tile, [Stage()], count=64), window


def cases() -> list[Case]:
    """Odd lengths and whole tiles, with and without a cache before, rows that see nothing."""
    out = [plain((2, 70, 70, 12), CAUSAL, how, 16, 8) for how in FORMS] + [
        plain((1, 64, 64, 16), CAUSAL, "added", 16, 16),
        plain((2, 33, 73, 12), CACHED, "chosen", 8, 16),
        plain((1, 48, 128, 16), CACHED, "added", 16, 32),
        plain((2, 90, 90, 8), SLIDING, "added", 16, 8),
        plain((1, 65, 110, 8), LATER, "both", 16, 8),
        plain((1, 96, 96, 8), LATER, "chosen", 32, 16),
        plain((1, 40, 100, 8), Window(first=13, end=None), "added", 8, 16),
    ]
    for ring in (1, 2, 3):
        out += [
            halves((2, 128, 128, 32), CAUSAL, 64, 32, ring=ring),
            halves((1, 70, 130, 32), CACHED, 32, 16, ring=ring),
            halves((1, 160, 160, 32), LATER, 32, 16, ring=ring),
            halves((1, 160, 160, 32), SLIDING, 32, 16, ring=ring),
        ]
    for window in (CAUSAL, SLIDING, LATER):
        out.append(banded(70, 20, 90, window, {"q": 16, "n": 8, "j": 8}, "sum"))
        out.append(banded(70, 1, 90, window, {"q": 8, "j": 16}, "max"))
    return out  # fmt: skip


def loops(program: Program) -> list[Loop]:
    """Those that leave tiles out."""
    found = list[Loop]()

    def walk(body: Sequence[object]) -> None:
        for op in body:
            if isinstance(op, Block) and op.loop.span:
                found.append(op.loop)
            walk(getattr(op, "body", []))

    walk(program.body)
    return found


def test_every_case_leaves_tiles_out() -> None:
    for k, s, _ in cases():
        assert loops(lower(k, s, cuda())), (k.name, s)


def test_masks(built: Path) -> None:
    check(cases(), built, orders=emulator.ORDERS)


def test_masks_unchecked(built: Path) -> None:
    check(cases(), built, checked=False)


def test_ends_that_cannot_be_counted() -> None:
    """In the 32 bits of an index on a GPU."""
    for far in (1 << 10, 1 << 27):
        score = plus(x("s", "q", "j"), binary("sel", binary("lt", iota(mul("q", far)), iota(
            mul("j", far))), c(-math.inf)))  # fmt: skip
        value = wsum("j", score, c(1.0))
        k = kernel("k", "q", {"q": 64, "j": 64}, value, {"s": (64, 64)})
        found = loops(lower(k, schedule(k, {"q": 8, "j": 8}, [Stage()]), cuda()))
        assert bool(found) == (far < 1 << 20)


def drawn(seed: str, n: int, only: Callable[[Case], bool] = lambda case: True) -> list[Case]:
    """Any schedules that leave tiles out, and what else is asked of them."""
    rng, out = random.Random(seed), list[Case]()
    while len(out) < n:
        w = rng.choice([CAUSAL, SLIDING, FEW, Window(end=20), Window(first=7, end=None)])
        k = attention(2, 72, 72, 8, w, rng.choice(FORMS))
        if rng.random() < 0.7:
            k = narrowed(attention(1, 96, 96, 32, w), DType.F16)
        elif rng.random() < 0.5:
            k = product(72, 16, 72, w, rng.choice(["sum", "max"]))
        s = random_dealt(k, cuda(), rng)
        if not refusal(k, s) and loops(lower(k, s, cuda())) and only((k, s, w)):
            out.append((k, s, w))
    return out


@pytest.mark.parametrize("order", emulator.ORDERS)
def test_random_schedules(order: str, built: Path) -> None:
    check(drawn(order, 10), built, orders=[order])


# ---- mutants


def dies(found: Sequence[Case], folder: Path) -> None:
    assert all(loops(lower(k, s, cuda())) for k, s, _ in found)
    with pytest.raises(AssertionError, match=r"error|bounds|race|read"):
        check(found, folder)


def test_mutants_of_the_ends(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that is off by one step where that is another tile, or by a whole one."""
    ends = Mask.ends
    for first, end in ((0, -1), (0, -8), (1, 0)):

        def moved(m: Mask, *rest, first=first, end=end):
            lo, hi = ends(m, *rest)
            return add(lo, first), add(hi, end)

        monkeypatch.setattr(Mask, "ends", moved)
        window = Window(end=2) if end else Window(first=-1, end=None)
        dies([plain((1, 32, 40, 8), window, "added", 8, 8)], built)


def test_mutant_that_takes_the_wrong_row_of_a_tile(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = spans._rest
    monkeypatch.setattr(spans, "_rest", lambda m, scope: rest(m, scope)[::-1])
    dies([plain((1, 64, 64, 8), CAUSAL, "added", 16, 8)], built)
    dies([plain((1, 64, 64, 8), Window(first=-3, end=None), "added", 16, 8)], built)


def test_mutant_that_forgets_the_length(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def last(w: Writer, loop: Loop) -> str:
        return w.index(loop.span.ends[0]) if loop.span else w.length(loop)

    monkeypatch.setattr(Writer, "last", last)
    dies([plain((1, 64, 64, 16), Window(end=9), "added", 16, 16)], built)


def test_mutant_that_forgets_where_the_axis_begins(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Writer, "first", lambda w, loop: w.index(loop.span.firsts[0]))
    dies([plain((1, 64, 64, 16), Window(first=-20, end=None), "added", 16, 16)], built)


def test_mutant_that_starts_in_a_ring_with_the_first_tile(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copies of one tile and the products of another."""
    start, printed = "const int j_0 = {}lumc_max(", dealing.print_kernel

    def other(*args):
        out, grid = printed(*args)
        assert start.format("") in out
        return out.replace(start.format(""), start.format("0 * ")), grid

    monkeypatch.setattr(dealing, "print_kernel", other)
    dies([halves((1, 160, 160, 32), SLIDING, 32, 16, ring=3)], built)


def test_mutant_whose_loops_always_have_a_tile(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the barriers in it, what lies before and behind a loop without any is not apart."""

    def needs(case: Case) -> bool:
        counts = []
        for empty in (may_be_empty, lambda node: False):
            monkeypatch.setattr(barriers, "_may_be_empty", empty)
            counts.append(str(dealt(*case[:2]).body).count("Sync"))
        return case[2] is FEW and counts[0] > counts[1]

    may_be_empty = barriers._may_be_empty
    found = drawn("empty", 3, needs)
    dies(found, built)
    monkeypatch.undo()
    check(found, built)


def test_what_is_hidden_is_not_looked_at(built: Path) -> None:
    """NaN in steps that no row of a tile sees is not seen, as docs/formats.md says; the rows of
    tiles that see some are NaN where their own value is, or has the weight 0."""
    k, s, window = plain((2, 64, 64, 8), CAUSAL, "added", 16, 8)
    module, grids = dealing.build([dealt(k, s)], built)
    inputs = random_inputs(k, 0)
    want = attended(inputs, window)
    for name in "KV":
        spoilt = {n: a.copy() for n, a in inputs.items()}
        spoilt[name][:, 50:] = np.nan
        got = dealing.run(module, "k0", k, grids[0], spoilt)["out"]
        assert worst(got[:, :48], want[:, :48], DType.F32) < 1e-5
        assert np.isnan(got[:, 50:]).all()


# ---- what is planned


@pytest.mark.parametrize(
    "name", ["cuda:sm_90", "cuda:sm_80", "metal:apple7", "hip:gfx942", "hip:gfx1100"]
)
def test_plans(name: str, built: Path) -> None:
    """Where nothing is searched, of every target on its emulator, race-checked."""
    target = resolve_target(name)
    found = [
        (k, scheduled(k, target)[0], w)
        for w in (CAUSAL, SLIDING, LATER)
        for k in (attention(2, 150, 150, 16, w), narrowed(attention(1, 256, 256, 64, w), DType.F16))
    ]
    assert sum(bool(loops(lower(k, s, target))) for k, s, _ in found) >= 3
    programs = [dealt(k, s, target) for k, s, _ in found]
    if target.kind != "metal":
        module, grids = dealing.build(programs, built, checked=True)
    else:
        source, grids = dealing.together(programs)
        source = header_of("metal") + source
        assert lint(source, target.arch) == []
        assert not address_spaces.clang() or address_spaces.check(source) == []
        module = msl.build(source, built, checked=True)
    for i, case in enumerate(found):
        inputs = random_inputs(case[0], i)
        got = dealing.run(module, f"k{i}", case[0], grids[i], inputs, "reverse")["out"]
        kind = case[0].buffer("out").dtype
        assert worst(got, wanted(case, inputs), kind) < 2 * TOLERANCE.get(kind, 1e-5), case[:2]


def masks_of_graphs(g: Model, scores: Tensor) -> dict[str, tuple[Tensor, bool]]:
    """Masks as models write them, and whether they hide steps for certain."""
    i = g.arange(scores.shape[-1])
    late, gone = i[:, None] < i[None, :], i[None, :] + 64 <= i[:, None]
    return {
        "filled": (scores.masked_fill(late, -math.inf), True),
        "kept": (where(i[None, :] <= i[:, None], scores, -math.inf), True),
        "added": (scores + where(late, -math.inf, 0.0), True),
        "window": (where(gone, -math.inf, where(late, -math.inf, scores)), True),
        "two": (scores + where(late, -math.inf, 0.0) + where(gone, -math.inf, 0.0), True),
        "finite": (scores.masked_fill(late, -1e4), False),
    }


@pytest.mark.parametrize("name", ["filled", "kept", "added", "window", "two", "finite"])
def test_graphs(name: str) -> None:
    """From a graph to the loops of the kernel that is planned for it."""
    g = Model()
    q, k, v = (g.input(n, (4, 256, 64), DType.F16) for n in "qkv")
    scores, hides = masks_of_graphs(g, q @ k.transpose() * 0.125)[name]
    g.output("out", scores.softmax(-1) @ v)
    plan = estimate(search(g.graph(), cuda(), Limits(variants=4)))
    programs = [lower(p.kernel, p.schedule, cuda()) for p in plan.kernels.values()]
    found = [loop.span for p in programs for loop in loops(p)]
    assert bool(found) == hides
    assert all(s and s.ends and bool(s.firsts) == (name in ("window", "two")) for s in found)


# ---- what it saves


def of(window: Window, target: Target) -> tuple[Kernel, Program]:
    """Attention over 4096 rows as it is planned."""
    k = narrowed(attention(16, 4096, 4096, 128, window), DType.F16)
    return k, scheduled(k, target)[1]


@pytest.mark.parametrize("name", ["cuda:sm_90", "cuda:sm_80", "metal:apple7", "hip:gfx942"])
def test_causal_attention_is_half_of_the_work(name: str) -> None:
    """Operations and loads of the tile programs that are planned, and their price."""
    target = resolve_target(name)
    (_, half), (_, full) = of(CAUSAL, target), of(ALL, target)
    assert of_program(half).over(of_program(full)) < 0.55
    assert program_us(half) < 0.56 * program_us(full)
    near = of(Window(first=-511), target)[1]
    assert of_program(near).flops < 0.2 * of_program(full).flops


def test_counts_are_what_is_said() -> None:
    """The turns of the loop in the text, tile by tile, against the share that prices count."""
    known = {"lumc_min": min, "lumc_max": max, "lumc_floor_div": operator.floordiv}
    for window in (CAUSAL, SLIDING, LATER, CACHED):
        k, s, _ = plain((2, 96, 128, 8), window, "added", 16, 8)
        d = dealt(k, s)
        text, _ = print_kernel(d, DIALECTS["cuda"], "k0")
        found = re.search(r"for \(int j_0 = (.*?); j_0 < (.*?);", text)
        assert found
        ends = f"{found[1]}, {found[2]}".replace(" / ", " // ")
        turns = [
            len(eval(f"range({ends}, 8)", known, {"q_0": q}))  # noqa: S307 - lumc's own text
            for q in range(0, 96, 16)
        ]
        (loop,) = loops(d.program)
        assert loop.span and sum(turns) == pytest.approx(loop.span.share * loop.count * 6)
