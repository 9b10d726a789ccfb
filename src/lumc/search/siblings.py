"""Horizontal fusion: two kernels side by side are one kernel with the roots of both.

    side-by-side    u[i..] = e;  v[j..] = f    =    u[i..] = e, v[i..] = f(j.. := i..)

Neither may need the other, and i.. and j.. have the same extents. It is for kernels that read the
same values: these are read once, there are fewer launches, and more work in each. Such kernels
mostly write results of their own, so whole instances of regions are joined: a joint region has
several results, and is one region wherever equal instances share the same of their inputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, product

from lumc.graph.expr import bound_axes, subterms
from lumc.kernel.key import rename, sha
from lumc.kernel.normal import normalize
from lumc.kernel.plan import Instance, results
from lumc.kernel.term import Kernel, Root
from lumc.search.cuts import Frame
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
            names = {f"b{n}": f"b{at}" for n, at in enumerate(read)}
            names["out"] = results(len(self.members))[i]
            out.append([_renamed(k, {}, names, f"s{i}_") for k in program])
        return out


def families(space: Space) -> list[Family]:
    """Joint regions of instances that read a common value and write results of equal extents, as
    early as possible: when the first one may run, so may all of them."""
    frames, states = {r.key: r.frame for r in space.regions}, {s.name for s in space.graph.states}
    made = {(i.entry, i.outputs[0]): at for at, i in enumerate(space.instances)}
    left = [at for at, i in enumerate(space.instances) if i.outputs[0] not in states]
    out = []
    while left:
        first = space.instances[left[0]]

        def joins(at: int, first: Instance = first, start: int = left[0]) -> bool:
            other = space.instances[at]
            same = other.entry == first.entry and bool({*other.inputs} & {*first.inputs})
            ready = all(made.get((other.entry, name), -1) < start for name in other.inputs)
            sizes = [_extents(frames[i.region]) for i in (first, other)]
            return same and ready and sizes[0] == sizes[1] and 0 not in sizes[0]

        family = tuple(at for at in left if joins(at))[:MOST]
        left = [at for at in left[1:] if at not in family]
        if len(family) > 1:
            out.append((_joint([space.instances[at] for at in family]), family))
    return out


def _extents(frame: Frame) -> list[int]:
    return sorted(n for a in frame.axes if (n := frame.extent[a]) != 1)


def _joint(instances: Sequence[Instance]) -> Joint:
    names = list(dict.fromkeys(name for i in instances for name in i.inputs))
    members = tuple(i.region for i in instances)
    inputs = tuple(tuple(map(names.index, i.inputs)) for i in instances)
    return Joint(sha(json.dumps([members, inputs])), members, inputs)


def joined(space: Space, keys: Collection[str]) -> tuple[Instance, ...]:
    """The instances with the families of these joint regions as one each."""
    out: dict[int, Instance] = dict(enumerate(space.instances))
    for joint, places in families(space):
        if joint.key in keys:
            members = [out.pop(at) for at in places]
            inputs = tuple(dict.fromkeys(name for i in members for name in i.inputs))
            outputs = tuple(i.outputs[0] for i in members)
            out[places[0]] = Instance(members[0].entry, joint.key, inputs, outputs)
    return tuple(out[at] for at in sorted(out))


def fused(
    programs: Iterable[Sequence[Kernel]], pays: Callable[[Kernel, Sequence[Kernel]], bool]
) -> list[Kernel] | None:
    """Programs that do not need each other as one, their kernels side by side where that pays;
    None where it does not."""
    groups: list[list[Kernel]] = []
    for program in programs:
        after = 0
        for k in program:
            fits = (n for n in range(after, len(groups)) if beside([*groups[n], k]))
            at = next(fits, len(groups))
            if at == len(groups):
                groups.append([])
            groups[at].append(k)
            after = at + 1
    out = list[Kernel]()
    for g in groups:
        one = beside(g) if len(g) > 1 else None
        out += [one] if one and pays(one, g) else g
    return out if len(out) < sum(map(len, groups)) else None


def beside(kernels: Sequence[Kernel]) -> Kernel | None:
    """One kernel with the roots of all; None where one needs another, or extents differ."""
    first, *others = map(normalize, kernels)
    for other in others:
        axes = _axes(first, other)
        read = [{b.name for b in k.buffers} - {*k.stored} for k in (first, other)]
        if axes is None or read[0] & {*other.stored} or read[1] & {*first.stored}:
            return None
        other = _renamed(other, axes)
        known = {b.name: b for k in (first, other) for b in k.buffers}
        stored = [*first.stored, *other.stored]
        order = [*(b for b in known if b not in stored), *stored]
        first = replace(
            first,
            extent={**other.extent, **first.extent},
            roots=(*first.roots, *other.roots),
            buffers=tuple(known[b] for b in order),
        )
    return first


def _axes(one: Kernel, other: Kernel) -> dict[str, str] | None:
    """Names for the axes of the other kernel: those of this one that are read alike, or as long,
    such that loops over them can be shared; None if it has other ones."""
    loads = [
        {e.attr[0]: e.kids for e in subterms(*k.values) if e.kind == "load"} for k in (one, other)
    ]
    alike = [
        (i.attr[0], j.attr[0])
        for buffer, index in loads[0].items()
        for i, j in zip(index, loads[1].get(buffer, ()), strict=False)
        if i.kind == j.kind == "axis"
    ]
    bound = [dict.fromkeys(a for s in k.stages for a in bound_axes(s)) for k in (one, other)]
    names: dict[str, str] = {}
    for i, j in (
        *alike,
        *zip(one.axes, other.axes, strict=False),
        *product(one.axes, other.axes),
        *product(*bound),
    ):
        fits = one.extent[i] == other.extent[j] and (i in one.axes) == (j in other.axes)
        if fits and j not in names and i not in names.values():
            names[j] = i
    if len(one.axes) != len(other.axes) or not names.keys() >= {*other.axes}:
        return None
    for a in other.extent:
        taken = {*one.extent, *(other.extent.keys() - {a})}
        tries = (f"{a}_{n}" if n else a for n in count())
        names.setdefault(a, next(x for x in tries if x not in taken))
    return names


def _renamed(
    kernel: Kernel,
    axes: Mapping[str, str],
    buffers: Mapping[str, str] | None = None,
    prefix: str = "",
) -> Kernel:
    """The same kernel over other axes and buffers; other names of buffers get the prefix."""
    names = {b.name: (buffers or {}).get(b.name, prefix + b.name) for b in kernel.buffers}
    roots = [
        Root(names[r.buffer], tuple(rename(i, axes) for i in r.index), rename(r.value, axes, names))
        for r in kernel.roots
    ]
    known = {names[b.name]: replace(b, name=names[b.name]) for b in kernel.buffers}
    extent = {axes.get(a, a): n for a, n in kernel.extent.items()}
    own = tuple(axes.get(a, a) for a in kernel.axes)
    return Kernel(kernel.name, own, extent, tuple(roots), tuple(known.values()))
