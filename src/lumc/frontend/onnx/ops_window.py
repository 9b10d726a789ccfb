"""Pooling, and its inverse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lumc.frontend.api.contract import windows
from lumc.frontend.api.halves import in_f32
from lumc.frontend.api.pool import greatest_at
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.view import plus
from lumc.frontend.onnx.ops_contract import window_pads
from lumc.frontend.onnx.ops_shape import integers
from lumc.frontend.onnx.registry import Unsupported, operator

if TYPE_CHECKING:
    from lumc.frontend.onnx.lower import Call


def _ceil_pads(
    x: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: list[tuple[int, int]],
) -> list[tuple[int, int]]:
    """Pads that make room for a last, partial window which starts inside the input."""
    out = []
    for i, (before, after) in enumerate(pads):
        length = x.shape[2 + i]
        if not isinstance(length, int):
            raise Unsupported("ceil_mode along a symbolic dim", "bind the dim with --dim")
        span = (kernel[i] - 1) * dilations[i] + 1
        count = -(-(length + before + after - span) // strides[i]) + 1
        if (count - 1) * strides[i] >= length + before:
            count -= 1
        out.append((before, max((count - 1) * strides[i] + span - length - before, after)))
    return out


@operator("MaxPool")
@in_f32
def max_pool(
    call: Call,
    X: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Any = None,
    kernel_shape: Any,
    pads: Any = None,
    storage_order: int = 0,
    strides: Any = None,
) -> Any:
    rank = len(kernel_shape)
    stride, dilation = list(strides or [1] * rank), list(dilations or [1] * rank)
    padding = window_pads(call, X, kernel_shape, stride, dilation, pads, auto_pad)
    if ceil_mode:
        padding = _ceil_pads(X, kernel_shape, stride, dilation, padding)
    values = X.max_pool(list(kernel_shape), stride, padding, dilation)
    if call.wanted < 2:
        return values
    places = _positions(X, storage_order)
    return values, greatest_at(X, places, kernel_shape, stride, padding, dilation)


def _positions(x: Tensor, storage_order: int) -> Tensor:
    """The offset of every element: row-major, or with the spatial axes reversed."""
    order = [0, 1, *(range(x.ndim - 1, 1, -1) if storage_order else range(2, x.ndim))]
    total, stride = None, x.model.size(1, "i64")
    for axis in reversed(order):
        place = x.model.arange(x.shape[axis]).reshape(-1, *[1] * (x.ndim - axis - 1)) * stride
        total = place if total is None else total + place
        stride = stride * x.model.size(x.shape[axis], "i64")
    assert total is not None
    return total.expand(*x.shape)


@operator("AveragePool")
@in_f32
def average_pool(
    call: Call,
    X: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Any = None,
    kernel_shape: Any,
    pads: Any = None,
    strides: Any = None,
) -> Tensor:
    rank = len(kernel_shape)
    stride, dilation = list(strides or [1] * rank), list(dilations or [1] * rank)
    padding = window_pads(call, X, kernel_shape, stride, dilation, pads, auto_pad)
    full = _ceil_pads(X, kernel_shape, stride, dilation, padding) if ceil_mode else padding
    axes = tuple(range(2 + rank, 2 + 2 * rank))
    zeros: list[tuple[int, int]] = [(0, 0), (0, 0)]
    total: Tensor = windows(X.pad([*zeros, *full]), kernel_shape, stride, dilation).sum(axes)
    if full == padding and (count_include_pad or not any(map(any, padding))):
        return total * (1.0 / float(math.prod(kernel_shape)))
    counted = padding if count_include_pad else [(0, 0)] * rank
    sizes = [plus(e, *pair) for e, pair in zip(X.shape[2:], counted, strict=True)]
    ones = X.model.full((1, 1, *sizes), 1, X.dtype)
    rest = [(a - c, b - d) for (a, b), (c, d) in zip(full, counted, strict=True)]
    count = windows(ones.pad([*zeros, *rest]), kernel_shape, stride, dilation).sum(axes)
    return total * count.reciprocal()


@operator("LpPool")
@in_f32
def lp_pool(
    call: Call,
    X: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Any = None,
    kernel_shape: Any,
    p: float = 2,
    pads: Any = None,
    strides: Any = None,
) -> Tensor:
    rank = len(kernel_shape)
    stride, dilation = list(strides or [1] * rank), list(dilations or [1] * rank)
    padding = window_pads(call, X, kernel_shape, stride, dilation, pads, auto_pad)
    if ceil_mode:
        padding = _ceil_pads(X, kernel_shape, stride, dilation, padding)
    powers = X.abs().pow(float(p)).pad([(0, 0), (0, 0), *padding])
    axes = tuple(range(2 + rank, 2 + 2 * rank))
    return windows(powers, kernel_shape, stride, dilation).sum(axes).pow(1.0 / p)


@operator("GlobalAveragePool")
@in_f32
def global_average_pool(X: Tensor) -> Tensor:
    return X.mean(tuple(range(2, X.ndim)), True)


@operator("GlobalMaxPool")
def global_max_pool(X: Tensor) -> Tensor:
    return X.max(tuple(range(2, X.ndim)), True)


@operator("GlobalLpPool")
@in_f32
def global_lp_pool(X: Tensor, *, p: float = 2) -> Tensor:
    axes = tuple(range(2, X.ndim))
    return X.abs().pow(float(p)).sum(axes, True).pow(1.0 / p)


@operator("MaxUnpool", known=["output_shape"])
def max_unpool(
    X: Tensor,
    I: Tensor,  # noqa: E741
    output_shape: Any = None,
    *,
    kernel_shape: Any,
    pads: Any = None,
    strides: Any = None,
) -> Tensor:
    """Each value back to the position that its pooling remembered; elsewhere 0."""
    rank = len(kernel_shape)
    stride, flat = list(strides or [1] * rank), list(pads or [0] * 2 * rank)
    if not all(isinstance(e, int) for e in X.shape):
        raise Unsupported("unpooling of symbolic dims", "bind them with --dim")
    cut = [flat[i] + flat[rank + i] for i in range(rank)]
    inner = [
        (X.shape[2 + i] - 1) * stride[i] + kernel_shape[i] - cut[i]  # type: ignore[operator]
        for i in range(rank)
    ]
    target = [*X.shape[:2], *inner]
    sparse = _scattered(X, I, target)
    if output_shape is None:
        return sparse
    wanted = integers(output_shape, "output_shape")
    return sparse.pad([(0, w - int(t)) for w, t in zip(wanted, target, strict=True)])


def _scattered(x: Tensor, positions: Tensor, target: Sequence[Any]) -> Tensor:
    count = math.prod(int(e) for e in target)
    here = x.model.arange(count, dtype=positions.dtype).reshape(count, 1)
    return ((here == positions.flatten()) * x.flatten()).sum(-1).reshape(*target)
