"""Reductions, one axis at a time, and what is composed of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.join import unbind
from lumc.frontend.api.movement import axes_of, axis_of, flatten, moveaxis, unsqueeze
from lumc.frontend.api.value import V
from lumc.graph.dim import Extent
from lumc.graph.ops import DType, Op

Axes = int | Sequence[int] | None


def _over(op: Op, x: V, axis: Axes, keepdim: bool) -> V:
    """``sum`` or ``max`` over axes, the last one first."""
    axes = axes_of(x, axis)
    for a in sorted(axes, reverse=True):
        x = x.reduced(op, a)
    return unsqueeze(x, *sorted(axes)) if keepdim and axes else x


def sum(x: V, axis: Axes = None, keepdim: bool = False) -> V:
    """Accumulates in the dtype (f16 and bf16 in f32); bool is counted in i64."""
    if x.dtype is DType.BOOL:
        x = x.to(DType.I64)
    return _over(Op.SUM, x, axis, keepdim)


def max(x: V, axis: Axes = None, keepdim: bool = False) -> V:
    """The largest element over the axes, by default all."""
    return _over(Op.MAX, x, axis, keepdim)


def min(x: V, axis: Axes = None, keepdim: bool = False) -> V:
    """The greatest of the mirrored values; ints mirror as -1 - x, which never overflows."""
    if x.dtype is DType.BOOL:
        return all(x, axis, keepdim)
    if x.dtype.is_int:
        return max(x * -1 + -1, axis, keepdim) * -1 + -1
    return max(-x, axis, keepdim) * -1


def mean(x: V, axis: Axes = None, keepdim: bool = False) -> V:
    """``sum * (1 / n)``; ints are averaged in f32."""
    if not x.dtype.is_float:
        x = x.to(DType.F32)
    return _scaled(sum(x, axis, keepdim), [x.shape[a] for a in axes_of(x, axis)])


def _scaled(total: V, extents: Sequence[Extent], correction: int = 0) -> V:
    """A sum divided by its number of elements."""
    count, symbols = 1, [e for e in extents if not isinstance(e, int)]
    for e in extents:
        count *= e if isinstance(e, int) else 1
    if not symbols:
        return total * (1.0 / (count - correction) if count != correction else float("nan"))
    n = total.model.full((), float(count), DType.F32)
    for e in symbols:
        n = n * total.model.size(e, DType.F32)
    return total * (n - float(correction) if correction else n).reciprocal().to(total.dtype)


def var(x: V, axis: Axes = None, keepdim: bool = False, correction: int = 0) -> V:
    """The mean square distance from the mean; ``correction`` is numpy's ddof."""
    if not x.dtype.is_float:
        x = x.to(DType.F32)
    centred = x - mean(x, axis, keepdim=True)
    total = sum(centred * centred, axis, keepdim)
    return _scaled(total, [x.shape[a] for a in axes_of(x, axis)], correction)


def std(x: V, axis: Axes = None, keepdim: bool = False, correction: int = 0) -> V:
    """Standard deviation: the root of ``var``."""
    return var(x, axis, keepdim, correction).sqrt()


def prod(x: V, axis: Axes = None, keepdim: bool = False) -> V:
    """A chain of products, for up to 64 elements."""
    axes = axes_of(x, axis)
    for a in sorted(axes, reverse=True):
        n = x.shape[a]
        if not isinstance(n, int) or n > 64:
            raise x.refuse("E0125", f"prod over axis {a} of {x.describe()}; at most 64 elements")
        parts = unbind(x, a)
        rest = (*x.shape[:a], *x.shape[a + 1 :])
        x = parts[0] if parts else x.model.full(rest, 1, x.dtype)
        for part in parts[1:]:
            x = x * part
    return unsqueeze(x, *sorted(axes)) if keepdim and axes else x


def any(x: V, axis: Axes = None, keepdim: bool = False) -> V:
    """Whether any element is true (nonzero)."""
    return max(x.to(DType.BOOL), axis, keepdim)


def all(x: V, axis: Axes = None, keepdim: bool = False) -> V:
    """Whether every element is true (nonzero)."""
    return ~max(~x.to(DType.BOOL), axis, keepdim)


def argmax(x: V, axis: int | None = None, keepdim: bool = False) -> V:
    """The first position of the greatest element, i64: ``n - 1 - max(n - 1 - i where x = max)``."""
    if axis is None:
        flat = argmax(flatten(x), 0)
        return unsqueeze(flat, *range(x.ndim)) if keepdim else flat
    axis = axis_of(x, axis)
    n = x.shape[axis]
    if n == 0:
        raise x.refuse("E0121", f"argmax over axis {axis} of {x.describe()}")
    top = max(x, axis, keepdim=True)
    from_end = x.model.arange(n).flip(0)
    from_end = from_end.reshape(n, *[1] * (x.ndim - axis - 1))
    best = max(~(x < top) * from_end, axis)
    first = x.model.size(n, DType.I64) - 1 - best
    return unsqueeze(first, axis) if keepdim else first


def argmin(x: V, axis: int | None = None, keepdim: bool = False) -> V:
    """The first place of the smallest element."""
    mirrored = x * -1 + -1 if x.dtype.is_int else -x
    return argmax(mirrored, axis, keepdim)


def cumsum(x: V, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> V:
    """``sum of x[k] where k <= i``."""
    if x.dtype is DType.BOOL:
        x = x.to(DType.I64)
    axis = axis_of(x, axis)
    n = x.shape[axis]
    here, there = x.model.arange(n)[:, None], x.model.arange(n)[None, :]
    if reverse:
        here, there = there, here
    taken = (there < here) if exclusive else ~(here < there)
    rows = unsqueeze(moveaxis(x, axis, -1), -2)
    return moveaxis((taken * rows).sum(-1), -1, axis)


def logsumexp(x: V, axis: int = -1, keepdim: bool = False) -> V:
    """``log(sum(exp(x)))`` without overflow; infinite where the maximum is."""
    top = max(x, axis)
    total = sum((x - unsqueeze(top, axis_of(x, axis))).exp(), axis)
    out = where((top < math.inf) & (top > -math.inf), total.log() + top, top)
    return unsqueeze(out, axis_of(x, axis)) if keepdim else out
