"""Reductions whose results follow from one another.

    S(i) = op over k of (f(k) where k - i <= c, else z)    =    S(i-1) op f(i + c)

where f does not depend on i: all of them take as many steps as the last one alone. Nothing but
comparisons of k and i may depend on i; z is what leaves a sum as it is, or any constant below a
maximum. Where k - i > c instead, the same from the other end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from lumc.graph.expr import (
    Expr,
    Range,
    add,
    axis,
    bounds,
    linear,
    mul,
    num,
    rebuild,
    rewrite,
    substitute,
    subterms,
)
from lumc.graph.ops import DType
from lumc.kernel.folded import folded
from lumc.kernel.normal import identity
from lumc.kernel.term import REDUCTIONS, Kernel, const, dtype, reduce

Sizes = tuple[tuple[str, int], ...]  # extents of axes
Order = tuple[str, int, bool]  # i and c, and whether k - i <= c holds where a condition does


@dataclass(frozen=True)
class Running:
    """Step t = 0, 1, .. takes ``term`` for the t-th k and makes the result number ``empty + t``,
    both counted from the end if ``backward``. The results before have nothing to take."""

    along: str  # i
    over: str  # k
    term: Expr  # f(k)
    start: Expr  # z, or what leaves every value as it is
    empty: int
    steps: int
    last: bool  # does the last step of all take the last k of all, so that no z is left?
    backward: bool
    sizes: tuple[int, int]  # extents of i and k

    def taken(self, term: Expr) -> Expr:
        """A term of k in step k."""
        return substitute(term, {axis(self.over): self._from_end(axis(self.over), self.sizes[1])})

    def result(self, dst: Expr) -> Expr:
        """Where step k leaves its result, of a place for that of i."""
        return self.at(dst, add(axis(self.over), self.empty))

    def at(self, dst: Expr, number: Expr) -> Expr:
        """The place of the result with this number."""
        return substitute(dst, {axis(self.along): self._from_end(number, self.sizes[0])})

    def _from_end(self, i: Expr, extent: int) -> Expr:
        return add(mul(i, -1), extent - 1) if self.backward else i


def running(kernel: Kernel, stage: Expr) -> Running | None:
    """How the results of a reduction follow from one another, if they do."""
    if stage.kind != "red" or len(stage.attr[1]) > 1 or not stage.free:
        return None
    axes = sorted({*stage.free, *stage.attr[1]})
    found = _running(stage, tuple((a, kernel.extent[a]) for a in axes))
    return found if found and not {found.along, found.over} & kernel.lengths.of.keys() else None


def stepped(kernel: Kernel, values: list[Expr]) -> list[Expr]:
    """The values with every such reduction by all of its steps, without those that follow."""
    memo = dict[Expr, Expr]()

    def in_full(e: Expr, kids: list[Expr]) -> Expr:
        if e.kind == "red" and (r := running(kernel, e)):
            return reduce(e.attr[0], (r.over,), rewrite(r.term, memo))
        return rebuild(e, kids)

    return [rewrite(v, memo, in_full) for v in values]


@lru_cache(maxsize=1 << 12)
def _running(stage: Expr, sizes: Sizes) -> Running | None:
    extent, (over,), body = dict(sizes), stage.attr[1], stage.kids[0]
    orders = {e: o for e in subterms(body) if (o := _order(e, over, extent))}
    if len({o[:2] for o in orders.values()}) != 1:
        return None
    along, c, _ = next(iter(orders.values()))
    below, above = (
        _known(body, {e: same == holds for e, (_, _, holds) in orders.items()})
        for same in (True, False)
    )
    zero, here, there = identity(stage), extent[along], extent[over]
    for term, other, backward in ((below, above, False), (above, below, True)):
        empty = here - there + c + 1 if backward else -c
        steps = here - empty
        fits = empty >= 0 and 0 < steps <= there and along not in term.free
        if fits and other.kind == "const" and (other is zero or stage.attr[0] != "sum"):
            last = steps == there and other is not zero
            ends = here, there
            return Running(along, over, term, other, empty, steps, last, backward, ends)
    return None


def _order(e: Expr, over: str, extent: dict[str, int]) -> Order | None:
    """What a condition says of ``over`` and one other axis, if it is about their order."""
    ranges = {a: (0, n - 1) for a, n in extent.items()}
    match e.kind, e.attr[0] if e.attr else None:
        case "guard", _:
            index, (lo, hi) = e.kids[0], e.attr
        case "bin", "lt":
            sides = [_whole(k, ranges) for k in e.kids]
            if sides[0] is None or sides[1] is None:
                return None
            index, hi = add(sides[0], mul(sides[1], -1)), 0
            lo = bounds(index, ranges)[0]
        case _:
            return None
    constant, atoms = linear(index)
    others = [a.attr[0] for a in atoms if a.kind == "axis" and a.attr[0] != over]
    if len(atoms) != 2 or len(others) != 1 or others[0] not in extent:
        return None
    c = atoms.get(axis(over), 0)
    if not c or atoms[axis(others[0])] != -c:
        return None
    lo, hi = lo - constant, hi - 1 - constant  # lo <= c * (k - i) <= hi
    least, most = (-(lo // -c), hi // c) if c > 0 else (-(hi // -c), lo // c)
    if least <= 1 - extent[others[0]]:
        return others[0], most, True
    return (others[0], least - 1, False) if most >= extent[over] - 1 else None


def _whole(e: Expr, ranges: dict[str, Range]) -> Expr | None:
    """An integer as an index, if its dtype holds every value of that."""
    if not dtype(e).is_int or e.kind not in ("iota", "const"):
        return None
    index = e.kids[0] if e.kind == "iota" else num(e.attr[1])
    if not index.free <= ranges.keys():
        return None
    (lo, hi), (least, most) = bounds(index, ranges), dtype(e).limits
    return index if least <= lo and hi <= most else None


def _known(body: Expr, truths: dict[Expr, bool]) -> Expr:
    """A term where these conditions hold or do not, as short as that makes it."""

    def known(e: Expr, kids: list[Expr]) -> Expr:
        if e in truths and e.kind == "guard":
            return kids[1] if truths[e] else const(0, dtype(e))
        if e in truths:
            return const(truths[e], DType.BOOL)
        # a reduction is a stage of its own, and stays as it is
        return e if e.kind in REDUCTIONS else folded(rebuild(e, kids))

    return rewrite(body, {}, known)
