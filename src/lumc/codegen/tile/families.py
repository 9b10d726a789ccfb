"""Indices that vary together: windows overlap, so a copy of what they read has one axis for each
family of indices that differ in a factor and a constant only."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import gcd, prod

from lumc.codegen.tile.context import Scope
from lumc.codegen.tile.program import Range
from lumc.graph.expr import Expr, add, axis, combine, linear, mul, num, substitute, subterms


def families(
    value: Expr, scope: Scope, serial: int
) -> tuple[dict[Expr, Range], Expr, dict[Expr, str]]:
    """The forms c1*y + c2*u whose windows overlap and that a term uses, also inside // and %,
    maybe times a factor and with a constant: their ranges, the term with each as one axis, and
    the names of these, with a number of the copy. None where guards of one hold of another."""
    spans, uses = dict[Expr, Range](), dict[Expr, tuple[Expr, int, int]]()
    for i in subterms(value):
        constant, atoms = linear(i) if i.kind == "lin" else (0, {})
        if len(atoms) < 2 or any(a.kind != "axis" for a in atoms):
            continue
        factor = gcd(*atoms.values())
        form = combine((a, c // factor) for a, c in atoms.items())
        span = span_of(form, scope)
        if span and span.largest < prod(scope[a].largest for a in form.free):
            spans[form], uses[i] = span, (form, factor, constant)
    parts = {f: summed(f, spans) for f in spans}
    spans = {f: r for f, r in spans.items() if not parts[f]}
    apart = sum(len(f.free) for f in spans) == len({a for f in spans for a in f.free})
    if not apart and any(e.kind == "guard" for e in subterms(value)):
        return {}, value, {}
    names = {f: f"{min(f.free)}.w{serial}x{k}" for k, f in enumerate(spans)}
    at = dict[Expr, Expr]()
    for i, (form, factor, constant) in uses.items():
        each = (parts[form] or {form: 1}).items()
        at[i] = combine([(axis(names[f]), factor * n) for f, n in each], constant)
    return spans, substitute(value, at), names


def summed(form: Expr, forms: Iterable[Expr]) -> dict[Expr, int]:
    """How often a form has others of fewer axes, where it is their sum; else nothing. Of an image
    whose rows lie one behind the other a window has a row, a column, and both in one index."""
    left, out = dict(linear(form)[1]), dict[Expr, int]()
    for f in forms:
        atoms = linear(f)[1]
        if len(f.free) < len(form.free) and atoms.keys() <= left.keys():
            ratios = {Fraction(left[a], c) for a, c in atoms.items()}
            if len(ratios) == 1 and (n := ratios.pop()).denominator == 1:
                out[f] = int(n)
                left = {a: c for a, c in left.items() if a not in atoms}
    return {} if left else out


def span_of(index: Expr, scope: Scope) -> Range | None:
    """The range of an index with positive coefficients over tiles of its axes."""
    constant, atoms = linear(index)
    if any(a.kind != "axis" or c < 0 for a, c in atoms.items()):
        return None
    lo, n, sizes = num(constant), num(1), {1}
    for a, c in atoms.items():
        r = scope[a.attr[0]]
        lo, n = add(lo, mul(r.lo, c)), add(n, mul(r.n, c), -c)
        sizes = {s + c * (t - 1) for s in sizes for t in r.sizes}
    return Range(lo, n, tuple(sorted(sizes)))
