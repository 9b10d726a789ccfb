"""Weights that are not stored as they are read: rounded to a narrower float, or quantised.

Quantised weights are two tensors of one in a file: in blocks of consecutive elements along an axis,
``scale = max |w| / 127`` in f32 and ``level = round(w / scale)`` in i8, ties to even. A block of
zeros has scale 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lumc.graph.graph import Derivation, Node, fail
from lumc.graph.ops import DType, from_bf16, to_bf16

Array = npt.NDArray[Any]
PARTS = {"levels": DType.I8, "scales": DType.F32}
LARGEST = 127


def check_derivation(node: Node, how: Derivation) -> None:
    """Dtypes, axis and block; raises E0101."""
    if not how.dtype.is_float:
        fail(node, f"made from {how.dtype}, which is no float")
    if how.part:
        rank, kind = len(node.shape), PARTS[how.part]
        if node.dtype is not kind:
            fail(node, f"{how.part} are {kind}, declared {node.dtype}")
        if not 0 <= how.axis < rank or how.block < 1:
            fail(node, f"blocks of {how.block} along axis {how.axis} of {rank}")
        size = node.shape[how.axis]
        if how.part == "levels" and isinstance(size, int) and size % how.block:
            fail(node, f"blocks of {how.block} do not fill axis {how.axis} of extent {size}")
    elif not node.dtype.is_float or node.dtype is how.dtype:
        fail(node, f"made from {how.dtype}, declared {node.dtype}")


def source_shape(node: Node, how: Derivation) -> tuple[int, ...]:
    """The shape of the tensor in the file."""
    shape = list(node.sizes)
    if how.part == "scales":
        shape[how.axis] *= how.block
    return tuple(shape)


def derive(node: Node, how: Derivation, stored: Array) -> Array:
    """The values of a weight (bf16: bits) from the tensor in the file; E0101 for inf and NaN in
    what is quantised. Values beyond the range of f16 become inf, as in numpy."""
    values = from_bf16(stored) if how.dtype is DType.BF16 else stored
    if not how.part:
        with np.errstate(over="ignore"):
            return to_bf16(values) if node.dtype is DType.BF16 else values.astype(node.dtype.numpy)
    shape = (*values.shape[: how.axis], -1, how.block, *values.shape[how.axis + 1 :])
    blocks = np.asarray(values, np.float32).reshape(shape)
    if not np.isfinite(blocks).all():
        fail(node, "cannot be quantised: it has values that are inf or NaN")
    scales = np.abs(blocks).max(axis=how.axis + 1, keepdims=True) / np.float32(LARGEST)
    if how.part == "scales":
        return np.asarray(scales.squeeze(how.axis + 1))
    with np.errstate(all="ignore"):  # 0 / 0; the largest of a block of denormals
        levels = np.rint(blocks / np.where(scales > 0, scales, 1))
    return levels.clip(-LARGEST, LARGEST).astype(np.int8).reshape(values.shape)
