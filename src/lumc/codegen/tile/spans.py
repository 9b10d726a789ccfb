"""Which tiles of a reduction are left out: those in which no step counts for any row of the tile.

    j counts for row q where j <= q + c    =>    of rows q.0 .. q.0 + n - 1 none from q.0 + n + c on

The ends of a loop follow from where the axes of its mask stand; one that is not open is whole. All
threads of a block have the same.
"""

from __future__ import annotations

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.context import Context, Group, Scope
from lumc.graph.expr import Expr, add, bounds, combine, linear
from lumc.kernel.masked import Mask, masks, share


def span(c: Context, g: Group, a: str) -> ir.Span | None:
    """The steps along an axis of a group of reductions that count, if some do not: nothing else
    that its tiles make lasts longer than they do."""
    if not c.target.ends_early:
        return None
    found = [m for m in masks(c.kernel, g.stages) if m.over == a and _fits(c, m)]
    firsts, ends = list[Expr](), list[Expr]()
    for m in found:
        first, end = m.ends(*_rest(m, g.outside))
        if _bounds(c, first)[1] > 0:
            firsts.append(first)
        if _bounds(c, end)[0] < c.kernel.extent[a]:
            ends.append(end)
    tiles = {x: c.tile(x) for x in c.kernel.extent if x == a or g.outside[x] != c.whole[x]}
    of_all = share(found, c.kernel, tiles) if firsts or ends else 1.0
    return ir.Span(tuple(firsts), tuple(ends), of_all) if of_all < 1 else None


def _fits(c: Context, m: Mask) -> bool:
    """Can its ends be counted, whatever is added first?"""
    atoms = linear(m.rest)[1]
    far = (abs(f) * max(map(abs, bounds(a, c.kernel.ranges))) for a, f in atoms.items())
    return abs(m.lo) + abs(m.hi) + m.step + 2 * sum(far) <= c.target.largest


def _rest(m: Mask, scope: Scope) -> tuple[Expr, Expr]:
    """The least and the greatest value of what else a mask depends on, in the present tiles."""
    constant, atoms = linear(m.rest)
    least, most = list[tuple[Expr, int]](), list[tuple[Expr, int]]()
    for atom, factor in atoms.items():
        lo = hi = atom
        if atom.kind == "axis":
            r = scope[atom.attr[0]]
            lo, hi = r.lo, add(r.lo, r.n, -1)
        least.append((lo if factor > 0 else hi, factor))
        most.append((hi if factor > 0 else lo, factor))
    return combine(least, constant), combine(most, constant)


def _bounds(c: Context, e: Expr) -> tuple[int, int]:
    """Of an index of the starts and sizes of tiles."""
    ranges = dict(c.kernel.lengths.ranges)
    for a, n in c.kernel.extent.items():
        ranges |= {f"{a}.0": (0, n - 1), f"{a}.n": (1, n)}
    return bounds(e, ranges)
