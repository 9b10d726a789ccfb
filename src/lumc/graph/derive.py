"""Weights that are not stored as they are read: rounded to a narrower float, or quantised.

Quantised weights are two tensors of one in a file: in blocks of consecutive elements along an axis,
``scale = max |w| / 127`` in f32 and ``level = round(w / scale)`` in i8, ties to even. A block of
zeros has scale 0.
"""

from __future__ import annotations

from lumc.graph.graph import Derivation, Node, fail
from lumc.graph.ops import DType

PARTS = {"levels": DType.I8, "scales": DType.F32}


def check_derivation(node: Node, how: Derivation) -> None:
    """Check dtypes, axis and block of a weight that is made so; raises E0101."""
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
