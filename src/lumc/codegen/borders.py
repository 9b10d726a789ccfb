"""Steps of a contraction over windows that add nothing: beyond the border they multiply with zero.

Which steps these are depends on the point of the result. Where it is the same for all rows and
lanes of a register tile they are left out. A convolution of 3 x 3 at 7 x 7 multiplies a tenth less
so, one that is dilated by 6 at 32 x 32 an eighth.
"""

from __future__ import annotations

from collections.abc import Mapping

from lumc.codegen.program import Within
from lumc.graph.expr import Expr, axis, bound_axes, linear
from lumc.kernel.contraction import factors
from lumc.kernel.schedule import Stage


def within(
    stage: Expr, p: Stage, extent: Mapping[str, int], tile: Mapping[str, int]
) -> tuple[Within, ...]:
    """The steps that add something, along every reduced axis that has others. ``tile``: of the
    axes that are cut."""
    found: dict[str, Within] = {}
    single = stage.free - {p.rows_axis, p.lane_axis}
    for e in factors(stage.kids[0]) if stage.kind == "red" else ():
        while e.kind == "guard":
            (lo, hi), (index, e) = e.attr, e.kids
            steps = {a.attr[0]: n for a, n in linear(index)[1].items() if a.kind == "axis"}
            over = [a for a in steps if a in bound_axes(stage) and steps[a] > 0]
            if len(over) == 1 and len(steps) == 2 and index.free == {*steps} <= single | {*over}:
                (a,) = over
                counts = _counts(index, lo, hi, a, extent, tile.get(a, extent[a]))
                found.setdefault(a, Within(a, index, lo, hi, counts))
    return tuple(w for w in found.values() if w.counts != (tile.get(w.axis, extent[w.axis]),))


def _counts(
    index: Expr, lo: int, hi: int, over: str, extent: Mapping[str, int], tile: int
) -> tuple[int, ...]:
    """How many steps of a tile of the reduced axis add something, at any point of the other one."""
    constant, atoms = linear(index)
    step = atoms[axis(over)]
    (slope,) = (n for a, n in atoms.items() if a is not axis(over))
    (kept,) = index.free - {over}
    found = set[int]()
    for point in range(extent[kept]):
        base = constant + slope * point
        first, end = (-((base - bound) // step) for bound in (lo, hi))  # rounded up
        for start in range(0, extent[over], tile):
            stop = min(start + tile, extent[over])
            found.add(min(max(end, start), stop) - min(max(first, start), stop))
    return tuple(sorted(found))
