"""Sums of which one term is left: the others are multiplied with zero.

    pinned    Sum_r f(r) = f((lo - x) % s),    r < s, f a product with a factor that is guarded by
                                               lo <= (x + r) % s < lo + 1    [finite]

That is what a transposed convolution is made of: between the elements of its operand lie zeros, so
every phase of the result, u0 of u = s*u1 + u0, needs other steps of the window. Values that are
multiplied with these zeros are not read, so an infinite weight gives no NaN there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from math import prod

from lumc.graph.expr import (
    Expr,
    Range,
    add,
    axis,
    bound_axes,
    index_value,
    mod,
    mul,
    rebuild,
    rewrite,
    simplify,
    subterms,
)
from lumc.kernel.access import access, gathers

TRIED = 256  # values of an index that are looked at one by one

Ranges = Mapping[str, Range]


def pinned(body: Expr, over: str, extent: int, ranges: Ranges) -> Expr | None:
    """The one value of an axis of this extent for which a product is not zero, as an index of other
    axes; or None. ``ranges`` are their inclusive bounds."""
    hidden = {a for e in subterms(body) for a in bound_axes(e)}
    for guard in guards_of(body):
        i, lo = guard.kids[0], guard.attr[0]
        if i.kind != "mod" or i.attr[0] != extent or guard.attr != (lo, lo + 1):
            continue
        step = access(i.kids[0]).stride(over)
        rest = add(i.kids[0], mul(axis(over), -step))
        if abs(step) == 1 and not rest.free & (hidden | {over}):
            return mod(mul(add(rest, -lo), -step), extent, ranges)
    return None


def guards_of(body: Expr) -> Iterator[Expr]:
    """The guards outside of which a product, or a sum of such products, is zero."""
    todo, seen = [body], {body}
    while todo:
        e = todo.pop()
        inside = (e.kind, e.attr[:1]) in (("red", ("sum",)), ("bin", ("mul",)))
        if e.kind == "guard":
            yield e
        below = e.kids if inside else e.kids[1:] if e.kind == "guard" else ()
        todo += (k for k in below if k not in seen)
        seen |= {*below}


def at(body: Expr, over: str, value: Expr, ranges: Ranges) -> Expr:
    """The body where an axis has this value, without the guards that always hold then."""

    def there(e: Expr, kids: list[Expr]) -> Expr:
        new = rebuild(e, kids)
        if e.kind in ("lin", "div", "mod"):
            return simplify(new, ranges)
        return kids[1] if e.kind == "guard" and _holds(new, ranges) else new

    return rewrite(body, {axis(over): value}, there)


def _holds(guard: Expr, ranges: Ranges) -> bool:
    """Does a guard hold for all values of a few short axes?"""
    (i, _), (lo, hi) = guard.kids, guard.attr
    axes = sorted(i.free)
    spans = [range(ranges[a][0], ranges[a][1] + 1) if a in ranges else () for a in axes]
    if not 0 < prod(map(len, spans)) <= TRIED or gathers(i):
        return False
    points = itertools.product(*spans)
    return all(lo <= index_value(i, dict(zip(axes, p, strict=True))) < hi for p in points)
