"""plan.bin read in Python, with the checks of runner/plan.c."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

from lumc.bundle.extents import (
    BY_SHAPE,
    COUNTED,
    KINDS,
    MAX_DIMS,
    MAX_LENGTHS,
    SOURCES,
    Length,
    Source,
    Spans,
)
from lumc.bundle.planfile import (
    ARENA,
    DIM,
    DTYPES,
    INPUT,
    MAGIC,
    MAPS,
    MAX_BYTES,
    NOWHERE,
    OUTPUT,
    PACKED,
    PAGE,
    PARTS,
    RANKS,
    SCRATCH,
    STAGES,
    STATE,
    TURNS,
    VERSION,
    WEIGHT,
)
from lumc.bundle.ranks import Exchange
from lumc.bundle.reader_packing import read_map, read_packing
from lumc.bundle.reader_ranks import (
    ONCE,
    OTHER_LAUNCHES,
    Mesh,
    Turns,
    check_exchange,
    read_exchanges,
    read_mesh,
    read_ranks,
    read_turns,
)
from lumc.codegen.gpu.grid import Grid
from lumc.codegen.stages import EVERY
from lumc.disk.artifact import corrupt
from lumc.graph.dim import MOST, Dim, Extent
from lumc.graph.ops import DType
from lumc.graph.tensor import LiveTensor, Tensor
from lumc.graph.verify import MAX_REPEATS

T = TypeVar("T")
MAX_RANK, MAX_NAME = 16, 1024  # as in runner/plan.c
FIXED = 2  # the version of files without dims, which only their own runner reads besides this
ROOMY = 3  # the same of files whose lists all have memory for the greatest shapes
ZEROED = 4  # the same of files whose states are all zeros at first


@dataclass(frozen=True)
class Argument:
    """Where an argument lies: ``index`` of an input, output or state, else the byte ``offset``."""

    place: int
    index: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class PlanKernel:
    symbol: str
    parallel: int
    scratch_bytes: int
    grid: Grid | None  # None on a CPU


@dataclass(frozen=True)
class PlanLaunch:
    kernel: int  # its position; behind the last that of a collective
    args: tuple[Argument, ...]
    ranks: int = EVERY  # that run it, or those of a stage


@dataclass(frozen=True)
class PlanList:
    """Launches, for dims that are not above their bounds. ``shapes``: in which inputs, then outputs
    lie in memory."""

    bounds: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    launches: tuple[PlanLaunch, ...]
    turns: Turns = ONCE  # those of each micro-batch


@dataclass(frozen=True)
class PlanEntry:
    name: str
    arena_bytes: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    sources: tuple[Source, ...]  # of each dim
    lists: tuple[PlanList, ...]  # the first that holds is run; the last one holds always

    @property
    def launches(self) -> tuple[PlanLaunch, ...]:
        """Those for all values of dims."""
        return self.lists[-1].launches


@dataclass(frozen=True)
class Plan:
    """What a plan file says."""

    target: str
    arch: str
    features: tuple[str, ...]
    dims: Mapping[str, Dim]
    weights_start: int
    weights_bytes: int
    packed_bytes: int
    states: tuple[Tensor, ...]
    first: tuple[int | None, ...]  # of each state: where its first value is among the weights
    kernels: tuple[PlanKernel, ...]
    entries: tuple[PlanEntry, ...]
    mesh: Mesh | None = None
    exchanges: tuple[Exchange, ...] = ()  # of a mesh

    def counter(self, entry: PlanEntry) -> int | None:
        """Which dim counts how often a run goes through an entry; None: it does so once."""
        return next((i for i, s in enumerate(entry.sources) if s.how == COUNTED), None)

    def turns(self, entry: PlanEntry) -> range:
        """The values of this dim, in order; one number if there is none."""
        i = self.counter(entry)
        return range(1) if i is None else [*self.dims.values()][i].values


def decode(data: bytes, where: str = "") -> Plan:
    """The plan of a file. Raises E0501, exit 5, for anything that plan.c refuses."""
    try:
        return _Reader(data).plan()
    except ValueError as e:
        raise corrupt(f"corrupt plan: {e}", where) from None


class _Reader:
    """Reads words in order; raises ValueError with what is wrong."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.version, self.maps, self.spans = VERSION, False, Spans()
        self.live = list[tuple[int, ...]]()  # of the tensors so far: which lengths extents have

    def plan(self) -> Plan:
        if len(self.data) < 16 or self.data[:8] != MAGIC:
            raise ValueError("it is not a plan")
        self.at = 8
        self.version = self.word()
        self.maps = self.version - MAPS in (VERSION, RANKS, STAGES, TURNS, PARTS)
        self.version -= MAPS * self.maps
        if self.version not in (FIXED, ROOMY, ZEROED, VERSION, RANKS, STAGES, TURNS, PARTS):
            raise ValueError("its version is not supported")
        target, arch, features = self.string(), self.string(), self.list(self.string, 2)
        if self.version != FIXED:
            self.dims()
        with_mesh = self.version in (RANKS, STAGES, TURNS)
        ends = self.version >= STAGES, self.version >= TURNS
        mesh = read_mesh(self, *ends) if with_mesh else None
        start = self.below(MAX_BYTES, "the weights are too large")
        weights = self.below(MAX_BYTES, "the weights are too large")
        packed = self.below(MAX_BYTES, "the weights are too large")
        packings = self.list(lambda: read_packing(self, weights, packed), 8)
        states = self.tensors(0)
        first = tuple(self.first(t, weights) for t in states)
        known = target, arch, features, self.spans.dims
        kernels = self.list(self.kernel, 7)
        exchanges = read_exchanges(self, mesh, states, weights, len(packings)) if mesh else ()
        head = Plan(*known, start, weights, packed, states, first, kernels, ())
        head = replace(head, mesh=mesh, exchanges=exchanges)
        entries = self.list(lambda: self.entry(head), 6)
        if self.at != len(self.data):
            raise ValueError("bytes follow its end")
        return replace(head, entries=entries)

    def word(self) -> int:
        if len(self.data) - self.at < 8:
            raise ValueError("it is truncated")
        self.at += 8
        return int.from_bytes(self.data[self.at - 8 : self.at], "little")

    def below(self, limit: int, what: str) -> int:
        if (value := self.word()) >= limit:
            raise ValueError(what)
        return value

    def number(self) -> int:
        value = self.word()
        value -= (value >> 63) << 64
        if abs(value) > MOST:
            raise ValueError("a number is too large")
        return value

    def count(self, words: int) -> int:
        """The number of records that follow, of at least so many words each."""
        if (n := self.word()) > (len(self.data) - self.at) // 8 // words:
            raise ValueError("a count exceeds the file")
        return n

    def list(self, read: Callable[[], T], words: int) -> tuple[T, ...]:
        """A count, and that many records."""
        return tuple(read() for _ in range(self.count(words)))

    def string(self) -> str:
        n = self.below(MAX_NAME, "a name is too long")
        room, text = (n + 8) // 8 * 8, self.data[self.at : self.at + n]
        if len(self.data) - self.at < room:
            raise ValueError("it is truncated")
        padding = self.data[self.at + n : self.at + room]
        if any(c < 0x20 or c == 0x7F for c in text) or any(padding):
            raise ValueError("a name holds a control character")
        self.at += room
        return text.decode()

    def dims(self) -> None:
        """Symbolic dims, and lengths that are made of them."""
        n = self.count(5)
        if n > MAX_DIMS:
            raise ValueError("there are too many dims")
        for _ in range(n):
            self.spans.dim(self.string(), self.number(), self.number(), self.number())
        n = self.count(4)
        if n > MAX_LENGTHS:
            raise ValueError("there are too many lengths")
        for _ in range(n):
            kind = self.below(len(KINDS), "an unknown kind of length")
            self.spans.length(Length(kind, self.word(), self.word(), self.number()))

    def tensors(self, lengths: int) -> tuple[Tensor, ...]:
        """With extents of so many lengths."""
        total = 0

        def one() -> Tensor:
            nonlocal total
            t = self.tensor(lengths)
            total += t.nbytes + PAGE  # each may start at one
            if total > MAX_BYTES:
                raise ValueError("the tensors are too large together")
            return t

        return self.list(one, 4)

    def tensor(self, lengths: int) -> Tensor:
        name = self.string()
        dtype = DTYPES[self.below(len(DTYPES), "an unknown dtype")]
        rank = self.below(MAX_RANK + 1, "a rank is too large")
        shape = tuple(self.below(MAX_BYTES, "an extent is too large") for _ in range(rank))
        if dtype.nbytes * prod(n for n in shape if n) > MAX_BYTES:
            raise ValueError("a tensor is too large")
        if self.version == FIXED:
            return Tensor(name, dtype, shape)
        pairs = tuple(self.extent(most, lengths) for most in shape)
        self.live.append(tuple(which for which, _ in pairs))
        extents = tuple(e for _, e in pairs)
        return (
            LiveTensor(name, dtype, shape, extents)
            if extents != shape
            else Tensor(name, dtype, shape)
        )

    def extent(self, most: int, lengths: int) -> tuple[int, Extent]:
        """Which length it is, 1 + its number, or 0; and what that is."""
        which = self.below(lengths + 1, "an extent has no such length")
        lo, hi = self.spans.bounds[which - 1] if which else (most, most)
        if lo < 0 or hi > most:
            raise ValueError("a length exceeds its extent")
        return which, self.spans.terms[which - 1] if which else most

    def first(self, t: Tensor, weights: int) -> int | None:
        """Where the first value of a state is among so many bytes of weights."""
        if self.version < VERSION or not (at := self.word()):
            return None
        if (at - 1) % 64 or at - 1 + t.nbytes > weights:
            raise ValueError("the first value of a state lies outside of the weights")
        return at - 1

    def kernel(self) -> PlanKernel:
        symbol = self.string()
        parallel = self.below(1025, "there are too many parts")
        scratch = self.below(1 << 36, "a scratch size is too large")
        blocks = self.below(1 << 31, "a grid is too large")
        threads = self.below(1025, "a block has too many threads")
        shared = self.below(1 << 20, "a block has too much shared memory")
        maps = self.list(lambda: read_map(self), 9) if self.maps else ()
        grid = Grid(blocks, threads, shared, maps) if blocks and threads else None
        return PlanKernel(symbol, parallel, scratch, grid)

    def entry(self, plan: Plan) -> PlanEntry:
        name, arena = self.string(), self.below(MAX_BYTES, "an arena is too large")
        every, self.live = len(self.spans.terms), []
        inputs, outputs = self.tensors(every), self.tensors(every)
        told = list[Source]()
        for d in plan.dims.values():
            counted = any(s.how == COUNTED for s in told)
            told.append(self.source(inputs))
            if told[-1].how == COUNTED and counted:
                raise ValueError("two dims count the repetitions of an entry")
            if told[-1].how == COUNTED and len(d.values) > MAX_REPEATS:
                raise ValueError("an entry repeats too often")
        entry = PlanEntry(name, arena, inputs, outputs, tuple(told), ())
        n = 1 if self.version == FIXED else self.count(1)
        if not n:
            raise ValueError("no launches for all dims")
        lists = tuple(self.launches(plan, entry, i == n - 1) for i in range(n))
        return replace(entry, lists=lists)

    def source(self, inputs: Sequence[Tensor]) -> Source:
        how = self.below(len(SOURCES), "a dim is told in no way")
        s = Source(how, self.word(), self.word(), self.number(), self.number())
        known = s.input < len(inputs) and s.axis < len(inputs[s.input].shape) and s.coefficient
        if how == BY_SHAPE and not known:
            raise ValueError("a dim is told by no extent")
        return s

    def launches(self, plan: Plan, entry: PlanEntry, last: bool) -> PlanList:
        bounds = tuple(self.word() for _ in plan.dims)
        if last and any(b < d.values[-1] for b, d in zip(bounds, plan.dims.values(), strict=True)):
            raise ValueError("no launches for all dims")
        i = plan.counter(entry)
        if i is not None and bounds[i] < plan.turns(entry)[-1]:
            raise ValueError("launches for some repetitions only")
        ends = (*entry.inputs, *entry.outputs)
        shapes = tuple(t.shape for t in ends)
        if self.version >= ZEROED:
            spans = self.spans.within(bounds)
            pairs = zip(ends, self.live, strict=True)
            shapes = tuple(tuple(self.room(t, live, spans)) for t, live in pairs)
        sizes = [t.dtype.nbytes * prod(shape) for t, shape in zip(ends, shapes, strict=True)]
        turns = read_turns(self, plan.mesh, entry.arena_bytes)
        n = len(entry.inputs)
        room = {INPUT: sizes[:n], OUTPUT: sizes[n:], STATE: [t.nbytes for t in plan.states]}
        if turns.last > (count := self.count(2)):
            raise ValueError(OTHER_LAUNCHES)
        made = tuple(self.launch(plan, entry, room, turns) for _ in range(count))
        return PlanList(bounds, shapes, made, turns)

    def room(
        self, t: Tensor, live: Sequence[int], spans: Sequence[tuple[int, int]]
    ) -> Iterator[int]:
        """The extents that a list has memory for: no less than the greatest lengths."""
        for most, which in zip(t.shape, live, strict=True):
            extent = self.word()
            if not (spans[which - 1][1] if which else most) <= extent <= most:
                raise ValueError("a list has no room for its lengths")
            yield extent

    def launch(
        self, plan: Plan, entry: PlanEntry, room: Mapping[int, Sequence[int]], turns: Turns
    ) -> PlanLaunch:
        known = len(plan.kernels)
        kernel = self.below(known + len(plan.exchanges), "a launch names no kernel")
        ranks = read_ranks(self, plan.mesh)
        args = self.list(lambda: Argument(*(self.word() for _ in range(4))), 4)
        held = (a for a in args if a.place == ARENA)
        held_fine = all(turns.holds(a.offset, a.nbytes) for a in held)
        if not held_fine or not all(_fits(a, plan, entry, room) for a in args):
            raise ValueError("an argument lies outside of its place")
        if plan.mesh and kernel >= known:
            check_exchange(plan.exchanges[kernel - known], plan.mesh, args)
        grid = plan.kernels[kernel].grid if kernel < known else None
        for m in grid.maps if grid else ():
            if m.buffer >= len(args) or m.nbytes > args[m.buffer].nbytes:
                raise ValueError("a tensor map is of more than its argument")
        return PlanLaunch(kernel, args, ranks)


def _fits(a: Argument, plan: Plan, entry: PlanEntry, room: Mapping[int, Sequence[int]]) -> bool:
    sizes = {ARENA: entry.arena_bytes, WEIGHT: plan.weights_bytes, PACKED: plan.packed_bytes}
    if a.place == DIM:
        return a.index < len(plan.dims) and a.nbytes <= DType.I64.nbytes
    if a.place in room:
        known = a.index < len(room[a.place]) and a.offset % 64 == 0
        return known and a.offset + a.nbytes <= room[a.place][a.index]
    if a.place in sizes:
        return a.offset % 64 == 0 and a.offset + a.nbytes <= sizes[a.place]
    return a.place in (NOWHERE, SCRATCH)
