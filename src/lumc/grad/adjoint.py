"""The adjoint of a read: what flows back from the points of a reader to the elements it took.

``dx[j] = sum of g[l] over the points l with index(l) = j``, which is a read again, of g at the
fibre of j, summed over what is free in that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from lumc.errors import LumcError
from lumc.frontend.api.elementwise import mul, select
from lumc.frontend.api.operand import free_axes
from lumc.frontend.api.refusal import refuse
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.view import is_proven, move, place, ranges_of
from lumc.grad.fibre import Fibre, fibre
from lumc.graph.dim import Extent, largest
from lumc.graph.expr import Expr, is_large, mod, substitute
from lumc.graph.graph import Bound, Read
from lumc.graph.ops import DType, Op
from lumc.graph.verify import MAX_RANK


def adjoint(read: Read, shape: Sequence[Extent], factors: Sequence[Tensor]) -> Tensor:
    """What a read over the places of ``shape`` gives back to its source, of the shape of that: the
    product of ``factors``, tensors of this shape, of which bools select, at every point that
    read an element, summed. Raises E0133 (an index that is not bounded for all dims)."""
    model = factors[0].model
    back = fibre(read, shape, model.dims)
    rank = len(read.source.shape)
    over = {place(i): e for i, e in enumerate(back.loops)}
    fixed = [i for i, e in enumerate(back.loops) if not _beyond(e, rank)]
    rest = [i for i in range(len(shape)) if i not in fixed]
    if _are_free(back, rest, rank) and _size(factors[0], [shape[i] for i in fixed]) < _size(
        factors[0], read.source.shape
    ):  # only a part of the source is read: that part is summed, and who reads it pads
        order = [*fixed, *rest]
        at = [place(order.index(i)) for i in range(len(shape))]
        limits = _under(read.bounds, {place(i): e for i, e in enumerate(at)})
        inner = [seen(f, [shape[i] for i in order], at, limits) for f in factors]
        part = _summed(inner, len(fixed))
        return seen(part, read.source.shape, [back.loops[i] for i in fixed], back.bounds)
    limits = (*back.bounds, *_under(read.bounds, over))
    wide = (*read.source.shape, *back.free)
    return _summed([seen(f, wide, back.loops, limits) for f in factors], rank)


def seen(
    t: Tensor, shape: Sequence[Extent], env: Sequence[Expr], bounds: Sequence[Bound]
) -> Tensor:
    """A view, zero beyond its bounds. Where these hold an index is inside: where no proof of it is
    found, it is taken modulo the extent. Raises E0133."""
    dims = t.model.dims
    operand = move(t.operand, shape, env, dims, bounds)
    indices = [b.index for b in operand.bounds] + [*(operand.index if isinstance(operand, Read) else ())]
    if is_large(indices) or len(operand.bounds) > MAX_RANK:
        operand = move(t.contiguous().operand, shape, env, dims, bounds)
    if isinstance(operand, Read) and not is_proven(operand, shape, dims):
        index, ranges = list[Expr](), ranges_of(shape, dims)
        for e, n in zip(operand.index, operand.source.shape, strict=True):
            if not isinstance(n, int):
                raise unbounded(operand, e, n)
            index.append(mod(e, n, ranges))
        operand = replace(operand, index=tuple(index))
    return Tensor(t.model, operand, tuple(shape))


def unbounded(read: Read, e: Expr, n: Extent) -> LumcError:
    what = f"the gradient reads '{read.source.name}' at {e}, which is not proven to be below {n}"
    return refuse("E0133", what, fix="bind the dims: --dim NAME=N")


def _beyond(e: Expr, rank: int) -> bool:
    """Whether an index depends on a free axis."""
    return not e.free <= {f"_{d}" for d in range(rank)}


def _are_free(back: Fibre, loops: Sequence[int], rank: int) -> bool:
    """Whether these loops are the free axes, each of them one, and no bound depends on any."""
    taken = {back.loops[i] for i in loops}
    plain = all(e.kind == "axis" for e in taken) and len(taken) == len(loops) == len(back.free)
    return plain and not any(_beyond(b.index, rank) for b in back.bounds)


def _size(t: Tensor, shape: Sequence[Extent]) -> int:
    return math.prod(largest(e, t.model.dims) for e in shape)


def _under(bounds: Sequence[Bound], env: dict[Expr, Expr]) -> tuple[Bound, ...]:
    return tuple(Bound(substitute(b.index, env), b.lo, b.hi) for b in bounds)


def _summed(factors: Sequence[Tensor], rank: int) -> Tensor:
    """The product of the factors, summed over the axes from ``rank`` on, the last one first."""
    out = factors[0]
    for f in factors[1:]:
        out = select(out, f) if out.dtype is DType.BOOL else mul(out, f)
    while out.ndim > rank:
        last = out.ndim - 1
        if f"_{last}" in free_axes(out.operand):
            out = out.reduced(Op.SUM, last)
            continue
        n, out = out.shape[last], Tensor(out.model, out.operand, out.shape[:last])
        out = out * (float(n) if isinstance(n, int) else out.model.size(n, out.dtype))
    return out
