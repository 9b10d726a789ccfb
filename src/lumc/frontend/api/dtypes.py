"""Dtypes by the names that numpy and people have for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from lumc.frontend.api.refusal import refuse
from lumc.graph.ops import DTYPES, DType, to_bf16


def as_dtype(value: DType | str | np.dtype[Any] | type) -> DType:
    """A dtype by name (``f32``, ``float32``), from numpy, or as it is."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in DTYPES:  # to numpy u8 and i8 are of 8 bytes
        return DTYPES[value]
    for d in DType:
        if d is not DType.BF16 and _numpy_name(value) == d.numpy.name:
            return d
    if value == "bfloat16":
        return DType.BF16
    known = ", ".join(d.value for d in DType)
    raise refuse("E0123", f"dtype {value!r} is not supported", fix=f"one of: {known}")


def as_array(value: Any, kind: DType) -> np.ndarray[Any, Any]:
    """The elements of an array as a file has them: of bf16 the bits, of floats or as they are."""
    array = np.asarray(value)
    if kind is DType.BF16:
        return array if array.dtype == np.uint16 else to_bf16(array)
    return np.ascontiguousarray(array, dtype=kind.numpy).reshape(array.shape)


def _numpy_name(value: object) -> str:
    try:
        return np.dtype(value).name  # type: ignore[call-overload]
    except TypeError:
        return ""
