"""What plan files for a mesh have more, read with the checks of runner/plan_ranks.c."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol, TypeVar

from lumc.bundle.planfile import ARENA, DTYPES, INPUT, MAX_BYTES, OUTPUT, STATE, WEIGHT
from lumc.bundle.ranks import KINDS, OPS, UNSTAGED, Exchange, Segment
from lumc.codegen.stages import EVERY
from lumc.graph.batches import KINDS as IN_TIME
from lumc.graph.collective import MAX_AXES, MAX_RANKS, Kind
from lumc.graph.ops import DType, Op
from lumc.graph.tensor import Tensor

T = TypeVar("T")
READ, WRITTEN = (INPUT, ARENA, WEIGHT, STATE, OUTPUT), (ARENA, OUTPUT)
SEVERAL = "a mesh has too many ranks"
NO_STAGE = "a stage that there is not"
NO_WAY = "micro-batches that go another way"
OTHER_LAUNCHES = "micro-batches of other launches than there are"
LARGE_ARENA = "an arena is too large"
NO_SUM = (DType.F16, DType.BF16, DType.BOOL)


class Words(Protocol):
    """What reads a plan."""

    def word(self) -> int: ...
    def below(self, limit: int, what: str) -> int: ...
    def count(self, words: int) -> int: ...
    def string(self) -> str: ...
    def list(self, read: Callable[[], T], words: int) -> tuple[T, ...]: ...


@dataclass(frozen=True)
class Mesh:
    """The axes of a mesh, where the weights of a rank are from, and by which axes (dim, axis) each
    state is in parts. If ranks along one of them are ``stages``, on which each state is, and each
    of the weights that are packed when they are loaded (``codegen.stages.word_of``)."""

    axes: Mapping[str, int]
    segments: tuple[Segment, ...] = ()
    cuts: tuple[tuple[tuple[int, int], ...], ...] = ()
    stages: str = ""
    time: str = ""  # the axis whose ranks are micro-batches
    long: bool = False  # does the plan tell of these?
    alternates: bool = False  # and of micro-batches that go forward and back in turn?
    states: tuple[int, ...] = ()
    packed: tuple[int, ...] = ()

    @property
    def ends(self) -> int:
        """Above all words that say which ranks: all, or those of a stage."""
        return 1 + self.axes[self.stages] if self.stages else 1

    def whole(self, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The states as they are before ranks have their parts of them."""
        ranks, out = [*self.axes.values()], list[Tensor]()
        for t, cuts in zip(states, self.cuts, strict=True):
            times = [prod(ranks[a] for d, a in cuts if d == dim) for dim in range(len(t.shape))]
            shape = tuple(n * k for n, k in zip(t.shape, times, strict=True))
            out.append(Tensor(t.name, t.dtype, shape))
        return tuple(out)


def read_mesh(r: Words, staged: bool, alternates: bool = False) -> Mesh:
    """Of a plan that tells of stages and micro-batches, also how these alternate, or does not.
    Raises ValueError."""
    axes, end = dict[str, int](), 0
    if not 1 <= (n := r.count(3)) <= MAX_AXES:
        raise ValueError("a mesh has no axes, or too many")
    for _ in range(n):
        name, ranks = r.string(), r.below(MAX_RANKS + 1, SEVERAL)
        if ranks < 2:
            raise ValueError("an axis of a mesh has one rank")
        if name in axes:
            raise ValueError("two axes of a mesh have one name")
        axes[name] = ranks
        if prod(axes.values()) > MAX_RANKS:
            raise ValueError(SEVERAL)
    odd = "stages along an axis that there is not"
    along, time = (r.below(n + 1, odd) if staged else 0 for _ in range(2))
    if along and along == time:
        raise ValueError(odd)
    names = ["", *axes]
    mesh = Mesh(axes, stages=names[along], time=names[time], long=staged, alternates=alternates)
    segments = list[Segment]()
    for _ in range(r.count(4 + n)):
        segments.append(s := _segment(r, mesh))
        if s.start != end or s.start % 64:
            raise ValueError("weights are not side by side")
        end += s.nbytes * s.parts
        if end > MAX_BYTES:
            raise ValueError("the weights are too large")
    states = list[int]()
    cuts = list[tuple[tuple[int, int], ...]]()
    for _ in range(r.count(1)):
        states.append(read_ranks(r, mesh))
        cuts.append(r.list(lambda: (r.word(), r.word()), 2))
    packed = r.list(lambda: read_ranks(r, mesh), 1) if staged else ()
    return replace(
        mesh, segments=tuple(segments), cuts=tuple(cuts), states=tuple(states), packed=packed
    )


def read_ranks(r: Words, mesh: Mesh | None) -> int:
    """Which ranks, where a plan tells of it."""
    return r.below(mesh.ends, NO_STAGE) if mesh and mesh.long else EVERY


@dataclass(frozen=True)
class Way:
    """How a stage goes through micro-batches forward and back: from which launch on it goes back,
    how many it has open, and its turns, each twice the micro-batch and 1 for back."""

    middle: int
    open: int
    turns: tuple[int, ...]


@dataclass(frozen=True)
class Turns:
    """The launches of each micro-batch, from one to before another. If these go forward and back in
    turn, how each of the stages does, and where values ``wait`` in the arena: the offset, and the
    bytes of a micro-batch."""

    first: int = 0
    last: int = 0
    ways: tuple[Way, ...] = ()
    wait: tuple[int, int] = (0, 0)

    def holds(self, offset: int, nbytes: int) -> bool:
        """May a value of the arena lie there: among what waits, or before it?"""
        start, size = self.wait
        before = offset + nbytes <= start
        return not self.ways or before or (start <= offset and offset + nbytes <= start + size)


ONCE = Turns()  # without micro-batches


def read_turns(r: Words, mesh: Mesh | None, arena: int) -> Turns:
    """In an arena of so many bytes. Raises ValueError."""
    if not mesh or not mesh.long:
        return ONCE
    first, last = r.word(), r.word()
    if first > last or (last and not mesh.time):
        raise ValueError(OTHER_LAUNCHES)
    if not mesh.alternates or not r.below(2, NO_WAY):
        return Turns(first, last)
    wait = r.below(MAX_BYTES, LARGE_ARENA), r.below(MAX_BYTES, LARGE_ARENA)
    if not mesh.stages or not mesh.time:
        raise ValueError(NO_WAY)
    stages, batches = mesh.axes[mesh.stages], mesh.axes[mesh.time]
    ways = list[Way]()
    for s in range(stages):
        middle, most = r.word(), r.word()
        if not first <= middle <= last:
            raise ValueError(OTHER_LAUNCHES)
        if not 1 <= most <= min(stages - s, batches):
            raise ValueError("a stage has too many micro-batches open")
        if wait[0] % 64 or wait[1] % 64 or wait[0] + wait[1] * most > arena:
            raise ValueError("what waits lies outside of its place")
        ways.append(Way(middle, most, tuple(_turns(r, batches, most))))
    return Turns(first, last, tuple(ways), wait)


def _turns(r: Words, batches: int, most: int) -> Iterator[int]:
    """Each micro-batch forward and then back, in order, and few at a time. Raises ValueError."""
    done = [0, 0]
    for _ in range(2 * batches):
        turn = r.word()
        batch, back = divmod(turn, 2)
        fine = batch == done[back] < batches
        done[back] += 1
        if not fine or not 0 <= done[0] - done[1] <= most:
            raise ValueError("a stage has its micro-batches in another order")
        yield turn


def _segment(r: Words, mesh: Mesh) -> Segment:
    large, many, ranks = "the weights are too large", "a weight has too many parts", mesh.axes
    start, to, nbytes = (r.below(MAX_BYTES, large) for _ in range(3))
    parts = r.below(MAX_RANKS + 1, many)
    stage = read_ranks(r, mesh)
    steps = tuple(r.below(MAX_RANKS, many) for _ in ranks)
    if mesh.time and steps[[*ranks].index(mesh.time)]:
        raise ValueError("a weight is in parts of micro-batches")
    if sum(s * (n - 1) for s, n in zip(steps, ranks.values(), strict=True)) + 1 != parts:
        raise ValueError("ranks have other parts of a weight than there are")
    return Segment(start, to, nbytes, parts, steps, stage)


def read_exchanges(
    r: Words, mesh: Mesh, states: Sequence[Tensor], weights: int, packings: int
) -> tuple[Exchange, ...]:
    """Of a plan whose weights, packings and states are known. Raises ValueError."""
    if mesh.long and len(mesh.packed) != packings:
        raise ValueError("stages of other weights than are packed")
    if len(mesh.cuts) != len(states):
        raise ValueError("parts of other states than there are")
    ranks = [*mesh.axes.values()]
    for t, cuts in zip(states, mesh.cuts, strict=True):
        nbytes, seen = t.nbytes, set[int]()
        for dim, axis in cuts:
            in_time = axis < len(ranks) and [*mesh.axes][axis] == mesh.time
            if dim >= len(t.shape) or axis >= len(ranks) or axis in seen or in_time:
                raise ValueError("a state is in parts that there are not")
            nbytes *= ranks[axis]
            if nbytes > MAX_BYTES:
                raise ValueError("a tensor is too large")
            seen.add(axis)
    for s in mesh.segments:
        if s.to % 64 or s.to + s.nbytes > weights:
            raise ValueError("a weight lies outside of its place")
    words = len(Exchange._fields) if mesh.long else UNSTAGED
    found = r.list(lambda: Exchange(*(r.word() for _ in range(words))), words)
    for e in found:
        if problem := _problem(e, ranks) or _stages_problem(e, mesh):
            raise ValueError(problem)
    return found


def _problem(e: Exchange, ranks: Sequence[int]) -> str:
    unknown, large = "an unknown collective", "a collective is too large"
    if e.kind >= len(KINDS) or e.axis >= len(ranks) or e.op >= len(OPS) or e.dtype >= len(DTYPES):
        return unknown
    if max(e.elements, e.outer, e.joined) >= MAX_BYTES:
        return large
    kind, dtype, n = KINDS[e.kind], DTYPES[e.dtype], ranks[e.axis]
    if e.elements * dtype.nbytes > MAX_BYTES // n:
        return large
    if kind.reduces != (OPS[e.op] is not None) or not e.outer or not e.joined:
        return unknown
    if OPS[e.op] is Op.SUM and dtype in NO_SUM:
        return "ranks do not sum such elements"
    if e.elements % e.outer or e.elements // e.outer % n if kind.splits else e.outer != 1:
        return "a collective splits what does not divide"
    made = e.elements // n if kind.splits else e.elements
    if made % e.joined if kind.joins else e.joined != 1:
        return "a collective joins what does not divide"
    return ""


def _stages_problem(e: Exchange, mesh: Mesh) -> str:
    """Between stages only what one of them has goes to others."""
    kind = KINDS[e.kind]
    if kind.leaves and not mesh.stages:
        return "an unknown collective"
    if [*mesh.axes][e.axis] == mesh.time and kind not in IN_TIME:
        return "a collective that is not in time"
    if kind.leaves != ([*mesh.axes][e.axis] == mesh.stages):
        return "a collective between stages, or none"
    n = mesh.ends - 1 if kind.leaves else 1
    ends = e.source < n and e.target < n
    other = e.source != e.target if kind is Kind.SEND else e.target == 0
    return "" if ends and other else NO_STAGE


def check_exchange(e: Exchange, mesh: Mesh, args: Sequence[Any]) -> None:
    """Two arguments, which lie inside of their places. Raises ValueError."""
    if len(args) != 2 or args[0].place not in READ or args[1].place not in WRITTEN:
        raise ValueError("a collective is of no two values")
    source, result = args
    size = DTYPES[e.dtype].nbytes
    made = e.result([*mesh.axes.values()][e.axis]) * size
    if (source.nbytes, result.nbytes) != (e.elements * size, made):
        raise ValueError("a collective has values of other sizes")
    if KINDS[e.kind] is Kind.SEND:
        return  # one stage reads it, and another one writes it
    if source.place != result.place or (source.place == OUTPUT and source.index != result.index):
        return
    same = source.offset == result.offset or source.place == OUTPUT
    apart = source.offset + source.nbytes <= result.offset or result.offset + made <= source.offset
    if KINDS[e.kind] is not Kind.ALL_REDUCE if same else not apart:
        raise ValueError("a collective writes what it reads")
