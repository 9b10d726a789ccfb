"""What a kernel and a schedule must obey before they are lowered."""

from __future__ import annotations

import re
from math import lcm

from lumc.errors import Exit, LumcError
from lumc.graph.expr import Expr, subterms
from lumc.kernel.target import Target
from lumc.kernel.term import REDUCTIONS, Kernel, Root, dtype
from lumc.schedule.operands import axis_steps, can_dot, lanes, pairs, staging_modes
from lumc.schedule.schedule import Schedule, Stage

PANELS = ("hoist", "link", "narrow")  # packed outside the loop over tiles
WRITTEN_OUT = 4  # values of an axis that are written out beside lanes along another one
PIECE = 256  # bytes: the whole lines that are stored around the caches together
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")  # names reach the generated source


def check_kernel(kernel: Kernel) -> None:
    """Names, axes of the roots, and in-place updates; raises E0410."""
    bad = [n for n in (*kernel.extent, *(b.name for b in kernel.buffers)) if not NAME.fullmatch(n)]
    problems = [f"'{n}' is not a name" for n in bad]
    if len(set(kernel.stored)) != len(kernel.roots):
        problems.append("two roots store the same buffer")
    for i, root in enumerate(kernel.roots):
        if stray := sorted(root.value.free - root.axes):
            problems.append(f"root {i} depends on axis {stray[0]}, which its index lacks")
        if not root.axes <= set(kernel.axes):
            problems.append(f"root {i} has axes that the kernel lacks")
        for e in subterms(root.value, *root.index):
            if e.kind != "load" or e.attr[0] not in kernel.stored:
                continue
            # another order of the loops would read the new value instead of the old one
            if e.attr[0] != root.buffer or e.kids != root.index:
                problems.append(f"'{e.attr[0]}' is updated and read elsewhere in the kernel")
    if problems:
        where = f"kernel '{kernel.name}'"
        raise LumcError("E0410", "; ".join(problems), where=where, exit=Exit.UNSUPPORTED)


def check_schedule(kernel: Kernel, schedule: Schedule, target: Target) -> None:
    """Is this a schedule of this (normalized) kernel? Raises E0411 and lists every problem."""
    stages = kernel.stages
    problems = []
    if sorted(schedule.order) != sorted(kernel.axes):
        problems.append(f"order {schedule.order} does not list the axes {kernel.axes}")
    if not 0 <= schedule.parallel <= shared_prefix(kernel, schedule.order):
        problems.append("a distributed axis is missing in a root")
    if len(stages) != len(schedule.stages):
        problems.append(f"{len(schedule.stages)} stages for {len(stages)} reductions")
    for axis, tile in schedule.tile.items():
        if axis not in kernel.extent or tile < 1:
            problems.append(f"tile {tile} of axis {axis}")
        elif tile < kernel.extent[axis] and tile % grain(kernel, schedule.stages, axis, target):
            problems.append(f"tile {tile} of axis {axis} does not hold whole panels")
    if schedule.stream and not any(streamable(kernel, r) for r in kernel.roots):
        problems.append("no root can be streamed")
    for i, (stage, p) in enumerate(zip(stages, schedule.stages, strict=False)):
        found = _stage_problems(kernel, stage, p, target.gpu is not None)
        problems += [f"stage {i}: {what}" for what in found]
    if problems:
        where = f"kernel '{kernel.name}'"
        raise LumcError("E0411", "; ".join(problems), where=where)


def _stage_problems(kernel: Kernel, stage: Expr, p: Stage, gpu: bool) -> list[str]:
    if p.form == "rows":
        if p.lanes == "kept" and not own_axes(stage, gpu):
            return ["no kept axis for the lanes"]
        return []
    if (p.rows_axis, p.lane_axis) not in pairs(stage) or p.lane_axis is None:
        return [f"no contraction with rows {p.rows_axis} and lanes {p.lane_axis}"]
    pair = (p.rows_axis, p.lane_axis)
    out = ["the dot form on a GPU"] if p.form == "dot" and gpu else []
    if p.form == "dot" and not can_dot(stage, pair):
        out.append("an operand of the dot form lacks the reduced axis")
    for side in "ab":
        if p.staging(side) not in staging_modes(kernel, stage, p, side, gpu):
            out.append(f"operand {side} cannot be staged '{p.staging(side)}'")
    return out


def own_axes(stage: Expr, gpu: bool) -> frozenset[str]:
    """What the lanes of a walk may keep; of a weighted sum not the axes of its weights."""
    if stage.kind == "wsum":
        return stage.free - stage.kids[0].free if gpu else frozenset()
    return stage.free


def streamable(kernel: Kernel, root: Root) -> bool:
    """Can this store go around the caches? It must not accumulate, and fill whole pieces."""
    buffer, lane = kernel.buffer(root.buffer), [a for a in kernel.axes if a in root.axes][-1:]
    steps, irregular = axis_steps(root.index, buffer.shape)
    along = all(steps.get(a) == 1 and a not in irregular for a in lane)
    long = any(kernel.extent[a] * buffer.dtype.nbytes >= PIECE for a in lane)
    return along and long and root.value.kind not in REDUCTIONS


def skewable(kernel: Kernel) -> bool:
    """Are rows walked more than once, and nothing contracted?"""
    return len(kernel.stages) > 0 and not any(pairs(s) for s in kernel.stages)


def shared_prefix(kernel: Kernel, order: tuple[str, ...]) -> int:
    """How many leading loops can be distributed: every root must have their axes."""
    for i, axis in enumerate(order):
        if not all(axis in root.axes for root in kernel.roots):
            return i
    return len(order)


def grain(kernel: Kernel, plan: tuple[Stage, ...], axis: str, target: Target) -> int:
    """A tile of this axis is a multiple of the panels that are packed outside its loop."""
    stages = zip(kernel.stages, plan, strict=False)
    return lcm(*(unit_of(stage, p, axis, target) for stage, p in stages))


def unit_of(stage: Expr, p: Stage, axis: str, target: Target) -> int:
    """Rows or lanes of the panels of one stage, if they are packed outside the loop."""
    if p.form == "contract" and axis == p.rows_axis and p.stage_a in PANELS:
        return p.mr
    if p.form == "contract" and axis == p.lane_axis and p.stage_b in PANELS:
        return p.nv * lanes(target, dtype(stage))
    return 1
