"""Sums over several axes, of partial sums that are values already.

    partial    sum a b. f(a, b)    =    sum a. (sum b. f(a, b))    where sum b. f(x, b) is computed

Extraction makes one sum of nested ones. Where the inner one is read elsewhere too, as a convolution
is by a mean over its channels and by what that is subtracted from, it can be computed once.
"""

from __future__ import annotations

from itertools import combinations

from lumc.graph.expr import Expr, bound_axes, rebuild, rewrite, subterms
from lumc.kernel.key import abstract
from lumc.kernel.term import reduce


def with_partial_sums(value: Expr) -> Expr:
    """The same value, its reductions nested where the inner ones are equal, but for names, to other
    reductions of it; the value itself where there are none."""
    found = [e for e in subterms(value) if e.kind == "red"]
    known = {abstract(e)[0] for e in found}
    shapes = {(e.attr[0], len(bound_axes(e)), len(e.free)) for e in found}  # a cheap test first
    sizes = sorted({n for _, n, _ in shapes}, reverse=True)

    def nested(e: Expr, kids: list[Expr]) -> Expr:
        new = rebuild(e, kids)
        axes = bound_axes(new) if new.kind == "red" else ()
        for inner in (s for n in sizes if n < len(axes) for s in combinations(axes, n)):
            part = reduce(new.attr[0], inner, *kids)
            shape = part.attr[0], len(inner), len(part.free)
            if shape in shapes and abstract(part)[0] in known:
                return reduce(new.attr[0], [a for a in axes if a not in inner], part)
        return new

    return rewrite(value, {}, nested)
