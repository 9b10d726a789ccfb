"""Operations on constants are done at once: no node has only constants for operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lumc.graph.graph import Scalar
from lumc.graph.ops import DType, Op

UNARY: dict[Op, Callable[[Any], Any]] = {
    Op.LOG2: np.log2,
    Op.EXP2: np.exp2,
    Op.SIN: np.sin,
    Op.SQRT: np.sqrt,
    Op.RECIP: lambda x: np.float64(1.0) / x,
}
BINARY: dict[Op, Callable[[Any, Any], Any]] = {
    Op.ADD: np.add,
    Op.MUL: np.multiply,
    Op.MOD: np.fmod,
    Op.LT: np.less,
}


def fold(op: Op, scalars: Sequence[Scalar], dtype: DType) -> float | int | bool:
    """The value of a primitive on constants: floats in f64, ints in their width."""
    values = [s.value if s.dtype is DType.BOOL else _wide(s) for s in scalars]
    with np.errstate(all="ignore"):
        if op is Op.CONTIGUOUS:
            return cast(values[0], dtype)
        if op in UNARY:
            return float(UNARY[op](values[0]))
        if op is Op.MUL and scalars[0].dtype is DType.BOOL:
            return cast(values[1] if values[0] else 0, dtype)
        return cast(BINARY[op](*values), dtype)


def _wide(s: Scalar) -> Any:
    return np.float64(s.value) if s.dtype.is_float else np.asarray(s.value).astype(s.dtype.numpy)


def cast(value: Any, dtype: DType) -> float | int | bool:
    """As the cast of the primitives: truncation to ints, which wrap; nonzero to bool."""
    if dtype.is_float:
        return float(value)
    if dtype is DType.BOOL:
        return bool(value)
    if dtype is DType.U64 and isinstance(value, float) and 2.0**63 <= value < 2.0**64:
        return int(value)
    whole = np.asarray(np.trunc(value) if isinstance(value, float) else value)
    return int(whole.astype(np.int64).astype(dtype.numpy))
