"""The proof that kernels stay inside their buffers: sound by enumeration, and strong enough."""

from __future__ import annotations

import itertools
import random

import pytest

from kernel_zoo import FAMILIES, c, kernel, total, x
from lumc.errors import LumcError
from lumc.graph.expr import Expr, add, axis, floordiv, index_value, mod, mul
from lumc.graph.ops import DType
from lumc.kernel.inside import accesses, escape, require_inside
from lumc.kernel.normal import normalize
from lumc.kernel.term import Kernel, dyn, guard, iota, load

EXTENT = {"i": 5, "j": 4, "k": 3}
RANDOM = 1500
BY_DATA = ("embed", "cache_update", "counted_rows")  # read where data says, with no guard


def random_index(draw: random.Random) -> Expr:
    """A sum of axes times small factors, perhaps divided, perhaps a remainder."""
    e = add(*(mul(axis(a), draw.choice((-2, -1, 0, 1, 1, 2))) for a in EXTENT), draw.randint(-4, 4))
    ranges = {a: (0, n - 1) for a, n in EXTENT.items()}
    divided = draw.choice((None, None, floordiv, mod))
    return add(divided(e, draw.randint(2, 4), ranges), draw.randint(-2, 2)) if divided else e


def guarded_load(draw: random.Random) -> tuple[Kernel, Expr]:
    e = read = load("x", DType.F32, random_index(draw))
    for _ in range(draw.randrange(4)):
        same = add(read.kids[0], draw.randint(-1, 1))
        lo = draw.randint(-2, 3)
        index = draw.choice((same, mul(same, draw.choice((-1, 2))), random_index(draw)))
        e = guard(index, lo, lo + draw.randint(1, 6), e)
    return kernel("k", "i j k", EXTENT, e, {"x": (draw.randint(1, 9),)}), e


def reads_inside(e: Expr, size: int) -> bool:
    """Whether every element that is read lies inside, by walking over all points."""
    for point in itertools.product(*map(range, EXTENT.values())):
        at, rest = dict(zip(EXTENT, point, strict=True)), e
        while rest.kind == "guard" and rest.attr[0] <= index_value(rest.kids[0], at) < rest.attr[1]:
            rest = rest.kids[1]
        if rest.kind == "load" and not 0 <= index_value(rest.kids[0], at) < size:
            return False
    return True


def test_what_is_proven_holds_everywhere() -> None:
    proven = refused = open_ = 0
    for seed in range(RANDOM):
        k, e = guarded_load(random.Random(seed))
        inside = reads_inside(e, k.buffer("x").shape[0])
        if not escape(k):
            assert inside, e
            proven += 1
        elif inside:
            open_ += 1
        else:
            refused += 1
    assert proven > 150 and refused > 500
    assert open_ < proven / 2  # intervals are not exact, but near


def test_the_zoo_is_proven() -> None:
    for family, shapes in FAMILIES.items():
        for shape in shapes:
            assert bool(escape(family(*shape))) == (family.__name__ in BY_DATA), family


@pytest.mark.parametrize("axis_name", ["i", "j"])
def test_a_load_that_leaves_is_named(axis_name: str) -> None:
    k = kernel("late", "i j", {"i": 5, "j": 5}, x("x", "i", add(axis_name, -1)), {"x": (5, 5)})
    assert f"x[i, {axis_name} - 1]" in escape(k)
    with pytest.raises(LumcError, match=r"E0416.*x\[i"):
        require_inside(k)


def test_stores_are_proven_too() -> None:
    k = kernel("k", "i", {"i": 5}, x("x", "i"), {"x": (5,)})
    (out,) = k.roots
    late = type(out)(out.buffer, (add(axis("i"), 1),), out.value)
    assert not escape(k)
    assert "out[i + 1]" in escape(Kernel("k", k.axes, k.extent, (late,), k.buffers))


def test_data_must_be_guarded() -> None:
    at = dyn(x("ids", "i", kind=DType.I64))
    shapes, kinds = {"ids": (5,), "x": (7,)}, {"ids": DType.I64}
    for e, ok in ((x("x", at), False), (guard(at, 0, 7, x("x", at)), True)):
        assert bool(escape(kernel("k", "i", {"i": 5}, e, shapes, "", kinds))) != ok
    assert escape(kernel("k", "i", {"i": 5}, guard(at, 0, 8, x("x", at)), shapes, "", kinds))


def test_a_guard_is_not_said_again_for_its_own_data() -> None:
    """Else the data is read in two ways, and its reductions are computed twice."""
    sums = dyn(total("j", x("ids", "i", "j", kind=DType.I64)))
    value = guard("i", 1, 4, guard(sums, 0, 7, x("x", sums)))
    shapes = {"ids": (5, 3), "x": (7,)}
    k = kernel("k", "i", {"i": 5, "j": 3}, value, shapes, "", {"ids": DType.I64})
    once = normalize(k)
    assert len(once.stages) == 1
    assert normalize(once).roots == once.roots
    assert not escape(k)


def test_constants_and_positions_are_no_accesses() -> None:
    k = kernel("k", "i", {"i": 5}, guard("i", 1, 3, iota("i", DType.F32)), {})
    assert [name for name, *_ in accesses(normalize(k))] == ["out"]
    assert not escape(kernel("k", "i", {"i": 5}, c(1.0), {}))
