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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import lumc.codegen.tile.program as ir
from lumc.codegen.code import Launch
from lumc.codegen.tile.rows import touched
from lumc.graph.expr import num
from lumc.graph.graph import Entry
from lumc.kernel.instance import elements_of, whole_of
from lumc.kernel.term import Kernel
from lumc.schedule.plan import Plan

Programs = Mapping[str, ir.Program]
Shared = frozenset[str]  # buffers of a kernel that are one memory in a launch


@dataclass(frozen=True)
class Use:
    """The values that a launch stores, and those that it reads."""

    stored: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()

    def renamed(self, old: str, new: str) -> Use:
        """With another value in the place of one."""

        def changed(names: frozenset[str]) -> frozenset[str]:
            return (names - {old}) | {new} if old in names else names

        return Use(changed(self.stored), changed(self.read))


def without_copies(
    plan: Plan, entry: Entry, launches: Sequence[Launch], programs: Programs
) -> list[Launch]:
    """The launches, on kernels by key, with states in the place of values that need no copy."""
    out, uses = list[Launch | None](launches), uses_of(plan, launches, programs)
    outputs = {name for _, name in plan.outputs[entry.name]}
    states = {s.name for s in plan.graph.states}
    in_parts = {whole_of(a) for launch in launches for a in launch.args if elements_of(a)}
    nodes = {n.name for n in entry.nodes if not n.is_leaf} - outputs - in_parts
    for at, launch in enumerate(launches):
        if launch.exchanges:
            continue
        copied = _copied(plan.kernels[launch.kernel].kernel, out[at] or launch)
        if copied is None or copied[0] not in nodes or copied[1] not in states:
            continue
        value, state = copied
        writer = _writer(uses, at, value, state)
        made = out[writer] if writer is not None else None
        if writer is None or made is None or made.exchanges:
            continue
        program = programs[made.kernel]
        alone = state not in uses[writer].read
        if program.kernel.lengths.of or not (alone or _is_elementwise(program, made, value, state)):
            continue
        out[at], uses[at] = None, Use()
        for i, one in enumerate(out):
            if one is not None and value in one.args:
                args = tuple(state if a == value else a for a in one.args)
                out[i], uses[i] = replace(one, args=args), uses[i].renamed(value, state)
    return [launch for launch in out if launch is not None]


def uses_of(plan: Plan, launches: Sequence[Launch], programs: Programs) -> list[Use]:
    """What each launch stores and reads."""
    known = dict[str, set[str]]()
    out = list[Use]()
    for launch in launches:
        if launch.exchanges:
            out.append(Use(frozenset(launch.args[1:]), frozenset(launch.args[:1])))
            continue
        kernel, program = plan.kernels[launch.kernel].kernel, programs[launch.kernel]
        if launch.kernel not in known:
            packed = {p.weight for p in program.packed.values()}
            known[launch.kernel] = ({*touched(program.body)} | packed) - {*kernel.stored}
        names, read = _names(kernel, launch), known[launch.kernel]
        stored = frozenset(names[b] for b in kernel.stored)
        out.append(Use(stored, frozenset(name for b, name in names.items() if b in read)))
    return out


def _writer(uses: Sequence[Use], copy: int, value: str, state: str) -> int | None:
    """The launch that writes a value which may live in a state, as far as others read and store
    that; it may read the state itself. None where it may not."""
    writers = [i for i, u in enumerate(uses) if value in u.stored]
    readers = [i for i, u in enumerate(uses) if value in u.read]
    if len(writers) != 1 or writers[0] >= copy or readers[0] <= writers[0]:
        return None
    first, last = writers[0], readers[-1]
    if any(state in uses[i].stored for i in range(first, last + 1) if i != copy):
        return None
    early = any(state in uses[i].read for i in range(first + 1, copy + 1))
    return None if early else first


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
    out, *others = (b for b in program.kernel.stored if names[b] == value)
    read = {b for b, name in names.items() if name == state}
    if program.target.kind != "cpu" or others:
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
    roots, extent = (r for r in program.kernel.roots if r.buffer == out), program.kernel.extent
    return points == sum(prod(extent[a] for a in r.axes) for r in roots)


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
