"""Products that are summed - matmul, convolution -, windows, and lookups by one-hot selects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lumc.frontend.api.elementwise import broadcast_shapes, where
from lumc.frontend.api.join import pad, pad_axis
from lumc.frontend.api.movement import axis_of, moveaxis, unsqueeze
from lumc.frontend.api.value import V
from lumc.frontend.api.view import plus, times
from lumc.graph.dim import Extent
from lumc.graph.graph import shape_text
from lumc.graph.ops import DType

Sizes = int | Sequence[int]


def matmul(x: V, y: Any) -> V:
    """[.., m, k] @ [.., k, n] -> [.., m, n] with numpy's broadcasting; vectors lose their axis."""
    y = x.lift(y)
    if not x.ndim or not y.ndim:
        raise x.refuse("E0120", f"matmul of {x.describe()} and {y.describe()} needs axes")
    a = unsqueeze(x, 0) if x.ndim == 1 else x
    b = unsqueeze(y, 1) if y.ndim == 1 else y
    if a.shape[-1] != b.shape[-2]:
        what = (
            f"matmul of {x.describe()} and {y.describe()}: {a.shape[-1]} and {b.shape[-2]} differ"
        )
        raise x.refuse("E0120", what)
    broadcast_shapes(x, a.shape[:-2], b.shape[:-2])
    out = (unsqueeze(a, -2) * unsqueeze(b.transpose(), -3)).sum(-1)  # sum k of [.., m, n, k]
    if x.ndim == 1:
        out = out.squeeze(-2)
    return out.squeeze(-1) if y.ndim == 1 else out


def rmatmul(x: V, y: Any) -> V:
    return matmul(x.lift(y), x)


# ---- convolution and pooling


def _each(value: Sizes, rank: int) -> tuple[int, ...]:
    """One number for every spatial axis."""
    return (value,) * rank if isinstance(value, int) else tuple(value)


def _pads(padding: Any, rank: int) -> list[tuple[int, int]]:
    """(before, after) of every spatial axis from a number, one per axis, or pairs."""
    each = (padding,) * rank if isinstance(padding, int) else tuple(padding)
    return [(p, p) if isinstance(p, int) else (p[0], p[1]) for p in each]


def windows(x: V, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> V:
    """[n, c, out.., k..] from [n, c, in..]."""
    for i, (k, s, d) in enumerate(zip(sizes, strides, dilations, strict=True)):
        x = x.unfold(2 + i, k, s, d)
    return x


def conv(
    x: V,
    weight: V,
    bias: V | None = None,
    stride: Sizes = 1,
    padding: Any = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> V:
    """x [n, c, in..], weight [o, c / groups, k..], bias [o] -> [n, o, out..]; any rank."""
    rank = x.ndim - 2
    _check_conv(x, weight, rank, groups, weight.shape[0], weight.shape[1:2])
    kernel = [e for e in weight.shape[2:] if isinstance(e, int)]
    padded = pad(x, [(0, 0), (0, 0), *_pads(padding, rank)])
    seen = windows(padded, kernel, _each(stride, rank), _each(dilation, rank))
    spatial = range(2, 2 + rank)
    # both to [n, g, o, out.., c, k..]
    seen = seen.unflatten(1, (groups, -1))
    order = [0, 1, *(1 + i for i in spatial), 2, *(1 + rank + i for i in spatial)]
    seen = unsqueeze(seen.permute(order), 2)
    filters = weight.unflatten(0, (groups, -1))
    filters = unsqueeze(filters, *range(2, 2 + rank))
    if groups == 1:
        seen, filters = seen.squeeze(1), filters.squeeze(0)
    out = seen * filters
    for _ in range(rank + 1):
        out = out.sum(-1)
    if groups > 1:
        out = out.flatten(1, 2)
    return out if bias is None else out + bias.reshape(-1, *[1] * rank)


def _check_conv(
    x: V, weight: V, rank: int, groups: int, outs: Extent, ins: Sequence[Extent]
) -> None:
    static = all(isinstance(e, int) for e in weight.shape)
    fits = weight.ndim == x.ndim and rank >= 1 and groups >= 1
    split = fits and static and times(ins[0], groups) == x.shape[1]
    if not split or outs % groups:  # type: ignore[operator]
        what = f"conv of {x.describe()} with weight {weight.describe()}"
        what += f" in {groups} groups" if groups > 1 else ""
        if fits and static:
            what += f": {x.shape[1]} channels, the weight reads {times(ins[0], groups)}"
        raise x.refuse("E0121", what)


def conv1d(x: V, weight: V, bias: V | None = None, **options: Any) -> V:
    """``conv`` over one axis: [n, c, l]."""
    return _of_rank(1, x).conv(weight, bias, **options)


def conv2d(x: V, weight: V, bias: V | None = None, **options: Any) -> V:
    """``conv`` over two axes: [n, c, h, w]."""
    return _of_rank(2, x).conv(weight, bias, **options)


def _of_rank(rank: int, x: V) -> V:
    if x.ndim != rank + 2:
        raise x.refuse("E0121", f"conv{rank}d of {x.describe()} needs {rank + 2} axes")
    return x


def conv_transpose(
    x: V,
    weight: V,
    bias: V | None = None,
    stride: Sizes = 1,
    padding: Any = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> V:
    """x [n, c, in..], weight [c, o / groups, k..]: a convolution of x with zeros between.

    The result is made up to a multiple of the stride, of which all phases have as many elements.
    """
    rank = x.ndim - 2
    if weight.ndim != x.ndim or weight.shape[0] != x.shape[1]:
        raise x.refuse("E0121", f"conv_transpose of {x.describe()} with weight {weight.describe()}")
    flipped = weight.flip(range(2, weight.ndim)).unflatten(0, (groups, -1))
    flipped = flipped.transpose(1, 2).flatten(0, 1)  # [o, c / groups, k..]
    strides, dilations = _each(stride, rank), _each(dilation, rank)
    extra, pads = _each(output_padding, rank), _pads(padding, rank)
    more = [0] * rank
    for i in range(rank):
        x = _spread(x, 2 + i, strides[i])
        size = weight.shape[2 + i]
        assert isinstance(size, int)
        span = dilations[i] * (size - 1)
        before, after = span - pads[i][0], span - pads[i][1] + extra[i]
        if isinstance(n := x.shape[2 + i], int):
            more[i] = -(n + before + after - span) % strides[i]
        x = _pad_or_crop(x, 2 + i, before, after + more[i])
    y = conv(x, flipped, bias, 1, 0, dilation, groups)
    for i in (i for i in range(rank) if more[i]):
        y = y.slice(2 + i, 0, plus(y.shape[2 + i], -more[i]))
    return y


def _spread(x: V, axis: int, step: int) -> V:
    """``step - 1`` zeros between neighbours."""
    if step == 1:
        return x
    wide = pad_axis(unsqueeze(x, axis + 1), axis + 1, 0, step - 1)
    flat = wide.flatten(axis, axis + 1)
    return flat.slice(axis, 0, plus(times(x.shape[axis], step), 1 - step))


def _pad_or_crop(x: V, axis: int, before: int, after: int) -> V:
    size = x.shape[axis]
    if before < 0 or after < 0:
        x = x.slice(axis, max(-before, 0), plus(size, min(after, 0)))
    return pad_axis(x, axis, max(before, 0), max(after, 0))


def _extended(
    x: V, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int], padding: Any
) -> list[tuple[int, int]]:
    """Pads that make room for the last, partial windows (ceil mode)."""
    out = list[tuple[int, int]]()
    for i, (before, after) in enumerate(_pads(padding, x.ndim - 2)):
        n, span = x.shape[2 + i], (sizes[i] - 1) * dilations[i] + 1
        if not isinstance(n, int):
            raise x.refuse("E0125", f"ceil mode of the symbolic axis {2 + i} of {x.describe()}")
        count = -(-(n + before + after - span) // strides[i]) + 1
        if (count - 1) * strides[i] >= n + before:  # a window may not start in the padding
            count -= 1
        out.append((before, max((count - 1) * strides[i] + span - n - before, after)))
    return out


def max_pool(
    x: V,
    kernel: Sizes,
    stride: Sizes | None = None,
    padding: Any = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> V:
    """[n, c, in..] -> [n, c, out..]; outside there is the least value."""
    rank = x.ndim - 2
    sizes, dilations = _each(kernel, rank), _each(dilation, rank)
    strides = sizes if stride is None else _each(stride, rank)
    pads = _extended(x, sizes, strides, dilations, padding) if ceil_mode else _pads(padding, rank)
    least = float("-inf") if x.dtype.is_float else x.dtype.limits[0]
    padded = pad(x, [(0, 0), (0, 0), *pads], least)
    return windows(padded, sizes, strides, dilations).max(range(2 + rank, 2 + 2 * rank))


def avg_pool(
    x: V,
    kernel: Sizes,
    stride: Sizes | None = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> V:
    """[n, c, in..] -> [n, c, out..]; the padding counts unless told otherwise."""
    rank = x.ndim - 2
    sizes, ones = _each(kernel, rank), (1,) * rank
    strides = sizes if stride is None else _each(stride, rank)
    pads = _pads(padding, rank)
    full = _extended(x, sizes, strides, ones, padding) if ceil_mode else pads
    axes = range(2 + rank, 2 + 2 * rank)
    total = windows(pad(x, [(0, 0), (0, 0), *full]), sizes, strides, ones).sum(axes)
    if full == pads and (count_include_pad or not any(map(any, pads))):
        return total * (1.0 / int(np.prod(sizes)))
    inside = x.model.full((1, 1, *x.shape[2:]), 1, x.dtype)
    if count_include_pad:
        inside = inside.model.full(_grown(inside.shape, pads), 1, x.dtype)
        full = [(a - c, b - d) for (a, b), (c, d) in zip(full, pads, strict=True)]
    counted = windows(pad(inside, [(0, 0), (0, 0), *full]), sizes, strides, ones)
    return total * counted.sum(axes).reciprocal()


def _grown(shape: Sequence[Extent], pads: Sequence[tuple[int, int]]) -> list[Extent]:
    return [*shape[:2], *(plus(e, *p) for e, p in zip(shape[2:], pads, strict=True))]


def adaptive_avg_pool(x: V, size: Sizes) -> V:
    """[n, c, in..] -> [n, c, size..]: windows from floor(i n / size) to ceil((i + 1) n / size)."""
    rank = x.ndim - 2
    for i, m in enumerate(_each(size, rank)):
        n = x.shape[2 + i]
        if not isinstance(n, int):
            raise x.refuse("E0125", f"adaptive pooling of the symbolic axis {2 + i}")
        if n % m == 0:
            x = x.unfold(2 + i, n // m, n // m).mean(-1)
        else:
            weights = x.model.constant(averages(n, m).astype(x.dtype.numpy))
            x = moveaxis(moveaxis(x, 2 + i, -1) @ weights, -1, 2 + i)
    return x


def averages(n: int, m: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[n, m]: column j averages the j-th of m parts of n elements."""
    out = np.zeros((n, m))
    for j in range(m):
        low, high = j * n // m, -(-(j + 1) * n // m)
        out[low:high, j] = 1.0 / (high - low)
    return out


# ---- lookups: sum of the rows, all but one of which a select turns to zero


def one_hot(ids: V, n: Extent, dtype: DType | str = "f32") -> V:
    """[..] -> [.., n]: 1 at the position of the id, all 0 when it is outside 0..n-1."""
    return _is(ids, n).to(dtype)


def _is(ids: V, n: Extent) -> V:
    """[.., n] bool: where the position equals the id."""
    if not ids.dtype.is_int:
        raise ids.refuse("E0123", f"positions must be ints, got {ids.describe()}")
    return ids.model.arange(n, dtype=ids.dtype) == unsqueeze(ids, -1)


def _wrapped(ids: V, n: Extent, wrap: bool) -> V:
    return where(ids < 0, ids + ids.model.size(n, ids.dtype), ids) if wrap else ids


def _chosen(mask: V, rows: V) -> V:
    """The one element of the last axis where the mask is on."""
    picked = mask * rows
    return picked.max(-1) if picked.dtype is DType.BOOL else picked.sum(-1)


def index_select(x: V, axis: int, ids: V, wrap: bool = False) -> V:
    """``x[.., ids, ..]``: the axis is replaced by the axes of ids; ``wrap`` counts negative ids
    from the end. An id outside gives zeros."""
    axis = axis_of(x, axis)
    n = x.shape[axis]
    mask = _is(_wrapped(ids, n, wrap), n)
    after = x.ndim - axis - 1
    mask = unsqueeze(mask, *range(ids.ndim, ids.ndim + after))  # [ids.., 1.., n]
    rows = unsqueeze(moveaxis(x, axis, -1), *range(axis, axis + ids.ndim))
    return _chosen(mask, rows)


def embedding(table: V, ids: V) -> V:
    """Rows of ``table`` [n, d] at ``ids`` [..] -> [.., d]."""
    return index_select(table, 0, ids)


def gather(x: V, axis: int, ids: V, wrap: bool = False) -> V:
    """``out[i, j] = x[ids[i, j], j]`` for axis 0, as torch.gather."""
    axis = axis_of(x, axis)
    if ids.ndim != x.ndim:
        raise x.refuse("E0120", f"gather from {x.describe()} at {ids.describe()}: ranks differ")
    for i in range(x.ndim):
        if i != axis and ids.shape[i] != x.shape[i]:
            if not isinstance(ids.shape[i], int) or not isinstance(x.shape[i], int):
                raise x.refuse("E0120", f"gather from {x.describe()} at {shape_text(ids.shape)}")
            x = x.slice(i, 0, ids.shape[i])
    n = x.shape[axis]
    rows = unsqueeze(moveaxis(x, axis, -1), axis)
    return _chosen(_is(_wrapped(ids, n, wrap), n), rows)
