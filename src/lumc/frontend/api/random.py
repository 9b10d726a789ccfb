"""Random numbers that count: the n-th number of a seed is a function of n, and no state is kept.

Squares (B. Widynski, "Squares: a fast counter-based RNG", arXiv 2004.06278): four rounds of a
square and a sum modulo 2**64, and rotations by half a word between them. The twelve primitives have
no shifts. A half of a word moves down through a float, 16 bits at a time, which f32 holds exactly:
so the bits are the same on every machine, also where there is no f64.
"""

from __future__ import annotations

import math

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.tensor import Tensor
from lumc.graph.ops import DType

WORD, HALF = 1 << 64, 1 << 32


def key_of(seed: int) -> int:
    """An odd key of 64 bits, irregular as Squares needs it: SplitMix64 of the seed (G. Steele et
    al., "Fast splittable pseudorandom number generators", 2014)."""
    z = (seed + 1) * 0x9E3779B97F4A7C15 % WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return (z ^ (z >> 31)) | 1


def bits(counter: Tensor, seed: int = 0) -> Tensor:
    """u32 of the shape of ``counter``, integers of any dtype, all 32 bits random. Raises E0124 for
    other dtypes."""
    word = _word(counter, seed)
    return _upper(word).to(DType.U32)


def uniform(counter: Tensor, seed: int = 0, low: float = 0.0, high: float = 1.0) -> Tensor:
    """f32 of the shape of ``counter``, evenly distributed over ``low <= x < high`` in steps of
    2**-24 of the distance (``high`` itself may come where the sum rounds up to it)."""
    word = _word(counter, seed)
    unit = (word - word.fmod(1 << 40)).to(DType.F32) * (1.0 / WORD)  # the upper 24 bits, exactly
    return unit if (low, high) == (0.0, 1.0) else unit * (high - low) + low


def normal(counter: Tensor, seed: int = 0, mean: float = 0.0, deviation: float = 1.0) -> Tensor:
    """f32 of the shape of ``counter``, normally distributed (Box and Muller), at most 5.8
    deviations off. It takes the numbers ``2 * counter`` and ``2 * counter + 1`` of the seed."""
    first = counter.to(DType.U64) * 2
    radius = ((1.0 - uniform(first, seed)).log() * -2.0).sqrt()
    unit = radius * (uniform(first + 1, seed) * (2.0 * math.pi)).cos()
    return unit if (mean, deviation) == (0.0, 1.0) else unit * deviation + mean


def dropout(x: Tensor, rate: float, counter: Tensor, seed: int = 0) -> Tensor:
    """``x`` with a share ``rate`` of its elements zero and the others divided by ``1 - rate``. It
    takes the numbers of the seed from ``counter``, an integer of shape (), on: one an element."""
    if not 0 <= rate < 1:
        raise x.refuse("E0124", f"a rate of {rate}: it is at least 0 and below 1")
    place = x.model.full((), 0, DType.I64)
    for i, n in enumerate(x.shape):
        along = x.model.arange(n).reshape(-1, *[1] * (x.ndim - 1 - i))
        place = place * x.model.size(n, DType.I64) + along
    kept = uniform(counter.to(DType.I64) + place, seed) >= rate
    return where(kept, x * (1.0 / (1.0 - rate)), 0.0)


def _word(counter: Tensor, seed: int) -> Tensor:
    """u64: the word whose upper half is the number."""
    if not counter.dtype.is_int:
        raise counter.refuse(
            "E0124", f"random numbers are counted by integers, not {counter.dtype}"
        )
    key = key_of(seed)
    y = counter.to(DType.U64) * key
    z = y + key
    x = _turned(y * y + y)
    x = _turned(x * x + z)
    x = _turned(x * x + y)
    return x * x + z


def _upper(x: Tensor) -> Tensor:
    """The upper 32 bits of a u64, as a u64."""
    top, rest = x - x.fmod(1 << 48), x.fmod(1 << 48)
    middle = rest - rest.fmod(HALF)
    down = 1.0 / HALF
    return (top.to(DType.F32) * down).to(DType.U64) + (middle.to(DType.F32) * down).to(DType.U64)


def _turned(x: Tensor) -> Tensor:
    """A u64 whose halves have changed places."""
    return x * HALF + _upper(x)
