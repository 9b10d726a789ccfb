"""Tensors whose rows are blocks of bytes, as GGUF has them, in parts: levels, scales and minima.

A value is ``(scales * factors) * levels + (mins * offsets)`` in f32, where a part that a layout
does not have counts as 1, and both last ones as 0. The order makes the values those of ggml, bit
for bit. All arrays here are ``[.., blocks, elements of a block]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lumc.graph.derive import LAYOUTS

Array = np.ndarray[Any, Any]


def part_of(layout: str, part: str, rows: Array) -> Array:
    """One part [.., n] of rows of blocks u8[.., nbytes]; one element for ``each`` of a row."""
    shape = LAYOUTS[layout]
    blocks = rows.reshape(*rows.shape[:-1], -1, shape.nbytes)
    made = _PARTS[layout][part](blocks)
    return np.ascontiguousarray(made).reshape(*rows.shape[:-1], -1)


def dequantised(layout: str, rows: Array) -> Array:
    """The f32 values of rows of blocks."""
    known = LAYOUTS[layout].parts

    def spread(part: str) -> Array:
        return np.repeat(part_of(layout, part, rows).astype(np.float32), known[part].each, -1)

    def product(first: str, second: str) -> Array:
        return spread(first) * spread(second) if second in known else spread(first)

    values: Array = product("scales", "factors") * spread("levels")
    return values + product("mins", "offsets") if "mins" in known else values


# ---- where the parts lie in a block


def _halves(at: int, sign: int = 1) -> Callable[[Array], Array]:
    """The f16 at a byte, with this sign."""

    def made(b: Array) -> Array:
        found: Array = np.ascontiguousarray(b[..., at : at + 2]).view("<f2")
        return -found if sign < 0 else found

    return made


def _bytes(start: int, end: int) -> Callable[[Array], Array]:
    """Signed bytes."""
    return lambda b: np.ascontiguousarray(b[..., start:end]).view(np.int8)


def _bits(b: Array, width: int, run: int) -> Array:
    """Bytes in runs; of every run first the lowest bits of all its bytes, then the next ones."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    parts: Array = b.reshape(*b.shape[:-1], -1, 1, run) >> shifts & np.uint8((1 << width) - 1)
    return parts.reshape(*b.shape[:-1], -1)


def _nibbles(at: int) -> Callable[[Array], Array]:
    """32 levels of 4 bits."""
    return lambda b: _bits(b[..., at : at + 16], 4, 16)


def _fives(at: int) -> Callable[[Array], Array]:
    """32 levels of 5 bits: their highest ones in four bytes, then the others as nibbles."""

    def made(b: Array) -> Array:
        high = np.unpackbits(b[..., at : at + 4], axis=-1, bitorder="little")
        both: Array = _nibbles(at + 4)(b) | high << np.uint8(4)
        return both

    return made


def _signed(levels: Callable[[Array], Array], zero: int) -> Callable[[Array], Array]:
    """Levels that count from ``zero``."""

    def made(b: Array) -> Array:
        found: Array = levels(b).astype(np.int8) - np.int8(zero)
        return found

    return made


def _sixes(part: int) -> Callable[[Array], Array]:
    """Of 12 bytes at 4 that hold 8 factors and 8 offsets of 6 bits, the ones or the others."""

    def made(b: Array) -> Array:
        low, high, rest = b[..., 4:8], b[..., 8:12], b[..., 12:16]
        own = (low, high)[part]
        last = (rest & np.uint8(15), rest >> np.uint8(4))[part]
        return np.concatenate([own & np.uint8(63), last | own >> np.uint8(2) & np.uint8(48)], -1)

    return made


def _five_k(b: Array) -> Array:
    """256 levels of 5 bits: the highest ones in 32 bytes, then the others as nibbles."""
    both: Array = _bits(b[..., 48:176], 4, 32) | _bits(b[..., 16:48], 1, 32) << np.uint8(4)
    return both


def _six_k(b: Array) -> Array:
    """256 levels of 6 bits: the lowest four in 128 bytes, the two others in 64."""
    both: Array = _bits(b[..., :128], 4, 64) | _bits(b[..., 128:192], 2, 32) << np.uint8(4)
    return both


def _three_k(b: Array) -> Array:
    """256 levels of 3 bits: the lowest two in 64 bytes, the complement of the highest in 32."""
    low: Array = _bits(b[..., 32:96], 2, 32)
    return low.astype(np.int8) - ((_bits(b[..., :32], 1, 32) ^ 1) << np.uint8(2)).astype(np.int8)


def _three_k_factors(b: Array) -> Array:
    """16 factors of 6 bits in 12 bytes: the lowest four in 8 of them, the others in 4."""
    both: Array = _bits(b[..., 96:104], 4, 8) | _bits(b[..., 104:108], 2, 4) << np.uint8(4)
    return both


def _four_xs_factors(b: Array) -> Array:
    """8 factors of 6 bits: the two highest in two bytes, the others as nibbles in 4."""
    low = _bits(b[..., 4:8], 4, 1)
    both: Array = low | _bits(b[..., 2:4], 2, 1) << np.uint8(4)
    return both


def _looked_up(levels: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Levels that name one of 16 numbers, which are not equally far apart."""
    return lambda b: _UNEVEN[levels(b)]


_UNEVEN = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
_K = {
    "factors": _sixes(0),
    "scales": _halves(0),
    "offsets": _sixes(1),
    "mins": _halves(2, -1),
}
_PARTS: dict[str, dict[str, Callable[[Array], Array]]] = {
    "q4_0": {"levels": _signed(_nibbles(2), 8), "scales": _halves(0)},
    "q4_1": {"levels": _nibbles(4), "scales": _halves(0), "mins": _halves(2)},
    "q5_0": {"levels": _signed(_fives(2), 16), "scales": _halves(0)},
    "q5_1": {"levels": _fives(4), "scales": _halves(0), "mins": _halves(2)},
    "q8_0": {"levels": _bytes(2, 34), "scales": _halves(0)},
    "q2_k": {
        "levels": lambda b: _bits(b[..., 16:80], 2, 32),
        "factors": lambda b: b[..., :16] & np.uint8(15),
        "scales": _halves(80),
        "offsets": lambda b: b[..., :16] >> np.uint8(4),
        "mins": _halves(82, -1),
    },
    "q3_k": {
        "levels": _three_k,
        "factors": _signed(_three_k_factors, 32),
        "scales": _halves(108),
    },
    "q4_k": {"levels": lambda b: _bits(b[..., 16:], 4, 32), **_K},
    "q5_k": {"levels": _five_k, **_K},
    "q6_k": {
        "levels": _signed(_six_k, 32),
        "factors": _bytes(192, 208),
        "scales": _halves(208),
    },
    "iq4_nl": {"levels": _looked_up(_nibbles(2)), "scales": _halves(0)},
    "iq4_xs": {
        "levels": _looked_up(lambda b: _bits(b[..., 8:], 4, 16)),
        "factors": _signed(_four_xs_factors, 32),
        "scales": _halves(0),
    },
}
