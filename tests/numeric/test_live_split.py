"""Reductions over live axes in two steps, as kernels: at many lengths, with NaN beyond, in what is
read and in what the first step hands on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kernel_zoo as zoo
import lumc.codegen.tile.program as ir
from drawing import random_schedule
from kernels import QUICK, arguments, call, compile_programs, native, worst
from live_kernels import CASES, Case, S, roomy, split
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.verify import verify
from lumc.errors import LumcError
from lumc.graph.dim import Dim
from lumc.graph.expr import add, floordiv
from lumc.graph.ops import DType
from lumc.kernel.inside import escape
from lumc.kernel.normal import normalize
from lumc.kernel.term import Kernel, binary, const, guard, load, reduce
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.first import default_schedule
from lumc.search.split import End, splits

UNEVEN, MANY = Dim("s", 1, 71), Dim("s", 20, 71)
SPLIT: dict[str, Callable[[], Case]] = {
    **{n: CASES[n] for n in ("decode", "attention to keys", "attention of a chunk", "matmul k")},
    "decode of parts that do not divide": lambda: Case(
        zoo.decode(3, 3, 71, 64), {"j": S}, {"K": {1: S}, "V": {1: S}}, (UNEVEN,)
    ),
    "sum of uneven parts": lambda: Case(
        zoo.matmul(3, 20, 71, False, False), {"k": S}, {"x": {1: S}, "w": {0: S}}, (UNEVEN,)
    ),
    "maximum": lambda: Case(maximum(3, 71), {"j": S}, {"x": {1: S}}, (UNEVEN,)),
    "maximum of many": lambda: Case(maximum(3, 71), {"j": S}, {"x": {1: S}}, (MANY,)),
}


def maximum(m: int, n: int) -> Kernel:
    """Of sums of two elements, in which no part is greater than 0 but for the last element."""
    value = reduce("max", "j", binary("add", load("x", DType.F32, "m", "j"), const(-100.0)))
    return zoo.kernel("maximum", "m", {"m": m, "j": n}, value, {"x": (m, n)})


def in_parts(kernel: Kernel, units: int) -> list[Kernel]:
    """Its longest reductions in as many parts as a target with so many threads wants."""
    found = next(splits(normalize(kernel), replace(native(), threads=units)))
    assert len(found) == 2 and not any(map(escape, found))
    return [normalize(k) for k in found]


def worst_of(case: Case, both: Sequence[Sequence[ir.Program]], folder: Path) -> float:
    """The greatest error of pairs of steps, one after the other, at all lengths. What is read
    beyond them is NaN, also of what the first step hands on; nothing is written there."""
    lib = compile_programs(folder, [p for pair in both for p in pair], QUICK)
    full, errors = zoo.random_inputs(case.kernel, 3), [0.0]
    for dims in case.points():
        given = roomy(case, full, dims)
        want = evaluate_kernel(case.made.bound(dims), given)["out"]
        inside = split(want, case.parts.get("out", {}), dims)
        for i, pair in enumerate(both):
            known = dict(given)
            for n, program in enumerate(pair):
                kernel = program.kernel
                arrays = arguments(
                    program,
                    {
                        b.name: known[b.name].reshape(b.shape)
                        for b in kernel.buffers
                        if b.name in known
                    },
                    3,
                )
                lengths = [np.full(1, dims[d.name], np.int64) for d in kernel.lengths.dims]
                arrays[-1:] = [*lengths, arrays[-1]]
                made = {b.name: a for b, a in zip(kernel.buffers, arrays, strict=False)}
                call(lib, 2 * i + n, arrays, 3)
                known |= {name: made[name] for name in kernel.stored}
            got = known["out"].reshape(want.shape)
            errors.append(worst(got[inside], want[inside], DType.F32))
            got[inside] = np.nan
            assert np.isnan(got).all(), f"{dims}, {i}: written beyond"
    return max(errors)


def lowered(kernels: Sequence[Kernel]) -> list[ir.Program]:
    return [lower(k, default_schedule(k, native()), native(), verify) for k in kernels]


@pytest.mark.parametrize("name", SPLIT)
def test_two_steps_at_every_length(name: str, tmp_path: Path) -> None:
    case = SPLIT[name]()
    pairs = [lowered(in_parts(case.made, units)) for units in (2, 4, 11)]
    assert all(p.kernel.live for pair in pairs for p in pair)
    assert worst_of(case, pairs, tmp_path) < 2e-5


@pytest.mark.deep
@pytest.mark.parametrize("name", SPLIT)
def test_two_steps_with_many_schedules(name: str, tmp_path: Path) -> None:
    case, rng, pairs = SPLIT[name](), random.Random(name), list[list[ir.Program]]()
    for units in (2, 4, 11):
        kernels = in_parts(case.made, units)
        for _ in range(3):
            drawn = [random_schedule(k, native(), rng) for k in kernels]
            made = zip(kernels, drawn, strict=True)
            pairs.append([lower(k, s, native(), verify) for k, s in made])
    assert worst_of(case, pairs, tmp_path) < 2e-5


def shifted(patch: pytest.MonkeyPatch, by: int) -> None:
    patch.setattr(
        End, "guarded", lambda self, e: guard(add(self.left, by), 1, self.most + 1 + by, e)
    )


def fewer(patch: pytest.MonkeyPatch) -> None:
    """Parts are counted as if an incomplete one were none."""
    patch.setattr(
        "lumc.search.split.floordiv",
        lambda e, step, ranges: floordiv(add(e, 1 - step), step, ranges),
    )


MUTANTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "no end": ("decode", lambda m: m.setattr(End, "guarded", lambda self, e: e)),
    "one value too many": ("sum of uneven parts", lambda m: shifted(m, 1)),
    "one value too few": ("decode", lambda m: shifted(m, -1)),
    "the last part is left out": ("maximum of many", fewer),
    "the guard of maxima is left out": (
        "maximum",
        lambda m: m.setattr(End, "applied", lambda self, stage, kids: list(kids)),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mistakes_are_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case_name, change = MUTANTS[name]
    case = SPLIT[case_name]()
    change(monkeypatch)
    try:
        pair = lowered(in_parts(case.made, 4))
    except (AssertionError, LumcError):  # it escapes, or has another length
        return
    assert not worst_of(case, [pair], tmp_path) < 2e-5
