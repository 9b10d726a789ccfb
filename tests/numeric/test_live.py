"""Kernels with axes whose length is known when they run: at many lengths, with NaN beyond."""

from __future__ import annotations

import ctypes
import random
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import gcd
from pathlib import Path

import numpy as np
import pytest

import kernel_zoo as zoo
import lumc.codegen.tile.program as ir
from drawing import random_schedule
from kernels import QUICK, arguments, build_text, call, compile_programs, native, worst
from live_kernels import CASES, MOST, Case, S, roomy, split
from lumc.codegen.cpu.contract import IN_FLIGHT, row_shares
from lumc.codegen.cpu.kernel import print_kernel
from lumc.codegen.generate import print_source
from lumc.codegen.text.writer import Writer
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.text import program_text
from lumc.codegen.tile.verify import problems, verify
from lumc.graph.expr import add
from lumc.kernel.machines import resolve_target
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.first import default_schedule


def check(case: Case, programs: list[ir.Program], folder: Path) -> None:
    """Every program at every length, with NaN beyond in what is read; nothing is written there."""
    lib, full = compile_programs(folder, programs, QUICK), zoo.random_inputs(case.kernel, 3)
    for dims in case.points():
        given = roomy(case, full, dims)
        want = evaluate_kernel(case.made.bound(dims), given)
        for i, program in enumerate(programs):
            arrays = arguments(program, given, 3)
            lengths = [np.full(1, dims[d.name], np.int64) for d in program.kernel.lengths.dims]
            arrays[-1:] = [*lengths, arrays[-1]]
            at = [b.name for b in program.kernel.buffers].index("out")
            inside = split(arrays[at], case.parts.get("out", {}), dims)
            arrays[at][...] = 7  # what is read beyond a length is NaN, and so what is made of it
            arrays[at][inside] = np.nan
            call(lib, i, arrays, 3)
            kind = program.kernel.buffer("out").dtype
            where = f"{dims}, program {i}"
            assert worst(arrays[at][inside], want["out"][inside], kind) < 2e-5, where
            arrays[at][inside] = 7
            assert (arrays[at] == 7).all(), where


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


# ---- rests in shares


def test_rows_are_shared_evenly() -> None:
    """Full register tiles, then shares of what is left: no tile of one row behind a full one. Only
    full ones fetch the next panel, and nothing if there is no other call."""
    case = Case(zoo.matmul(MOST, 150, 37, True), {"m": S}, {})
    program = lower(case.made, default_schedule(case.made, native()), native(), verify)
    (op,) = (op for op in ir.leaves(program.body) if isinstance(op, ir.Contract))
    text, m = print_source(program, None, "k")[0], op.stage.mr
    few = -(-IN_FLIGHT // op.stage.nv)
    size = re.search(r"m_m = (.*) >= (\d+) \|\| (.*) == (\d+) \? (\d+) : lumc_share", text)
    assert size and [*map(int, size.group(2, 4, 5))] == [m + few, m, m]
    assert re.search(rf"long ahead = .* > {m} \? lumc_min\(\d+, \d+ / \(.* / {m}\)\) : 0;", text)
    calls = [line for line in text.splitlines() if re.search(r"m_m == \d+\) micro", line)]
    assert calls and all((f"m_m == {m})" in c) == ("next, ahead);" in c) for c in calls)


def one_more(w: Writer, op: ir.Contract) -> tuple[str, str]:
    size, note = row_shares(w, op)
    return size.replace("lumc_share(", "1 + lumc_share("), note


def full_too_early(w: Writer, op: ir.Contract) -> tuple[str, str]:
    size, note = row_shares(w, op)
    return size.replace(f"== {op.stage.mr}", f"== {op.stage.mr - 1}"), note


@pytest.mark.parametrize("mistake", [one_more, full_too_early])
def test_a_wrong_share_is_told(
    mistake: Callable[..., tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["matmul m"]()
    schedule = default_schedule(case.made, native())
    monkeypatch.setattr("lumc.codegen.cpu.contract.row_shares", mistake)
    monkeypatch.setattr(Case, "points", lambda _: iter([{"s": 5}, {"s": 31}]))  # others crash
    with pytest.raises(AssertionError):
        check(case, [lower(case.made, schedule, native(), verify)], tmp_path)


@pytest.mark.parametrize(("name", "whole"), [("attention", 2), ("attention of a chunk", 0)])
def test_strips_go_on_to_whole_vectors_where_there_is_room(name: str, whole: int) -> None:
    """Tiles of 48 queries have room for three vectors, all of 40 have none for the third."""
    case, target = CASES[name](), resolve_target("cpu:x86-64-v4")
    schedule = default_schedule(case.made, target)
    text = print_source(lower(case.made, schedule, target, verify), None, "k")[0]
    steps = [line for line in text.splitlines() if "/* one vector */" in line]
    assert len(steps) == 2 and sum("+ 16 <=" not in line for line in steps) == whole


# ---- tiles that a run chooses

DEALT = """
#define LUMC_LANES 16
#include "lumc_kernel.h"
long tile(long n, long most, long unit, long others, long parts) {
    return lumc_tile(n, most, unit, others, parts);
}
"""


def largest(n: int, tile: int, others: int, parts: int) -> int:
    """Rows of the part that has most of them."""
    sizes = [min(tile, n - at) for at in range(0, n, tile) for _ in range(others)]
    ends = [len(sizes) * p // parts for p in range(parts + 1)]
    return max(sum(sizes[a:b]) for a, b in pairwise(ends))


def test_tiles_are_dealt_alike(tmp_path: Path) -> None:
    """In whole units, and never worse than what was chosen for the greatest length."""
    dealt = ctypes.CDLL(str(build_text(tmp_path, DEALT, QUICK))).tile
    dealt.argtypes, dealt.restype = [ctypes.c_long] * 5, ctypes.c_long
    rng, better = random.Random(0), 0
    for _ in range(3000):
        n, most, others, parts = (rng.randint(1, m) for m in (300, 64, 7, 9))
        unit = gcd(most, 32)
        tile = dealt(n, most, unit, others, parts)
        assert 0 < tile <= most and tile % unit == 0
        assert parts > 1 or tile == most
        few = largest(n, tile, others, parts)
        assert few <= largest(n, most, others, parts), (n, most, others, parts, tile)
        better += few < largest(n, most, others, parts)
    assert better > 500
    assert [dealt(n, 54, 2, 3, 2) for n in (24, 64, 256)] == [12, 32, 54]


def test_rows_between_tiles_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of four rows that start where those of six do."""
    case = CASES["matmul m"]()
    schedule = replace(
        default_schedule(case.made, native()), order=("m", "n"), tile={"m": 6}, parallel=1
    )
    text = print_kernel(program := lower(case.made, schedule, native()), "k0")
    wrong = text.replace("* m_tile;", "* 6;")
    assert wrong != text
    monkeypatch.setattr("kernels.print_kernel", lambda *_: wrong)
    monkeypatch.setattr(Case, "points", lambda _: iter([{"s": 7}]))
    with pytest.raises(AssertionError):
        check(case, [program], tmp_path)


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
