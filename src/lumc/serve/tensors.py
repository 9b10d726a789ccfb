"""Tensors as the Open Inference Protocol writes them: names of dtypes, JSON numbers, bytes.

All of it comes from strangers: what is not exactly as declared is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Annotated, Any

import msgspec
import numpy as np

from lumc.graph.ops import DType
from lumc.serve.spec import Array

NAMES = {
    DType.BOOL: "BOOL",
    DType.U8: "UINT8",
    DType.U16: "UINT16",
    DType.U32: "UINT32",
    DType.U64: "UINT64",
    DType.I8: "INT8",
    DType.I16: "INT16",
    DType.I32: "INT32",
    DType.I64: "INT64",
    DType.F16: "FP16",
    DType.BF16: "BF16",
    DType.F32: "FP32",
    DType.F64: "FP64",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
MOST_RANK = 16


class Refused(Exception):
    """A request that cannot be answered: the HTTP status, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


def malformed(why: str) -> Refused:
    return Refused(400, why)


def dtype_of(name: str, tensor: str) -> DType:
    if name not in DTYPES:
        raise malformed(f"input '{tensor}': no datatype {name[:40]!r}; one of {', '.join(DTYPES)}")
    return DTYPES[name]


def of_bytes(data: Any, dtype: DType, shape: Sequence[int], name: str) -> Array:
    """Elements as they lie in memory, little endian and row-major."""
    if len(data) != prod(shape) * dtype.nbytes:
        what = f"{len(data)} bytes, and {dtype} {list(shape)} has {prod(shape) * dtype.nbytes}"
        raise malformed(f"input '{name}': {what}")
    if dtype is DType.BOOL and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise malformed(f"input '{name}': a BOOL is a byte of 0 or 1")
    return np.frombuffer(data, dtype.numpy).reshape(shape)


def of_json(data: bytes, dtype: DType, shape: Sequence[int], name: str) -> Array:
    """Numbers in one list, or in lists of lists as the shape has them."""
    if dtype is DType.BF16:
        raise malformed(f"input '{name}': BF16 travels as bytes only")
    depth = nested(data)
    if depth not in (1, len(shape)):
        raise malformed(f"input '{name}': data are a list, or lists of lists as shape says")
    try:
        numbers = decoder(dtype, depth).decode(data)
    except (msgspec.MsgspecError, RecursionError) as e:
        raise malformed(f"input '{name}': data: {e}") from None
    return of_numbers(numbers, dtype, shape, name)


def nested(text: bytes) -> int:
    """How many lists a text begins with."""
    start = text[: 4 * MOST_RANK].translate(None, b" \t\r\n")
    return len(start) - len(start.lstrip(b"["))


def of_numbers(numbers: Any, dtype: DType, shape: Sequence[int], name: str) -> Array:
    """Numbers of Python, in lists."""
    try:
        with np.errstate(over="ignore"):  # a number that is too large is an infinity
            found = np.array(numbers, dtype.numpy)
    except (ValueError, OverflowError, TypeError) as e:
        raise malformed(f"input '{name}': {e}") from None
    if found.size != prod(shape) or (found.ndim > 1 and found.shape != tuple(shape)):
        has = f"{found.size} numbers" if found.ndim == 1 else f"lists of {list(found.shape)}"
        raise malformed(f"input '{name}': {has}, and the shape is {list(shape)}")
    return found.reshape(shape)


@cache
def decoder(dtype: DType, depth: int) -> msgspec.json.Decoder[Any]:
    """Of lists of numbers that this dtype holds."""
    element: Any = float if dtype.is_float else bool
    if dtype.is_int:
        info: Any = np.iinfo(dtype.numpy.str)
        least, most = int(info.min), int(info.max)
        ends = msgspec.Meta(ge=least, le=most) if most < 1 << 63 else msgspec.Meta(ge=least)
        element = Annotated[int, ends]
    for _ in range(depth):
        element = list[element]
    return msgspec.json.Decoder(element)


def to_numbers(array: Array, dtype: DType) -> list[Any]:
    """All elements in one list, for JSON."""
    flat = array.reshape(-1)
    if dtype is DType.BF16:
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    numbers: list[Any] = flat.tolist()
    return numbers


def to_bytes(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()
