"""Operands that are made of levels: ``b = scale * level + shift``.

The levels are a weight of narrow numbers; scale and shift are made of weights that are the same for
all steps along one reduced axis, the *inner* one. So a contraction need not make b:

    sum_o sum_k a * (s_o * l + m_o)  =  sum_o (s_o * sum_k a * l + m_o * sum_k a)

All of these weights are laid out at link time as they are stored, in panels of a width that is not
a choice: whatever else schedules say, all that read a weight so read one copy of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from lumc.graph.expr import Expr, bound_axes, subterms
from lumc.graph.ops import DType
from lumc.kernel.access import gathers
from lumc.kernel.target import Target
from lumc.kernel.term import INDEX_KINDS, Kernel, binary, dtype, factors
from lumc.schedule.operands import NARROW, lanes, loaded, operands, product

LEVELS = (DType.I8, DType.U8)
PANEL = 4  # vectors of a panel, at most
FILLED = 1.05  # times the lanes of an axis that its panels have, at most, where that is possible
WORD = 32  # bits
KINDS = ("bin", "cast", "load", "const")
# ways to multiply levels: as floats; as integers with bytes, or with floats in digits
AS_LEVELS = ("narrow", "integers", "digits")
# The floats of a block are whole numbers of parts of the greatest of them: so many bits and a sign,
# which three signed digits of base 256 are (Ozaki, Ogita, Oishi, Rump, Error-free transformations
# of matrix multiplication by using fast routines of matrix multiplication, Numer. Algorithms 59,
# 2012), and as many as adding 1.5 * 2^23 rounds to.
DIGITS, DIGIT, FINE = 3, 8, 22
# vectors of sums for one of results, and the time of their products in multiply-adds of floats
OF_BYTES = {"integers": (1, 1 / 4), "digits": (DIGITS, DIGITS / 4)}
LONGEST = (1 << 31) // ((1 << DIGIT - 1) * ((1 << DIGIT) + 1))  # sum of levels that two digits fit


@dataclass(frozen=True)
class Levels:
    """The parts of an operand; ``scale`` is 1 and ``shift`` is 0 where there is none."""

    load: Expr
    inner: str
    scale: Expr | None = None
    shift: Expr | None = None

    @property
    def rest(self) -> tuple[Expr, ...]:
        """The terms beside the levels."""
        return tuple(e for e in (self.scale, self.shift) if e is not None)


def levels_of(kernel: Kernel, stage: Expr, lane: str) -> Levels | None:
    """The parts of operand b of the contraction with these lanes, if it is made of levels."""
    found, loads = _made_of(stage, lane)
    constant = all(kernel.buffer(e.attr[0]).constant for e in loads)
    free = frozenset[str]().union(*(e.free for e in loads))
    known = constant and free.isdisjoint(kernel.lengths.of)
    return next((f for f in found if known and _is_stored(kernel, f)), None)


@lru_cache(maxsize=1 << 12)
def _made_of(stage: Expr, lane: str) -> tuple[tuple[Levels, ...], tuple[Expr, ...]]:
    """The ways in which operand b may be levels, and what it loads."""
    split = operands(stage, lane) if stage.kind == "red" else None
    if split is None or dtype(stage) is not DType.F32:
        return (), ()
    values = [e for e in subterms(split[1]) if e.kind not in INDEX_KINDS]
    loads = tuple(e for e in values if e.kind == "load")
    known = all(lane in e.free and dtype(e) in (*NARROW, DType.F32) for e in loads)
    if not known or gathers(split[1]) or any(e.kind not in KINDS for e in values):
        return (), ()
    found = (_parts(split[1], inner) for inner in reversed(bound_axes(stage)))
    return tuple(f for f in found if f), loads


def in_memory(kernel: Kernel, load: Expr, axes: Iterable[str]) -> tuple[str, ...]:
    """Axes of a weight as they lie, outer first: kernels that differ elsewhere say the same."""
    read = kernel.access(load)
    return tuple(sorted(axes, key=lambda a: (-abs(read.stride(a)), a)))


def quantised(a: Expr, inner: str) -> tuple[Expr, Expr | None] | None:
    """What operand a is a product of, if it is signed bytes times what is the same along the inner
    axis."""
    parts = factors(a)
    own, rest = ([p for p in parts if (inner in p.free) == inside] for inside in (True, False))
    if len(own) != 1 or own[0].kind != "cast" or dtype(own[0].kids[0]) is not DType.I8:
        return None
    return own[0].kids[0], product(rest) if rest else None


def multiplies_integers(kernel: Kernel, stage: Expr, lane: str) -> bool:
    """May its levels be multiplied as integers, four bytes at once?"""
    found, split = levels_of(kernel, stage, lane), operands(stage, lane)
    if found is None or split is None or quantised(split[0], found.inner) is None:
        return False
    return kernel.extent[found.inner] % steps_of(kernel, found, "integers") == 0


def multiplies_digits(kernel: Kernel, stage: Expr, lane: str) -> bool:
    """May floats be multiplied with its levels as integers, digit by digit?"""
    found = levels_of(kernel, stage, lane)
    if found is None or multiplies_integers(kernel, stage, lane):
        return False
    bits, n = WORD // steps_of(kernel, found, "digits"), kernel.extent[found.inner]
    return n % (WORD // bits) == 0 and ((1 << bits) - 1) * n <= LONGEST


def multiplies_bytes(kernel: Kernel, stage: Expr, lane: str) -> bool:
    """Would its levels be multiplied as bytes where a target has instructions for that?"""
    return multiplies_integers(kernel, stage, lane) or multiplies_digits(kernel, stage, lane)


def steps_of(kernel: Kernel, levels: Levels, mode: str = "narrow") -> int:
    """How many steps along the inner axis are stored in one word; 1: each by itself. As integers
    bytes are multiplied in words, too."""
    bits = kernel.buffer(levels.load.attr[0]).bits or (WORD if mode == "narrow" else 8)
    return WORD // bits


def _is_stored(kernel: Kernel, found: Levels) -> bool:
    """Are they worth it, and whole words?"""
    steps = steps_of(kernel, found)
    return (len(found.rest) > 0 or steps > 1) and kernel.extent[found.inner] % steps == 0


def _parts(e: Expr, inner: str) -> Levels | None:
    """A term that goes along the inner axis as levels, times a scale and with a shift."""
    load = loaded(e, DType.F32)
    if load.kind == "load":
        return Levels(load, inner) if dtype(load) in LEVELS and inner in load.free else None
    if e.kind != "bin" or e.attr[0] not in ("add", "mul"):
        return None
    parts = list(e.kids) if e.attr[0] == "add" else factors(e)
    own = [p for p in parts if inner in p.free]
    rest = [p for p in parts if inner not in p.free]
    found = _parts(own[0], inner) if len(own) == 1 and rest else None
    if found is None:
        return None
    if e.attr[0] == "mul":
        by = product(rest)
        shift = found.shift and binary("mul", by, found.shift)
        return Levels(found.load, inner, _joined("mul", by, found.scale), shift)
    return Levels(found.load, inner, found.scale, _joined("add", rest[0], found.shift))


def _joined(op: str, a: Expr, b: Expr | None) -> Expr:
    return a if b is None else binary(op, a, b)


def panel_vectors(extent: int, width: int) -> int:
    """How many vectors the panels of an axis have: as many as fill with its lanes."""
    vectors = max(1, -(-extent // width))
    sizes = range(min(PANEL, vectors), 0, -1)
    filled = [n for n in sizes if -(-vectors // n) * n <= FILLED * vectors]
    return filled[0] if filled else 1


def panel_width(kernel: Kernel, stage: Expr, lane: str, target: Target) -> int:
    """Lanes of a panel of levels, and of what belongs to them."""
    width = lanes(target, dtype(stage))
    return panel_vectors(kernel.extent[lane], width) * width
