"""Maxima that may ignore NaN, which takes one instruction where NaN takes three.

A maximum is NaN when an element is. Nobody sees whether it is where every result that reads it
also reads a sum of terms of the same elements, as of powers below it: the sum is NaN then.
"""

from __future__ import annotations

from dataclasses import replace

from lumc.codegen.tile.powers import elements
from lumc.graph.expr import Expr, bound_axes, rewrite, subterms
from lumc.kernel.term import Kernel, dtype, reduce


def plain_maxima(kernel: Kernel) -> Kernel:
    """The same kernel with ``top`` for such maxima; its stages keep their order."""
    new, terms = dict[Expr, Expr](), subterms(*kernel.values)
    for e in terms:
        if e.kind == "red" and e.attr[0] == "max" and dtype(e).is_float:
            readers = [v for v in kernel.values if e in subterms(v)]
            if all(_shows_nan_of(kernel, e, v) for v in readers):
                new[e] = reduce("top", bound_axes(e), rewrite(e.kids[0], new))
    roots = tuple(replace(r, value=rewrite(r.value, new)) for r in kernel.roots)
    return replace(kernel, roots=roots)


def _shows_nan_of(kernel: Kernel, maximum: Expr, value: Expr) -> bool:
    """Is the value NaN when an element of the maximum is, whatever the maximum is then?"""
    nan = set[Expr]()
    for e in subterms(value):  # inner ones first
        if e.kind == "red" and e.attr[0] == "sum":
            same = elements(kernel, maximum, maximum.free.union(bound_axes(e)))
            if e.kids[0] in _with_nan(nan.union(same), e.kids[0]):
                nan.add(e)
        elif _keeps_nan(e) and not nan.isdisjoint(e.kids):
            nan.add(e)
    return value in nan


def _with_nan(found: set[Expr], body: Expr) -> set[Expr]:
    """What is NaN below a term if these are."""
    for e in subterms(body):
        if _keeps_nan(e) and not found.isdisjoint(e.kids):
            found.add(e)
    return found


def _keeps_nan(e: Expr) -> bool:
    """Is it NaN if one of its operands is?"""
    if e.kind == "bin":
        return e.attr[0] in ("add", "mul")
    return e.kind == "un" or (e.kind == "cast" and dtype(e).is_float)
