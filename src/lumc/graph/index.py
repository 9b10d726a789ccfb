"""Index maps: where an operand is read, and the proof that it lies inside its source.

Bounds are proven symbolically: an extent may be an expression over dims (``s + 1``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd

from lumc.graph.dim import Dim, Extent, as_expr, dim_ranges, extent, largest
from lumc.graph.expr import (
    Expr,
    Range,
    add,
    axis,
    bounds,
    floordiv,
    from_linear,
    linear,
    mod,
    mul,
    num,
    simplify,
    substitute,
)

Loops = Mapping[str, Extent]  # axes with their extents
Spans = dict[str, tuple[Expr, Expr]]  # axes with inclusive bounds over dims


@dataclass(frozen=True)
class Bound:
    """``lo <= index < hi``; outside, the operand is zero and is not read."""

    index: Expr
    lo: int
    hi: Extent


def loop_ranges(loops: Loops, dims: Mapping[str, Dim]) -> dict[str, Range]:
    """Inclusive bounds of the dims and of the axes, by name; an axis hides a dim of its name."""
    return dim_ranges(dims) | {a: (0, max(largest(e, dims) - 1, 0)) for a, e in loops.items()}


def is_inside(
    e: Expr, size: Extent, guards: Sequence[Bound], loops: Loops, dims: Mapping[str, Dim]
) -> bool:
    """Whether ``0 <= e < size`` is proven wherever the guards hold."""
    guards = list(dict.fromkeys((*guards, *map(undivided, guards))))
    if isinstance(size, int):
        low, high = _beside_guards(e, guards, loop_ranges(loops, dims))
        if low >= 0 and high < size:
            return True
    ranges, last = dim_ranges(dims), add(as_expr(size), -1)
    spans = {a: (num(0), add(as_expr(n), -1)) for a, n in loops.items()}
    guards = [Bound(*of_form(g.index, g.lo, g.hi)) if isinstance(g.hi, int) else g for g in guards]
    for some in ((), *((g,) for g in guards), guards):  # more are not always narrower
        narrow = _guarded_interval(e, some, dict(spans), ranges)
        if narrow is None:
            return True
        if at_least(narrow[0], num(0), ranges) and at_least(last, narrow[1], ranges):
            return True
    return False


def _beside_guards(e: Expr, guards: Sequence[Bound], ranges: Mapping[str, Range]) -> Range:
    """Bounds of e where guards hold of indices, from ``q * e = p * index + rest`` for every ratio
    that leaves fewer axes in the rest; and of sums of quotients of such."""
    (low, high), (constant, mine) = bounds(e, ranges), linear(e)
    if any(a.kind == "div" for a in mine):
        least = most = constant
        for atom, factor in mine.items():
            ends = sorted(factor * end for end in _quotient(atom, guards, ranges))
            least, most = least + ends[0], most + ends[1]
        low, high = max(low, least), min(high, most)
    for g in guards:
        known = linear(g.index)[1]
        if not isinstance(g.hi, int):
            continue
        for ratio in {Fraction(mine[a], c) for a, c in known.items() if a in mine}:
            p, q = ratio.as_integer_ratio()
            least, most = bounds(add(mul(e, q), mul(g.index, -p)), ranges)
            ends = sorted((p * g.lo, p * (g.hi - 1)))
            low, high = max(low, -(-(least + ends[0]) // q)), min(high, (most + ends[1]) // q)
    return low, high


def _quotient(e: Expr, guards: Sequence[Bound], ranges: Mapping[str, Range]) -> Range:
    """Bounds of a term of a sum; of a quotient with those of what it divides."""
    low, high = bounds(e, ranges)
    if e.kind != "div":
        return low, high
    least, most = _beside_guards(e.kids[0], guards, ranges)
    return max(low, least // e.attr[0]), min(high, most // e.attr[0])


def undivided(b: Bound) -> Bound:
    """``lo <= e // c + k < hi`` as bounds of e, from which more can be proven."""
    constant, coefs = linear(b.index)
    (atom, coef), *more = coefs.items() or [(num(0), 0)]
    if atom.kind != "div" or coef != 1 or more:
        return b
    c = atom.attr[0]
    hi = extent(mul(add(as_expr(b.hi), -constant), c))
    return undivided(Bound(atom.kids[0], (b.lo - constant) * c, hi))


@lru_cache(maxsize=1 << 12)  # guards of one term are compared with each other, again and again
def of_form(index: Expr, low: int, high: int) -> tuple[Expr, int, int]:
    """``lo <= form < hi`` of ``low <= c + g * form < high``: no constant, no common factor."""
    constant, coefs = linear(index)
    if not coefs:
        return index, low, high
    g = gcd(*coefs.values()) * (1 if next(iter(coefs.values())) > 0 else -1)
    low, high = low - constant, high - constant
    if g < 0:
        low, high = 1 - high, 1 - low  # of the negative
    form = from_linear(0, {a: c // g for a, c in coefs.items()})
    return form, -(-low // abs(g)), -(-high // abs(g))


def narrowed(spans: Mapping[str, Range], index: Expr, lo: int, hi: int) -> dict[str, Range]:
    """The spans of axes with those values only for which ``lo <= index < hi``, as far as bounds of
    the rest of the index tell; a span whose first value is greater than its last one is empty."""
    out = dict(spans)
    for a, c, rest in _moving(index):
        low, high = bounds(rest, out)
        least, most = sorted([lo - high, hi - 1 - low], reverse=c < 0)
        first, last = out[a]
        out[a] = max(first, -(least // -c)), min(last, most // c)
        if out[a][0] > out[a][1]:  # nothing is left: the rest has no bounds
            break
    return out


@lru_cache(maxsize=1 << 12)  # a guard is asked for its axes wherever a term that has it is read
def _moving(index: Expr) -> tuple[tuple[str, int, Expr], ...]:
    """The axes in a sum, with their factors and the rest of the sum."""
    atoms = [(atom, c) for atom, c in linear(index)[1].items() if atom.kind == "axis"]
    return tuple((atom.attr[0], c, add(index, mul(atom, -c))) for atom, c in atoms)


def interval(e: Expr, spans: Spans, dims: Mapping[str, Range]) -> tuple[Expr, Expr]:
    """Inclusive bounds of an index as expressions over dims, from those of its axes; the dims
    themselves have numbers as bounds."""
    match e.kind:
        case "axis":
            return spans[e.attr[0]]
        case "lin":
            lo = hi = num(e.attr[0])
            for atom, coef in zip(e.kids, e.attr[1], strict=True):
                ends = interval(atom, spans, dims)
                a, b = ends if coef > 0 else ends[::-1]
                lo, hi = add(lo, mul(a, coef)), add(hi, mul(b, coef))
            return lo, hi
        case "div":
            lo, hi = interval(e.kids[0], spans, dims)
            return floordiv(lo, e.attr[0], dims), floordiv(hi, e.attr[0], dims)
        case "mod":
            lo, hi = interval(e.kids[0], spans, dims)
            top = num(e.attr[0] - 1)
            exact = at_least(lo, num(0), dims) and at_least(top, hi, dims)
            return (lo, hi) if exact else (num(0), top)
    return e, e


def at_least(a: Expr, b: Expr, dims: Mapping[str, Range]) -> bool:
    """Whether ``a >= b`` is proven for all values of the dims."""
    gap = add(a, mul(b, -1))
    if bounds(gap, dims)[0] >= 0:
        return True
    for atom, coef in linear(gap)[1].items():
        if atom.kind == "div" and coef % atom.attr[0] == 0:  # c * (x // c) = x - x % c
            x, c = atom.kids[0], atom.attr[0]
            whole = add(x, mul(mod(x, c, dims), -1))
            gap = add(gap, mul(atom, -coef), mul(whole, coef // c))
    return bounds(gap, dims)[0] >= 0


def _guarded_interval(
    e: Expr, guards: Sequence[Bound], spans: Spans, dims: Mapping[str, Range]
) -> tuple[Expr, Expr] | None:
    """Bounds of ``e`` where the guards hold, None if that is nowhere.

    A new axis stands for every guarded index.
    """
    known: list[tuple[Expr, Expr]] = []
    stand_ins: list[Expr] = []
    for i, guard in enumerate(guards):
        target, z = guard.index, axis(f"guard {i}")
        for old, new in known:
            target = substitute(target, {old: new})
        lo, hi, top = *interval(target, spans, dims), add(as_expr(guard.hi), -1)
        lo = lo if at_least(lo, num(guard.lo), dims) else num(guard.lo)
        hi = hi if at_least(top, hi, dims) else top
        if at_least(lo, add(hi, 1), dims):
            return None
        spans[z.attr[0]] = lo, hi
        coefs = linear(target)[1]
        free = (a for a in coefs if a.kind != "dim" and a not in stand_ins)
        unit = next((a for a in free if abs(coefs[a]) == 1), None)
        stand_ins.append(z)
        if unit is not None:  # target = c * unit + rest, so unit = c * (z - rest)
            rest = add(target, mul(unit, -coefs[unit]))
            known.append((unit, mul(add(z, mul(rest, -1)), coefs[unit])))
            e = substitute(e, {unit: known[-1][1]})
        else:  # e = e + m * (z - target) for every m: take the one that cancels an axis
            mine = linear(e)[1]
            m = next((mine[a] // c for a, c in coefs.items() if a in mine and mine[a] % c == 0), 0)
            e = add(e, mul(z, m), mul(target, -m))
    numeric = {a: (bounds(lo, dims)[0], bounds(hi, dims)[1]) for a, (lo, hi) in spans.items()}
    return interval(simplify(e, {**dims, **numeric}), spans, dims)


def is_injective(index: Sequence[Expr], loops: Loops, dims: Mapping[str, Dim]) -> bool:
    """Whether different points of the loops are proven to have different indices, one expression
    for each dim of what is indexed."""
    told = set[str]()
    for e in index:
        coefs = linear(e)[1]
        if any(atom.kind not in ("axis", "dim") for atom in coefs):
            return False
        reach = 0  # the largest value of the axes with smaller strides
        axes = [a for a in coefs if a.kind == "axis"]
        for a in sorted(axes, key=lambda a: abs(coefs[a])):
            if abs(coefs[a]) <= reach:
                return False
            reach += abs(coefs[a]) * (largest(loops[a.attr[0]], dims) - 1)
            told.add(a.attr[0])
    return all(extent == 1 or a in told for a, extent in loops.items())
