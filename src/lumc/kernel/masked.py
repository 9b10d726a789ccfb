"""Steps of reductions that a mask leaves out, whatever else is in them.

    sum_j (j <= q ? x[j] : 0)        max_j (s[j] + (q < j ? -inf : 0))        wsum_j (.., v[j])

Masks compare indices: no step beyond q adds anything to the results of row q, and a loop over tiles
may end where no row of it has steps left. What looks back only is half the work so, and what looks
at the w last of n steps w / n of it.

What a step is worth follows from the values that a comparison decides, where it holds and where it
does not: a select is 0, -inf is left of a sum with it, 0 of its power and of products with that.
Nothing else is looked at. A row without any step has the result of a reduction over nothing, which
of a ``wsum`` is the NaN of a row of -inf.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from math import inf, prod

from lumc.graph.expr import (
    Expr,
    Range,
    add,
    axis,
    bound_axes,
    bounds,
    combine,
    floordiv,
    linear,
    mul,
    num,
    subterms,
)
from lumc.graph.ops import DType
from lumc.kernel.term import Kernel, dtype

POWERS = ("exp2", "exp2_ftz", "exp", "exp_ftz", "decay")  # 0 of -inf
MAXIMA = ("max", "top")
NORMAL = 2.0**-14  # not 0 in any dtype
POSITIONS = 1 << 12  # of the other axes, at which shares are looked at
Known = dict[Expr, float]  # terms of which the value is known


@dataclass(frozen=True)
class Mask:
    """The steps of a reduction along ``over`` that count have ``lo <= step * over + rest < hi``,
    an index that goes up along it."""

    over: str
    step: int
    rest: Expr
    lo: int
    hi: int

    def steps(self, least: int, most: int) -> Range:
        """The first step that counts and the first after those, where the rest is anything from
        ``least`` to ``most``; either may lie outside the extent of ``over``."""
        return -((most - self.lo) // self.step), (self.hi - 1 - least) // self.step + 1

    def ends(self, least: Expr, most: Expr) -> tuple[Expr, Expr]:
        """The same as indices."""
        first = floordiv(add(mul(most, -1), self.lo + self.step - 1), self.step, {})
        return first, add(floordiv(add(mul(least, -1), self.hi - 1), self.step, {}), 1)


def masks(kernel: Kernel, stages: Sequence[Expr]) -> tuple[Mask, ...]:
    """Those of reductions over the same axes, for all of them, along the longest axis that has
    some."""
    sizes = tuple(kernel.ranges.items())
    first, *others = (_masks(s, sizes) for s in stages)
    found = list[Mask]()
    for m in first:
        same = [_alike(m, each) for each in others]
        if None not in same:
            every = [m, *(x for x in same if x)]
            found.append(replace(m, lo=min(x.lo for x in every), hi=max(x.hi for x in every)))
    longest = max(found, key=lambda m: kernel.extent[m.over]).over if found else ""
    return tuple(m for m in found if m.over == longest)


def _alike(m: Mask, among: Iterable[Mask]) -> Mask | None:
    """The mask of the same index among others."""
    own = m.over, m.step, m.rest
    return next((x for x in among if (x.over, x.step, x.rest) == own), None)


def share(
    found: Sequence[Mask], kernel: Kernel, tiles: Mapping[str, int], within: bool = False
) -> float:
    """The share, 0 to 1, of the tiles along a reduced axis in which a step counts for some point of
    a tile of the other axes, on average; axes without a tile are whole. ``within``: of those in
    which steps count for all points."""
    over, free = found[0].over, sorted(frozenset[str]().union(*(m.rest.free for m in found)))
    n, pieces = kernel.extent[over], [_pieces(kernel, a, tiles) for a in free]
    if prod(map(len, pieces)) > POSITIONS:
        return 0.0 if within else 1.0
    here: dict[str, Range] = {d: (hi, hi) for d, (_, hi) in kernel.lengths.ranges.items()}
    tile, done, points = min(n, tiles.get(over, n)), 0.0, 0
    for each in product(*pieces):
        here |= zip(free, each, strict=True)
        first, end = 0, n
        for m in found:
            own = m.steps(*bounds(m.rest, here)[:: -1 if within else 1])
            first, end = max(first, own[0]), min(end, own[1])
        size = prod(hi - lo + 1 for lo, hi in each)
        done += size * (-(-end // tile) - first // tile if first < end else 0)
        points += size
    return done / (points * -(-n // tile))


def _pieces(kernel: Kernel, a: str, tiles: Mapping[str, int]) -> list[Range]:
    """The tiles of an axis: first and last value."""
    n = kernel.extent[a]
    tile = min(n, tiles.get(a, n))
    return [(lo, min(lo + tile, n) - 1) for lo in range(0, n, tile)]


# ---- what a comparison decides


@lru_cache(maxsize=1 << 12)  # every schedule of a kernel asks for it
def _masks(stage: Expr, sizes: tuple[tuple[str, Range], ...]) -> tuple[Mask, ...]:
    ranges, own = dict(sizes), {*stage.free, *bound_axes(stage)}
    by_form = dict[tuple[str, int, Expr], dict[Expr, Range]]()
    for e in subterms(stage.kids[0]):
        index, lo, hi = _condition(e, ranges)
        for over in bound_axes(stage) if index.free <= own else ():
            if form := _form(index, over):
                sign, start, step, rest = form
                first, end = (lo, hi) if sign > 0 else (1 - hi, 1 - lo)
                by_form.setdefault((over, step, rest), {})[e] = first - start, end - start
    found = list[Mask]()
    sums = stage.kind == "wsum" or stage.attr[0] in ("sum", *MAXIMA)
    empty = any(ranges[a][1] < 0 for a in own)
    if not by_form or not sums or empty or not _counts(stage, {}, 0, 0):
        return ()
    for (over, step, rest), held in by_form.items():
        least, most = bounds(add(mul(axis(over), step), rest), ranges)
        cuts = sorted({n for each in held.values() for n in each if least < n <= most})
        counts = partial(_counts, stage, held)  # less of it holds for certain in larger regions
        lo = [least, *cuts][bisect_left(cuts, True, key=lambda n: counts(least, n))]
        hi = [*cuts, most + 1][bisect_left(cuts, True, key=lambda n: not counts(n, most + 1))]
        if least < lo or hi <= most:
            found.append(Mask(over, step, rest, lo, hi))
    return tuple(found)


def _condition(e: Expr, ranges: Mapping[str, Range]) -> tuple[Expr, int, int]:
    """The index that a term compares and within which numbers it holds; a number of none."""
    if e.kind == "guard":
        return e.kids[0], *e.attr
    if e.kind == "bin" and e.attr[0] == "lt":
        below, above = (_integer(k, ranges) for k in e.kids)
        if below and above:
            index = add(below, mul(above, -1))
            return index, min(0, bounds(index, ranges)[0]), 0
    return num(0), 0, 0


def _integer(e: Expr, ranges: Mapping[str, Range]) -> Expr | None:
    """An integer as an index, if its dtype holds every value of that."""
    parts = e.kids if e.kind == "bin" and e.attr[0] == "add" else (e,)
    if not all(p.kind in ("iota", "const") and dtype(p).is_int for p in parts):
        return None
    found = [p.kids[0] if p.kids else num(p.attr[1]) for p in parts]
    for index in (*found, whole := add(*found)):
        (lo, hi), (least, most) = bounds(index, ranges), dtype(e).limits
        if lo < least or most < hi:
            return None
    return whole


def _form(index: Expr, over: str) -> tuple[int, int, int, Expr] | None:
    """An index as ``sign * (start + step * over + rest)``, where step > 0 and the rest is axes and
    dims; None of one that is no such sum."""
    constant, atoms = linear(index)
    step = atoms.get(axis(over), 0)
    if not step or any(a.kind not in ("axis", "dim") for a in atoms):
        return None
    sign = 1 if step > 0 else -1
    rest = {a: factor * sign for a, factor in atoms.items() if a is not axis(over)}
    return sign, constant * sign, abs(step), combine(rest.items())


def _counts(stage: Expr, held: Mapping[Expr, Range], lo: int, hi: int) -> bool:
    """May a step be worth something where an index lies within lo .. hi - 1, which conditions hold
    within these? It is not that is 0 in a sum, -inf in a maximum or among the scores of weights."""
    known, body = Known(), stage.kids[0]
    for e in subterms(body):
        holds = None
        if e in held:
            first, end = held[e]
            holds = first <= lo and hi <= end
            holds = None if not holds and first < hi and lo < end else holds
        if (value := _value(e, known, holds)) is not None:
            known[e] = value
    neutral = 0 if stage.kind == "red" and stage.attr[0] == "sum" else -inf
    return body not in known or known[body] != neutral


def _value(e: Expr, known: Known, holds: float | None) -> float | None:
    """What a term is, if that is known of its parts."""
    kids, op = [known.get(k) for k in e.kids], e.attr[0] if e.attr else ""
    match e.kind:
        case "const":
            return float(e.attr[1])
        case "guard":
            return 0.0 if holds == 0 or kids[1] == 0 else kids[1] if holds else None
        case "cast":
            return kids[0] if kids[0] == 0 or (kids[0] == -inf and dtype(e).is_float) else None
        case "where":
            condition, a, b = kids
            if condition is None:
                return a if a == b else None
            return a if condition else b
        case "un":
            powers = op in POWERS and kids[0] == -inf
            return 0.0 if powers else kids[0] if op == "rounded" else None
        case "red":
            neutral = 0 if op == "sum" else -inf if op in MAXIMA else None
            return kids[0] if kids[0] is not None and kids[0] == neutral else None
        case "bin":
            return _of_two(e, op, kids, holds)
    return None


def _of_two(e: Expr, op: str, kids: Sequence[float | None], holds: float | None) -> float | None:
    """The same of an operation on two values."""
    a, b = kids
    match op:
        case "lt" if dtype(e.kids[0]) is DType.BOOL:
            return None if a is None or b is None else float(a < b)
        case "lt":
            return holds
        case "or":
            return 1.0 if 1 in kids else 0.0 if a == b == 0 else None
        case "sel":
            return 0.0 if 0 in kids else b if a else None
        case "mul":
            grown = any(x == -inf and y and y >= NORMAL for x, y in ((a, b), (b, a)))
            return 0.0 if 0 in kids else -inf if grown else None
        case "add":
            others = zip(kids, kids[::-1], e.kids[::-1], strict=True)
            lost = any(x == -inf and (y == 0 or _may_be_masked(k)) for x, y, k in others)
            return -inf if lost else 0.0 if a == b == 0 else None
    return None


def _may_be_masked(e: Expr) -> bool:
    """Is -inf added to it -inf, unless what it reads is infinite? The maximum of a row that is
    masked whole is -inf, and its opposite inf."""
    todo, seen = [e], set[Expr]()
    while todo:
        e = todo.pop()
        if e in seen:
            continue
        seen.add(e)
        if e.kind in ("where", "guard", "cast") or e.attr in (("add",), ("sel",)):
            todo += e.kids
        elif e.kind != "const" or e.attr[1] == inf:
            below = (t.attr[1] for t in subterms(e) if t.kind == "const")
            if any(value in (inf, -inf) for value in below):
                return False
    return True
