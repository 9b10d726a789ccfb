"""By what an axis is divided: the parts that it is bound as are axes of their own.

x[c // 32, c % 32]    divides c by 32: c = 32 * c1 + c2
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from lumc.graph.expr import Expr, linear


def parts_of(extent: int, divisors: Sequence[int]) -> list[int]:
    """The extents of the parts of an axis that is divided by these, outer first; only itself if
    they are no chain of divisors."""
    edges = [1, *divisors, extent]
    if any(a == b or b % a for a, b in pairwise(edges)):
        return [extent]
    return [b // a for a, b in pairwise(edges)][::-1]


def phases(index: Expr, count: int, probe: Expr) -> list[int]:
    """The period of a guard that holds for one phase of the probe axis, if it is one."""
    single = count == 1 and index.kind == "mod"
    return [index.attr[0]] if single and abs(linear(index.kids[0])[1].get(probe, 0)) == 1 else []


def divisors(e: Expr, probe: Expr, found: set[int]) -> int:
    """Collects the divisors of the probe axis below ``e``; gives the scale of ``e``, 0: none."""
    if e == probe:
        return 1
    scales = [divisors(k, probe, found) for k in e.kids]
    if e.kind in ("div", "mod") and scales[0]:
        found.add(scales[0] * e.attr[0])
        return scales[0] * e.attr[0] if e.kind == "div" else scales[0]
    return 0
