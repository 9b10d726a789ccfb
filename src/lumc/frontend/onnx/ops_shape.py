"""Shapes and movement: reshape, transpose, slice, concat, pad, expand and their kin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lumc.frontend.api.elementwise import broadcast_shapes
from lumc.frontend.api.elementwise import constant as constant_of
from lumc.frontend.api.join import concat as join
from lumc.frontend.api.pick import padded
from lumc.frontend.api.symbols import extents, settle
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.view import factors, times
from lumc.frontend.onnx.load import MAX_RANK
from lumc.frontend.onnx.registry import Tighten, Unsupported, operator
from lumc.frontend.onnx.values import constant_tensor, dtype_of
from lumc.graph.dim import Extent
from lumc.graph.expr import Expr, linear

if TYPE_CHECKING:
    from lumc.frontend.api.value import Maker
    from lumc.frontend.onnx.lower import Call


FAR = 2**31 - 1  # what exporters write for "to the end"


def sizes(values: Any) -> list[Extent]:
    """A known integer vector as a list of extents."""
    return [v if isinstance(v, Expr) else int(v) for v in np.ravel(np.asarray(values, object))]


def extents_of(values: Any) -> list[Extent]:
    """A known vector as a shape."""
    if np.size(values) > MAX_RANK:
        raise ValueError(f"a shape of {np.size(values)} dimensions")
    return sizes(values)


def integers(values: Any, what: str) -> list[int]:
    """A known integer vector; expressions over dims are refused."""
    out = sizes(values)
    if any(isinstance(v, Expr) for v in out):
        raise Unsupported(f"{what} {out} depends on symbolic dims", "bind the dims with --dim")
    return [v for v in out if isinstance(v, int)]


def normal(axis: int, rank: int) -> int:
    """A possibly negative axis as 0..rank-1."""
    if not -rank <= axis < max(rank, 1):
        raise ValueError(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank if rank else 0


# ---- shapes as values


@operator("Shape", raw=True)
def shape(data: Any, *, start: int = 0, end: int | None = None) -> Any:
    whole = list(data.shape)
    begin, stop, _ = slice(start, end).indices(len(whole))
    return extents(whole[begin:stop])


@operator("Size", raw=True)
def size(data: Any) -> Any:
    count, symbols = factors(data.shape)
    if len(symbols) > 1:
        raise Unsupported("the product of several symbolic dims", "bind them with --dim")
    whole = times(symbols[0], count) if symbols else count
    return settle(np.array(whole, object), np.dtype(np.int64))


@operator("Constant", raw=True)
def constant(
    *,
    value: Any = None,
    value_float: Any = None,
    value_floats: Any = None,
    value_int: Any = None,
    value_ints: Any = None,
    value_string: Any = None,
    value_strings: Any = None,
) -> Any:
    if value is not None:
        return value
    for given, dtype in ((value_float, np.float32), (value_floats, np.float32)):
        if given is not None:
            return np.array(given, dtype)
    for given in (value_int, value_ints):
        if given is not None:
            return np.array(given, np.int64)
    return np.array(value_string if value_strings is None else value_strings)


@operator("ConstantOfShape", known=["input"])
def constant_of_shape(call: Call, input: Any, *, value: Any = None) -> Tensor:
    fill = np.zeros(1, np.float32) if value is None else value
    one: Tensor = constant_tensor(call.model, fill.reshape(()))
    return one.expand(*extents_of(input)) if len(input) else one


@operator("Range", raw=True)
def range_(call: Call, start: Any, limit: Any, delta: Any) -> Tensor:
    ends = [call.known(v, n) for v, n in ((start, "start"), (limit, "limit"), (delta, "delta"))]
    if any(e.dtype.kind == "f" for e in ends):
        first, last, step = (e.item() for e in ends)
        count = max(int(np.ceil((last - first) / step)), 0)
        dtype = ends[0].dtype
        place = call.model.arange(count, dtype="f64")
        return (place * float(step) + float(first)).to(dtype.name)
    low, high = sizes(ends[0])[0], sizes(ends[1])[0]
    (step,) = integers(ends[2], "the step")
    if step == 0:
        raise ValueError("a range in steps of 0")
    return call.model.arange(low, high, step, dtype=start.dtype.name)


@operator("EyeLike", raw=True)
def eye_like(call: Call, input: Any, *, dtype: int | None = None, k: int = 0) -> Tensor:
    like = call.tensor(input)
    rows, cols = call.model.arange(like.shape[0]), call.model.arange(like.shape[1])
    kind = like.dtype if dtype is None else dtype_of(dtype)
    return (rows[:, None] + k == cols[None, :]).to(kind)


# ---- movement


@operator("Reshape", known=["shape"])
def reshape(data: Tensor, shape: Any, *, allowzero: int = 0, consumed_inputs: Any = None) -> Tensor:
    target = extents_of(shape)
    if not allowzero:
        target = [data.shape[i] if e == 0 else e for i, e in enumerate(target)]
    elif -1 in target and 0 in target:
        raise ValueError("reshape to a shape with 0 and -1")
    return reshaped(data, target)


def reshaped(x: Tensor, target: Sequence[Extent]) -> Tensor:
    """Reshape; what only the value of a dim decides is left to the user."""
    if 0 in x.shape and -1 in target:
        rest = [e for e in target if e != -1]
        if 0 in rest:
            raise ValueError(f"cannot infer -1 in {list(target)} from an empty tensor")
        target = [0 if e == -1 else e for e in target]
    return x.reshape(*target)


@operator("Flatten")
def flatten(input: Tensor, *, axis: int = 1) -> Tensor:
    at = axis % input.ndim if axis != input.ndim and input.ndim else axis
    return reshaped(input, [_product(input.shape[:at]), _product(input.shape[at:])])


def _product(shape: Sequence[Extent]) -> Extent:
    count, symbols = factors(shape)
    if len(symbols) > 1:
        raise Unsupported("the product of several symbolic dims", "bind them with --dim")
    return times(symbols[0], count) if symbols else count


@operator("Squeeze", known=["axes"])
def squeeze(data: Tensor, axes: Any = None) -> Tensor:
    return data.squeeze(None if axes is None else integers(axes, "axes"))


@operator("Unsqueeze", known=["axes"])
def unsqueeze(data: Tensor, axes: Any) -> Tensor:
    return data.unsqueeze(*integers(axes, "axes"))


@operator("Transpose")
def transpose(data: Tensor, *, perm: Any = None) -> Tensor:
    return data.permute(*(range(data.ndim)[::-1] if perm is None else perm))


@operator("Expand", known=["shape"])
def expand(input: Tensor, shape: Any) -> Tensor:
    target = broadcast_shapes(input, input.shape, extents_of(shape))
    return input.expand(*target) if target else input


@operator("Tile", since=6, known=["repeats"])
def tile(input: Tensor, repeats: Any) -> Tensor:
    counts = integers(repeats, "repeats")
    if 0 in counts:
        shape = [times(e, n) for e, n in zip(input.shape, counts, strict=True)]
        return input.model.full(shape, 0, input.dtype)
    return input.tile(*counts) if counts else input


@operator("Concat", raw=True)
def concat(call: Call, *inputs: Any, axis: int = 1) -> Any:
    tensors = [call.tensor(v) for v in inputs]
    return join(tensors, normal(axis, tensors[0].ndim))


@operator("Split", known=["split"])
def split(
    call: Call, input: Tensor, split: Any = None, *, axis: int = 0, num_outputs: int | None = None
) -> tuple[Tensor, ...]:
    axis = normal(axis, input.ndim)
    if split is not None:
        return tuple(input.split(sizes(split), axis))
    if num_outputs not in (None, call.wanted):
        raise ValueError(f"{num_outputs} parts for {call.wanted} outputs")
    length = input.shape[axis]
    if not isinstance(length, int):
        return tuple(input.chunk(call.wanted, axis))
    each = -(-length // call.wanted)  # the last ones may be smaller, and empty
    starts = range(0, each * call.wanted, each) if each else [0] * call.wanted
    return tuple(input.split([max(0, min(each, length - s)) for s in starts], axis))


@operator("Slice", known=["starts", "ends", "axes", "steps"])
def slice_(data: Tensor, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Tensor:
    begin, end = sizes(starts), sizes(ends)
    along = list(range(len(begin))) if axes is None else integers(axes, "axes")
    strides = [1] * len(begin) if steps is None else integers(steps, "steps")
    key: list[Any] = [slice(None)] * data.ndim
    for axis, b, e, step in zip(along, begin, end, strides, strict=True):
        axis = normal(axis, data.ndim)
        length = data.shape[axis]
        if isinstance(length, int):  # table[:s] of 512 rows: the model is meant for s <= 512
            bound_by(data.model, e, length)
        key[axis] = _clamped(b, e, step, length)
    return data[tuple(key)]


def bound_by(model: Maker, size: Extent, limit: int) -> None:
    """Where a size that has to stay within a limit is a dim, that bounds the dim."""
    constant, atoms = (0, {}) if isinstance(size, int) else linear(size)
    if [(a.kind, c) for a, c in atoms.items()] == [("dim", 1)]:
        bound = model.dims[next(iter(atoms)).attr[0]]
        if bound.lo <= limit - constant < bound.hi:
            raise Tighten(bound.name, limit - constant)


def _clamped(begin: Extent, end: Extent, step: int, length: Extent) -> slice:
    """A Python slice; of a symbolic axis, ends far outside mean the edge."""
    if isinstance(length, int) or step > 0:
        return slice(begin, end, step)
    from_last = isinstance(begin, int) and (begin == -1 or begin >= FAR)
    to_first = isinstance(end, int) and end <= -FAR
    return slice(None if from_last else begin, None if to_first else end, step)


@operator("Pad", since=2, known=["pads", "axes"])
def pad(
    data: Tensor,
    pads: Any,
    constant_value: Any = None,
    axes: Any = None,
    *,
    mode: str = "constant",
    value: float = 0.0,
) -> Tensor:
    widths = integers(pads, "pads")
    along = list(range(data.ndim)) if axes is None else integers(axes, "axes")
    fill = value if constant_value is None else constant_value
    if isinstance(fill, Tensor) and constant_of(fill) is not None:
        fill = constant_of(fill)
    for i, axis in enumerate(along):
        before, after = widths[i], widths[i + len(along)]
        data = padded(data, normal(axis, data.ndim), before, after, mode, fill)
    return data


@operator("Pad", since=1)
def pad_1(data: Tensor, *, paddings: Any, mode: str = "constant", value: float = 0.0) -> Tensor:
    result: Tensor = pad(data, paddings, mode=mode, value=value)
    return result


@operator("DepthToSpace")
def depth_to_space(input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = input.shape
    inner = [c // blocksize**2] if isinstance(c, int) else []
    if not inner:
        raise Unsupported("a symbolic number of channels", "bind the dim with --dim")
    b = blocksize
    if mode == "DCR":
        parts = input.reshape(n, b, b, *inner, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = input.reshape(n, *inner, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, *inner, times(h, b), times(w, b))


@operator("SpaceToDepth")
def space_to_depth(input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = input.shape
    if not all(isinstance(e, int) for e in (c, h, w)):
        raise Unsupported("symbolic channels or sizes", "bind the dims with --dim")
    b = blocksize
    parts = input.reshape(n, c, h // b, b, w // b, b)  # type: ignore[operator]
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.permute(*order).reshape(n, c * b * b, h // b, w // b)  # type: ignore[operator]


@operator("CenterCropPad", known=["shape"])
def center_crop_pad(input_data: Tensor, shape: Any, *, axes: Any = None) -> Tensor:
    x, target = input_data, integers(shape, "shape")
    along = list(range(x.ndim)) if axes is None else [normal(a, x.ndim) for a in axes]
    for axis, wanted in zip(along, target, strict=True):
        length = x.shape[axis]
        if not isinstance(length, int):
            raise Unsupported("cropping along a symbolic dim", "bind the dim with --dim")
        spare = wanted - length
        before = spare // 2 if spare > 0 else -(-spare // 2)
        x = padded(x, axis, before, spare - before, "constant", 0)
    return x
