"""Parts of states that a constant index names are arguments of a kernel, not kernels of their own.

    out[3, i] = v[i], out[4, i] = v[i] of a state    =    one kernel, out[0, i] = v[i], on two slabs

Such updates come of steps that are written out one after the other: each writes its own row. A slab
starts at a line of memory, as states do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from lumc.codegen.code import Launch
from lumc.codegen.exchanges import by_kernels
from lumc.codegen.tile.memory import ALIGN
from lumc.graph.expr import add, bounds
from lumc.kernel.inside import escape
from lumc.kernel.instance import part_of
from lumc.kernel.term import Kernel, Root
from lumc.schedule.legal import is_legal
from lumc.schedule.plan import Plan

Slab = tuple[Kernel, int, int]  # a kernel on it, its first element in the state and their number


def on_slabs(
    plan: Plan, launches: Mapping[str, Sequence[Launch]]
) -> tuple[dict[str, list[Launch]], dict[str, Kernel]]:
    """The launches with one kernel, by key, for all that are equal on slabs; and these kernels."""
    states = {s.name for s in plan.graph.states}
    every = by_kernels(launches)
    found = dict[str, Slab]()
    for key in dict.fromkeys(launch.kernel for launch in every):
        kernel, schedule = plan.kernels[key].kernel, plan.kernels[key].schedule
        written = {_written(kernel, x) for x in every if x.kernel == key}
        slab = _slab(kernel) if written <= states else None
        if slab and is_legal(slab[0], plan.target, schedule) and not escape(slab[0]):
            found[key] = slab
    first = dict[str, str]()
    for key in found:
        alike = (k for k in dict.fromkeys(first.values()) if _are_equal(plan, k, key, found))
        first[key] = next(alike, key)
    counts = Counter(first.values())
    shared = {key for key, n in counts.items() if n > 1}

    def placed(launch: Launch) -> Launch:
        key = first.get(launch.kernel)
        if key not in shared:
            return launch
        kernel, start, n = found[launch.kernel]
        names = [b.name for b in kernel.buffers]
        out = kernel.roots[0].buffer
        args = tuple(
            part_of(name, start, start + n) if b == out else name
            for b, name in zip(names, launch.args, strict=True)
        )
        return Launch(key, args)

    moved = {entry: [placed(x) for x in each] for entry, each in launches.items()}
    return moved, {key: found[key][0] for key in shared}


def _are_equal(plan: Plan, one: str, other: str, found: Mapping[str, Slab]) -> bool:
    """Are two kernels on slabs the same but for their titles, with the same schedule?"""
    a, b = found[one][0], found[other][0]
    same = plan.kernels[one].schedule == plan.kernels[other].schedule
    return same and replace(a, name=b.name) == b


def _written(kernel: Kernel, launch: Launch) -> str:
    """The value of the only result; "" where there are several."""
    if len(kernel.roots) != 1:
        return ""
    names = (b.name for b in kernel.buffers)
    return dict(zip(names, launch.args, strict=True))[kernel.roots[0].buffer]


def _slab(kernel: Kernel) -> Slab | None:
    """The kernel on no more rows of its result than it writes, if these do not begin with it."""
    if len(kernel.roots) != 1 or kernel.lengths.of or not kernel.roots[0].index:
        return None
    (root,) = kernel.roots
    out = kernel.buffer(root.buffer)
    low, high = bounds(root.index[0], kernel.ranges)
    sizes = [int(str(n)) for n in out.shape]
    row = prod(sizes[1:])
    if low <= 0 or low * row * out.dtype.nbytes % ALIGN:
        return None
    index = (add(root.index[0], -low), *root.index[1:])
    part = replace(out, shape=(high - low + 1, *out.shape[1:]))
    buffers = tuple(part if b is out else b for b in kernel.buffers)
    new = replace(kernel, roots=(Root(root.buffer, index, root.value),), buffers=buffers)
    return new, low * row, (high - low + 1) * row
