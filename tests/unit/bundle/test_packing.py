"""Packing by numpy from a description, against a loop, and its inverse."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lumc.bundle.packing import Recipe, pack, recipe, unpack
from lumc.codegen.tile.packing import Packing
from lumc.graph.expr import Expr, add, axis, floordiv, mod, mul, num, substitute, subterms
from lumc.graph.ops import DType


def value(e: Expr, at: dict[str, int]) -> int:
    match e.kind:
        case "axis":
            return at[e.attr[0]]
        case "num":
            return int(e.attr[0])
        case "lin":
            terms = zip(e.attr[1], e.kids, strict=True)
            return int(e.attr[0]) + sum(c * value(k, at) for c, k in terms)
        case "div":
            return value(e.kids[0], at) // int(e.attr[0])
    return value(e.kids[0], at) % int(e.attr[0])


def naive(weight: Any, p: Packing) -> Any:
    """Element by element, as the definition says."""
    out = np.zeros(p.size, p.dtype.numpy)
    names = [a for a, _ in p.axes]
    for point in itertools.product(*(range(n) for _, n in p.axes)):
        at = dict(zip(names, point, strict=True))
        place = 0
        if p.panel is None:
            for i, (_, n) in zip(point, p.axes, strict=True):
                place = place * n + i
        else:
            lane, width = p.panel
            place = point[lane] // width
            for k, (i, (_, n)) in enumerate(zip(point, p.axes, strict=True)):
                place = place if k == lane else place * n + i
            place = place * width + point[lane] % width
        out[place] = weight[tuple(value(e, at) for e in p.index)]
    return out


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], Packing]:
    """A weight's shape and a packing of it: permuted, strided, flattened, with broadcast axes."""
    extents = draw(st.lists(st.integers(0, 6), min_size=0, max_size=3))
    axes = [(f"a{i}", n) for i, n in enumerate(extents)]
    index, shape = list[Expr](), list[int]()
    for name, n in draw(st.permutations(axes)):
        kind = draw(st.sampled_from(["plain", "stride", "split", "absent", "turned"]))
        e = axis(name)
        if kind == "plain":
            index.append(e)
            shape.append(max(n, 1) + draw(st.integers(0, 2)))
        elif kind == "stride":
            index.append(add(mul(e, 2), 1))
            shape.append(2 * max(n, 1) + 1)
        elif kind == "turned":
            index.append(add(mul(e, -1), max(n, 1) - 1))
            shape.append(max(n, 1))
        elif kind == "split":
            ranges = {name: (0, max(n - 1, 0))}
            index += [floordiv(e, 2, ranges), mod(e, 2, ranges)]
            shape += [max(n, 1) // 2 + 1, 2]
    if draw(st.booleans()):
        index.append(num(1))
        shape.append(2)
    panel = (
        (draw(st.integers(0, len(axes) - 1)), draw(st.sampled_from([1, 3, 4]))) if axes else None
    )
    panel = draw(st.sampled_from([None, panel]))
    return tuple(shape), Packing("w", DType.F32, tuple(index), tuple(axes), panel)


def followed(weight: Any, how: Recipe) -> Any:
    """What the runner makes of a recipe."""
    out = []
    for point in itertools.product(*(range(extent) for extent, _ in how.dims)):
        at = how.base + sum(i * stride for i, (_, stride) in zip(point, how.dims, strict=True))
        beyond = how.width and point[0] * how.width + point[-1] >= how.lanes
        out.append(0.0 if beyond else weight.reshape(-1)[at])
    return np.array(out, np.float32)


@settings(max_examples=200, deadline=None)
@given(cases())
def test_pack_is_its_definition_and_unpack_its_inverse(
    case: tuple[tuple[int, ...], Packing],
) -> None:
    shape, packing = case
    weight = np.arange(1, np.prod(shape, dtype=int) + 1, dtype=np.float32).reshape(shape)
    packed = pack(weight, DType.F32, packing)
    np.testing.assert_array_equal(packed, naive(weight, packing))
    if how := recipe(packing, shape, DType.F32):
        np.testing.assert_array_equal(followed(weight, how), packed)
    back = np.zeros_like(weight)
    unpack(packed, packing, DType.F32, back)
    assert np.all((back == weight) | (back == 0))
    assert set(packed[packed != 0]) == set(back[back != 0])


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.I8, DType.F32, DType.BOOL])
def test_a_packed_copy_in_f32_keeps_every_value(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    if dtype is DType.BF16:
        weight: Any = (rng.standard_normal((5, 7)).astype(np.float32).view(np.uint32) >> 16).astype(
            np.uint16
        )
    else:
        weight = (rng.standard_normal((5, 7)) * 50).astype(dtype.numpy)
    packing = Packing("w", DType.F32, (axis("i"), axis("j")), (("j", 7), ("i", 5)), (0, 4))
    packed = pack(weight, dtype, packing)
    assert packed.dtype == np.float32
    if dtype is DType.BF16:
        exact = (weight.astype(np.uint32) << 16).view(np.float32)
        assert packed[0] == exact[0, 0] and packed[1] == exact[0, 1]
    back = np.zeros_like(weight)
    unpack(packed, packing, dtype, back)
    np.testing.assert_array_equal(back, weight)


@pytest.mark.parametrize("index", [add(axis("i"), 1), add(axis("i"), -1), mul(axis("i"), 2)])
def test_an_index_outside_of_the_weight_is_refused(index: Expr) -> None:
    weight = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="outside"):
        pack(weight, DType.F32, Packing("w", DType.F32, (index,), (("i", 4),), None))


def test_a_scalar_weight() -> None:
    packing = Packing("w", DType.F32, (), (), None)
    packed = pack(np.array(3.5, np.float32), DType.F32, packing)
    assert packed.shape == (1,) and packed[0] == 3.5


NIBBLES = Packing("w", DType.I32, (axis("n"), axis("k")), (("k", 16), ("n", 70)), (1, 64), None, 4)


@pytest.mark.parametrize("kind", [DType.I8, DType.U8])
def test_numbers_of_four_bits_are_words(kind: DType) -> None:
    """Two bytes of low and high nibbles, by hand, and back again."""
    low = -8 if kind is DType.I8 else 0
    weight = np.random.default_rng(0).integers(low, low + 16, (70, 16)).astype(kind.numpy)
    packed = pack(weight, kind, NIBBLES)
    assert packed.dtype == np.int32 and packed.size == NIBBLES.size == 2 * 2 * 64
    word = packed.view(np.uint8).reshape(2, 2, 64, 4)  # panel, eight steps, lane, byte
    for n, k in itertools.product(range(70), range(16)):
        byte = int(word[n // 64, k // 8, n % 64, k % 4])
        assert low + (byte >> 4 * (k % 8 // 4) & 15) == weight[n, k]
    out = np.zeros_like(weight)
    unpack(packed, NIBBLES, kind, out)
    assert np.array_equal(out, weight)
    assert recipe(NIBBLES, (70, 16), kind) is None


@pytest.mark.parametrize(("kind", "value"), [(DType.I8, 8), (DType.I8, -9), (DType.U8, 16)])
def test_numbers_of_more_bits_are_refused(kind: DType, value: int) -> None:
    weight = np.zeros((70, 16), kind.numpy)
    weight[69, 15] = value
    with pytest.raises(ValueError, match="4 bits"):
        pack(weight, kind, NIBBLES)


def test_words_are_whole_and_lie_before_lanes() -> None:
    index = axis("n"), axis("k")
    for axes, panel, kind in (
        ((("k", 12), ("n", 64)), (1, 64), DType.I32),
        ((("n", 64), ("k", 16)), (0, 64), DType.I32),
        ((("k", 16), ("n", 64)), None, DType.I32),
        ((("k", 16), ("n", 64)), (1, 64), DType.U8),
    ):
        with pytest.raises(ValueError, match="words"):
            Packing("w", kind, index, axes, panel, None, 4)


@settings(max_examples=200, deadline=None)
@given(cases(), st.data())
def test_an_axis_in_two_parts_is_the_same_copy(
    case: tuple[tuple[int, ...], Packing], data: st.DataObject
) -> None:
    shape, packing = case
    packing = replace(packing, shape=packing.shape or shape)
    lane = packing.panel[0] if packing.panel else -1
    spots = [i for i, (_, n) in enumerate(packing.axes) if n and i != lane]
    if not spots:
        return
    at = data.draw(st.sampled_from(spots))
    name, n = packing.axes[at]
    part = data.draw(st.sampled_from([p for p in range(1, n + 1) if n % p == 0]))
    whole = {axis(name): add(mul("outer", part), "inner")}
    other = replace(
        packing,
        axes=(*packing.axes[:at], ("outer", n // part), ("inner", part), *packing.axes[at + 1 :]),
        index=tuple(substitute(e, whole) for e in packing.index),
        panel=packing.panel and (lane + (lane > at), packing.panel[1]),
    )
    weight = np.arange(1, np.prod(shape, dtype=int) + 1, dtype=np.float32).reshape(shape)
    same = np.array_equal(pack(weight, DType.F32, other), pack(weight, DType.F32, packing))
    assert same and (other.memory == packing.memory or is_irregular(packing))


def is_irregular(packing: Packing) -> bool:
    """Do its elements lie in another way than in steps? Then it is equal to itself only."""
    return any(e.kind in ("div", "mod") for e in subterms(*packing.index))


def test_split_axes_become_one_packing() -> None:
    """What kernels with another number of loops over a weight ask for."""
    o, k, n, h = axis("o"), axis("k"), axis("n"), axis("h")
    two = (n, add(mul(o, 32), k)), (("o", 18), ("k", 32), ("n", 70))
    three = (n, add(mul(h, 64), mul(o, 32), k)), (("h", 9), ("o", 2), ("k", 32), ("n", 70))
    for bits, kind in ((4, DType.I32), (8, DType.I32)):
        a = Packing("w", kind, *two, (2, 16), (70, 576), bits)
        b = Packing("w", kind, *three, (3, 16), (70, 576), bits)
        assert a != b and a.memory == b.memory
        weight = np.random.default_rng(1).integers(-8, 8, (70, 576)).astype(np.int8)
        want = pack(weight, DType.I8, a)
        assert np.array_equal(want, pack(weight, DType.I8, b))
        assert len({a.memory, replace(a, bits=12 - bits).memory}) == 2
    turned = Packing("w", DType.F32, (n, add(mul(k, 18), o)), two[1], (2, 16), (70, 576))
    assert len(turned.memory.rows) == 3  # the outer axis has the short steps
