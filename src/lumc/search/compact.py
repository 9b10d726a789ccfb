"""A kernel on compact copies of what it reads.

    compact    f(v[c*i + d, e*j + g])    =    f(u[i, j]),    u[i, j] = v[c*i + d, e*j + g]

Axes that walk over an operand in steps, or over a part of it, may be one axis of its copy. That is
for products with few rows: where every other one of 14 x 14 pixels is read, 7 rows of them share
what is loaded of the weights, but 49 of their copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from lumc.graph.expr import Expr, axis, bounds, linear, substitute, subterms
from lumc.kernel.target import Target
from lumc.kernel.term import Buffer, Kernel, Root, dtype, load
from lumc.schedule.operands import pairs
from lumc.search.cuts import assemble


def compacts(kernel: Kernel, target: Target) -> Iterator[list[Kernel]]:
    """A product as copies of the elements that it reads, and itself on these, where some of its
    axes are one then, for vectors: kernels in execution order."""
    if target.lanes > 1 and not kernel.live and any(pairs(s) for s in kernel.stages):
        *copies, made = compacted(kernel)
        if copies and len(made.axes) < len(kernel.axes):
            yield [*copies, made]


def compacted(kernel: Kernel) -> list[Kernel]:
    """The copies of what is read along several axes of the result, with a dim for each axis and the
    dtype of what is read, and the kernel on these."""
    copies, read = list[Kernel](), dict[Expr, Expr]()
    known, stored = kernel.buffers, tuple(map(kernel.buffer, kernel.stored))
    for e in subterms(*kernel.values):
        if axes := _walked(kernel, e):
            shape = tuple(kernel.extent[a] for a in axes)
            to = Buffer(f"{stored[0].name}_{len(copies)}", dtype(e), shape)
            root = Root(to.name, tuple(map(axis, axes)), e)
            copies.append(assemble("compact", axes, (root,), kernel.extent, known, (to,)))
            read[e], known = load(to.name, to.dtype, *axes), (*known, to)
    roots = tuple(Root(r.buffer, r.index, substitute(r.value, read)) for r in kernel.roots)
    known = tuple(b for b in known if b not in stored)
    return [*copies, assemble(kernel.name, kernel.axes, roots, kernel.extent, known, stored)]


def _walked(kernel: Kernel, e: Expr) -> tuple[str, ...]:
    """The axes of a load of a part of a buffer, two of the result's among them, each of which goes
    along one dim, always inside of it; else none. Constants are laid out at link time."""
    if e.kind != "load" or len(e.free.intersection(kernel.axes)) < 2:
        return ()
    buffer, along = kernel.buffer(e.attr[0]), [a for i in e.kids for a in i.free]
    ranges = {a: (0, kernel.extent[a] - 1) for a in along}
    spans = [(*bounds(i, ranges), n) for i, n in zip(e.kids, buffer.shape, strict=True)]
    apart = all({*linear(i)[1]} == {*map(axis, i.free)} and len(i.free) < 2 for i in e.kids)
    apart &= len(along) == len(e.free) and all(0 <= lo <= hi < n for lo, hi, n in spans)
    part = not buffer.constant and kernel.points(along) < prod(buffer.shape)
    return tuple(along) if apart and part else ()
