"""What a graph is made of: nodes of the twelve primitives that read each other by index maps.

A node's result lives on named axes. Every operand says at which index expressions of those axes
it is read, under optional bounds; transpose, slice, pad, broadcast, reshape and windows are
index maps, never operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeVar

from lumc.errors import Exit, LumcError
from lumc.graph.collective import Collective, Part, Stage
from lumc.graph.dim import Dim, Extent, largest
from lumc.graph.expr import Expr
from lumc.graph.index import Bound as Bound
from lumc.graph.ops import DType, Op

T = TypeVar("T")


@dataclass(frozen=True)
class WeightFile:
    """A file that a graph refers to, of weights, or of a tokenizer; used
    only when it has this content."""

    path: str
    size: int  # bytes
    sha256: str  # of the whole file


@dataclass(frozen=True)
class Derivation:
    """How a weight is made from the tensor in its file when it is read: rounded to the weight's
    dtype, or one ``part`` (levels, scales) of symmetric int8 blocks of ``block`` elements along an
    axis, or numbers of 4 bits, ``block`` of them in a word. With a ``layout``, the tensor is
    quantised in its file, and this is one part of it."""

    dtype: DType  # of the tensor in the file; with a layout: of the weight
    part: str = ""
    axis: int = 0
    block: int = 1
    layout: str = ""  # one of LAYOUTS, or none


@dataclass(frozen=True, eq=False)
class Node:
    """A leaf (``op`` is "input", "weight" or "state"), a primitive, "update": a state as it is
    after one, in the memory of the state; or a collective of ranks. Compared by identity."""

    name: str
    op: Op | Collective | str
    dtype: DType
    axes: tuple[str, ...]  # names of the result's axes; of leaves: d0, d1, ..
    shape: tuple[Extent, ...]
    operands: tuple[Operand, ...] = field(default=(), repr=False)
    reduced: tuple[str, Extent] | None = None  # sum and max: (axis, extent)
    file: WeightFile | None = None  # weight: where it lies; state: where its first value does
    key: str = ""  # the tensor's name in the file
    how: Derivation | None = None  # if it is not read as it is stored
    values: tuple[int, int] | None = None  # integer input: what callers pass, lowest and highest
    origin: str = ""  # what made it: a source line or an ONNX node, for messages
    dims: Mapping[str, Dim] = field(default_factory=dict, repr=False)  # of its graph
    at: tuple[Expr, ...] = ()  # update: where its second operand is written, over that one's axes
    parts: tuple[Part, ...] = ()  # leaf: what of it a rank of the mesh has
    stage: Stage | None = None  # weight, state: which ranks have it, if not all

    @property
    def is_leaf(self) -> bool:
        """Whether it lies in given memory: an input, a weight or a state, updated or not."""
        return isinstance(self.op, str)

    @property
    def home(self) -> Node:
        """What it lies in: of an updated state the state."""
        node = self
        while node.op == "update":
            node = node.reads[0].source
        return node

    @property
    def loops(self) -> tuple[tuple[str, Extent], ...]:
        """The axes that its operands are read over, with extents: its own and the reduced one."""
        own = tuple(zip(self.axes, self.shape, strict=True))
        return own + ((self.reduced,) if self.reduced else ())

    @property
    def whole(self) -> Node:
        """A leaf as it is before ranks have their parts of it."""
        shape = list(self.shape)
        for p in self.parts:
            shape[p.dim] = int(str(shape[p.dim])) * p.ranks
        return replace(self, shape=tuple(shape), parts=()) if self.parts else self

    @property
    def write(self) -> Update:
        """What made this updated state of the one before."""
        return Update(self.home, self.at, self.reads[1].source)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Its shape; of symbolic extents the greatest values."""
        return tuple(largest(e, self.dims) for e in self.shape)

    @property
    def size(self) -> int:
        """The elements of its result, at most."""
        return math.prod(self.sizes)

    @property
    def points(self) -> int:
        """Where its operands are read, at most: its elements, times the reduced extent."""
        return math.prod(largest(e, self.dims) for _, e in self.loops)

    @property
    def reads(self) -> list[Read]:
        """The operands that are other nodes, in order."""
        return [o for o in self.operands if isinstance(o, Read)]


@dataclass(frozen=True)
class Read:
    """An operand: another node, read at index expressions of the reader's axes, one for each dim of
    that node."""

    source: Node
    index: tuple[Expr, ...]
    bounds: tuple[Bound, ...] = ()

    @property
    def dtype(self) -> DType:
        """That of the node that is read."""
        return self.source.dtype


@dataclass(frozen=True)
class Scalar:
    """An operand: a constant. A float keeps the value as written; it is rounded when used."""

    dtype: DType
    value: float | int | bool
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True)
class Iota:
    """An operand: an index expression of the reader's axes, as a value."""

    dtype: DType
    index: Expr
    bounds: tuple[Bound, ...] = ()


Operand = Read | Scalar | Iota


@dataclass(frozen=True)
class Update:
    """``state[index] = value``, over the axes of ``value``; one index for each dim of the state."""

    state: Node
    index: tuple[Expr, ...]
    value: Node


@dataclass(frozen=True, eq=False)
class Entry:
    """One graph of a file: nodes in topological order, named outputs, state updates whose result
    no node reads: they come after those that are nodes. A bucket of an entry is that entry, ``of``
    its name, for ``dims`` within these bounds. A run goes through it once for every value of the
    dim that ``repeat`` names, in order, if it names one: states lead from one time to the next.
    ``parts`` says of outputs, by name, what of them a rank of the mesh has. Entries are
    compared by identity."""

    name: str
    inputs: tuple[Node, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[tuple[str, Node], ...]
    updates: tuple[Update, ...] = ()
    of: str = ""
    dims: Mapping[str, Dim] = field(default_factory=dict)
    repeat: str = ""
    parts: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)
    time: str = ""  # the axis of the mesh whose ranks are micro-batches of one process

    @property
    def title(self) -> str:
        """The name of the entry that it is, or is a bucket of."""
        return self.of or self.name

    @property
    def heading(self) -> str:
        """``decode``; of a bucket ``prefill for s up to 16``."""
        ends = ", ".join(f"{name} up to {d.values[-1]}" for name, d in self.dims.items())
        return f"{self.title} for {ends}" if ends else self.title

    def holds(self, dims: Mapping[str, int]) -> bool:
        """May a run of these dims take this bucket?"""
        return all(dims[name] <= d.values[-1] for name, d in self.dims.items())

    @property
    def writes(self) -> tuple[Update, ...]:
        """All updates of states, in order."""
        return (*(n.write for n in self.nodes if n.op == "update"), *self.updates)


@dataclass(frozen=True)
class Graph:
    """A ``.lg`` file: dims, weights and states shared by one or several entries; for language
    models the file with their tokenizer. Some dims are ``tuned`` at some values, in order, the
    greatest one last. A graph whose entries are in buckets says of which ``whole`` one. With a
    ``mesh``, how many ranks each of its axes has, it is what every rank runs."""

    dims: Mapping[str, Dim]
    weights: tuple[Node, ...]
    states: tuple[Node, ...]
    entries: tuple[Entry, ...]
    tuned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    whole: Graph | None = None
    tokenizer: WeightFile | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)
    time: str = ""  # the axis of the mesh whose ranks are micro-batches of one process

    @property
    def ranks(self) -> int:
        """How many processes run it together; 1 without a mesh."""
        return math.prod(n for name, n in self.mesh.items() if name != self.time)

    @property
    def base(self) -> Graph:
        """The graph as it is written: without buckets."""
        return self.whole or self

    @property
    def files(self) -> list[WeightFile]:
        """The files that it refers to, each once: those of weights and of first values of states,
        and the tokenizer."""
        every = (*(n.file for n in (*self.weights, *self.states)), self.tokenizer)
        return [*dict.fromkeys(f for f in every if f)]

    def entry(self, name: str) -> Entry:
        """The entry of this name; raises E0110 if there is none."""
        for entry in self.entries:
            if entry.name == name:
                return entry
        known = ", ".join(e.name for e in self.entries)
        raise LumcError("E0110", f"no entry '{name}'", fix=f"one of: {known}", exit=Exit.USAGE)


def map_indices(
    operands: Sequence[Operand],
    change: Callable[[Expr], Expr],
    size: Callable[[Extent], Extent],
    source: Callable[[Node], Node] = lambda n: n,
) -> tuple[Operand, ...]:
    """The same operands over other index expressions (``change``), extents of bounds (``size``) and
    sources. An iota whose index becomes a number becomes a scalar."""
    out = list[Operand]()
    for o in operands:
        guards = tuple(Bound(change(b.index), b.lo, size(b.hi)) for b in o.bounds)
        if isinstance(o, Read):
            out.append(Read(source(o.source), tuple(change(e) for e in o.index), guards))
        elif isinstance(o, Iota):
            index = change(o.index)
            if index.kind == "num":
                out.append(Scalar(o.dtype, o.dtype.number(index.attr[0]), guards))
            else:
                out.append(Iota(o.dtype, index, guards))
        else:
            out.append(Scalar(o.dtype, o.value, guards))
    return tuple(out)


def reachable(starts: Iterable[T], below: Callable[[T], Iterable[T]]) -> set[T]:
    """The starts, and all that is below them."""
    seen, todo = set[T](), list(starts)
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += below(node)
    return seen


def fail(node: Node | str, what: str) -> NoReturn:
    """Raise E0101 about a node, or about what has this name."""
    name, origin = (node, "") if isinstance(node, str) else (node.name, node.origin)
    where = f"node '{name}'" + (f" ({origin})" if origin else "")
    raise LumcError("E0101", what, where=where, exit=Exit.UNSUPPORTED)


def shape_text(shape: Iterable[Extent]) -> str:
    """``[s + 1, 128]``"""
    return "[" + ", ".join(str(e) for e in shape) + "]"
