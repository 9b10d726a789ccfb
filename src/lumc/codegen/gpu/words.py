"""Weights whose values few bits tell apart: kernels of GPUs read them as words, in their own order.

Whoever reads a weight, in whatever shape, finds one copy of it. How a word is put together is the
business of ``Packing``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from lumc.codegen.tile.packing import WORD, Packing
from lumc.graph.expr import axis
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


def number(words: str, at: str, packing: Packing, kind: DType) -> str:
    """The text of one number."""
    return taken(_word(words, at, packing), at, packing, kind)


def shifted(words: str, at: str, packing: Packing) -> str:
    """The word of neighbours that begin at a multiple of their count: the first one is in front."""
    return f"{_word(words, at, packing)} >> ({_shift(at, packing)})"


def taken(word: str, at: str, packing: Packing, kind: DType) -> str:
    """The text of a number of a word, or of a ``shifted`` one: ``at`` counts from its first."""
    bits = WORD // packing.steps
    least = f" - {1 << bits - 1}" * (kind is DType.I8)
    return f"((lumc_i32)({word} >> ({_shift(at, packing)}) & {(1 << bits) - 1}){least})"


def _word(words: str, at: str, packing: Packing) -> str:
    """The word that a number is in, by a shift: no index is below 0, but a compiler that divides
    must think of it."""
    return f"{words}[({at}) >> {_log(packing.steps)}]"


def _shift(at: str, packing: Packing) -> str:
    """Where a number lies: those of four neighbours are in the same bits of four bytes."""
    bits, high = WORD // packing.steps, packing.steps // BYTES - 1
    return f"(({at}) & {BYTES - 1}) * 8 + (({at}) >> {_log(BYTES)} & {high}) * {bits}"


def _log(power: int) -> int:
    return power.bit_length() - 1
