"""Padding, joining and cutting: bounds on reads, and sums of parts that are read only where they
are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lumc.frontend.api.movement import at, axis_of, slice_axis, unsqueeze
from lumc.frontend.api.value import V
from lumc.frontend.api.view import at_least, ceil_div, minus, place, plus, times
from lumc.graph.dim import Extent, as_expr
from lumc.graph.expr import add, mul, num
from lumc.graph.graph import Bound
from lumc.graph.ops import DType


def pad(x: V, widths: Sequence[Any], value: float | int | bool = 0) -> V:
    """``widths``: (before, after) for every axis. Outside, the tensor is ``value``.

    Zeros are bounds on a read and cost nothing; another value is added where the mask is off.
    """
    if len(widths) != x.ndim:
        raise x.refuse("E0121", f"pad {list(widths)} of {x.describe()} needs a pair per axis")
    padded = _zero_pad(x, widths)
    if value == 0 or padded.shape == x.shape:
        return padded
    flat = [e if w != (0, 0) else 1 for e, w in zip(x.shape, map(tuple, widths), strict=True)]
    inside = _zero_pad(x.model.full(flat, True, DType.BOOL), widths)
    return padded + (~inside) * x.lift(value, x.dtype)


def _zero_pad(x: V, widths: Sequence[Any]) -> V:
    env = [place(i) for i in range(x.ndim)]
    shape, guards = list(x.shape), list[Bound]()
    for i, (before, after) in enumerate(widths):
        if before == 0 and after == 0:
            continue
        if not all(at_least(w, 0, x.model.dims) for w in (before, after)):
            raise x.refuse("E0121", f"pad of {x.describe()} by ({before}, {after})")
        size = x.shape[i]
        env[i] = add(place(i), mul(as_expr(before), -1))
        shape[i] = plus(size, before, after)
        guards.append(Bound(env[i], 0, size))
    return x.view(shape, env, guards)


def pad_axis(x: V, axis: int, before: Extent, after: Extent, value: float = 0) -> V:
    widths: list[tuple[Extent, Extent]] = [(0, 0)] * x.ndim
    widths[axis_of(x, axis)] = (before, after)
    return pad(x, widths, value)


def concat(tensors: Sequence[V], axis: int = 0) -> V:
    """Side by side along an axis: the sum of the parts, each read only where it is."""
    if not tensors:
        raise ValueError("concat of no tensors")
    first = tensors[0]
    axis = axis_of(first, axis)
    for t in tensors:
        rest = [e for i, e in enumerate(t.shape) if i != axis]
        if t.ndim != first.ndim or rest != [e for i, e in enumerate(first.shape) if i != axis]:
            texts = ", ".join(x.describe() for x in tensors)
            raise first.refuse("E0120", f"cannot concatenate {texts} along axis {axis}")
    parts = [t for t in tensors if t.shape[axis] != 0] or [first]
    total = plus(*(t.shape[axis] for t in parts))
    whole: V | None = None
    position: Extent = 0
    for t in parts:
        after = minus(minus(total, position), t.shape[axis])
        part = pad_axis(t, axis, position, after)
        whole = part if whole is None else whole + part
        position = plus(position, t.shape[axis])
    assert whole is not None
    return whole


def stack(tensors: Sequence[V], axis: int = 0) -> V:
    """Tensors of one shape along a new axis."""
    rank = tensors[0].ndim + 1
    return concat([unsqueeze(t, axis_of(t, axis, rank)) for t in tensors], axis)


def split(x: V, sizes: int | Sequence[Extent], axis: int = 0) -> list[V]:
    """Parts of the given sizes, or of at most ``sizes`` elements."""
    axis = axis_of(x, axis)
    whole = x.shape[axis]
    if isinstance(sizes, int):
        if not isinstance(whole, int) or sizes < 1:
            raise x.refuse("E0125", f"split of axis {axis} of {x.describe()} into parts of {sizes}")
        sizes = [min(sizes, whole - i) for i in range(0, whole, sizes)] or [0]
    if plus(*sizes) != whole:
        raise x.refuse("E0121", f"split sizes {list(sizes)} of axis {axis} of {x.describe()}")
    parts: list[V] = []
    position: Extent = 0
    for size in sizes:
        parts.append(slice_axis(x, axis, position, plus(position, size)))
        position = plus(position, size)
    return parts


def chunk(x: V, n: int, axis: int = 0) -> list[V]:
    """``n`` parts of equal size; the last may be smaller."""
    whole = x.shape[axis_of(x, axis)]
    size = ceil_div(whole, n)
    if isinstance(whole, int):
        assert isinstance(size, int)
        return split(x, max(size, 1), axis)
    if size is None or times(size, n) != whole:
        raise x.refuse("E0125", f"{n} equal parts of axis {axis} of {x.describe()}")
    return split(x, [size] * n, axis)


def unbind(x: V, axis: int = 0) -> list[V]:
    """The slices along an axis, which they drop."""
    axis = axis_of(x, axis)
    n = x.shape[axis]
    if not isinstance(n, int):
        raise x.refuse("E0125", f"unbind of the symbolic axis {axis} of {x.describe()}")
    return [at(x, axis, num(i), None) for i in range(n)]


def roll(x: V, shift: int, axis: int) -> V:
    """Elements move ``shift`` places up; those that fall off come back at the start."""
    axis = axis_of(x, axis)
    n = x.shape[axis]
    if isinstance(n, int):
        shift = shift % n if n else 0
    if shift == 0:
        return x
    if shift < 0 or not at_least(n, shift, x.model.dims):
        raise x.refuse("E0125", f"roll by {shift} of the symbolic axis {axis} of {x.describe()}")
    edge = minus(n, shift)
    return concat([slice_axis(x, axis, edge, n), slice_axis(x, axis, 0, edge)], axis)


def _offsets(x: V) -> tuple[V, V]:
    if x.ndim < 2:
        raise x.refuse("E0122", f"{x.describe()} has no rows and columns")
    return x.model.arange(x.shape[-2])[:, None], x.model.arange(x.shape[-1])[None, :]


def tril(x: V, k: int = 0) -> V:
    """Zero above the k-th diagonal of the last two axes."""
    row, col = _offsets(x)
    return (col < row + (k + 1)) * x


def triu(x: V, k: int = 0) -> V:
    """Zero below the k-th diagonal of the last two axes."""
    row, col = _offsets(x)
    return (row + (k - 1) < col) * x
