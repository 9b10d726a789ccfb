"""Integers: quotients, powers, and their bits in two's complement."""

from __future__ import annotations

from collections.abc import Callable

from lumc.frontend.api.elementwise import broadcast_shapes, eq, where
from lumc.frontend.api.value import V
from lumc.graph.ops import UNSIGNED, DType

LARGEST = {DType.I64: 2.0**63 - 2.0**10, DType.U64: 2.0**64 - 2.0**11}  # f64 below the end


def quotient(a: V, b: V) -> V:
    """Of ints towards zero, exactly."""
    whole = a - a.fmod(b)
    scale = b.to(DType.F64).reciprocal()
    near = (whole.to(DType.F64) * scale).round()
    if a.dtype.nbytes < 8:
        return near.to(a.dtype)
    first = near.minimum(LARGEST[a.dtype]).to(a.dtype)
    # beyond 2**53 it is close, not exact
    rest = (whole - first * b).to(DType.I64)
    return first + (rest.to(DType.F64) * scale).round().to(DType.I64).to(a.dtype)


def power(x: V, y: V) -> V:
    """A power of ints, by squaring; one of a negative exponent is towards zero."""
    result, square, size = x.lift(1), x, y.abs()
    for bit in range(6):  # larger exponents overflow every integer type
        odd = size.remainder(2 << bit) >= 1 << bit
        result, square = result * where(odd, square, 1), square * square
    vanishes = (y < 0) & (~eq(x.abs(), 1))
    return where(vanishes, 0, result)


def _bits(dtype: DType) -> int:
    return 8 * dtype.nbytes


def bitwise(a: V, b: V, pick: Callable[[V, V], V]) -> V:
    """Bit by bit, as sums of powers of two: those that ``pick`` gives for the bits of both."""
    terms = list[V]()
    for bit in range(_bits(a.dtype)):
        chosen = pick(_bit(a, bit), _bit(b, bit))
        terms.append(where(chosen, a.lift(_weight(a.dtype, bit)), a.lift(0)))
    return sum(terms[1:], terms[0])


def _weight(dtype: DType, bit: int) -> int:
    """What a set bit adds, in two's complement."""
    last = bit == _bits(dtype) - 1 and dtype not in UNSIGNED
    return -(1 << bit) if last else 1 << bit


def _bit(x: V, bit: int) -> V:
    """Whether a bit is set, in two's complement."""
    top = _bits(x.dtype) - 1
    unsigned = x.dtype in UNSIGNED
    if bit == top:
        return x >= 1 << top if unsigned else x < 0
    low = x.fmod(1 << top) if unsigned else where(x < 0, x + -(1 << top), x)
    return (low if bit == top - 1 else low.fmod(2 << bit)) >= 1 << bit


def shift(x: V, y: V, left: bool) -> V:
    """By the powers of two in the amount, one after the other; signed integers keep their sign. An
    amount that is negative, or as large as the width, shifts everything out."""
    width = _bits(x.dtype)
    beyond = (y < 0) | (width <= y)
    amount = where(beyond, width - 1, y)
    out = x.expand(*broadcast_shapes(x, x.shape, y.shape))
    for place in range(width.bit_length() - 1):
        step = 1 << (1 << place)
        moved = out * step if left else quotient(out - out.remainder(step), out.lift(step))
        out = where(_bit(amount, place), moved, out)
    signed = x.dtype not in UNSIGNED
    return out if signed and not left else where(beyond, 0, out)
