"""Looking elements up by position, and tensors made of positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.lookup import looked_up
from lumc.frontend.api.pick import picked
from lumc.frontend.api.scatter import index_depth
from lumc.frontend.api.symbols import Symbolic
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.ops_shape import bound_by, integers, normal, sizes
from lumc.frontend.onnx.registry import operator
from lumc.frontend.onnx.values import constant_tensor
from lumc.graph.dim import Extent
from lumc.graph.expr import Expr, linear
from lumc.graph.graph import Iota
from lumc.graph.ops import DType

if TYPE_CHECKING:
    from lumc.frontend.onnx.lower import Call


@operator("Gather", raw=True)
def gather(call: Call, data: Any, indices: Any, *, axis: int = 0) -> Tensor:
    x = call.tensor(data)
    axis = normal(axis, x.ndim)
    if not isinstance(indices, np.ndarray | Symbolic):
        return bounded(x, axis, indices)
    known = call.known(indices, "indices")
    if known.size == 1:
        (first,) = sizes(known)
        row = x[(slice(None),) * axis + (first,)]
        return row if known.ndim == 0 else row.unsqueeze(*range(axis, axis + known.ndim))
    length = x.shape[axis]
    if known.dtype == object or not isinstance(length, int) or known.ndim != 1 or known.size > 64:
        return bounded(x, axis, call.tensor(indices))
    places = [i + length if i < 0 else i for i in integers(known, "indices")]
    if any(not 0 <= i < length for i in places):
        raise ValueError(f"indices {places} of an axis of {length}")
    return picked(x, axis, places)


def bounded(x: Tensor, axis: int, indices: Tensor) -> Tensor:
    """Rows at the indices, which may bound a dim."""
    at = indices.operand
    if isinstance(at, Iota) and not at.bounds:
        _bound_by_rows(indices, at.index, x.shape[axis])
    return looked_up(x, axis, indices)


def _bound_by_rows(indices: Tensor, index: Expr, length: Extent) -> None:
    """``table[arange(s)]`` of a table with 512 rows: the model is meant for s <= 512."""
    first, atoms = linear(index)
    if isinstance(length, int) and list(atoms.values()) == [1]:
        (atom,) = atoms
        if atom.kind == "axis":
            bound_by(indices.model, indices.shape[int(atom.attr[0][1:])], length - first)


@operator("Compress", since=9, known=["condition"])
def compress(input: Tensor, condition: Any, *, axis: int | None = None) -> Tensor:
    """The slices where the condition holds; elements of the flat tensor without an axis."""
    x = input.flatten() if axis is None else input
    at = 0 if axis is None else normal(axis, x.ndim)
    length = x.shape[at]
    places = np.flatnonzero(np.asarray(condition, bool))
    if not isinstance(length, int) or (places >= length).any():
        raise ValueError(f"a condition of {len(condition)} for an axis of {length}")
    if places.size <= 64:
        return picked(x, at, [int(i) for i in places])
    return x.index_select(at, constant_tensor(x.model, places.astype(np.int64)))


@operator("GatherElements")
def gather_elements(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return data.gather(normal(axis, data.ndim), indices, wrap=True)


@operator("GatherND", note="the last axis of indices is static")
def gather_nd(data: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """One lookup in the axes that the index vectors address, merged into one."""
    b, depth = batch_dims, index_depth(indices, data.ndim - batch_dims)
    merged: Tensor = data.flatten(b, b + depth - 1) if depth > 1 else data
    position = indices[..., 0]
    position = where(
        position < 0, position + data.model.size(data.shape[b], position.dtype), position
    )
    for i in range(1, depth):
        size = data.shape[b + i]
        part = indices[..., i]
        length = data.model.size(size, part.dtype)
        position = position * length + where(part < 0, part + length, part)
    if b == 0:
        return merged.index_select(0, position)
    return _batched_rows(merged, position, b)


def _batched_rows(x: Tensor, position: Tensor, b: int) -> Tensor:
    """x [batch.., n, rest..] at position [batch.., i..] -> [batch.., i.., rest..]."""
    inner, rest = position.ndim - b, x.ndim - b - 1
    order = [*range(b), *range(b + 1, x.ndim), b]
    rows = x.permute(*order).unsqueeze(*range(b, b + inner))  # [batch.., 1.., rest.., n]
    here = x.model.arange(x.shape[b], dtype=position.dtype)
    mask = position.unsqueeze(*range(position.ndim, position.ndim + rest + 1)) == here
    return (mask * rows).sum(-1).to(x.dtype)  # of truth values it counts


@operator("ScatterElements", "Scatter", note="without a reduction, positions must not repeat")
def scatter_elements(
    data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    return data.scatter(normal(axis, data.ndim), indices, updates, reduction)


@operator("ScatterND", note="without a reduction, positions must not repeat")
def scatter_nd(
    data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none"
) -> Tensor:
    return data.scatter_nd(indices, updates, reduction)


@operator("OneHot", known=["depth"])
def one_hot(indices: Tensor, depth: Any, values: Tensor, *, axis: int = -1) -> Tensor:
    size = sizes(depth)[0] if depth.dtype.kind != "f" else int(depth.item())
    position = indices if indices.dtype.is_int else indices.to(DType.I64)
    wrapped = where(position < 0, position + position.model.size(size, position.dtype), position)
    mask = wrapped.unsqueeze(-1) == position.model.arange(size, dtype=position.dtype)
    out = where(mask, values[1], values[0])
    return out.moveaxis(-1, normal(axis, out.ndim))


@operator("Trilu", known=["k"])
def trilu(input: Tensor, k: Any = None, *, upper: int = 1) -> Tensor:
    (offset,) = [0] if k is None else integers(k, "k")
    return input.triu(offset) if upper else input.tril(offset)


@operator("ReverseSequence")
def reverse_sequence(
    input: Tensor, sequence_lens: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    x = input
    time = x.model.arange(x.shape[time_axis], dtype=sequence_lens.dtype)
    shape = [1] * x.ndim
    shape[time_axis] = -1
    along = time.reshape(*shape)
    shape = [1] * x.ndim
    shape[batch_axis] = -1
    lengths = sequence_lens.reshape(*shape)
    source = where(along < lengths, lengths - 1 - along, along).expand(*x.shape)
    return x.gather(time_axis, source)


@operator("TensorScatter")
def tensor_scatter(
    past_cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Tensor:
    """Write a run of positions per batch element: a KV cache as a value."""
    axis = normal(axis, past_cache.ndim)
    length, run = past_cache.shape[axis], update.shape[axis]
    model = past_cache.model
    inner = past_cache.ndim - axis - 1
    here = model.arange(length).reshape(-1, *[1] * (inner + 1))
    offset = model.arange(run)
    if write_indices is not None:
        first = write_indices.reshape(-1, *[1] * (past_cache.ndim))
    else:
        first = model.full((), 0, DType.I64)
    target = offset + first
    if mode == "circular":
        target = target.remainder(model.size(length, DType.I64))
    mask = here == target  # [batch, 1.., length, 1.., run]
    writes = update.moveaxis(axis, -1).unsqueeze(axis)
    return where(mask.any(-1), (mask * writes).sum(-1), past_cache)
