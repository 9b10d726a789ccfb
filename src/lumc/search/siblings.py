"""Horizontal fusion: two kernels side by side are one kernel with the roots of both.

    side-by-side    u[i..] = e;  v[j..] = f    =    u[i..] = e, v[i..] = f(j.. := i..)

Neither may need the other, and i.. and j.. have the same extents. It is for kernels that read the
same values: these are read once, there are fewer launches, and more work in each. Such kernels
mostly write results of their own, so whole instances of regions are joined: a joint region has
several results, and is one region wherever equal instances share the same of their inputs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import chain, count, product
from math import prod

from lumc.graph.again import repeated
from lumc.graph.batches import phases_of
from lumc.graph.expr import subterms
from lumc.graph.ranks import exchanged
from lumc.graph.stages import stages_of
from lumc.kernel.instance import Instance, results, whole_of
from lumc.kernel.key import renamed, sha
from lumc.kernel.lengths import stated
from lumc.kernel.normal import normalize
from lumc.kernel.term import Kernel
from lumc.search.space import Space

MOST = 4  # members of a joint region
Family = tuple["Joint", tuple[int, ...]]  # the places of its members among the instances


@dataclass(frozen=True)
class Joint:
    """Regions that do not need each other, and which of all they read each of them reads."""

    key: str
    members: tuple[str, ...]
    inputs: tuple[tuple[int, ...], ...]

    def programs(self, alone: Iterable[Sequence[Kernel]]) -> list[list[Kernel]]:
        """Programs of the members, on the values of the joint region."""
        out = []
        for i, (program, read) in enumerate(zip(alone, self.inputs, strict=True)):
            local = {b.name: f"s{i}_{b.name}" for k in program for b in k.buffers}
            names = local | {f"b{n}": f"b{at}" for n, at in enumerate(read)}
            names["out"] = results(len(self.members))[i]
            out.append([renamed(k, {}, names) for k in program])
        return out


@dataclass
class Readers:
    """Instances of one shape that read one value."""

    late: list[tuple[int, int]] = field(default_factory=list)  # behind what they read, and where
    early: list[int] = field(default_factory=list)  # where those are that read nothing later

    def first(self, start: int, left: Mapping[int, None]) -> list[int]:
        """Those of the ones that are left that can run at ``start``, at most so many as a family
        has; starts never decrease, so every instance is moved once."""
        while self.late and self.late[0][0] < start:
            heappush(self.early, heappop(self.late)[1])
        found = list[int]()
        while self.early and len(found) < MOST:
            if (at := heappop(self.early)) in left:
                found.append(at)
        for at in found:
            heappush(self.early, at)
        return found


def families(space: Space) -> list[Family]:
    """Joint regions of instances that read a common value and write results of equal extents, as
    early as possible: when the first one may run, so may all of them. Where launches cost next to
    nothing, as on a CPU, the common value is one that no cache holds. Raises E0101 (stages or
    micro-batches that do not fit)."""
    least = space.target.l2 // 2 if space.target.launch_us < 1 else 0  # bytes
    every, states = space.instances, {s.name for s in space.graph.states}
    frames = {r.key: r.frame for r in space.regions}
    sizes = [sorted(frames[i.region].extent[a] for a in frames[i.region].axes) for i in every]
    places = [(e, stages_of(e), phases_of(e)) for e in space.graph.entries]
    own = {(e.name, n.name): (at.get(n), when.get(n)) for e, at, when in places for n in e.nodes}
    where = [own.get((i.entry, whole_of(i.outputs[0])), (None, None)) for i in every]
    shape = [(i.entry, where[at], *sizes[at]) for at, i in enumerate(every)]
    made, readers = dict[tuple[str, str], int](), defaultdict[object, Readers](Readers)
    left = dict[int, None]()
    for at, i in enumerate(every):
        made[i.entry, whole_of(i.outputs[0])] = at
        if i.outputs[0] not in states and 0 not in sizes[at]:
            left[at] = None
    for e in space.graph.entries:
        for n in exchanged(e):  # what ranks make of a value is there no earlier than that
            source = e.name, n.reads[0].source.home.name
            made[e.name, n.name] = made.get(source, -1)
    again = {(e.name, n.name) for e in space.graph.entries for n in repeated(e)}
    for at in left:
        last = max((made.get(n, -1) for n in reads(every[at])), default=-1)
        if (every[at].entry, whole_of(every[at].outputs[0])) in again:
            last = at - 1  # who makes a value again does not want it earlier
        for name in dict.fromkeys(every[at].inputs):
            heappush(readers[shape[at], name].late, (last, at))
    out = list[Family]()
    while left:
        start = next(iter(left))
        known = zip(every[start].inputs, frames[every[start].region].inputs, strict=True)
        large = {name for name, b in known if prod(b.shape) * b.dtype.nbytes > least}
        early = [readers[shape[start], n].first(start, left) for n in large]
        family = tuple(sorted({at for some in early for at in some})[:MOST])
        for at in {start, *family}:
            del left[at]
        if len(family) > 1:
            names = _inputs([every[at] for at in family])
            members = tuple(every[at].region for at in family)
            read = tuple(tuple(map(names.index, every[at].inputs)) for at in family)
            out.append((Joint(sha(json.dumps([members, read])), members, read), family))
    return out


def reads(instance: Instance) -> Iterator[tuple[str, str]]:
    """What it reads, in its entry."""
    return ((instance.entry, whole_of(name)) for name in instance.inputs)


def _inputs(instances: Iterable[Instance]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for i in instances for name in i.inputs))


def joined(space: Space, together: Iterable[Family]) -> tuple[Instance, ...]:
    """The instances with these families as one each."""
    out = dict(enumerate(space.instances))
    for joint, places in together:
        members = [out.pop(at) for at in places]
        outputs = tuple(i.outputs[0] for i in members)
        out[places[0]] = Instance(members[0].entry, joint.key, _inputs(members), outputs)
    return tuple(out[at] for at in sorted(out))


def fused(
    programs: Sequence[Sequence[Kernel]], pays: Callable[[Kernel, Iterable[Kernel]], bool]
) -> list[Kernel]:
    """Programs that do not need each other as one: the first kernels of all, the second ones, ..,
    as one kernel each where that pays. No kernels where none does."""
    out, many = list[Kernel](), len(programs[0])
    for apart in zip(*programs, strict=False):
        one = beside(apart)
        out += [one] if one and pays(one, apart) else apart
    return out if len(out) < sum(map(len, programs)) == many * len(programs) else []


def beside(kernels: Sequence[Kernel]) -> Kernel | None:
    """One kernel with the roots of all; None where one needs another, extents differ, or a value
    is seen in two shapes."""
    first, *others = map(normalize, kernels)
    for other in others:
        seen = {b.name: b for b in first.buffers}
        if any(seen.get(b.name, b) != b for b in other.buffers):
            return None
        axes, stored = _axes(first, other), {*first.stored, *other.stored}
        if not axes or stored & {b.name for b in first.buffers} & {b.name for b in other.buffers}:
            return None
        other = renamed(other, axes, {})
        known = {b.name: b for b in (*first.buffers, *other.buffers)}
        first = replace(
            first,
            extent={**other.extent, **first.extent},
            live=stated(first.lengths.joined(other.lengths)),
            roots=(*first.roots, *other.roots),
            buffers=tuple(sorted(known.values(), key=lambda b: b.name in stored)),
        )
    return first


def _axes(one: Kernel, other: Kernel) -> dict[str, str]:
    """Names for the axes of the other kernel, those of this one as far as possible: of what is
    read alike, else as long, so that they share loops. Empty if their results differ in extents."""
    loads = [
        {e.attr[0]: e.kids for e in subterms(*k.values) if e.kind == "load"} for k in (one, other)
    ]
    alike = chain(*(zip(loads[0][b], loads[1][b], strict=True) for b in loads[0] if b in loads[1]))
    pairs = [(i.attr[0], j.attr[0]) for i, j in alike if i.kind == j.kind == "axis"]
    names: dict[str, str] = {}
    for i, j in (*pairs, *product(one.extent, other.extent)):
        fits = one.told[i] == other.told[j] and (i in one.axes) == (j in other.axes)
        if fits and j not in names and i not in names.values():
            names[j] = i
    if {*one.axes} != {names.get(a) for a in other.axes}:
        return {}
    for a in other.extent:
        tries = (f"{a}_{n}" for n in count())
        names.setdefault(a, next(x for x in tries if x not in {**one.ranges, **other.ranges}))
    return names
