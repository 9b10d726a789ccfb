"""Weights in the layout that a kernel reads them in, which they get when a program is linked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Annotated, Any, NamedTuple

import msgspec

from lumc.graph.expr import Expr
from lumc.graph.ops import DType
from lumc.kernel.access import row_major
from lumc.kernel.codec import from_plain
from lumc.schedule.schedule import Positive

WORD = 32  # bits
Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 46)]


class Memory(NamedTuple):
    """How a packed copy lies in memory."""

    dtype: DType
    start: object  # the first element; or all that a packing says
    rows: tuple[tuple[int, int], ...]  # extent, step in the weight; lanes of panels last
    width: int  # of panels; 0: none
    bits: int  # of numbers in words; 0: an element each


@dataclass(frozen=True)
class Packing:
    """How a kernel wants a weight: ``value[axes] = weight[index]`` in ``dtype``, and with ``panel``
    (position of the lane axis, width) laid out as ``[ceil(lane / width)][other axes..][width]``,
    zero padded. Of numbers of few ``bits`` as many as fill it are one word, i32, in the order of
    ``step_order``, each as what it is above the least one that has so many bits. The index mentions
    only these axes; it sees the weight in ``shape``, of as many elements, where a kernel has dims
    of it as one. Raises ValueError (a panel along no axis, no whole words)."""

    weight: str
    dtype: DType
    index: tuple[Expr, ...]
    axes: tuple[tuple[str, Size], ...]  # (name, extent)
    panel: tuple[Size, Positive] | None
    shape: tuple[Size, ...] | None = None  # None: its own
    bits: Annotated[int, msgspec.Meta(ge=4, le=8, multiple_of=4)] | msgspec.UnsetType = (
        msgspec.UNSET
    )  # of numbers in words

    def __post_init__(self) -> None:
        if self.panel and self.panel[0] >= len(self.axes):
            raise ValueError(f"no axis for the panel {self.panel}")
        if self.bits and not self._has_words():
            raise ValueError(f"no whole words of numbers of {self.bits} bits")

    def _has_words(self) -> bool:
        steps = self.axes[-2][1] if len(self.axes) > 1 else 0
        panels = self.panel is not None and self.panel[0] == len(self.axes) - 1
        return (
            panels
            and self.dtype is DType.I32
            and WORD % (self.bits or 1) == 0 == steps % self.steps
        )

    @property
    def steps(self) -> int:
        """How many elements along the last axis but one, before the lanes, an element holds."""
        return WORD // self.bits if self.bits else 1

    @property
    def size(self) -> int:
        """Elements, the zeros that fill the last panel included."""
        extents = [n for _, n in self.axes]
        if self.panel:
            lane, width = self.panel
            extents[lane] = -(-extents[lane] // width) * width
        return prod(extents) // self.steps

    @property
    def memory(self) -> Memory:
        """Equal where packed copies of a weight are: axes that lie in one row count as one. Words
        are whole along any part of a row, so they are the same ones."""
        width, bits = self.panel[1] if self.panel else 0, self.bits or 0
        read = None if self.shape is None else row_major(self.index, self.shape)
        if read is None or read.irregular:
            return Memory(self.dtype, replace(self, weight=""), (), width, bits)
        steps = [(n, read.stride(a)) for a, n in self.axes]
        lane = [steps.pop(self.panel[0])] if self.panel else []
        rows = list[tuple[int, int]]()
        for n, step in (pair for pair in steps if pair[0] > 1):
            joins = bool(rows) and rows[-1][1] == n * step
            rows[-1:] = [(rows[-1][0] * n, step)] if joins else [*rows[-1:], (n, step)]
        return Memory(self.dtype, read.start, (*rows, *lane), width, bits)

    def seen(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that the index sees of a weight of this shape. Raises ValueError."""
        if self.shape is not None and prod(self.shape) != prod(shape):
            raise ValueError(f"'{self.weight}' has another size than its packing")
        return shape if self.shape is None else self.shape


def step_order(bits: int) -> tuple[int, ...]:
    """Which step each number of a word is, lowest bits first: those of four neighbours are in the
    same bits of its four bytes, as instructions that multiply bytes want them."""
    each = 8 // bits
    return tuple(i // each + WORD // 8 * (i % each) for i in range(WORD // bits))


def least_of(bits: int, kind: DType) -> int:
    """The least number of a dtype that so many bits tell."""
    return -(1 << bits - 1) if kind is DType.I8 else 0


def packings_from(rows: Iterable[Mapping[str, Any]]) -> dict[str, Packing]:
    """Packings by the names that they have beside their fields."""
    return {
        str(row["name"]): from_plain(Packing, {k: v for k, v in row.items() if k != "name"})
        for row in rows
    }
