"""The proof that a kernel touches no element outside its buffers.

In the normal form every load carries the guards under which it is read, so each is proven alone:
by interval arithmetic over all values of the axes, in the part of them where its guards hold. An
index that comes from data lies where a guard on the same data says.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from lumc.errors import Exit, LumcError
from lumc.graph.dim import Extent
from lumc.graph.expr import Expr, add, axis, simplify, substitute, subterms, text
from lumc.graph.index import Bound, is_inside, narrowed
from lumc.kernel.lengths import STATIC, Lengths
from lumc.kernel.normal import normalize
from lumc.kernel.term import Kernel

Sizes = tuple[tuple[str, int], ...]  # extents of axes
Access = tuple[str, tuple[Expr, ...], tuple[Bound, ...]]  # of a buffer, at indices, under guards
ROUNDS = 2  # of narrowing: what one guard tells of an axis makes another one simpler
SHOWN = 120  # characters of a load that is told


def require_inside(kernel: Kernel) -> None:
    """Raises E0416 for a kernel with an access that is not proven to lie inside its buffer."""
    if what := escape(kernel):
        raise LumcError("E0416", what, where=f"kernel '{kernel.name}'", exit=Exit.UNSUPPORTED)


def escape(kernel: Kernel) -> str:
    """The first access that is not proven to lie inside its buffer, as text; nothing if all are."""
    kernel = normalize(kernel)
    for name, index, guards in accesses(kernel):
        if not _is_proven(kernel, name, index, guards):
            where = f"{name}[{', '.join(map(text, index))}]"[:SHOWN]
            return f"{where} is not proven to lie inside {name}{list(kernel.buffer(name).shape)}"
    return ""


def stays_inside(term: Expr, kernel: Kernel) -> bool:
    """Whether a term of a kernel may be computed for all values of its axes: also where guards
    around it, which it does not have itself, do not hold."""
    return all(_is_proven(kernel, *read) for read in reads(term))


def accesses(kernel: Kernel) -> Iterator[Access]:
    """Every store and load of a normalized kernel: buffer, indices (one for each dim), and the
    guards it has."""
    for root in kernel.roots:
        yield root.buffer, root.index, ()
    yield from reads(*(e for root in kernel.roots for e in (root.value, *root.index)))


def reads(*terms: Expr) -> Iterator[Access]:
    """The loads in terms, with the guards that they have there."""
    parents = (e for e in subterms(*terms) if e.kind != "guard")
    found = dict.fromkeys([*terms, *(k for e in parents for k in e.kids)])
    found.update((e.kids[0], None) for e in subterms(*terms) if e.kind == "guard")
    for read in found:
        guards, e = list[Bound](), read
        while e.kind == "guard":
            guards.append(Bound(e.kids[0], *e.attr))
            e = e.kids[1]
        if e.kind == "load":
            yield e.attr[0], e.kids, tuple(guards)


def _is_proven(
    kernel: Kernel, name: str, index: tuple[Expr, ...], guards: tuple[Bound, ...]
) -> bool:
    terms = (*index, *(g.index for g in guards))
    free = frozenset[str]().union(*(e.free for e in terms))
    sizes = tuple((a, kernel.extent[a]) for a in sorted(free))
    lengths = kernel.lengths.within(free, terms)
    return lies_inside(index, guards, kernel.buffer(name).shape, sizes, lengths)


@lru_cache(maxsize=1 << 14)  # the kernels of a region share most of their loads
def lies_inside(
    index: tuple[Expr, ...],
    guards: tuple[Bound, ...],
    shape: tuple[int, ...],
    sizes: Sizes,
    lengths: Lengths = STATIC,
) -> bool:
    """Whether an access at these indices, one for each dim of the shape, is proven to lie inside
    wherever its guards hold; ``sizes`` has every axis in them, ``lengths`` what is live."""
    spans = {a: (0, n - 1) for a, n in sizes} | dict(lengths.ranges)
    for g in guards * ROUNDS:
        assert isinstance(g.hi, int)
        spans = narrowed(spans, simplify(g.index, spans), g.lo, g.hi)
        if any(first > last for first, last in spans.values()):
            return True  # it is never read
    spans = {a: spans[a] for a, _ in sizes}
    loops: dict[str, Extent] = {a: last - first + 1 for a, (first, last) in spans.items()}
    loops |= {a: n for a, n in lengths.live if spans[a] == (0, dict(sizes)[a] - 1)}
    moved = {axis(a): add(axis(a), first) for a, (first, _) in spans.items() if first}
    index = tuple(substitute(i, moved) for i in index)
    left = [Bound(substitute(g.index, moved), g.lo, g.hi) for g in guards]
    dims = {d.name: d for d in lengths.dims}
    return all(is_inside(i, n, left, loops, dims) for i, n in zip(index, shape, strict=True))
