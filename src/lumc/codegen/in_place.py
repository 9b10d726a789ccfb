"""Updates without a copy: the value of an update is computed into the memory of its state.

A plan copies the value of an update to the state where something else needs the value too, or
where it is made of the state itself, as all that is learned is: ``w = w - 0.1 * g``. The copy is
left out, and the value lives in the state, if nobody sees the state too early or the value too
late:

    * after the launch that writes the value nobody reads the state as it was;
    * that launch reads the state only where it writes the value, element by element: each element
      once, by the operation that stores it, at the same index;
    * nothing else is stored to the state until the value is read for the last time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import lumc.codegen.tile.program as ir
from lumc.codegen.code import Launch
from lumc.codegen.tile.rows import touched
from lumc.graph.expr import Expr, num
from lumc.graph.graph import Entry
from lumc.kernel.term import Kernel
from lumc.schedule.plan import Plan

Programs = Mapping[str, ir.Program]
Shared = frozenset[str]  # buffers of a kernel that are one memory in a launch


def without_copies(
    plan: Plan, entry: Entry, launches: Sequence[Launch], programs: Programs
) -> list[Launch]:
    """The launches, on kernels by key, with states in the place of values that need no copy."""
    out, outputs = list(launches), {name for _, name in plan.outputs[entry.name]}
    states = {s.name for s in plan.graph.states}
    nodes = {n.name for n in entry.nodes if not n.is_leaf}
    at = 0
    while at < len(out):
        copied = _copied(plan.kernels[out[at].kernel].kernel, out[at])
        if copied is not None:
            value, state = copied
            fits = state in states and value in nodes and value not in outputs
            if fits and _is_free(out, at, value, state, plan, programs):
                del out[at]
                out = [
                    replace(x, args=tuple(state if a == value else a for a in x.args)) for x in out
                ]
                continue
        at += 1
    return out


def shared_buffers(plan: Plan, launches: Sequence[Launch]) -> dict[str, Shared]:
    """By kernel, the buffers of which it writes one and reads the same memory as another."""
    out = dict[str, Shared]()
    for launch in launches:
        kernel = plan.kernels[launch.kernel].kernel
        names = _names(kernel, launch)
        for stored in kernel.stored:
            same = {b for b, name in names.items() if name == names[stored]}
            if len(same) > 1:
                out[launch.kernel] = out.get(launch.kernel, frozenset()) | same
    return out


def _names(kernel: Kernel, launch: Launch) -> dict[str, str]:
    return dict(zip((b.name for b in kernel.buffers), launch.args, strict=True))


def _copied(kernel: Kernel, launch: Launch) -> tuple[str, str] | None:
    """Of a launch that copies all of a value to the same places of another one: which, and where
    to."""
    if len(kernel.roots) != 1 or kernel.lengths.of:
        return None
    (root,) = kernel.roots
    if root.value.kind != "load" or root.value.kids != root.index:
        return None
    source, target = kernel.buffer(root.value.attr[0]), kernel.buffer(root.buffer)
    axes = [e.attr[0] for e in root.index if e.kind == "axis"]
    sizes = [kernel.extent[e.attr[0]] if e.kind == "axis" else 1 for e in root.index]
    plain = all(e.kind == "axis" or e == num(0) for e in root.index)
    whole = plain and len(set(axes)) == len(axes) and tuple(sizes) == target.shape
    if not whole or (source.dtype, source.shape) != (target.dtype, target.shape):
        return None
    names = _names(kernel, launch)
    return names[source.name], names[target.name]


def _is_free(
    launches: Sequence[Launch], copy: int, value: str, state: str, plan: Plan, programs: Programs
) -> bool:
    """May a value live in the state that a launch copies it to?"""

    def uses(name: str, stored: bool) -> list[int]:
        return [i for i, x in enumerate(launches) if name in _used(x, plan, programs, stored)]

    writers, readers = uses(value, True), uses(value, False)
    if len(writers) != 1 or writers[0] >= copy or readers[0] <= writers[0]:
        return False
    writer, last = writers[0], readers[-1]
    program = programs[launches[writer].kernel]
    if program.kernel.lengths.of:
        return False
    if any(writer <= i <= last and i != copy for i in uses(state, True)):
        return False
    early = [i for i in uses(state, False) if writer <= i <= copy]
    return not early or (
        early == [writer] and _is_elementwise(program, launches[writer], value, state)
    )


def _used(launch: Launch, plan: Plan, programs: Programs, stored: bool) -> set[str]:
    """The values that a launch stores, or that it reads."""
    kernel = plan.kernels[launch.kernel].kernel
    names, known = _names(kernel, launch), programs[launch.kernel]
    if stored:
        return {names[b] for b in kernel.stored}
    read = touched(known.body) | {p.weight for p in known.packed.values()}
    return {name for b, name in names.items() if b in read and b not in kernel.stored}


# ---- element by element


@dataclass(frozen=True)
class _Around:
    """The loops around an operation, and the values of the axes of cases that it is done for."""

    loops: Mapping[str, ir.Loop]
    rows: Mapping[str, ir.Range]
    cases: Mapping[str, int]


def _is_elementwise(program: ir.Program, launch: Launch, value: str, state: str) -> bool:
    """Is every element of the state read once, by the operation that stores the value there? Proven
    for maps on a CPU, where one loop loads and then stores an element."""
    names = _names(program.kernel, launch)
    (out,) = (b for b in program.kernel.stored if names[b] == value)
    read = {b for b, name in names.items() if name == state}
    if program.target.kind != "cpu":
        return False
    points = 0
    for op, around in _leaves(program.body, _Around({}, {}, {})):
        stores = [dst for dst in ir.written(op) if dst.attr[0] == out]
        loads = [e for e in ir.loads_of(op, but=ir.written(op)) if e.attr[0] in {*read, out}]
        if not stores and not loads:
            continue
        if not stores or not isinstance(op, ir.Map) or not _is_plain(op):
            return False
        if any(e.attr[0] == out or e.kids != op.dst.kids for e in loads):
            return False
        own = _points(op, around)
        if own is None:
            return False
        points += own
    (root,) = (r for r in program.kernel.roots if r.buffer == out)
    return points == prod(program.kernel.extent[a] for a in _axes(root.index))


def _axes(index: Collection[Expr]) -> set[str]:
    return set[str]().union(*(e.free for e in index))


def _leaves(body: Sequence[ir.Op], s: _Around) -> Iterator[tuple[ir.Leaf, _Around]]:
    for op in body:
        match op:
            case ir.Par():
                yield from _leaves(
                    op.body, replace(s, loops={**s.loops, **{x.axis: x for x in op.loops}})
                )
            case ir.Block():
                yield from _leaves(op.body, replace(s, loops={**s.loops, op.loop.axis: op.loop}))
            case ir.Rows():
                yield from _leaves(op.body, replace(s, rows={**s.rows, op.axis: op.range}))
            case ir.When():
                inner = {a: x for a, x in s.loops.items() if a not in op.first}
                yield from _leaves(op.body, replace(s, loops=inner))
            case ir.Case():
                yield from _leaves(op.body, replace(s, cases={**s.cases, op.axis: op.hi - op.lo}))
            case _:
                yield op, s


def _is_plain(op: ir.Map) -> bool:
    """One loop nest, whose points are computed one after the other or side by side."""
    return op.turn is None and not op.turned and not op.abreast


def _points(op: ir.Map, s: _Around) -> int | None:
    """How many points an operation has in all, each of another element; None where it may be done
    twice for one."""
    total, ranges = 1, {**op.ranges, **s.rows}
    for a, loop in s.loops.items():
        if loop.count > 1 and (a not in op.ranges or op.ranges[a].lo != ir.block_start(a)):
            return None
    for a in {*op.axes, *s.rows}:
        r = ranges[a]
        if a not in op.dst.free and r.largest > 1:
            return None
        cut = a in s.loops and r.lo == ir.block_start(a)
        total *= s.cases.get(a, s.loops[a].extent if cut else r.largest)
    return total
