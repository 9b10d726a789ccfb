"""What ranks do together: collectives, the axes of a mesh, tensors in parts.

A mesh is some ranks, numbered by one coordinate for each of its axes. All of them run the same
graph, on their own parts of tensors; a collective is a node whose result is made of the values that
the ranks along one axis of the mesh have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from lumc.graph.dim import Extent
from lumc.graph.ops import Op

MAX_AXES = 8  # of a mesh
MAX_RANKS = 1 << 16


class Part(NamedTuple):
    """A dim of a tensor is cut into equal blocks, one for each rank along an axis of the mesh; of
    several parts of one dim the later ones cut the blocks of the earlier ones."""

    dim: int
    mesh: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.dim} by {self.mesh}"


class Stage(NamedTuple):
    """Where a tensor is held: by the ranks with one coordinate along an axis of the mesh, whose
    ranks are stages."""

    at: int
    mesh: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.at} by {self.mesh}"


class Kind(Enum):
    """A collective; the value is its name in the text form."""

    ALL_REDUCE = "all_reduce"  # the sum or maximum over ranks, whole on each
    REDUCE_SCATTER = "reduce_scatter"  # of it, the block of this rank
    ALL_GATHER = "all_gather"  # the blocks of all ranks, one after the other
    ALL_TO_ALL = "all_to_all"  # blocks of one axis become blocks of another
    ALL_SLICE = "all_slice"  # of what each rank has whole its block: nothing is sent
    SEND = "send"  # what one stage has, on another one
    BROADCAST = "broadcast"  # what one stage has, on all

    @property
    def reduces(self) -> bool:
        """Does it make one value of those of all ranks?"""
        return self in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)

    @property
    def splits(self) -> bool:
        """Does a rank keep a block of an axis?"""
        return self in (Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL, Kind.ALL_SLICE)

    @property
    def joins(self) -> bool:
        """Are blocks of an axis put together?"""
        return self in (Kind.ALL_GATHER, Kind.ALL_TO_ALL)

    @property
    def leaves(self) -> bool:
        """Does it take the value of one stage?"""
        return self in (Kind.SEND, Kind.BROADCAST)


KINDS = {k.value: k for k in Kind}


@dataclass(frozen=True)
class Collective:
    """A collective along an axis of the mesh, which has so many ranks: how values are reduced (sum
    or max), the axis of which each rank keeps a block, the one along which blocks are joined; the
    stage that has the value, and the one that gets it."""

    kind: Kind
    mesh: str
    ranks: int
    op: Op | None = None
    split: int | None = None
    concat: int | None = None
    source: int | None = None
    target: int | None = None

    @property
    def value(self) -> str:
        """The name of its kind, as a primitive has one."""
        return self.kind.value

    def shape(self, shape: Sequence[Extent]) -> tuple[Extent, ...]:
        """Of the result, of values of a shape that ``is_possible``."""
        out = list(shape)
        if self.split is not None:
            out[self.split] = int(str(out[self.split])) // self.ranks
        if self.concat is not None:
            out[self.concat] = int(str(out[self.concat])) * self.ranks
        return tuple(out)

    def is_possible(self, shape: Sequence[Extent]) -> bool:
        """May values have this shape? Axes that are cut or joined are numbers, and divide."""
        for at in (self.split, self.concat):
            if at is not None and not (0 <= at < len(shape) and isinstance(shape[at], int)):
                return False
        return self.split is None or int(str(shape[self.split])) % self.ranks == 0
