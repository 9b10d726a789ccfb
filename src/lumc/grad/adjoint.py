"""The adjoint of a read: what flows back from the points of a reader to the elements it took.

``dx[j] = sum of g[l] over the points l with index(l) = j``, which is a read again, of g at the
fibre of j, summed over what is free in that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lumc.frontend.api.elementwise import mul
from lumc.frontend.api.operand import free_axes
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.view import is_proven, move, place
from lumc.grad.fibre import Fibre, fibre
from lumc.graph.dim import Dim, Extent, largest
from lumc.graph.expr import Expr, mod, substitute
from lumc.graph.graph import Bound, Read
from lumc.graph.index import is_inside, loop_ranges
from lumc.graph.ops import Op
from lumc.graph.verify import MAX_RANK


def adjoint(read: Read, shape: Sequence[Extent], factors: Sequence[Tensor]) -> Tensor:
    """What a read over the places of ``shape`` gives back to its source, of the shape of that: the
    product of ``factors``, tensors of this shape, of which bools select, at every point that
    read an element, summed. Raises E0133 (an index that is not bounded for all dims)."""
    dims = factors[0].model.dims
    back = fibre(read, shape, dims)
    rank = len(read.source.shape)
    fixed = [i for i, e in enumerate(back.loops) if not _beyond(e, rank)]
    rest = [i for i in range(len(shape)) if i not in fixed]
    part = _size([shape[i] for i in fixed], dims) < _size(read.source.shape, dims)
    if part and _are_free(back, rest, rank):  # what is read is summed, and who reads it pads
        order = [*fixed, *rest]
        at = [place(order.index(i)) for i in range(len(shape))]
        limits = _under(read.bounds, at)
        inner = [seen(f, [shape[i] for i in order], at, limits) for f in factors]
        env = [back.loops[i] for i in fixed]
        return seen(_summed(inner, len(fixed)), read.source.shape, env, back.bounds)
    limits = (*back.bounds, *_under(read.bounds, back.loops))
    wide = (*read.source.shape, *back.free)
    return _summed([seen(f, wide, back.loops, limits) for f in factors], rank)


def seen(
    t: Tensor, shape: Sequence[Extent], env: Sequence[Expr], bounds: Sequence[Bound]
) -> Tensor:
    """A view, zero beyond its bounds. Where these hold an index is inside: where no proof of it is
    found, it is taken modulo the extent. Raises E0133."""
    dims = t.model.dims
    operand = move(t.operand, shape, env, dims, bounds)
    if len(operand.bounds) > MAX_RANK:
        operand = move(t.contiguous().operand, shape, env, dims, bounds)
    if isinstance(operand, Read) and not is_proven(operand, shape, dims):
        operand = replace(operand, index=_wrapped(t, operand, shape))
    return Tensor(t.model, operand, tuple(shape))


def _wrapped(t: Tensor, read: Read, shape: Sequence[Extent]) -> tuple[Expr, ...]:
    """The index of a read, modulo the extent where it is not proven to be inside."""
    dims, loops = t.model.dims, {f"_{i}": n for i, n in enumerate(shape)}
    out = list[Expr]()
    for e, n in zip(read.index, read.source.shape, strict=True):
        if is_inside(e, n, read.bounds, loops, dims):
            out.append(e)
        elif isinstance(n, int):
            out.append(mod(e, n, loop_ranges(loops, dims)))
        else:
            where = f"'{read.source.name}' at {e}, which is not proven to be below {n}"
            raise t.refuse("E0133", f"the gradient reads {where}", "bind the dims: --dim NAME=N")
    return tuple(out)


def _beyond(e: Expr, rank: int) -> bool:
    """Whether an index depends on a free axis."""
    return not e.free <= {f"_{d}" for d in range(rank)}


def _are_free(back: Fibre, loops: Sequence[int], rank: int) -> bool:
    """Whether these loops are the free axes, each of them one, and no bound depends on any."""
    taken = {back.loops[i] for i in loops}
    plain = all(e.kind == "axis" for e in taken) and len(taken) == len(loops) == len(back.free)
    return plain and not any(_beyond(b.index, rank) for b in back.bounds)


def _size(shape: Sequence[Extent], dims: Mapping[str, Dim]) -> int:
    return math.prod(largest(e, dims) for e in shape)


def _under(bounds: Sequence[Bound], env: Sequence[Expr]) -> tuple[Bound, ...]:
    """Bounds over other places."""
    over = {place(i): e for i, e in enumerate(env)}
    return tuple(Bound(substitute(b.index, over), b.lo, b.hi) for b in bounds)


def _summed(factors: Sequence[Tensor], rank: int) -> Tensor:
    """The product of the factors, summed over the axes from ``rank`` on, the last one first."""
    out = factors[0]
    for f in factors[1:]:
        out = mul(out, f)
    while out.ndim > rank:
        last = out.ndim - 1
        if f"_{last}" in free_axes(out.operand):
            out = out.reduced(Op.SUM, last)
            continue
        n, out = out.shape[last], Tensor(out.model, out.operand, out.shape[:last])
        out = out * (float(n) if isinstance(n, int) else out.model.size(n, out.dtype))
    return out
