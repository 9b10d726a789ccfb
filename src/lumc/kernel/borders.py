"""Steps of a contraction over windows that add nothing: beyond the border they multiply with zero.

Which steps these are depends on the point of the result. Where it is the same for all lanes of a
register tile they can be left out, of all its rows or of those at the border. A convolution of
3 x 3 at 7 x 7 multiplies a fifth less so, one that is dilated by 6 at 32 x 32 a quarter.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from math import prod

from lumc.graph.expr import Expr, axis, bound_axes, linear
from lumc.kernel.access import access
from lumc.kernel.term import factors

Pair = tuple[str | None, str]  # (rows axis, lane axis), as in ``schedule.operands``


@dataclass(frozen=True)
class Border:
    """No factor is zero where ``lo <= index < hi``; the index goes up along a reduced axis ``over``
    and also moves along one axis of the result."""

    over: str
    kept: str
    index: Expr
    lo: int
    hi: int

    def steps(self, point: int) -> tuple[int, int]:
        """The first step that adds something at a point of ``kept``, and the first after these;
        either may lie outside the extent of ``over``."""
        constant, atoms = linear(self.index)
        base, step = constant + atoms[axis(self.kept)] * point, atoms[axis(self.over)]
        return -((base - self.lo) // step), -((base - self.hi) // step)  # rounded up

    def counts(self, extent: Mapping[str, int], tile: int) -> list[int]:
        """How many steps add something: of every tile of so many steps along ``over``, at every
        point of ``kept``, point by point."""
        found = []
        for first, end in map(self.steps, range(extent[self.kept])):
            for start in range(0, extent[self.over], tile):
                stop = min(start + tile, extent[self.over])
                found.append(min(max(end, start), stop) - min(max(first, start), stop))
        return found


def borders(stage: Expr, pair: Pair) -> dict[str, Border]:
    """Those of a sum, by reduced axis, that are the same for all rows and lanes."""
    return _borders(stage, stage.free - {*pair})


def edges(stage: Expr, pair: Pair) -> dict[str, Border]:
    """Those that are the same for all lanes, but not for all rows."""
    same = borders(stage, pair)
    return {a: b for a, b in _borders(stage, stage.free & {pair[0]}).items() if a not in same}


def _borders(stage: Expr, single: Set[str | None]) -> dict[str, Border]:
    """Those of a sum that move along one of these axes, by reduced axis."""
    found, over = dict[str, Border](), {*bound_axes(stage)}
    for e in factors(stage.kids[0]) if stage.kind == "red" else ():
        while e.kind == "guard":
            (lo, hi), (index, e) = e.attr, e.kids
            moves = any(a.kind == "dim" for a in linear(index)[1])  # from run to run
            steps = {} if moves else access(index).strides
            mine, kept = [a for a in steps if a in over], [a for a in steps if a in single]
            if len(mine) == len(kept) == 1 and index.free == {*mine, *kept} and steps[mine[0]] > 0:
                found.setdefault(mine[0], Border(mine[0], kept[0], index, lo, hi))
    return found


def share_adding(stage: Expr, extent: Mapping[str, int]) -> float:
    """The share, 0 to 1, of the steps of a reduction that add something, at all points of its
    result."""
    return _share(_borders(stage, stage.free), extent)


def share_within(stage: Expr, pair: Pair, extent: Mapping[str, int]) -> float:
    """The share, 0 to 1, of the steps of a contraction that it does not leave out."""
    return _share({**edges(stage, pair), **borders(stage, pair)}, extent)


def _share(found: Mapping[str, Border], extent: Mapping[str, int]) -> float:
    each = [(b, b.counts(extent, extent[b.over])) for b in found.values()]
    return prod(sum(n) / max(1, len(n) * extent[b.over]) for b, n in each)
