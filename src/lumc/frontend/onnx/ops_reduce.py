"""Reductions, and what picks or accumulates along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.halves import in_f32
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.ops_shape import integers, normal
from lumc.frontend.onnx.registry import operator
from lumc.graph.ops import DType


def reduction(name: str, function: Callable[..., Tensor], halves: bool = False) -> None:
    """Register a reduction; ``axes`` is an attribute in old opsets, an input in new ones."""
    compute = function if halves else in_f32(function)

    def row(
        data: Tensor, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Tensor:
        along = [] if axes is None else integers(axes, "axes")
        if not along and noop_with_empty_axes:
            return compute(data, [], False) if name in _MAPPED else data
        order = sorted({normal(a, data.ndim) for a in along}) or list(range(data.ndim))
        return compute(data, order, bool(keepdims))

    operator(name, known=["axes"])(row)


# reductions over no axes still apply their elementwise part
_MAPPED = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")


def _log_sum_exp(x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
    top = x.max(axes, True)
    top = where(top.isinf(), 0.0, top)  # -inf - -inf would be NaN
    total = (x - top).exp().sum(axes, True).log() + top
    return total if keepdim or not axes else total.squeeze(axes)


def _mean(x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
    if x.dtype.is_float:
        return x.mean(axes, keepdim)
    from lumc.frontend.onnx.ops_math import divide

    count = x.model.full((), 1, x.dtype)
    for a in axes:
        count = count * x.model.size(x.shape[a], x.dtype)
    return divide(x.sum(axes, keepdim), count)


def _of_reals(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Of integers the result is the integer part of that in f64."""

    def row(x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
        if x.dtype.is_float:
            return compute(x, axes, keepdim)
        return compute(x.to(DType.F64), axes, keepdim).to(x.dtype)

    return row


def _plain(name: str) -> Callable[..., Tensor]:
    """A reduction that F's tensors have; over no axes it changes nothing."""
    return lambda x, axes, keepdim: getattr(x, name)(axes, keepdim) if axes else x


reduction("ReduceSum", _plain("sum"), halves=True)
reduction("ReduceMax", _plain("max"), halves=True)
reduction("ReduceMin", _plain("min"), halves=True)
reduction("ReduceProd", _plain("prod"))
reduction("ReduceMean", _mean)
reduction("ReduceL1", lambda x, axes, keep: x.abs().sum(axes, keep) if axes else x.abs())
reduction("ReduceSumSquare", lambda x, axes, keep: (x * x).sum(axes, keep) if axes else x * x)
reduction("ReduceLogSum", _of_reals(lambda x, *how: _plain("sum")(x, *how).log()))
reduction(
    "ReduceLogSumExp",
    _of_reals(lambda x, axes, keep: _log_sum_exp(x, axes, keep) if axes else x),
)
reduction(
    "ReduceL2",
    _of_reals(lambda x, axes, keep: (x * x).sum(axes, keep).sqrt() if axes else x.abs()),
)


def _arg(x: Tensor, axis: int, keepdims: int, last: int, least: bool) -> Tensor:
    axis = normal(axis, x.ndim)
    source = x.flip(axis) if last else x
    at = source.argmin(axis, bool(keepdims)) if least else source.argmax(axis, bool(keepdims))
    return x.model.size(x.shape[axis], DType.I64) - 1 - at if last else at


@operator("ArgMax")
def arg_max(
    data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    return _arg(data, axis, keepdims, select_last_index, least=False)


@operator("ArgMin")
def arg_min(
    data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    return _arg(data, axis, keepdims, select_last_index, least=True)


@operator("CumSum", known=["axis"])
def cum_sum(x: Tensor, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    (at,) = integers(axis, "the axis")
    return x.cumsum(at, bool(exclusive), bool(reverse))


@operator("CumProd", known=["axis"])
def cum_prod(x: Tensor, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    (at,) = integers(axis, "the axis")
    return x.cumprod(at, bool(exclusive), bool(reverse))


@operator("Hardmax", since=13)
def hardmax(input: Tensor, *, axis: int = -1) -> Tensor:
    axis = normal(axis, input.ndim)
    return _first_greatest(input, axis)


@operator("Hardmax", since=1)
def hardmax_1(input: Tensor, *, axis: int = 1) -> Tensor:
    flat = as_matrix(input, axis)
    return _first_greatest(flat, 1).reshape(*input.shape)


def _first_greatest(x: Tensor, axis: int) -> Tensor:
    place = x.model.arange(x.shape[axis]).reshape(-1, *[1] * (x.ndim - axis - 1))
    return (place == x.argmax(axis, True)).to(x.dtype)


def as_matrix(x: Tensor, axis: int) -> Tensor:
    """[product of the axes before, product of the rest], as softmax saw it before opset 13."""
    from lumc.frontend.onnx.ops_shape import flatten

    matrix: Tensor = flatten(x, axis=normal(axis, x.ndim))
    return matrix


@operator("TopK", known=["K"], note="above 1024 elements at most 64 of them")
def top_k(
    X: Tensor, K: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    (count,) = integers(K, "K")
    return X.topk(count, axis, bool(largest))
