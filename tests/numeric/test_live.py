"""Kernels with axes whose length is known when they run: at many lengths, with NaN beyond."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import kernel_zoo as zoo
import lumc.codegen.tile.program as ir
from drawing import random_schedule
from kernels import QUICK, arguments, call, compile_programs, native, worst
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.text import program_text
from lumc.codegen.tile.verify import problems, verify
from lumc.errors import LumcError
from lumc.graph.dim import Dim
from lumc.graph.expr import Expr, add, dim, mul, num, substitute
from lumc.kernel.lengths import Lengths
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Kernel, iota
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.first import default_schedule

MOST = 70
SIZES = (1, 2, 7, 16, 31, 48, 69, MOST)
S, DIMS = dim("s"), (Dim("s", 1, MOST),)
Dims = Mapping[str, int]


@dataclass(frozen=True)
class Case:
    """A kernel with its live axes, and which dims of its buffers have one of these lengths."""

    kernel: Kernel
    live: Mapping[str, Expr]
    parts: Mapping[str, Mapping[int, Expr]]
    dims: tuple[Dim, ...] = DIMS

    @property
    def made(self) -> Kernel:
        return replace(self.kernel, live=Lengths(self.dims, tuple(self.live.items())))

    def points(self) -> Iterator[Dims]:
        if len(self.dims) == 1:
            return ({"s": n} for n in SIZES if n in self.dims[0].values)
        return iter([{"p": p, "s": s} for p, s in ((0, 1), (9, 7), (30, 40), (0, 16), (13, 40))])


def rows_and_rest(at: int = 0, **more: int) -> Mapping[str, Mapping[int, Expr]]:
    return {name: {d: S} for name, d in {"x": at, "out": at, **more}.items()}


def rmsnorm(m: int, n: int) -> Kernel:
    value = zoo.times(zoo.times(zoo.x("x", "m", "n"), zoo.rms_scale(n)), zoo.x("g", "n"))
    return zoo.kernel("rmsnorm", "m n", {"m": m, "n": n, "j": n}, value, {"x": (m, n), "g": (n,)})


def chunk(heads: int, d: int) -> Case:
    """Causal attention of s new rows to p + s rows, the new ones behind the p that are there."""
    k = zoo.attention(heads, 40, MOST, d, 2, False, True)
    late = {iota("q"): iota(add("q", dim("p")))}
    roots = tuple(replace(r, value=substitute(r.value, late)) for r in k.roots)
    n = add(S, dim("p"))
    parts = {"Q": {1: S}, "out": {1: S}, "K": {1: n}, "V": {1: n}}
    dims = Dim("p", 0, 30), Dim("s", 1, 40)
    return Case(replace(k, roots=roots), {"q": S, "j": n}, parts, dims)


def square(e: Expr) -> Mapping[str, Mapping[int, Expr]]:
    return {"Q": {1: e}, "K": {1: e}, "V": {1: e}, "out": {1: e}}


CASES: dict[str, Callable[[], Case]] = {
    "rmsnorm rows": lambda: Case(rmsnorm(MOST, 100), {"m": S}, rows_and_rest()),
    "rmsnorm long rows": lambda: Case(rmsnorm(MOST, 300), {"m": S}, rows_and_rest()),
    "softmax row": lambda: Case(zoo.softmax(17, MOST), dict.fromkeys("nji", S), rows_and_rest(1)),
    "softmax rows": lambda: Case(zoo.softmax(MOST, 50), {"m": S}, rows_and_rest()),
    "matmul m": lambda: Case(zoo.matmul(MOST, 50, 37, True), {"m": S}, rows_and_rest()),
    "matmul n": lambda: Case(
        zoo.matmul(20, MOST, 37, False, False), {"n": S}, {"w": {1: S}, "out": {1: S}}
    ),
    "matmul k": lambda: Case(
        zoo.matmul(20, 50, MOST, False, False), {"k": S}, {"x": {1: S}, "w": {0: S}}
    ),
    "matmul m of eights": lambda: Case(
        zoo.matmul(72, 50, 37, True),
        {"m": mul(dim("s"), 8)},
        {"x": {0: mul(S, 8)}, "out": {0: mul(S, 8)}},
        (Dim("s", 1, 9),),
    ),
    "norm, linear, residual": lambda: Case(
        zoo.rms_linear_residual(MOST, 50, 64), {"m": S}, rows_and_rest(r=0)
    ),
    "gated": lambda: Case(zoo.gated(MOST, 50, 64), {"m": S}, rows_and_rest()),
    "decode": lambda: Case(zoo.decode(3, 3, MOST, 64), {"j": S}, {"K": {1: S}, "V": {1: S}}),
    "attention": lambda: Case(
        zoo.attention(4, MOST, MOST, 16, 2, False, True), {"q": S, "j": S}, square(S)
    ),
    "attention to keys": lambda: Case(
        zoo.attention(4, 5, MOST, 16, 2, True, False),
        {"j": S},
        {"K": {1: S}, "V": {1: S}, "mask": {1: S}},
    ),
    "attention of a chunk": lambda: chunk(4, 16),
}


def value(e: Expr, dims: Dims) -> int:
    n = substitute(e, {dim(name): num(v) for name, v in dims.items()})
    return int(n.attr[0])


def split(array: np.ndarray, parts: Mapping[int, Expr], dims: Dims) -> tuple[slice, ...]:
    """Where the elements of a buffer are that there are."""
    return tuple(
        slice(value(parts[d], dims)) if d in parts else slice(None) for d in range(array.ndim)
    )


def check(case: Case, programs: list[ir.Program], folder: Path) -> None:
    """Every program at every length, with NaN beyond in what is read; nothing is written there."""
    lib, full = compile_programs(folder, programs, QUICK), zoo.random_inputs(case.kernel, 3)
    for dims in case.points():
        given = {}
        for name, array in full.items():
            inside = split(array, case.parts.get(name, {}), dims)
            given[name] = np.full_like(array, np.nan)
            given[name][inside] = array[inside]
        want = evaluate_kernel(case.made.bound(dims), given)
        for i, program in enumerate(programs):
            arrays = arguments(program, given, 3)
            lengths = [np.full(1, dims[d.name], np.int64) for d in program.kernel.lengths.dims]
            arrays[-1:] = [*lengths, arrays[-1]]
            call(lib, i, arrays, 3)
            at = [b.name for b in program.kernel.buffers].index("out")
            inside = split(arrays[at], case.parts.get("out", {}), dims)
            kind = program.kernel.buffer("out").dtype
            where = f"{dims}, program {i}"
            assert worst(arrays[at][inside], want["out"][inside], kind) < 2e-5, where
            arrays[at][inside] = np.nan
            assert np.isnan(arrays[at]).all(), where


@pytest.mark.parametrize("name", CASES)
def test_lengths(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    schedule = default_schedule(case.made, native())
    check(case, [lower(case.made, schedule, native(), verify)], tmp_path)


@pytest.mark.deep
@pytest.mark.parametrize("name", CASES)
def test_lengths_of_many_schedules(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    for i in range(5):
        rng = random.Random(f"{name}{i}")
        drawn = [random_schedule(case.made, native(), rng) for _ in range(5)]
        check(case, [lower(case.made, s, native(), verify) for s in drawn], tmp_path)


# ---- mistakes that the verifier tells


def tiled() -> ir.Program:
    case = CASES["matmul m"]()
    s = default_schedule(case.made, native())
    s = replace(s, order=("m", "n"), tile={"m": 16, "k": 16}, parallel=1)
    return lower(case.made, s, native())


def edited(program: ir.Program, change: Callable[[ir.Op], ir.Op]) -> ir.Program:
    return replace(program, body=ir.rewrite(program.body, lambda ops, _: [*map(change, ops)]))


def unbounded(op: ir.Op) -> ir.Op:
    """A loop over tiles that goes to the extent."""
    if isinstance(op, ir.Par):
        return replace(op, loops=tuple(replace(x, length=None) for x in op.loops))
    return op


def moved(op: ir.Op, change: Callable[[ir.Range], ir.Range]) -> ir.Op:
    """With another range of m."""
    if isinstance(op, ir.Rows) and op.axis == "m":
        return replace(op, range=change(op.range))
    if isinstance(op, ir.Map | ir.Contract | ir.Reduce) and "m" in op.ranges:
        return replace(op, ranges={**op.ranges, "m": change(op.ranges["m"])})
    return op


def too_long(op: ir.Op) -> ir.Op:
    """One value more than there is."""
    return moved(op, lambda r: replace(r, n=add(r.n, 1)))


def whole(op: ir.Op) -> ir.Op:
    """All values of an axis of which not all are there."""
    return moved(op, lambda _: ir.whole(MOST))


@pytest.mark.parametrize("mistake", [unbounded, too_long, whole])
def test_a_bound_that_is_dropped_is_told(mistake: Callable[[ir.Op], ir.Op]) -> None:
    for program in (tiled(), lower((c := CASES["rmsnorm rows"]()).made, plain(c), native())):
        assert not problems(program)
        broken = edited(program, mistake)
        assert broken.body == program.body or problems(broken)
    assert problems(edited(tiled(), mistake))


def plain(case: Case):
    return replace(default_schedule(case.made, native()), tile={}, parallel=0)


def test_the_text_of_a_program_tells_lengths() -> None:
    text = program_text(tiled())
    assert f"par m:s <= {MOST} by 16" in text
    assert "m:1..16 of m.n" in text


def test_gpus_refuse_them() -> None:
    with pytest.raises(LumcError, match="not bound: p, s") as e:
        made = chunk(4, 16).made
        lower(made, default_schedule(made, native()), resolve_target("cuda:sm_90"))
    assert e.value.code == "E0112"
