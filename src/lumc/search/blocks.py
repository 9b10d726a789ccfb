"""Sums over blocks of levels, each times its scale, as one sum over all of them.

    join-block    sum_o s(o) * sum_k f(o, k)    =    sum_(o, k) s(o) * f(o, k),    k not in s

As written, on the left, there are fewer products, so variants come like that. But a register tile
that reads levels multiplies their scale in once for a block anyway (``schedule.levels``), of one
sum; sums of their own would go through memory. Rounding may change, as with the laws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lumc.graph.expr import Expr, bound_axes, rebuild, rewrite, subterms
from lumc.kernel.term import Kernel, Root, factors, reduce
from lumc.schedule.levels import levels_of
from lumc.schedule.operands import product


def blocks_joined(kernel: Kernel) -> Iterator[list[Kernel]]:
    """The kernel with such sums joined, if it has any whose operand is made of levels then."""
    memo = dict[Expr, Expr]()

    def joined(e: Expr, kids: list[Expr]) -> Expr:
        e = rebuild(e, kids)
        new = _joined(e)
        is_better = new is not None and any(levels_of(kernel, new, a) for a in sorted(new.free))
        return new if new is not None and is_better else e

    roots = tuple(Root(r.buffer, r.index, rewrite(r.value, memo, joined)) for r in kernel.roots)
    if roots != kernel.roots:
        yield [replace(kernel, roots=roots)]


def _joined(e: Expr) -> Expr | None:
    """One sum for a sum of products with another one, where the law holds."""
    if e.kind != "red" or e.attr[0] != "sum":
        return None
    parts = factors(e.kids[0])
    sums = [p for p in parts if p.kind == "red" and p.attr[0] == "sum"]
    rest = [p for p in parts if p not in sums]
    if len(sums) != 1:
        return None
    inner, over = sums[0], bound_axes(sums[0])
    taken = {a for p in rest for t in subterms(p) for a in (*t.free, *bound_axes(t))}
    if taken.intersection(over) or set(over) & set(bound_axes(e)):
        return None
    return reduce("sum", (*bound_axes(e), *over), product([*rest, inner.kids[0]]))
