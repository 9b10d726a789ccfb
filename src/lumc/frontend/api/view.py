"""Views: how a tensor reads its source. Movement composes index maps and creates no node.

An operand of a tensor is written over place axes ``_0, _1, ..``, one per dimension of the
tensor. A movement gives, for every old dimension, an index expression over the new places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from lumc.graph.dim import Dim, Extent, as_expr, dim_ranges, extent, largest
from lumc.graph.expr import (
    Expr,
    Range,
    add,
    axis,
    bounds,
    from_linear,
    linear,
    make,
    mul,
    num,
    simplify,
    substitute,
)
from lumc.graph.graph import Bound, Iota, Operand, Read, Scalar, map_indices
from lumc.graph.index import at_least as index_at_least
from lumc.graph.index import interval, is_inside, loop_ranges, undivided
from lumc.graph.ops import DType

Dims = Mapping[str, Dim]


@cache
def place(i: int) -> Expr:
    """The axis that stands for dimension ``i`` of a tensor."""
    return axis(f"_{i}")


def places_of(items: Sequence[object]) -> list[Expr]:
    return [place(i) for i in range(len(items))]


def places(shape: Sequence[Extent]) -> tuple[Expr, ...]:
    """The identity map: every dimension at its own place, 0 where there is one element."""
    return tuple(num(0) if e == 1 else place(i) for i, e in enumerate(shape))


# ---- arithmetic on extents


def plus(*terms: Extent) -> Extent:
    return extent(add(*(as_expr(t) for t in terms)))


def times(e: Extent, factor: int) -> Extent:
    return extent(mul(as_expr(e), factor))


def minus(a: Extent, b: Extent) -> Extent:
    return plus(a, times(b, -1))


def at_least(a: Extent, b: Extent, dims: Dims) -> bool:
    """Whether ``a >= b`` for every value of the dims."""
    return index_at_least(as_expr(a), as_expr(b), dim_ranges(dims))


def factors(shape: Sequence[Extent]) -> tuple[int, tuple[Expr, ...]]:
    """The product of extents: an integer times symbolic factors without a common divisor."""
    whole, symbols = 1, list[Expr]()
    for e in shape:
        if isinstance(e, int):
            whole *= e
            continue
        constant, coefs = linear(e)
        common = math.gcd(constant, *coefs.values())
        whole *= common
        symbols.append(from_linear(constant // common, {a: c // common for a, c in coefs.items()}))
    return whole, tuple(sorted(symbols, key=str))


# ---- composing index maps


def ranges_of(shape: Sequence[Extent], dims: Dims) -> dict[str, Range]:
    """Bounds of the dims and of the places of a shape."""
    return loop_ranges({f"_{i}": e for i, e in enumerate(shape)}, dims)


def move(
    operand: Operand,
    shape: Sequence[Extent],
    env: Sequence[Expr],
    dims: Dims,
    guards: Sequence[Bound] = (),
) -> Operand:
    """The operand over the places of ``shape``; ``guards`` are written over the new places."""
    ranges, ones = ranges_of(shape, dims), dict(zip(places_of(shape), places(shape), strict=True))

    def normal(e: Expr) -> Expr:
        return simplify(substitute(e, ones), ranges)

    new = dict(zip(places_of(env), map(normal, env), strict=True))
    (moved,) = map_indices([operand], lambda e: simplify(substitute(e, new), ranges), lambda e: e)
    limits = dict.fromkeys(moved.bounds)
    limits.update(dict.fromkeys(Bound(normal(g.index), g.lo, g.hi) for g in guards))
    kept = list[Bound]()
    for b in map(undivided, limits):
        lo, hi = bounds(b.index, ranges)
        if hi < b.lo or not may_hold(b, lo, dims):
            return Scalar(operand.dtype, zero(operand.dtype))
        if lo < b.lo or not always_below(b, shape, dims):
            kept.append(b)
    return replace(moved, bounds=tuple(kept))


def indices(o: Operand) -> Iterator[Expr]:
    """The index expressions of an operand."""
    yield from (b.index for b in o.bounds)
    yield from o.index if isinstance(o, Read) else [o.index] if isinstance(o, Iota) else []


def is_proven(operand: Operand, shape: Sequence[Extent], dims: Dims) -> bool:
    """Whether a read under guards provably stays inside its source."""
    if not isinstance(operand, Read) or not operand.bounds or 0 in shape:
        return True
    loops = {f"_{i}": e for i, e in enumerate(shape)}
    sizes = zip(operand.index, operand.source.shape, strict=True)
    return all(is_inside(e, size, operand.bounds, loops, dims) for e, size in sizes)


def may_hold(b: Bound, lo: int, dims: Dims) -> bool:
    """Whether some index may lie below the upper bound."""
    return lo < largest(b.hi, dims)


def always_below(b: Bound, shape: Sequence[Extent], dims: Dims) -> bool:
    """Whether the upper bound of a guard holds everywhere."""
    spans = {f"_{i}": (num(0), plus_expr(e, -1)) for i, e in enumerate(shape)}
    top = interval(b.index, spans, dim_ranges(dims))[1]
    return index_at_least(plus_expr(b.hi, -1), top, dim_ranges(dims))


def plus_expr(e: Extent, n: int) -> Expr:
    return add(as_expr(e), n)


def zero(dtype: DType) -> float | int | bool:
    if dtype.is_float:
        return 0.0
    return False if dtype is DType.BOOL else 0


# ---- reshape


def reshape_map(old: Sequence[Extent], new: Sequence[Extent]) -> list[Expr] | str:
    """Index expressions of the old dimensions over the new places, or why there are none.

    Dimensions are matched in groups of equal products; within a group every extent but the
    first must be an integer.
    """
    env: list[Expr] = [num(0)] * len(old)
    left = [i for i, e in enumerate(old) if e != 1]
    right = [i for i, e in enumerate(new) if e != 1]
    while left or right:
        a, b = left[:1], right[:1]
        while factors([old[i] for i in a]) != factors([new[i] for i in b]):
            mine, yours = factors([old[i] for i in a]), factors([new[i] for i in b])
            shorter, source = (a, left) if _before(mine, yours) else (b, right)
            if len(shorter) == len(source):
                return "the numbers of elements differ"
            shorter.append(source[len(shorter)])
        if any(not isinstance(old[i], int) for i in a[1:]):
            return "a symbolic extent cannot be merged behind another"
        if any(not isinstance(new[i], int) for i in b[1:]):
            return "a symbolic extent cannot be split off behind another"
        _split_group(env, old, new, a, b)
        left, right = left[len(a) :], right[len(b) :]
    return env


def _before(a: tuple[int, tuple[Expr, ...]], b: tuple[int, tuple[Expr, ...]]) -> bool:
    """Whether group ``a`` is the one that has to grow to meet ``b``."""
    if len(a[1]) != len(b[1]):
        return len(a[1]) < len(b[1])
    return a[0] <= b[0]


def _split_group(
    env: list[Expr], old: Sequence[Extent], new: Sequence[Extent], a: list[int], b: list[int]
) -> None:
    flat, stride = num(0), 1
    for i in reversed(b):
        flat = add(flat, mul(place(i), stride))
        size = new[i]
        stride *= size if isinstance(size, int) else 1
    for i in reversed(a[1:]):
        size = old[i]
        assert isinstance(size, int)
        # simplified when the map is composed: bounds are known there
        env[i] = make("mod", (size,), (flat,))
        flat = make("div", (size,), (flat,))
    env[a[0]] = flat


def ceil_div(e: Extent, divisor: int) -> Extent | None:
    """``ceil(e / divisor)``; None when a symbolic extent does not divide exactly."""
    if isinstance(e, int):
        return -(-e // divisor)
    constant, coefs = linear(e)
    if any(c % divisor for c in coefs.values()):
        return None
    return extent(from_linear(-(-constant // divisor), {a: c // divisor for a, c in coefs.items()}))
