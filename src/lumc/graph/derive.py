"""Weights that are not stored as they are read: rounded to a narrower float, or quantised.

Of a tensor of floats, quantised weights are two tensors: in blocks of consecutive elements along an
axis, ``scale = max |w| / 127`` in f32 and ``level = round(w / scale)`` in i8, ties to even. A block
of zeros has scale 0. Of a tensor that is quantised in its file they are the parts of its layout, or
the numbers of 4 bits in its words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lumc.graph.graph import Derivation, Node, fail
from lumc.graph.ops import DType

WORDS = {  # of 8 numbers along an axis: which 4 bits each of them has
    "nibbles": (0, 1, 2, 3, 4, 5, 6, 7),
    "interleaved": (0, 4, 1, 5, 2, 6, 3, 7),
}
NIBBLE = 4  # bits
PARTS = {"levels": DType.I8, "scales": DType.F32} | dict.fromkeys(WORDS, DType.U8)


@dataclass(frozen=True)
class Part:
    """One tensor of several that a quantised one is stored as."""

    dtype: DType
    each: int  # elements of a row that share one of it
    bits: int = 0  # that tell its values, if fewer than the dtype has


@dataclass(frozen=True)
class Layout:
    """How a row of a tensor lies in a file, in blocks; a value is
    ``(scales * factors) * levels + (mins * offsets)``."""

    elements: int  # of a block
    nbytes: int  # of a block
    parts: Mapping[str, Part]


def _flat(nbytes: int, level: DType, bits: int = 0) -> Layout:
    """32 levels, one scale and, where levels are unsigned, one minimum."""
    half = Part(DType.F16, 32)
    ends = {"mins": half} if level is DType.U8 else {}
    return Layout(32, nbytes, {"levels": Part(level, 1, bits), "scales": half, **ends})


def _nested(nbytes: int, level: DType, each: int, bits: int = 0) -> Layout:
    """256 levels; scales and minima have integer factors and offsets for every few of them."""
    half, fine = Part(DType.F16, 256), Part(level, each)
    ends = {"offsets": fine, "mins": half} if level is DType.U8 else {}
    levels = Part(level, 1, bits)
    return Layout(256, nbytes, {"levels": levels, "factors": fine, "scales": half, **ends})


LAYOUTS = {
    "q4_0": _flat(18, DType.I8, bits=NIBBLE),
    "q4_1": _flat(20, DType.U8, bits=NIBBLE),
    "q5_0": _flat(22, DType.I8),
    "q5_1": _flat(24, DType.U8),
    "q8_0": _flat(34, DType.I8),
    "q2_k": _nested(84, DType.U8, 16, bits=NIBBLE),
    "q3_k": _nested(110, DType.I8, 16, bits=NIBBLE),
    "q4_k": _nested(144, DType.U8, 32, bits=NIBBLE),
    "q5_k": _nested(176, DType.U8, 32),
    "q6_k": _nested(210, DType.I8, 16),
    "iq4_nl": _flat(18, DType.I8),
    "iq4_xs": _nested(136, DType.I8, 32),
}


def bits_of(node: Node) -> int:
    """How many bits tell the values of a weight, if fewer than its dtype has; else 0."""
    if node.how is None:
        return 0
    if node.how.layout:
        return LAYOUTS[node.how.layout].parts[node.how.part].bits
    return NIBBLE if node.how.part in WORDS else 0


def check_derivation(node: Node, how: Derivation) -> None:
    """Check dtypes, axis and block of a weight that is made so; raises E0101."""
    words = how.part in WORDS
    if how.layout:
        _check_part(node, how)
    elif words and (how.dtype is not DType.I32 or how.block != 8):
        fail(node, f"made from {how.dtype} by {how.block}, where words are i32 by 8")
    elif not words and not how.dtype.is_float:
        fail(node, f"made from {how.dtype}, which is no float")
    elif how.part:
        rank, kind = len(node.shape), PARTS[how.part]
        if node.dtype is not kind:
            fail(node, f"{how.part} are {kind}, declared {node.dtype}")
        if not 0 <= how.axis < rank or how.block < 1:
            fail(node, f"blocks of {how.block} along axis {how.axis} of {rank}")
        size = node.shape[how.axis]
        if how.part != "scales" and isinstance(size, int) and size % how.block:
            fail(node, f"blocks of {how.block} do not fill axis {how.axis} of extent {size}")
    elif not node.dtype.is_float or node.dtype is how.dtype:
        fail(node, f"made from {how.dtype}, declared {node.dtype}")


def _check_part(node: Node, how: Derivation) -> None:
    """A part of a layout has its dtype, and rows of whole blocks."""
    layout = LAYOUTS[how.layout]
    part = layout.parts.get(how.part)
    if part is None:
        fail(node, f"{how.layout} has no {how.part}, but {', '.join(layout.parts)}")
    if node.dtype is not part.dtype:
        fail(node, f"{how.part} of {how.layout} are {part.dtype}, declared {node.dtype}")
    row = node.shape[-1] if node.shape else 0
    if not isinstance(row, int) or row < 1 or row * part.each % layout.elements:
        fail(node, f"rows of {row} {how.part} are no whole blocks of {how.layout}")
