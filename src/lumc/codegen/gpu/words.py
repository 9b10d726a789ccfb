"""Weights whose values few bits tell apart: kernels of GPUs read them as words, in their own order.

Whoever reads a weight, in whatever shape, finds one copy of it. How a word is put together is the
business of ``Packing``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from lumc.codegen.tile.packing import WORD, Packing, least_of
from lumc.graph.expr import Expr, add, axis, linear, mul, num
from lumc.graph.ops import DType
from lumc.kernel.term import Kernel

BYTES, NIBBLE = WORD // 8, 4  # of a word; bits


def words_of(kernel: Kernel) -> Mapping[str, Packing]:
    """What the arguments hold in the place of these buffers."""
    out = dict[str, Packing]()
    for b in kernel.buffers:
        if b.bits != NIBBLE or not b.constant or b.name in kernel.stored:
            continue
        steps, size = WORD // NIBBLE, prod(b.shape)
        if size and size % steps == 0:
            axes = (("k", steps), ("n", size // steps))
            index = axis("n"), axis("k")
            shape = size // steps, steps
            out[b.name] = Packing(b.name, DType.I32, index, axes, (1, 1), shape, NIBBLE)
    return out


def element_bytes(packing: Packing | None, kind: DType) -> float:
    """Bytes of memory for an element, which may lie in words."""
    return BYTES / packing.steps if packing else kind.nbytes


def parted(index: Expr, steps: int) -> tuple[Expr, Expr]:
    """An index in words of so many numbers, and what is left over; that is below a word unless an
    axis or a dim moves it."""
    constant, atoms = linear(index)
    whole, rest = num(constant // steps), num(constant % steps)
    for a, n in atoms.items():
        if n % steps:
            rest = add(rest, mul(a, n))
        else:
            whole = add(whole, mul(a, n // steps))
    return whole, rest


def shifted(word: str, at: str, packing: Packing) -> str:
    """A word with the number in front that ``at`` counts to from its first."""
    return word if at == "0" else f"({word} >> ({_shift(at, packing)}))"


def taken(word: str, at: str, packing: Packing, kind: DType) -> str:
    """The text of a number of a word, or of a ``shifted`` one: ``at`` counts from its first."""
    bits = WORD // packing.steps
    least = f" - {1 << bits - 1}" * (kind is DType.I8)
    return f"((lumc_i32)({word} >> ({_shift(at, packing)}) & {(1 << bits) - 1}){least})"


def as_float(word: str, at: str, kind: DType) -> str:
    """The same as a float."""
    return f"lumc_nibble({word}, {at}, {-least_of(NIBBLE, kind)})"


def _shift(at: str, packing: Packing) -> str:
    """Where a number lies: those of four neighbours are in the same bits of four bytes."""
    bits, high = WORD // packing.steps, packing.steps // BYTES - 1
    return f"(({at}) & {BYTES - 1}) * 8 + (({at}) >> {log(BYTES)} & {high}) * {bits}"


def log(power: int) -> int:
    return power.bit_length() - 1
