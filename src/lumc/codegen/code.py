"""The ``.lk`` artifact: printed kernels, the place of every value, the list of launches.

``generate`` makes it from a plan; ``link`` compiles it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from lumc.codegen.gpu.grid import Grid
from lumc.codegen.tile.packing import Packing, Size
from lumc.graph.graph import Graph
from lumc.graph.tensor import Tensor
from lumc.kernel.instance import elements_of
from lumc.kernel.target import Target
from lumc.kernel.term import Title

EXCHANGE = "exchange"  # in the place of a kernel: what ranks do together
Symbol = Annotated[str, msgspec.Meta(pattern=r"\A[a-z_][a-z0-9_]{0,99}\Z")]  # names a file too


@dataclass(frozen=True)
class KernelCode:
    """A printed kernel: ``void symbol(void *const *args, long part, long nparts)`` on a CPU; on a
    GPU its parameters are the args, one pointer each, and it has a grid."""

    key: Title
    name: Title
    symbol: Symbol
    source: str  # C, CUDA, HIP or Metal text
    args: tuple[Title, ...]  # its buffers, its packed ones, its dims; the scratch base follows
    scratch_bytes: Size  # for each part
    parallel: int  # 0: it runs as part 0 of 1; 1: a part for every thread; n: at most n parts
    regions: Size  # how many region instances launch it
    grid: Grid | None = None


@dataclass(frozen=True)
class Value(Tensor):
    """A tensor that launches read or write, in memory for the greatest extents. ``offset`` is the
    byte in the arena, or the position among the inputs, outputs, states or dims."""

    name: Title
    shape: tuple[Size, ...]
    place: str  # input, output, arena, weight, packed, state or dim
    offset: Size = 0

    @property
    def start(self) -> int:
        """Of a part, the byte of its whole where it begins; else 0."""
        part = elements_of(self.name)
        return part.start * self.dtype.nbytes if part else 0


@dataclass(frozen=True)
class Launch:
    """A kernel, by symbol, on values, by name; "" for a buffer that the kernel never touches. Or
    the collective that makes the second of two values, of the first."""

    kernel: str
    args: tuple[str, ...]

    @property
    def exchanges(self) -> bool:
        """Is it a collective?"""
        return self.kernel == EXCHANGE


@dataclass(frozen=True)
class EntryPlan:
    """What one entry runs: launches in order, with a barrier between."""

    name: Title
    values: tuple[Value, ...]  # all that its launches touch, its inputs and its outputs
    outputs: tuple[Title, ...]  # public names, in the order of the graph
    launches: tuple[Launch, ...]
    arena_bytes: Size
    arena_bytes_without_reuse: Size

    def place(self, place: str) -> list[Value]:
        """The values there, in order; parts of them are none."""
        own = (v for v in self.values if v.place == place and elements_of(v.name) is None)
        return sorted(own, key=lambda v: v.offset)


@dataclass(frozen=True)
class Code:
    """Everything that ``link`` needs but the values of the weights."""

    graph: Graph
    target: Target
    header: str  # text of lumc_kernel.h, which every kernel includes
    kernels: tuple[KernelCode, ...]  # in order of their first launch
    packings: Mapping[str, Packing]  # by value name
    entries: tuple[EntryPlan, ...]
