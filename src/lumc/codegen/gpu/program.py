"""The distributed tile program: the same operations, dealt to the threads of a block. Data only.

Step      a tile operation and the distribution of its points
Combine   the second half of a reduction across warps
Sync      a barrier of the block
Nest      a loop or condition; of a loop in a ring, copies run several tiles ahead
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.common import Common
from lumc.codegen.gpu.distribution import EVERYWHERE, Distribution, Roles
from lumc.codegen.gpu.grid import TensorMap
from lumc.codegen.gpu.swizzle import Swizzle
from lumc.graph.expr import Expr, subterms
from lumc.graph.ops import DType
from lumc.schedule.schedule import Threads


@dataclass(frozen=True)
class Tile:
    """Where a scratch value of a block lives: shared memory, or the registers of its threads.

    The ``distribution`` of registers names the dimensions by their labels. Shared elements have
    ``strides``, lie ``offset`` bytes from the start, and repeat ``slots`` times, ``size`` elements
    each.
    """

    memory: str  # shared | register
    dtype: DType
    distribution: Distribution = EVERYWHERE
    packed: bool = False  # in registers: two 16-bit elements a word
    strides: tuple[int, ...] = ()
    size: int = 0
    offset: int = 0
    slots: int = 1
    panels: int = 0  # elements of a row, if rows lie in panels of 128 bytes, for warpgroups
    swizzle: Swizzle | None = None  # of rows that single warps multiply

    @property
    def nbytes(self) -> int:
        """Of all slots."""
        return self.size * self.dtype.nbytes * self.slots

    def overlaps(self, other: Tile) -> bool:
        """Have they bytes of shared memory in common?"""
        before = self.offset < other.offset + other.nbytes
        return before and other.offset < self.offset + self.nbytes


@dataclass(frozen=True)
class Bulk:
    """A copy of a whole tile by a tensor map."""

    number: int  # of the map
    at: tuple[Expr, ...]  # where the tile begins along the axes of the map
    origin: tuple[Expr, ...]  # the element of the buffer at 0 along the first two of them
    size: tuple[int, ...]  # of the buffer along these two
    stride: int  # elements from a row to the next
    rows: int
    wide: int  # elements of a row
    blocks: int  # that share it

    @property
    def nbytes(self) -> int:
        return self.rows * self.wide * 2


@dataclass(eq=False)
class Step:
    """An operation; ``points`` is the distribution of the axes it runs over, of a contraction
    that of its result."""

    op: ir.Leaf
    points: Distribution = EVERYWHERE
    roles: Roles | None = None
    along: str | None = None  # the axis of elements that are moved ``vector`` at a time
    vector: int = 1
    wide: tuple[Expr, ...] = ()  # what is moved so, if not all of it from place to place
    common: tuple[Common | None, ...] = ()  # factors of sums, one per output, along that axis
    stored: Distribution | None = None  # from where results are stored that threads exchange
    partials: tuple[str, ...] = ()  # of a reduction across warps: places, one per output
    ahead: bool = False  # an asynchronous copy
    bulk: Bulk | None = None  # one by a tensor map
    behind: bool = False  # a product that somebody else waits for

    @property
    def moves(self) -> bool:
        """Does it move whole vectors from place to place, without a look at them?"""
        return isinstance(self.op, ir.Map) and self.op.copy and self.vector > 1 and not self.wide


@dataclass(frozen=True)
class Combine:
    step: Step
    op: ir.Reduce  # of this step


@dataclass(frozen=True)
class Sync:
    pass


@dataclass(frozen=True)
class Nest:
    op: ir.Par | ir.Block | ir.When  # without its body
    body: Sequence[Node]
    slots: int = 1
    behind: bool = False  # the products of a tile may be under way while the next one starts
    arrivals: int | None = None  # the first of its barriers, one a slot, if its copies are bulk

    @property
    def stored(self) -> set[str]:
        """The names of what is written in it."""
        steps = (n for n in self.body if isinstance(n, Step | Combine))
        own = {ref.attr[0] for n in steps for ref in writes(n)}
        return own.union(*(n.stored for n in self.body if isinstance(n, Nest)))


Node = Step | Combine | Sync | Nest


@dataclass(frozen=True)
class Distributed:
    """What the printers of GPU text read."""

    program: ir.Program
    threads: Threads
    body: Sequence[Node]
    tiles: Mapping[str, Tile] = field(default_factory=dict)
    shared_bytes: int = 0
    maps: tuple[TensorMap, ...] = ()
    arrivals: int = 0  # barriers that count bytes, at the end of shared memory

    @property
    def blocks(self) -> int:
        """That launch together."""
        return max(1, self.threads.bulk) if self.maps else 1

    @property
    def warp(self) -> int:
        """Threads that run in step."""
        assert self.program.target.gpu
        return self.program.target.gpu.warp


def steps_of(body: Sequence[Node]) -> Iterator[Step]:
    for node in body:
        if isinstance(node, Nest):
            yield from steps_of(node.body)
        elif isinstance(node, Step):
            yield node


def loads_of(*terms: Expr) -> list[Expr]:
    """The distinct loads in these terms, in order."""
    return list(dict.fromkeys(e for t in terms for e in subterms(t) if e.kind == "load"))


def reads(node: Step | Combine) -> list[Expr]:
    """The loads of an operation, those in the indices of its results included."""
    if isinstance(node, Combine):
        return loads_of(*(o.init for o in node.op.outputs))
    op = node.op
    match op:
        case ir.Map():
            return loads_of(op.term, *op.dst.kids)
        case ir.Contract():
            added = [op.dst] if op.overwrite is None else []
            return [op.a, op.b, *added, *loads_of(*op.a.kids, *op.b.kids)]
        case ir.Reduce():
            inits = [] if node.partials else [o.init for o in op.outputs]
            return loads_of(*(o.term for o in op.outputs), *inits, *(t for _, t in op.stores))


def writes(node: Step | Combine) -> list[Expr]:
    if isinstance(node, Combine):
        return [o.dst for o in node.op.outputs]
    op = node.op
    if not isinstance(op, ir.Reduce):
        return [op.dst]
    outputs = [] if node.partials else [o.dst for o in op.outputs]
    return outputs + [dst for dst, _ in op.stores]


def plain(ref: Expr) -> bool:
    """Is every index an axis?"""
    return all(k.kind == "axis" for k in ref.kids)
