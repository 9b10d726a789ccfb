"""Steps of a contraction over windows that add nothing: beyond the border they multiply with zero.

Which steps these are depends on the point of the result. Where it is the same for all rows and
lanes of a register tile they can be left out. A convolution of 3 x 3 at 7 x 7 multiplies a tenth
less so, one that is dilated by 6 at 32 x 32 an eighth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from lumc.graph.expr import Expr, axis, bound_axes, linear
from lumc.kernel.contraction import Pair, factors


@dataclass(frozen=True)
class Border:
    """No factor is zero where ``lo <= index < hi``; the index goes up along a reduced axis ``over``
    and also moves along one axis of the result."""

    over: str
    kept: str
    index: Expr
    lo: int
    hi: int

    def counts(self, extent: Mapping[str, int], tile: int) -> list[int]:
        """How many steps of every tile of the reduced axis add something, at all points."""
        constant, atoms = linear(self.index)
        slope, step = atoms[axis(self.kept)], atoms[axis(self.over)]
        found = []
        for point in range(extent[self.kept]):
            base = constant + slope * point
            first, end = (-((base - bound) // step) for bound in (self.lo, self.hi))  # rounded up
            for start in range(0, extent[self.over], tile):
                stop = min(start + tile, extent[self.over])
                found.append(min(max(end, start), stop) - min(max(first, start), stop))
        return found


def borders(stage: Expr, pair: Pair) -> dict[str, Border]:
    """Those of a sum, by reduced axis, that are the same for all rows and lanes."""
    found: dict[str, Border] = {}
    over, single = {*bound_axes(stage)}, stage.free - {*pair}
    for e in factors(stage.kids[0]) if stage.kind == "red" else ():
        while e.kind == "guard":
            (lo, hi), (index, e) = e.attr, e.kids
            steps = {a.attr[0]: n for a, n in linear(index)[1].items() if a.kind == "axis"}
            mine, kept = [a for a in steps if a in over], [a for a in steps if a in single]
            if len(mine) == len(kept) == 1 and index.free == {*mine, *kept} and steps[mine[0]] > 0:
                found.setdefault(mine[0], Border(mine[0], kept[0], index, lo, hi))
    return found


def share_within(stage: Expr, pair: Pair, extent: Mapping[str, int]) -> float:
    """The share of the steps of a contraction that add something."""
    each = [(b, b.counts(extent, extent[b.over])) for b in borders(stage, pair).values()]
    return prod(sum(n) / max(1, len(n) * extent[b.over]) for b, n in each)
