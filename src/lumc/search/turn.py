"""A kernel on turned copies of what it reads.

    turn    f(v)[i, j, k]    =    w[j, k, i],    w = f'(u),    u[j, k, i] = v[i, j, k]

f' is f with the axis i last, in its result and in all that it reads. Where rows are short and there
are many of them, the lanes along i are whole vectors; operands and result are turned once for each
element, and not for every step of a window.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from lumc.graph.expr import Expr, axis, num, subterms
from lumc.kernel.key import rename
from lumc.kernel.target import Target
from lumc.kernel.term import Buffer, Kernel, Root, load
from lumc.search.cuts import assemble
from lumc.search.layout import relaid_value, to_end

Index = tuple[Expr, ...]
TRIED = 2  # axes, the longest first


def turns(kernel: Kernel, target: Target) -> Iterator[list[Kernel]]:
    """A kernel as turned copies of its operands, itself on these, and its result turned back: in
    execution order."""
    if kernel.live:  # copies are made of whole tensors
        return
    wide = [a for a in kernel.axes[:-1] if kernel.extent[a] >= target.lanes]
    for a in sorted(wide, key=lambda a: -kernel.extent[a])[:TRIED]:
        if parts := turned(kernel, a):
            yield parts


def turned(kernel: Kernel, last: str) -> list[Kernel]:
    """The parts, in execution order, with this axis last; none where an operand has it in an index
    with others."""
    (root, *more), dims = kernel.roots, dict[str, int]()
    for e in subterms(root.value):
        if e.kind != "load" or last not in e.free or kernel.buffer(e.attr[0]).constant:
            continue  # constants are laid out at link time
        (at, *others) = [d for d, i in enumerate(e.kids) if last in i.free]
        if others or e.kids[at] != axis(last) or dims.setdefault(e.attr[0], at) != at:
            return []
    back = [d for d, i in enumerate(root.index) if i == axis(last)]
    if more or not back or root.buffer in dims or not _is_whole(kernel, root):
        return []
    dims = {n: d for n, d in dims.items() if d < len(kernel.buffer(n).shape) - 1}
    names = {n: f"{root.buffer}_{i}" for i, n in enumerate((*dims, root.buffer))}
    copies = {_copy(kernel.buffer(n), names[n], d): kernel.buffer(n) for n, d in dims.items()}
    out = kernel.buffer(root.buffer)
    shape, index = to_end(out.shape, back[0]), to_end(root.index, back[0])
    whole = Buffer(names[out.name], out.dtype, shape)
    value = rename(relaid_value(root.value, dims), {}, {n: names[n] for n in dims})
    axes = (*(a for a in kernel.axes if a != last), last)
    known = (*kernel.buffers, *copies)
    main = Root(whole.name, index, value)
    extent = kernel.extent  # programs of a region with the same cuts have the same
    made = assemble(kernel.name, axes, (main,), extent, known, (whole,), among=extent)
    turning = [
        _turning(source, _axes(source), to, to_end(_axes(source), dims[source.name]))
        for to, source in copies.items()
    ]
    there = _axes(out)
    return [*turning, made, _turning(whole, to_end(there, back[0]), out, there)]


def _is_whole(kernel: Kernel, root: Root) -> bool:
    """Is every element of what it stores written? Of a state there may be others, to be kept."""
    return prod(kernel.extent[a] for a in root.axes) == prod(kernel.buffer(root.buffer).shape)


def _copy(source: Buffer, name: str, dim: int) -> Buffer:
    return Buffer(name, source.dtype, to_end(source.shape, dim))


def _axes(buffer: Buffer) -> tuple[Expr, ...]:
    """An axis for every dim; 0 where there is one element."""
    return tuple(axis(f"d{i}") if n != 1 else num(0) for i, n in enumerate(buffer.shape))


def _turning(source: Buffer, read: Index, to: Buffer, index: Index) -> Kernel:
    """``to[index] = source[read]``"""
    extent = {i.attr[0]: n for i, n in zip(index, to.shape, strict=True) if i.kind == "axis"}
    root = Root(to.name, index, load(source.name, source.dtype, *read))
    return assemble("turned", tuple(extent), (root,), extent, (source,), (to,))
