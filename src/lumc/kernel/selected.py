"""Sums that select by an index: for every ``a`` the sum over k of ``x[k]`` where ``i[k] == a``.

The gradient of a table is one, and so are counts of values and tokens that go to an expert. No
other ``a`` than ``i[k]`` gets anything of step k, so the walk needs no loop over ``a``:

    sum_k (a == i[k] ? x[k] : 0)    for all a    =    all zero, then for each k: out[i[k]] += x[k]

In the order of k, as before: what is left out adds zeros. An index that is no ``a`` adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lumc.graph.expr import Expr, bounds, linear
from lumc.kernel.term import Kernel, dtype


class Selected(NamedTuple):
    """Where a step adds to: ``place - shift`` along an axis; and what."""

    axis: str
    place: Expr
    shift: int
    value: Expr


def selected(
    term: Expr, kept: Sequence[str], extent: Mapping[str, int] | None = None
) -> Selected | None:
    """How a summand over some kept axes, of these extents if they are asked for, selects along one
    of them; None if it does not."""
    if term.kind != "bin" or term.attr[0] != "sel":
        return None
    asked, value = term.kids
    if asked.kind != "bin" or asked.attr[0] != "eq":
        return None
    for here, index in (asked.kids, asked.kids[::-1]):
        if here.kind != "iota" or not dtype(here).is_int:
            continue
        shift, atoms = linear(here.kids[0])
        for a in kept:
            plain = [(e.kind, e.attr, n) for e, n in atoms.items()] == [("axis", (a,), 1)]
            fits = plain and (extent is None or _fits(here, a, extent[a]))
            lane = kept[-1] if kept[-1] != a else ""  # all lanes of a step go to one place
            if fits and a not in index.free | value.free and lane not in index.free:
                return Selected(a, index, shift, value)
    return None


def selection(kernel: Kernel, stage: Expr) -> Selected | None:
    """The same of a reduction of a kernel."""
    if stage.kind != "red" or stage.attr[0] != "sum":
        return None
    kept = [a for a in kernel.axes if a in stage.free]
    return selected(stage.kids[0], kept, kernel.extent)


def _fits(here: Expr, a: str, n: int) -> bool:
    """Does no place wrap in the dtype that it is compared in?"""
    least, most = dtype(here).limits
    lo, hi = bounds(here.kids[0], {a: (0, n - 1)})
    return least <= lo and hi <= most
