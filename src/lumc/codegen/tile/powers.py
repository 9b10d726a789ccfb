"""Powers of two that need less than all of ``exp2``, or more than it can know.

``decay`` is 2^x for what is 0 or less, so never above one, and ``exp2_ftz`` may give 0 for results
too small to be normal numbers: nobody sees that where a constant is added. They are shorter by a
third and by a fifth, and C computes them for whole vectors (``text/phases.py``).

``exp`` and ``exp_ftz`` take x of ``2^(x * log2(e))``, whose product would be rounded: up to 60 ulp
of the result. ``decay`` does without: a power that small is nothing beside that of the maximum.
But the distance of the maximum from itself is nothing at all: products in it are ``rounded`` before
they are subtracted, as the maximum was when it was stored. A fused multiply-add would not, and of
scores some thousands large the power of the greatest were anything but 1.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import isclose, log

from lumc.graph.expr import Expr, axis, bound_axes, rewrite, substitute, subterms
from lumc.graph.ops import DType
from lumc.kernel.term import Kernel, binary, const, constants, dtype, unary

SMALL = 2.0**-90  # a constant from here on absorbs what is no normal number
Parts = dict[Expr, float]  # of a sum: how often each term occurs


def shorter_powers(kernel: Kernel) -> Kernel:
    """The same kernel; its stages keep their order."""
    new, terms = dict[Expr, Expr](), subterms(*kernel.values)
    if not any(e.kind == "un" and e.attr[0] == "exp2" for e in terms):
        return kernel
    exact = {k for e in terms if not _absorbs(e) for k in e.kids}.union(kernel.values)
    for e in terms:
        kids = [rewrite(k, new) for k in e.kids]
        if e.kind == "un" and e.attr[0] == "exp2":
            if _is_never_positive(kernel, e.kids[0]):
                new[e] = unary("decay", _distance(kids[0]))
            else:
                base, argument = _natural(kids[0])
                short = "" if e in exact else "_ftz"
                if base != "exp2" or short:
                    new[e] = unary(base + short, argument)
    roots = tuple(replace(r, value=rewrite(r.value, new)) for r in kernel.roots)
    return replace(kernel, roots=roots)


def _natural(power: Expr) -> tuple[str, Expr]:
    """The function and its argument: of ``x * log2(e)`` and ``x * -log2(e)`` exp, in f32."""
    for c, x in constants(power, "mul") if dtype(power) is DType.F32 else ():
        if isclose(abs(c.attr[1]), 1 / log(2), rel_tol=1e-12):
            return "exp", x if c.attr[1] > 0 else binary("mul", x, const(-1.0, DType.F32))
    return "exp2", power


def _distance(e: Expr) -> Expr:
    """A distance from a maximum whose operands are rounded, if they are products. Below them both
    are computed alike."""
    if any(constants(e, "mul")):
        return binary("mul", *(k if k.kind == "const" else _distance(k) for k in e.kids))
    if any(_is_maximum(t) for t in _parts(e)):
        return binary("add", *(unary("rounded", k) if _is_rounded(k) else k for k in e.kids))
    return e


def _is_rounded(e: Expr) -> bool:
    """Is it a product that is not exact, as that with a sign?"""
    exact = any(abs(c.attr[1]) == 1 and not _is_product(x) for c, x in constants(e, "mul"))
    return _is_product(e) and not exact


def _is_product(e: Expr) -> bool:
    return e.kind == "bin" and e.attr[0] == "mul"


def _is_maximum(e: Expr) -> bool:
    return e.kind == "red" and e.attr[0] == "max"


def _absorbs(e: Expr) -> bool:
    """Is it the sum of a term and a constant that is not very small?"""
    return any(abs(c.attr[1]) >= SMALL for c, _ in constants(e, "add"))


def _is_never_positive(kernel: Kernel, e: Expr) -> bool:
    """Is it 0 or less, but for rounding, or NaN: squares times c < 0, or the distance of a term
    from the maximum of the same term?"""
    parts = _parts(e)
    if all(c <= 0 and _is_square(t) for t, c in parts.items()):
        return True
    for top in (t for t, c in parts.items() if c < 0 and _is_maximum(t)):
        below = {t: c for t, c in parts.items() if t is not top}
        for body in elements(kernel, top, frozenset[str]().union(*(t.free for t in below))):
            same = _parts(body)
            if same.keys() == below.keys() and all(
                isclose(below[t], -parts[top] * same[t], rel_tol=1e-6) for t in same
            ):
                return True
    return False


def _parts(e: Expr) -> Parts:
    """The terms of a sum of products with constants."""
    out, todo = Parts(), [(e, 1.0)]
    while todo:
        t, c = todo.pop()
        if t.kind == "bin" and t.attr[0] == "add":
            todo += ((k, c) for k in t.kids)
        elif found := next(constants(t, "mul"), None):
            todo.append((found[1], c * found[0].attr[1]))
        else:
            out[t] = out.get(t, 0.0) + c
    return out


def _is_square(e: Expr) -> bool:
    return e.kind == "bin" and e.attr[0] == "mul" and e.kids[0] is e.kids[1]


def elements(kernel: Kernel, top: Expr, free: frozenset[str]) -> list[Expr]:
    """What a maximum is taken of, with other axes of ``free`` for those that it binds."""
    bound, told = bound_axes(top), kernel.told
    out = []
    for names in permutations(sorted(free - top.free), len(bound)):
        if all(told[a] == told[b] for a, b in zip(names, bound, strict=True)):
            pairs = zip(bound, names, strict=True)
            out.append(substitute(top.kids[0], {axis(a): axis(b) for a, b in pairs}))
    return out
