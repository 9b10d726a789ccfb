"""Reductions, and what accumulates along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.aten.axes import along, axes, over
from lumc.frontend.aten.registry import Unsupported, aten
from lumc.graph.ops import DType

Dims = Sequence[int] | int | None


def counted(x: Tensor, dtype: DType | None) -> Tensor:
    """As it is summed up: ints in i64."""
    if dtype is not None:
        return x.to(dtype)
    return x if x.dtype.is_float else x.to(DType.I64)


@aten("sum", "sum.dim_IntList", halves=True)
def sum_(
    self: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return counted(self, dtype).sum(axes(self, dim), keepdim)


@aten("mean", "mean.dim")
def mean(
    self: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return (self if dtype is None else self.to(dtype)).mean(axes(self, dim), keepdim)


@aten("prod", "prod.dim_int", note="at most 64 elements along each axis")
def prod(
    self: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return counted(self, dtype).prod(axes(self, dim), keepdim)


@aten("amax", halves=True)
def amax(self: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    return self.max(axes(self, dim), keepdim)


@aten("amin", halves=True)
def amin(self: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    return self.min(axes(self, dim), keepdim)


@aten("aminmax", halves=True)
def aminmax(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return amin(self, dim, keepdim), amax(self, dim, keepdim)


@aten("max", halves=True)
def max_(self: Tensor) -> Tensor:
    return self.max()


@aten("min", halves=True)
def min_(self: Tensor) -> Tensor:
    return self.min()


@aten("max.dim", halves=True)
def max_dim(self: Tensor, dim: int, keepdim: bool = False) -> Any:
    return amax(self, dim, keepdim), argmax(self, dim, keepdim)


@aten("min.dim", halves=True)
def min_dim(self: Tensor, dim: int, keepdim: bool = False) -> Any:
    return amin(self, dim, keepdim), argmin(self, dim, keepdim)


@aten("argmax", halves=True)
def argmax(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _arg(Tensor.argmax, self, dim, keepdim)


@aten("argmin", halves=True)
def argmin(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _arg(Tensor.argmin, self, dim, keepdim)


def _arg(function: Callable[..., Tensor], x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    x = x.to(DType.U8) if x.dtype is DType.BOOL else x
    if not x.ndim:
        return x.model.full((), 0, DType.I64)
    return function(x, None if dim is None else along(x, dim), keepdim)


@aten("any", "any.dim", "any.dims", halves=True)
def any_(self: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return self.any(_or_none(self, dim), keepdim)


@aten("all", "all.dim", "all.dims", halves=True)
def all_(self: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return self.all(_or_none(self, dim), keepdim)


def _or_none(x: Tensor, dim: Dims) -> list[int]:
    """No numbers mean no axes to these two, not all of them."""
    return [] if dim is not None and not isinstance(dim, int) and not len(dim) else axes(x, dim)


@aten("count_nonzero", "count_nonzero.dim_IntList", halves=True)
def count_nonzero(self: Tensor, dim: Dims = None) -> Tensor:
    return self.to(DType.BOOL).sum(axes(self, dim))


def spread(x: Tensor, dim: Dims, correction: Any, keepdim: bool) -> Tensor:
    """The variance; NaN where there are no more elements than ``correction``."""
    given = 1 if correction is None else correction
    if int(given) != given:
        raise Unsupported(f"a correction of {given}")
    chosen = axes(x, dim)
    count = math.prod(e for i, e in enumerate(x.shape) if i in chosen and isinstance(e, int))
    if all(isinstance(x.shape[i], int) for i in chosen) and count <= given:
        return x.var(chosen, keepdim, 0) * math.inf  # a quotient by 0
    return x.var(chosen, keepdim, int(given))


@aten("var.correction")
def var(self: Tensor, dim: Dims = None, correction: Any = None, keepdim: bool = False) -> Tensor:
    return spread(self, dim, correction, keepdim)


@aten("std.correction")
def std(self: Tensor, dim: Dims = None, correction: Any = None, keepdim: bool = False) -> Tensor:
    return var(self, dim, correction, keepdim).sqrt()


@aten("var_mean.correction")
def var_mean(self: Tensor, dim: Dims = None, correction: Any = None, keepdim: bool = False) -> Any:
    return var(self, dim, correction, keepdim), mean(self, dim, keepdim)


@aten("var", "var.dim")
def var_dim(self: Tensor, dim: Dims = None, unbiased: bool = True, keepdim: bool = False) -> Tensor:
    return spread(self, dim, int(unbiased), keepdim)


@aten("std", "std.dim")
def std_dim(self: Tensor, dim: Dims = None, unbiased: bool = True, keepdim: bool = False) -> Tensor:
    return spread(self, dim, int(unbiased), keepdim).sqrt()


@aten("cumsum", halves=True)
def cumsum(self: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    return over(Tensor.cumsum, counted(self, dtype), dim)


@aten("cumprod", note="at most 64 elements")
def cumprod(self: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    return over(Tensor.cumprod, counted(self, dtype), dim)


@aten("logsumexp")
def logsumexp(self: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    chosen = axes(self, dim)
    top = self.max(chosen, True)
    top = where(top.isinf(), 0.0, top)  # -inf - -inf would be NaN
    total = (self - top).exp().sum(chosen, True).log() + top
    return total if keepdim else total.squeeze(chosen)


@aten("linalg_vector_norm")
def vector_norm(
    self: Tensor,
    ord: Any = 2,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: DType | None = None,
) -> Tensor:
    x, chosen = (self if dtype is None else self.to(dtype)), axes(self, dim)
    if ord == math.inf:
        return x.abs().max(chosen, keepdim)
    if ord == -math.inf:
        return x.abs().min(chosen, keepdim)
    if ord == 0:
        return x.to(DType.BOOL).sum(chosen, keepdim)
    if ord == 2:
        return (x * x).sum(chosen, keepdim).sqrt()
    total = (x.abs() if ord == 1 else x.abs().pow(float(ord))).sum(chosen, keepdim)
    return total if ord == 1 else total.pow(1.0 / ord)


@aten("norm.Scalar", "norm.ScalarOpt_dim")
def norm(self: Tensor, p: Any = 2, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return vector_norm(self, 2 if p is None else p, dim, keepdim)
