"""Writing where a tensor of positions says: sums over what is written, masked by position."""

from __future__ import annotations

from typing import Any

import numpy as np

from lumc.frontend.api.elementwise import eq, where
from lumc.frontend.api.movement import axis_of
from lumc.frontend.api.refusal import refuse
from lumc.frontend.api.value import V
from lumc.frontend.api.view import minus
from lumc.graph.dim import Extent
from lumc.graph.ops import DType


def index_depth(indices: V, rank: int) -> int:
    """The length of the index vectors."""
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise refuse("E0125", "index vectors of symbolic length")
    if not 1 <= depth <= rank:
        raise indices.refuse("E0124", f"index vectors of length {depth} into {rank} axes")
    return depth


def _scatter(reduction: str, old: V, mask: V, new: V, axis: int) -> V:
    """Combine what is written along ``axis`` of mask and new with the old values."""
    hit = mask.any(axis)
    if reduction == "add":
        return old + (mask * new).sum(axis)
    if reduction in ("max", "min"):
        sign = new if reduction == "max" else _mirror(new)
        best = where(mask, sign, sign.lift(_least(sign.dtype), sign.dtype)).max(axis)
        best = best if reduction == "max" else _mirror(best)
        combined = old.maximum(best) if reduction == "max" else old.minimum(best)
        return where(hit, combined, old)
    if reduction == "mul":
        return old * where(mask, new, new.lift(1, new.dtype)).prod(axis)
    if reduction != "none":
        raise refuse("E0125", f"reduction '{reduction}'")
    if new.dtype is DType.BOOL:
        return ((mask & new).any(axis)) | (~hit & old)
    return where(hit, (mask * new).sum(axis), old)


def _least(dtype: DType) -> float | int:
    """What no element lies below."""
    if dtype.is_float:
        return float("-inf")
    return int(np.iinfo(dtype.numpy.name).min) if dtype.is_int else 0


def _mirror(x: V) -> V:
    return -x if x.dtype.is_float else x * -1 - 1


def scatter(data: V, axis: int, indices: V, updates: V, reduction: str = "none") -> V:
    """``out[indices[i, j], j] = updates[i, j]`` for axis 0, as torch.scatter; negative indices
    count from the end. ``reduction``: add, mul, max, min; none, where positions must not repeat."""
    axis = axis_of(data, axis)
    for i in (i for i in range(data.ndim) if updates.shape[i] != indices.shape[i]):
        updates = updates.slice(i, 0, indices.shape[i])
    length = data.shape[axis]
    position = where(indices < 0, indices + data.model.size(length, indices.dtype), indices)
    for i in range(data.ndim):  # rows that the updates do not reach are written nowhere
        if i != axis and indices.shape[i] != data.shape[i]:
            position = _filled(position, i, data.shape[i], -1)
            updates = _filled(updates, i, data.shape[i], 0)
    here = data.model.arange(length, dtype=position.dtype)
    here = here.reshape(-1, *[1] * (data.ndim - axis))
    mask = eq(position.moveaxis(axis, -1).unsqueeze(axis), here)
    return _scatter(reduction, data, mask, updates.moveaxis(axis, -1).unsqueeze(axis), -1)


def _filled(x: V, axis: int, size: Extent, value: int) -> V:
    widths: list[Any] = [(0, 0)] * x.ndim
    widths[axis] = (0, minus(size, x.shape[axis]))
    return x.pad(widths, value)


def scatter_nd(data: V, indices: V, updates: V, reduction: str = "none") -> V:
    """``out[indices[i]] = updates[i]``, where the last axis of ``indices`` holds the positions in
    the first axes of ``data``; as for ``scatter``."""
    depth = index_depth(indices, data.ndim)
    outer, rest = data.shape[:depth], data.ndim - depth
    lead = indices.ndim - 1
    vectors = indices.flatten(0, lead - 1) if lead > 1 else indices  # [k, depth]
    vectors = vectors if lead else vectors.unsqueeze(0)
    writes = updates.flatten(0, lead - 1) if lead > 1 else updates  # [k, rest..]
    writes = writes if lead else writes.unsqueeze(0)
    mask: V | None = None
    for i, size in enumerate(outer):
        part = vectors[:, i]
        part = where(part < 0, part + data.model.size(size, part.dtype), part)
        here = data.model.arange(size, dtype=part.dtype).reshape(-1, *[1] * (depth - i))
        match = eq(here, part)  # [size, 1.., k]
        mask = match if mask is None else mask & match
    assert mask is not None
    mask = mask.unsqueeze(*range(depth, depth + rest))  # [outer.., 1.., k]
    return _scatter(reduction, data, mask, writes.moveaxis(0, -1), -1)
