"""How loads move: what is said of strides holds at every point, and nothing is said too seldom."""

from __future__ import annotations

import itertools
import random

import pytest

from lumc.codegen.tile.program import Dim, Place, reference
from lumc.graph.expr import Expr, add, axis, dim, floordiv, index_value, mod, mul, num
from lumc.graph.ops import DType
from lumc.kernel.access import Access, access, gathers, row_major
from lumc.kernel.term import Buffer, Kernel, dyn, load

EXTENT = {"i": 5, "j": 4, "k": 3}
RANGES = {a: (0, n - 1) for a, n in EXTENT.items()}
X, Y = axis("i"), axis("j")


def of(*index: Expr | int, shape: tuple[int, ...] = (9, 16)) -> Access:
    return row_major(tuple(num(i) if isinstance(i, int) else i for i in index), shape)


def test_strides_are_those_of_a_row_major_buffer() -> None:
    a = of(add(mul(X, 2), 1), Y)
    assert (a.start, a.strides, a.irregular) == (16, {"i": 32, "j": 1}, frozenset())
    assert [a.stride(x) for x in ("i", "j", "k", None)] == [32, 1, 0, 0]
    assert a.is_affine("i", "j", "k", None)
    assert of(Y, X, axis("k"), shape=(2, 3, 5)).strides == {"j": 15, "i": 5, "k": 1}
    assert of(shape=()) == Access(0, {}, frozenset())
    assert of(add(X, Y), Y).strides == {"i": 16, "j": 17}  # a diagonal


def test_contiguous_along_one_axis_and_across_another() -> None:
    a = of(Y, X)  # the transpose of a matrix, read by i and j
    assert a.contiguous == ("i",) and a.is_contiguous("i") and not a.is_contiguous("j")
    assert a.transposed("j") == ("i",)
    assert not a.transposed("i") and not a.transposed("k") and not a.transposed(None)
    assert a.is_apart("j") and not a.is_apart("i") and not a.is_apart("k")
    assert not of(0, 3).contiguous
    back = of(X, mul(Y, -1))
    assert back.stride("j") == -1 and not back.is_contiguous("j") and not back.is_apart("j")
    assert not back.transposed("i")  # nothing is contiguous


@pytest.mark.parametrize("inner", [floordiv(Y, 2, {}), mod(Y, 3, {}), dyn(load("n", DType.I32, Y))])
def test_axes_that_move_it_in_another_way(inner: Expr) -> None:
    """Whether they move it by a stride as well, or not."""
    for a, stride in ((of(X, inner), 0), (of(X, add(inner, Y)), 1)):
        assert a.irregular == {"j"} and a.stride("j") == stride
        assert a.is_affine("i") and not a.is_affine("j") and not a.is_affine("i", "j")
        assert not a.contiguous and not a.is_contiguous("j") and a.is_apart("j")
    assert not of(mod(Y, 3, {}), X).transposed("j")
    assert of(Y, X).transposed("j") and not of(add(Y, inner), X).transposed("j")


def test_an_index_by_data_gathers() -> None:
    assert gathers(load("x", DType.F32, dyn(load("n", DType.I32, Y))))
    assert not gathers(load("x", DType.F32, mod(Y, 3, {})))


def test_a_load_of_a_kernel_or_of_a_place() -> None:
    """A place has an origin, which may be where a tile starts, and perhaps panels, in which the
    others lie between those of a panel."""
    kernel = Kernel("k", (), EXTENT, (), (Buffer("x", DType.F32, (9, 16)),))
    assert kernel.access(load("x", DType.F32, "i", "j")) == of(X, Y)
    dims = Dim("i", dim("i.0"), 5), Dim("j", num(2), 4)
    plain = Place("copy", DType.F32, dims)
    there = plain.access(reference(plain, [X, Y]))
    assert there == Access(-2, {"i": 4, "j": 1}, frozenset())
    assert plain.access(reference(plain, [X, Y])) is there  # computed once
    panel = Place("copy", DType.F32, dims, panel=(0, 8))
    seen = panel.access(reference(panel, [X, Y]))
    assert seen.strides == {"i": 1, "j": 8} and seen.transposed("j") == ("i",)


def test_what_is_said_holds_at_every_point() -> None:
    draw, counted = random.Random(7), dict.fromkeys(("affine", "irregular", "contiguous"), 0)
    for _ in range(300):
        offset = add(*(mul(axis(a), draw.choice((-2, 0, 1, 1, 3))) for a in EXTENT))
        inner = add(*(mul(axis(a), draw.choice((0, 0, 1, 2))) for a in EXTENT))
        if draw.random() < 0.6:
            offset = add(offset, draw.choice((floordiv, mod))(inner, draw.randint(2, 5), RANGES))
        a = access(offset)
        for x in EXTENT:
            moved = {
                index_value(offset, {**at, x: at[x] + 1}) - index_value(offset, at)
                for p in itertools.product(*map(range, EXTENT.values()))
                if (at := dict(zip(EXTENT, p, strict=True)))[x] + 1 < EXTENT[x]
            }
            if a.is_affine(x):
                assert moved == {a.stride(x)}
            assert not a.is_contiguous(x) or moved == {1}
            assert a.is_affine(x) or x in inner.free
            counted["affine"] += a.is_affine(x)
            counted["irregular"] += len(moved) > 1
            counted["contiguous"] += a.is_contiguous(x)
    assert min(counted.values()) > 20
