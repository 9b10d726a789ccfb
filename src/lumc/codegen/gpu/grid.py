"""What a GPU is told to launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from lumc.codegen.tile.packing import Size
from lumc.schedule.schedule import Positive

Extent = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
Apart = Annotated[int, msgspec.Meta(ge=16, lt=1 << 40, multiple_of=16)]  # bytes
Edge = Annotated[int, msgspec.Meta(ge=1, le=256)]  # of a box


@dataclass(frozen=True)
class TensorMap:
    """How copies of whole tiles find those of a buffer of 16-bit elements: what the driver makes a
    CUtensorMap of, with the address of the buffer. The innermost axis comes first; rows of a box
    are 128 bytes, whose pieces are exchanged as warpgroups read them."""

    buffer: Size  # which one of the kernel
    dims: tuple[Extent, ...]  # elements along two or three axes
    strides: tuple[Apart, ...]  # bytes along all of these but the first
    box: tuple[Edge, Edge]  # elements and rows of a copy

    @property
    def nbytes(self) -> int:
        """Up to the last element."""
        ends = zip(self.dims, (2, *self.strides), strict=True)
        return 2 + sum((n - 1) * stride for n, stride in ends)


@dataclass(frozen=True)
class Grid:
    """How a GPU launches a kernel."""

    blocks: Positive
    threads: Positive  # of a block
    shared_bytes: Size = 0  # of a block
    maps: tuple[TensorMap, ...] = ()  # its first parameters
