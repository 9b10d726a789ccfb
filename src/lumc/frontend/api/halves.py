"""Floats of 16 bits that are computed with in f32, and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from lumc.frontend.api.tensor import Tensor
from lumc.graph.ops import DType

Function = Callable[..., Any]
HALVES = (DType.F16, DType.BF16)


def in_f32(function: Function) -> Function:
    """Compute on f32 where inputs are f16 or bf16, and round the results once."""

    @wraps(function)
    def widened(*inputs: Any, **attributes: Any) -> Any:
        halves: list[DType] = [x.dtype for x in inputs if _is_half(x)]
        if not halves:
            return function(*inputs, **attributes)

        def narrow(x: Any) -> Any:
            return x.to(halves[0]) if isinstance(x, Tensor) and x.dtype is DType.F32 else x

        wide = [x.to(DType.F32) if _is_half(x) else x for x in inputs]
        attributes = {n: x.to(DType.F32) if _is_half(x) else x for n, x in attributes.items()}
        result = function(*wide, **attributes)
        return tuple(map(narrow, result)) if isinstance(result, tuple) else narrow(result)

    return widened


def _is_half(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in HALVES
