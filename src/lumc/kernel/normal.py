"""The normal form of a kernel, which schedules describe and lowering reads. Same values, and

- no axis of extent 1, no empty reduction, no root without elements;
- no guard that always or never holds; every load under a guard carries it itself, so the rest
  of a guarded term can be computed anywhere, and reductions can leave their guards;
- the sum of what holds where a condition does and what holds elsewhere is one choice of two;
- a reduction of a reduction of the same kind is one reduction over several axes;
- axes of one extent in a reduction are named in the order in which its term has them, so that
  reductions which differ in such names only are one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial

from lumc.graph.expr import (
    Expr,
    Range,
    axis,
    bound_axes,
    bounds,
    make,
    num,
    rebuild,
    rewrite,
    substitute,
    subterms,
)
from lumc.graph.index import of_form
from lumc.graph.ops import DType
from lumc.kernel.lengths import Lengths
from lumc.kernel.term import Kernel, Root, binary, const, dtype, reduce, where

Sizes = tuple[tuple[str, int], ...]  # extents of axes
Guard = tuple[Expr, int, int]  # index, lo, hi
Guards = tuple[Guard, ...]
Use = tuple[Expr, Guards]  # a term, and the guards that hold where it is used


def normalize(kernel: Kernel, among: Mapping[str, int] | None = None) -> Kernel:
    """The normal form; normalizing twice changes nothing. ``among``: the extents of all axes of the
    kernels that have most terms in common with this one; what is done to these is kept."""
    sizes, lengths = tuple(kernel.extent.items()), kernel.lengths
    known = _known(sizes, lengths, kernel.roots)
    if not known:
        known[:] = [_normal_roots(kernel, among)]
        _known(sizes, lengths, known[0])[:] = known  # normal already
    (roots,) = known
    axes = tuple(a for a in kernel.axes if any(a in r.axes for r in roots))
    return replace(kernel, axes=axes, roots=roots)


@lru_cache(maxsize=1 << 10)  # every schedule of a kernel asks for it
def _known(sizes: Sizes, lengths: Lengths, roots: tuple[Root, ...]) -> list[tuple[Root, ...]]:
    """Where the normal form of roots is kept, once it is known: a list of it alone."""
    return []


def _normal_roots(kernel: Kernel, among: Mapping[str, int] | None) -> tuple[Root, ...]:
    extent, lengths = kernel.extent, kernel.lengths
    roots = [r for r in kernel.roots if 0 not in map(extent.get, r.axes)]
    # the weight of a single score is not always 1 (its score may be infinite): wsum stays
    below = subterms(*(r.value for r in roots))
    weighted = frozenset(e.attr[0] for e in below if e.kind == "wsum")
    scope = (
        _Scope(tuple(extent.items()), lengths, weighted)
        if among is None
        else _shared(tuple(among.items()), lengths, weighted)
    )
    simplify = partial(_simplify, scope)
    index = [tuple(simplify(i) for i in r.index) for r in roots]
    values = _named(_merge([simplify(r.value) for r in roots]), lengths.told(extent))
    return tuple(Root(r.buffer, i, v) for r, i, v in zip(roots, index, values, strict=True))


class _Scope:
    """What simplification knows of kernels, and what it has done; ``weighted``: axes of weights."""

    def __init__(self, sizes: Sizes, lengths: Lengths, weighted: frozenset[str]) -> None:
        self.extent = dict(sizes)
        self.single = {a for a, n in sizes if n == 1 and a not in weighted}
        self.ranges: dict[str, Range] = {a: (0, n - 1) for a, n in sizes if n}
        self.ranges |= lengths.ranges
        self.memo: dict[Use, Expr] = {}


_shared = lru_cache(maxsize=1 << 4)(_Scope)  # of so many regions: their layouts come in turn


def _simplify(scope: _Scope, e: Expr) -> Expr:
    """``e`` wherever the axes lead. Not recursive: terms may be deeper than Python's stack."""
    first = _use(e, ())
    stack = [first]
    while stack:
        if todo := [use for use in _needs(scope, *stack[-1]) if use not in scope.memo]:
            stack += todo
            continue
        use = stack.pop()
        if use not in scope.memo:
            scope.memo[use] = _simplified(scope, *use)
    return scope.memo[first]


def _use(e: Expr, guards: Guards) -> Use:
    """``e`` where these guards hold, of which it only sees those over axes of its own."""
    return e, tuple(g for g in guards if g[0].free & e.free)


def _needs(scope: _Scope, e: Expr, guards: Guards) -> list[Use]:
    """What has to be simplified before ``e``; of a guard its index before its value."""
    if any(scope.extent[a] == 0 for a in bound_axes(e)):
        return []
    if e.kind != "guard":
        return [_use(k, guards) for k in e.kids]
    index = _use(e.kids[0], guards)
    if index not in scope.memo:
        return [index]
    left = _held(scope, (scope.memo[index], *e.attr), guards)
    return [] if left is None else [_use(e.kids[1], left[1])]


def _simplified(scope: _Scope, e: Expr, guards: Guards) -> Expr:
    """``e``, used only where ``guards`` hold; what it needs is known."""
    bound = bound_axes(e)
    if any(scope.extent[a] == 0 for a in bound):
        return identity(e)
    if e.kind == "axis":
        return num(0) if e.attr[0] in scope.single else e
    if e.kind == "guard":
        return _guarded(scope, e, guards)
    kids = [scope.memo[_use(k, guards)] for k in e.kids]
    if e.kind == "load":
        new = rebuild(e, kids)
        data = new  # what a guard needs itself is read whether it holds or not
        for index, lo, hi in reversed(guards):
            if index.free & new.free and data not in subterms(index):
                new = make("guard", (lo, hi), (index, new))
        return new
    if e.kind == "red":
        left = tuple(a for a in bound if a not in scope.single)
        return make("red", (e.attr[0], left), tuple(kids), left) if left else kids[0]
    return _chosen(rebuild(e, kids))


def _chosen(e: Expr) -> Expr:
    """``(c ? a : 0) + (not c ? b : 0)  =  c ? a : b``; the sign of a zero may differ."""
    if e.attr == ("add",) and all(k.attr == ("sel",) for k in e.kids):
        for (c, a), (other, b) in ((x.kids, y.kids) for x, y in (e.kids, e.kids[::-1])):
            if other == binary("lt", c, const(True, DType.BOOL)):
                return where(c, a, b)
    return e


def _guarded(scope: _Scope, e: Expr, guards: Guards) -> Expr:
    index = scope.memo[_use(e.kids[0], guards)]
    left = _held(scope, (index, *e.attr), guards)
    if left is None:
        return const(0, dtype(e))
    said, known = left
    new = scope.memo[_use(e.kids[1], known)]
    if said is None:
        return new
    inner = new  # a guard that the load carries already need not be said again
    while inner.kind == "guard":
        if _narrowed(said, (inner.kids[0], *inner.attr)) == (inner.kids[0], *inner.attr):
            return new
        inner = inner.kids[1]
    index, lo, hi = said
    return make("guard", (lo, hi), (index, new))


def _held(scope: _Scope, guard: Guard, guards: Guards) -> tuple[Guard | None, Guards] | None:
    """What a guard adds where others hold: the guard to say (None: it holds anyway) and all that
    hold below it, at most one for each affine form; nothing at all if it never holds."""
    index, lo, hi = guard
    least, most = bounds(index, scope.ranges)
    if most < lo or hi <= least or _is_empty(guard):
        return None
    if lo <= least and most < hi:
        return None, guards
    for i, other in enumerate(guards):
        both = _narrowed(other, guard)
        if both is not None:
            said = None if both == other else both
            return None if _is_empty(both) else (said, (*guards[:i], both, *guards[i + 1 :]))
    return guard, (*guards, guard)


def _is_empty(guard: Guard) -> bool:
    _, lo, hi = of_form(*guard)
    return hi <= lo


@lru_cache(maxsize=1 << 13)
def _narrowed(guard: Guard, other: Guard) -> Guard | None:
    """The guard that holds where both do, as one of them says it if it may; None if they are not
    about one affine form."""
    (form, lo, hi), (same, low, high) = of_form(*guard), of_form(*other)
    if form is not same:
        return None
    both = max(lo, low), min(hi, high)
    if both == (low, high):
        return other
    return guard if both == (lo, hi) else (form, *both)


def identity(e: Expr) -> Expr:
    """The value of a reduction over nothing, in its dtype: 0, or the least value."""
    kind = dtype(e)
    return const(0, kind) if e.kind == "wsum" or e.attr[0] == "sum" else least(kind)


def least(kind: DType) -> Expr:
    """The least value of a dtype, -inf of floats, as a term."""
    lowest = kind.limits[0] if kind.is_int else 0
    return const(float("-inf") if kind.is_float else lowest, kind)


def _merge(values: list[Expr]) -> list[Expr]:
    """Join a reduction with the one directly below it, unless that one is needed elsewhere."""
    nodes = subterms(*values)
    uses: dict[Expr, int] = {}
    for e in [*values, *(k for n in nodes for k in n.kids)]:
        uses[e] = uses.get(e, 0) + 1

    def joined(e: Expr, kids: list[Expr]) -> Expr:
        if e.kind == "red" and uses[e.kids[0]] == 1:
            (below,) = kids
            if below.kind == "red" and below.attr[0] == e.attr[0]:
                return reduce(e.attr[0], e.attr[1] + below.attr[1], *below.kids)
        return rebuild(e, kids)

    memo: dict[Expr, Expr] = {}
    return [rewrite(v, memo, joined) for v in values]


def _named(values: list[Expr], extent: Mapping[str, int | str]) -> list[Expr]:
    """The bound axes of every reduction, where several have one extent, in a fixed order."""

    def named(e: Expr, kids: list[Expr]) -> Expr:
        new = rebuild(e, kids)
        if e.kind == "red" and len({extent[a] for a in e.attr[1]}) < len(e.attr[1]):
            return reduce(e.attr[0], e.attr[1], substitute(kids[0], _in_order(new, extent)))
        return new

    memo: dict[Expr, Expr] = {}
    return [rewrite(v, memo, named) for v in values]


def _in_order(reduction: Expr, extent: Mapping[str, int | str]) -> dict[Expr, Expr]:
    """Its axes by those that they become: first visits get the first names."""
    names = reduction.attr[1]
    seen = [t.attr[0] for t in subterms(reduction) if t.kind == "axis" and t.attr[0] in names]
    out: dict[Expr, Expr] = {}
    for n in dict.fromkeys(extent[a] for a in seen):
        same = [a for a in seen if extent[a] == n]
        out |= dict(zip(map(axis, same), map(axis, sorted(same)), strict=True))
    return out
