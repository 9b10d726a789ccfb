"""What is done to a term is done once for all kernels of a region that have it: those between other
cuts, those of other variants, and those that read values in other layouts."""

from __future__ import annotations

from functools import reduce as fold

import pytest

from lumc.graph.expr import Expr, add, axis
from lumc.graph.ops import DType
from lumc.kernel import normal
from lumc.kernel.term import Buffer, Kernel, binary, guard, load, reduce
from lumc.search.cuts import Frame, Splitting, cut_points
from lumc.search.layout import relaid
from lumc.search.saturate import Stats
from lumc.search.space import Region, Variant
from steps import steps

F32 = DType.F32
ROWS, WIDE, LONG = 24, 8, 16


def octaves(count: int, rows: int = ROWS) -> Region:
    """Products of so many values with one weight beside each other, squared, and these beside
    a part of themselves: two levels of concat, and a cut point for every product."""
    i, j, k, m = map(axis, "ijkm")
    parts = list[Expr]()
    for n in range(count):
        own = add(j, -WIDE * n)
        each = binary("mul", load(f"b{n}", F32, i, k), load("w", F32, own, k))
        parts.append(guard(own, 0, WIDE, reduce("sum", ("k",), each)))
    whole = fold(lambda a, b: binary("add", a, b), parts)
    squares = binary("mul", whole, whole)
    part = guard(m, 1, 2, guard(add(j, -WIDE), 0, WIDE * count, squares))
    value = binary("add", guard(m, 0, 1, squares), part)
    inputs = [Buffer(f"b{n}", F32, (rows, LONG)) for n in range(count)]
    out = Buffer("out", F32, (rows, WIDE * count, 2))
    extent = {"i": rows, "j": WIDE * count, "k": LONG, "m": 2}
    weight = Buffer("w", F32, (WIDE, LONG))
    frame = Frame((*inputs, weight), out, ("i", "j", "m"), (i, j, m), extent)
    return Region("r", 1, frame, (Variant(value, cut_points(value)),), Stats())


def split(region: Region) -> Splitting:
    (variant,) = region.variants
    return Splitting(region.frame, variant.value, variant.cuts)


@pytest.fixture
def simplified(monkeypatch: pytest.MonkeyPatch) -> list[Expr]:
    """Every term that is simplified, each time that it is."""
    done, plain = list[Expr](), normal._simplified

    def noted(scope: normal._Scope, e: Expr, guards: normal.Guards) -> Expr:
        done.append(e)
        return plain(scope, e, guards)

    monkeypatch.setattr(normal, "_simplified", noted)
    for known in (normal._known, normal._shared):
        known.cache_clear()
    return done


def test_kernels_of_other_cuts_simplify_what_they_do_not_share(simplified: list[Expr]) -> None:
    """All sets of one cut together take less than four times what the whole takes, not twelve."""
    one = split(octaves(12))
    one.kernels()
    whole = len(simplified)
    for cut in range(12):
        one.kernels([cut])
    assert len(one.stored) > 12 and whole > 100
    assert len(simplified) - whole < 4 * whole


def test_other_layouts_simplify_what_reads_the_value(simplified: list[Expr]) -> None:
    region = octaves(12)
    split(region).kernels()
    whole = len(simplified)
    split(relaid(region, {"b0": 0})).kernels()
    assert 0 < len(simplified) - whole < whole / 2


def test_other_layouts_take_less_steps() -> None:
    """Of everything that is done before a kernel is priced; the value is read innermost of all."""
    region, other = octaves(12), relaid(octaves(12), {"b0": 0})
    one = steps(lambda: split(region).kernels())
    both = steps(lambda: [split(r).kernels() for r in (region, other)])
    assert both - one < one * 2 / 3, (one, both)


def test_what_is_shared_is_what_each_would_be_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside kernels whose axes of the same names have other extents."""
    regions = [octaves(3), octaves(3, 1), octaves(4), relaid(octaves(3), {"b1": 0})]

    def every() -> list[Kernel]:
        normal._known.cache_clear()
        return [
            kernel
            for region in regions
            for cuts in ((), (0,), (1, 2))
            for kernel in split(region).kernels(cuts)
        ]

    together = every()
    monkeypatch.setattr(normal, "_shared", normal._Scope)
    assert together == every()
