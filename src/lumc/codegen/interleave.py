"""Launches of a pipeline that goes forward and back: which of them a stage runs on either way of a
micro-batch, and which values wait for the way back (``graph.turns``).

A launch goes back if it touches what comes of a later stage. All that goes forward stands before
all that goes back, by stages; so each stage has two runs of launches. What is sent goes as soon as
it is there. Several micro-batches are open at once: values that the way back needs have a place for
each of them, behind those that one run of launches makes and uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from lumc.codegen.code import EntryPlan, Launch
from lumc.codegen.exchanges import operands, turns_of
from lumc.codegen.stages import EVERY, overlaid, region_of, words_of_launches
from lumc.codegen.tile.memory import Arena, aligned, room
from lumc.codegen.tile.packing import Packing
from lumc.graph.collective import Collective
from lumc.graph.graph import Entry, Graph
from lumc.graph.stages import axis_of_stages
from lumc.graph.tensor import Tensor
from lumc.graph.turns import going_back, most_open, order
from lumc.kernel.instance import elements_of, whole_of


class Group(NamedTuple):
    """Launches that stand together, and which ranks run them. What they send, if they do; whether
    they go back, of something that is sent where it comes from and where it goes to."""

    launches: list[Launch]
    ranks: int
    sends: Collective | None
    back: bool
    back_there: bool

    @property
    def names(self) -> set[str]:
        return {whole_of(a) for launch in self.launches for a in launch.args if a}

    @property
    def stage(self) -> int:
        """Whose launches it stands among; -1 for all."""
        return self.sends.source or 0 if self.sends else self.ranks - 1

    def ways(self, stage: int) -> Iterator[tuple[bool, set[str]]]:
        """Whether it goes back on a stage, and what it touches there; nothing elsewhere."""
        if self.sends is None:
            if self.ranks in (EVERY, 1 + stage):
                yield self.back, self.names
            return
        source, result = self.launches[0].args
        if stage == self.sends.source:
            yield self.back, {whole_of(source)}
        if stage == self.sends.target:
            yield self.back_there, {whole_of(result)}


class Ways(NamedTuple):
    """How a stage goes through its launches: from where on they go back, by stages. What waits for
    that, with the ranks that have it."""

    middles: tuple[int, ...]
    waiting: Mapping[str, int]


class Waiting(NamedTuple):
    """Where values wait: from ``start`` on in the arena, ``nbytes`` for each open micro-batch."""

    start: int
    nbytes: int


class Pipeline(NamedTuple):
    """Of an entry: the launches of both ways, where values wait in between, and how many bytes of a
    micro-batch each stage keeps there."""

    middles: tuple[int, ...]
    place: Waiting
    kept: tuple[int, ...]


def _groups(
    entry: Entry, launches: Sequence[Launch], ranks: Sequence[int], fixed: Collection[str]
) -> list[Group]:
    """The launches of each micro-batch. A name that is first touched by a group is made by it; so
    is one of which it touches a part, to be sure."""
    first, last = turns_of(entry, launches)
    seen = {whole_of(a) for launch in launches[:first] for a in launch.args} | {*fixed, ""}
    late, out = set[str](), list[Group]()
    pairs = zip(launches[first:last], ranks[first:last], strict=True)
    for _, each in groupby(enumerate(pairs), lambda x: _key(x[0], x[1][0])):
        own = [pair for _, pair in each]
        group = Group([launch for launch, _ in own], own[0][1], None, False, False)
        names = {n for n in group.names if n not in fixed}
        back = there = not late.isdisjoint(names)
        op = operands(entry, group.launches[0])[1].op if group.launches[0].exchanges else None
        sends = op if isinstance(op, Collective) and op.kind.leaves else None
        if sends:
            source, result = map(whole_of, group.launches[0].args)
            back = source in late
            there = back or (sends.target or 0) < (sends.source or 0)
            late |= {result} if there else set()
        elif back:
            args = (a for launch in group.launches for a in launch.args)
            parts = {whole_of(a) for a in args if elements_of(a)}
            late |= {n for n in names if n not in seen or n in parts}
        seen |= names
        out.append(group._replace(sends=sends, back=back, back_there=there))
    return out


def _key(number: int, launch: Launch) -> str | int:
    """Equal for launches of one region that has values of its own."""
    names = (whole_of(a) for a in launch.args if a)
    return next(filter(None, map(region_of, names)), number)


def in_order(
    entry: Entry,
    launches: list[Launch],
    packings: Mapping[str, Packing],
    fixed: Collection[str],
) -> list[Launch]:
    """The launches, those forward before those back; as they are if there is no way back."""
    if not going_back(entry):
        return launches
    first, last = turns_of(entry, launches)
    ranks = words_of_launches(packings, launches, entry)
    groups = _groups(entry, launches, ranks, fixed)
    groups = sorted(groups, key=lambda g: (g.back, not g.back and g.stage))
    for group in [g for g in groups if g.sends]:
        groups.remove(group)
        groups.insert(_behind(groups, group), group)
    moved = [launch for g in groups for launch in g.launches]
    return [*launches[:first], *moved, *launches[last:]]


def _behind(groups: Sequence[Group], sending: Group) -> int:
    """Where it is there: behind the first that touches it, or the last of several parts."""
    source = sending.launches[0].args[0]
    touching = [i for i, g in enumerate(groups) if source in g.names and g.back == sending.back]
    parts = [i for i in touching if any(_is_part(a, source) for a in _args(groups[i]))]
    return max([*touching[:1], *parts], default=-1) + 1


def _args(group: Group) -> Iterator[str]:
    return (a for launch in group.launches for a in launch.args)


def _is_part(name: str, whole: str) -> bool:
    return elements_of(name) is not None and whole_of(name) == whole


def ways_of(
    graph: Graph,
    entry: Entry,
    launches: Sequence[Launch],
    packings: Mapping[str, Packing],
    fixed: Collection[str],
) -> Ways | None:
    """Of launches that are ``in_order``; None if these are not, or have no way back. ``fixed``:
    what is there all the time."""
    if not going_back(entry):
        return None
    stages = graph.mesh[axis_of_stages(graph)]
    (first, last), touched = turns_of(entry, launches), list[set[str]]()
    outside = {whole_of(a) for x in (*launches[:first], *launches[last:]) for a in x.args}
    ranks = words_of_launches(packings, launches, entry)
    groups = _groups(entry, launches, ranks, fixed)
    middles, waiting = list[int](), dict[str, int]()
    for stage in range(stages):
        middle, at = last, first
        touched = [set(), set()]
        for group in groups:
            for back, names in group.ways(stage):
                if back:
                    middle = min(middle, at)
                elif middle < last:
                    return None  # it goes forward behind what goes back
                touched[back] |= names
            at += len(group.launches)
        middles.append(middle)
        both = sorted((touched[0] & touched[1]).difference(outside, fixed))
        for name in both:
            waiting[name] = EVERY if name in waiting else 1 + stage
    every = {n for g in groups if g.ranks == EVERY and not g.sends for n in g.names}
    return Ways(tuple(middles), {n: EVERY if n in every else at for n, at in waiting.items()})


def with_waiting(graph: Graph, ways: Ways, tensors: Mapping[str, Tensor], arena: Arena) -> Arena:
    """Places behind those of an arena for what waits: those of the first micro-batch. Stages have
    theirs in the same place."""
    start = aligned(arena.nbytes)
    sizes = ((n, room(tensors[n].nbytes), own) for n, own in ways.waiting.items())
    offsets, nbytes = overlaid(sizes)
    more, times = {n: start + at for n, at in offsets.items()}, _most(graph)
    every = times * sum(aligned(t.nbytes) for t in tensors.values())
    without = arena.nbytes_without_reuse + every
    return Arena({**arena.offsets, **more}, start + times * nbytes, without)


def _most(graph: Graph) -> int:
    """How many micro-batches any stage has open."""
    return most_open(0, graph.mesh[axis_of_stages(graph)], graph.mesh[graph.time])


def pipeline_of(
    graph: Graph, entry: Entry, packings: Mapping[str, Packing], plan: EntryPlan
) -> Pipeline | None:
    """The launches of an entry, if its micro-batches go forward and back in turn: there is room for
    what waits, and for nothing else there."""
    values, arena = plan.values, plan.arena_bytes
    fixed = {v.name for v in values if v.place != "arena"}
    found = ways_of(graph, entry, plan.launches, packings, fixed)
    if found is None:
        return None
    inside = [v for v in values if v.place == "arena"]
    kept = [v for v in inside if whole_of(v.name) in found.waiting]
    start = min((v.offset for v in kept), default=arena)
    end = max((v.offset + room(v.nbytes) for v in kept), default=arena)
    others = [v for v in inside if whole_of(v.name) not in found.waiting]
    fits = start + _most(graph) * (end - start) <= arena
    if not fits or any(v.offset + v.nbytes > start for v in others):
        return None
    own = [0] * len(found.middles)
    for v in kept:
        at = found.waiting[whole_of(v.name)]
        for s in range(len(own)) if at == EVERY else (at - 1,):
            own[s] = max(own[s], v.offset + v.nbytes - start)
    return Pipeline(found.middles, Waiting(start, end - start), tuple(own))


def schedule(graph: Graph, pipe: Pipeline) -> list[dict[str, object]]:
    """What every stage does in which order, as a manifest says it."""
    stages, batches = graph.mesh[axis_of_stages(graph)], graph.mesh[graph.time]
    return [
        {
            "stage": s,
            "open": most_open(s, stages, batches),
            "open_bytes": most_open(s, stages, batches) * pipe.kept[s],
            "turns": " ".join(map(str, order(s, stages, batches))),
        }
        for s in range(stages)
    ]
