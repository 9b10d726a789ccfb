"""Tensors of one value, and of numbers in equal steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.aten.ops_elementwise import filled
from lumc.frontend.aten.registry import aten
from lumc.graph.dim import Extent
from lumc.graph.expr import Expr
from lumc.graph.ops import DType

Sizes = Sequence[Extent]


@aten("full", halves=True)
def full(model: Model, size: Sizes, fill_value: Any, dtype: DType | None = None) -> Tensor:
    return filled(model, size, fill_value, dtype)


@aten("ones", halves=True)
def ones(model: Model, size: Sizes, dtype: DType | None = None) -> Tensor:
    return model.full(size, 1, dtype or DType.F32)


@aten("zeros", "empty.memory_format", halves=True)
def zeros(model: Model, size: Sizes, dtype: DType | None = None) -> Tensor:
    return model.full(size, 0, dtype or DType.F32)


@aten("empty_strided", halves=True)
def empty_strided(model: Model, size: Sizes, stride: Sizes, dtype: DType | None = None) -> Tensor:
    return zeros(model, size, dtype)


@aten("empty_permuted", halves=True)
def empty_permuted(
    model: Model, size: Sizes, physical_layout: Sequence[int], dtype: DType | None = None
) -> Tensor:
    return zeros(model, size, dtype)


@aten("full_like", halves=True)
def full_like(self: Tensor, fill_value: Any, dtype: DType | None = None) -> Tensor:
    return filled(self.model, self.shape, fill_value, dtype or self.dtype)  # type: ignore[arg-type]


@aten("fill.Scalar", "fill.Tensor", halves=True)
def fill(self: Tensor, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(self.dtype).broadcast_to(*self.shape)
    return full_like(self, value)


@aten("ones_like", halves=True)
def ones_like(self: Tensor, dtype: DType | None = None) -> Tensor:
    return full_like(self, 1, dtype)


@aten("zeros_like", "empty_like", "zero", halves=True)
def zeros_like(self: Tensor, dtype: DType | None = None) -> Tensor:
    return full_like(self, 0, dtype)


@aten("new_full", halves=True)
def new_full(self: Tensor, size: Sizes, fill_value: Any, dtype: DType | None = None) -> Tensor:
    return filled(self.model, size, fill_value, dtype or self.dtype)  # type: ignore[arg-type]


@aten("new_ones", halves=True)
def new_ones(self: Tensor, size: Sizes, dtype: DType | None = None) -> Tensor:
    return new_full(self, size, 1, dtype)


@aten("new_zeros", "new_empty", halves=True)
def new_zeros(self: Tensor, size: Sizes, dtype: DType | None = None) -> Tensor:
    return new_full(self, size, 0, dtype)


@aten("arange.start_step", halves=True)
def arange(model: Model, start: Any, end: Any, step: Any = 1, dtype: DType | None = None) -> Tensor:
    if all(isinstance(v, int | Expr) for v in (start, end, step)):
        return model.arange(start, end, step)
    count = max(math.ceil((end - start) / step), 0)
    return _spaced(model, count, start, step)


@aten("arange", halves=True)
def arange_to(model: Model, end: Any, dtype: DType | None = None) -> Tensor:
    return arange(model, 0, end)


@aten("arange.start", halves=True)
def arange_from(model: Model, start: Any, end: Any, dtype: DType | None = None) -> Tensor:
    return arange(model, start, end)


@aten("linspace", halves=True)
def linspace(model: Model, start: Any, end: Any, steps: int, dtype: DType | None = None) -> Tensor:
    return _spaced(model, steps, start, (end - start) / max(steps - 1, 1))


def _spaced(model: Model, count: int, start: float, step: float) -> Tensor:
    """``start + i * step`` in f64."""
    return model.arange(count).to(DType.F64) * float(step) + float(start)


@aten("eye", "eye.m", halves=True)
def eye(model: Model, n: Extent, m: Extent | None = None, dtype: DType | None = None) -> Tensor:
    return model.eye(n, m, dtype or DType.F32)
