"""Random numbers that a counter chooses, the same ones on every target.

Widynski's Squares ("Squares: A Fast Counter-Based RNG", arXiv 2004.06278): the counter times a key
is squared four times, and the halves of the word change places in between. Wrapping products and
sums of 64 bits do that, with ``mod`` for a half. The other half comes by a float, exactly: what is
above the low half is two numbers of 16 bits, each times a power of two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from lumc.frontend.api.elementwise import select
from lumc.frontend.api.model import Model
from lumc.frontend.api.refusal import refuse
from lumc.frontend.api.tensor import Tensor
from lumc.graph.dim import Extent
from lumc.graph.graph import shape_text
from lumc.graph.ops import DType

HALF = 1 << 32
MASK = (1 << 64) - 1
DIGITS = 8  # of each half of a key


def key(seed: int) -> int:
    """The key of a seed: halves of 32 bits with eight different hexadecimal digits each, none of
    them 0, and odd, as the paper asks for. The first digit is below 8, as constants of graphs are
    below 2^63. The digits are drawn by splitmix64."""
    state, out = seed & MASK, 0
    for half in range(2):
        digits = list(range(1, 16))
        for i in range(DIGITS):
            state = (state + 0x9E3779B97F4A7C15) & MASK
            left = digits[i:]
            if half == 0 and i == 0:
                left = [d for d in left if d < 8]
            if half == 1 and i == DIGITS - 1:
                left = [d for d in left if d % 2]
            at = digits.index(left[_mixed(state) % len(left)])
            digits[i], digits[at] = digits[at], digits[i]
            out = out << 4 | digits[i]
    return out


def _mixed(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def _parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The low 32 bits of u64, u64; the next 16 of them times 2^32, i64; the last 16 as f32, times
    2^16. A part of 16 bits is exact in f32."""
    low, lower = x.fmod(HALF), x.fmod(1 << 48).to(DType.I64)
    middle = lower - low.to(DType.I64)
    top = _scaled(x.to(DType.I64) - lower)  # with the sign of the highest bit
    return low, middle, top + select(top < 0.0, top.lift(float(HALF)))


def _turned(x: Tensor) -> Tensor:
    """The halves in each other's place."""
    low, middle, top = _parts(x)
    return low * HALF + _scaled(middle).to(DType.U64) + top.to(DType.U64)


def _scaled(part: Tensor) -> Tensor:
    """16 bits of i64, times 2^-32: exact in f32."""
    return part.to(DType.F32) * (1.0 / HALF)


def _word(counter: Tensor, seed: int) -> Tensor:
    """The last square, whose upper half is the number."""
    y = counter.to(DType.U64) * key(seed)
    z = y + key(seed)
    x = _turned(y * y + y)
    x = _turned(x * x + z)
    x = _turned(x * x + y)
    return x * x + z


def bits(counter: Tensor, seed: int = 0) -> Tensor:
    """32 random bits for every counter, an integer: i64, 0 to 2^32 - 1."""
    _, middle, top = _parts(_word(counter, seed))
    return _scaled(middle).to(DType.I64) + top.to(DType.I64)


def uniform(counter: Tensor, seed: int = 0) -> Tensor:
    """A number of [0, 1) for every counter, an integer: f32, a multiple of 2^-24."""
    _, middle, top = _parts(_word(counter, seed))
    kept = middle - middle.fmod(1 << 40)
    return (top + _scaled(kept)) * (1.0 / HALF)


def normal(counter: Tensor, seed: int = 0) -> Tensor:
    """A normal number, of mean 0 and variance 1, for every counter: f32. Those of the counters 2 c
    and 2 c + 1 are made of the same two uniform ones (Box and Muller)."""
    half = counter.to(DType.I64)
    odd = half.remainder(2)
    u, v = uniform(half - odd, seed), uniform(half - odd + 1, seed)
    size = ((1.0 - u).log() * -2.0).sqrt()  # 1 - u is never 0
    angle = v + odd.to(DType.F32) * 0.25  # in turns; the cosine is a quarter of one ahead
    return size * (angle * (2.0 * math.pi)).sin()


@dataclass
class Generator:
    """A source of random numbers for one entry of a model, other ones in every run.

    A state of this name counts the runs, i64[], from 0; it is saved and restored as others are, so
    a training that goes on has the numbers that it would have had. Number i of a run, of at most
    2^32 in the order in which the model asks for them, has the counter ``runs * 2^32 + i``. With
    the same ``seed`` the same bits come on every target.
    """

    model: Model
    seed: int = 0
    name: str = "random"
    drawn: int = field(default=0, init=False)  # numbers of a run so far
    _runs: Tensor = field(init=False)
    _entry: int = field(init=False)  # how many entries are before it

    def __post_init__(self) -> None:
        self._runs = self.model.state(self.name, (), "i64")
        self.model.update(self._runs, self._runs + 1)
        self._entry = len(self.model.builder.entries)

    def counters(self, *shape: Extent) -> Tensor:
        """The counters of the next numbers: i64 of this shape, which is known. Raises E0125,
        E0126 (an entry that did not make the generator)."""
        if len(self.model.builder.entries) != self._entry:
            fix = "make one for every entry that draws numbers"
            raise refuse("E0126", f"the generator '{self.name}' belongs to another entry", fix=fix)
        sizes = [e for e in shape if isinstance(e, int)]
        if len(sizes) < len(shape):
            fix = "give it numbers: how many are drawn is known when the model is written"
            raise refuse("E0125", f"random numbers of the shape {shape_text(shape)}", fix=fix)
        at = self.model.arange(math.prod(sizes)).reshape(*sizes)
        first, self.drawn = self.drawn, self.drawn + math.prod(sizes)
        return self._runs * HALF + (at + first)

    def bits(self, *shape: Extent) -> Tensor:
        """i64, each one of 0 to 2^32 - 1 equally often."""
        return bits(self.counters(*shape), self.seed)

    def uniform(self, *shape: Extent) -> Tensor:
        """f32 of [0, 1)."""
        return uniform(self.counters(*shape), self.seed)

    def normal(self, *shape: Extent) -> Tensor:
        """f32 of mean 0 and variance 1. To rounding: logarithm and sine differ between targets."""
        self.drawn += self.drawn % 2
        return normal(self.counters(*shape), self.seed)

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """``x``, zero with the probability p, else divided by 1 - p. Raises E0126."""
        if not 0.0 <= p < 1.0:
            raise x.refuse("E0126", f"dropout with the probability {p}", "0 or more, below 1")
        if p == 0.0:
            return x
        kept = self.bits(*x.shape) >= round(p * HALF)
        return select(kept, x * (1.0 / (1.0 - p)))
