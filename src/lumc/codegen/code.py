"""The ``.lk`` artifact: printed kernels, the place of every value, the list of launches.

``generate`` makes it from a plan; ``link`` compiles it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any

import msgspec

from lumc.graph.expr import Expr
from lumc.graph.graph import Graph
from lumc.graph.ops import DType
from lumc.kernel.codec import from_plain
from lumc.kernel.target import Target
from lumc.schedule.schedule import Positive

Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 46)]


@dataclass(frozen=True)
class Packing:
    """How a kernel wants a weight: ``value[axes] = weight[index]`` in ``dtype``, and with ``panel``
    (position of the lane axis, width) laid out as ``[ceil(lane / width)][other axes..][width]``,
    zero padded. The index mentions only these axes; it sees the weight in ``shape``, of as many
    elements, where a kernel has dims of it as one."""

    weight: str
    dtype: DType
    index: tuple[Expr, ...]
    axes: tuple[tuple[str, Size], ...]  # (name, extent)
    panel: tuple[Size, Positive] | None
    shape: tuple[Size, ...] | None = None  # None: its own

    def __post_init__(self) -> None:
        if self.panel and self.panel[0] >= len(self.axes):
            raise ValueError(f"no axis for the panel {self.panel}")

    @property
    def size(self) -> int:
        """Elements, the zeros that fill the last panel included."""
        extents = [n for _, n in self.axes]
        if self.panel:
            lane, width = self.panel
            extents[lane] = -(-extents[lane] // width) * width
        return prod(extents)

    def seen(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that the index sees of a weight of this shape. Raises ValueError."""
        if self.shape is not None and prod(self.shape) != prod(shape):
            raise ValueError(f"'{self.weight}' has another size than its packing")
        return shape if self.shape is None else self.shape


@dataclass(frozen=True)
class Grid:
    """How a GPU launches a kernel."""

    blocks: Positive
    threads: Positive  # of a block
    shared_bytes: Size = 0  # of a block


@dataclass(frozen=True)
class KernelCode:
    """A printed kernel: ``void symbol(void *const *args, long part, long nparts)`` on a CPU; on a
    GPU its parameters are the args, one pointer each, and it has a grid."""

    key: str
    name: str
    symbol: str
    source: str  # C, CUDA or Metal text
    args: tuple[str, ...]  # names of its buffers, then of its packed ones; the scratch base follows
    scratch_bytes: Size  # for each part
    parallel: int  # 0: it runs as part 0 of 1; 1: a part for every thread; n: at most n parts
    regions: Size  # how many region instances launch it
    grid: Grid | None = None


@dataclass(frozen=True)
class Value:
    """A tensor that launches read or write. ``offset`` is the byte in the arena, or the position
    among the inputs, outputs or states."""

    name: str
    dtype: DType
    shape: tuple[Size, ...]
    place: str  # input, output, arena, weight, packed or state
    offset: Size = 0

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.nbytes


@dataclass(frozen=True)
class Launch:
    """A kernel, by symbol, on values, by name; "" for a buffer that the kernel never touches."""

    kernel: str
    args: tuple[str, ...]


@dataclass(frozen=True)
class EntryPlan:
    """What one entry runs: launches in order, with a barrier between."""

    name: str
    values: tuple[Value, ...]  # all that its launches touch, its inputs and its outputs
    outputs: tuple[str, ...]  # public names, in the order of the graph
    launches: tuple[Launch, ...]
    arena_bytes: Size
    arena_bytes_without_reuse: Size

    def place(self, place: str) -> list[Value]:
        return sorted((v for v in self.values if v.place == place), key=lambda v: v.offset)


@dataclass(frozen=True)
class Code:
    """Everything that ``link`` needs but the values of the weights."""

    graph: Graph
    target: Target
    header: str  # text of lumc_kernel.h, which every kernel includes
    kernels: tuple[KernelCode, ...]  # in order of their first launch
    packings: Mapping[str, Packing]  # by value name
    entries: tuple[EntryPlan, ...]


def packings_from(rows: Iterable[Mapping[str, Any]]) -> dict[str, Packing]:
    """Packings by the names that they have beside their fields."""
    return {
        str(row["name"]): from_plain(Packing, {k: v for k, v in row.items() if k != "name"})
        for row in rows
    }
