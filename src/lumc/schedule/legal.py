"""What a kernel and a schedule must obey before they are lowered."""

from __future__ import annotations

import re

from lumc.errors import Exit, LumcError
from lumc.graph.expr import subterms
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.schedule.case import Case
from lumc.schedule.choices import refusals
from lumc.schedule.schedule import Schedule

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


def is_legal(kernel: Kernel, target: Target, schedule: Schedule) -> bool:
    """Is this a schedule of this kernel on this target?"""
    try:
        check_schedule(normalize(kernel), schedule, target)
    except LumcError:
        return False
    return True


def check_schedule(kernel: Kernel, schedule: Schedule, target: Target) -> None:
    """Is this a schedule of this (normalized) kernel on this target? Raises E0411 and lists every
    problem: what no row of ``choices`` offers is refused, never ignored."""
    problems = []
    if sorted(schedule.order) != sorted(kernel.axes):
        problems.append(f"order {schedule.order} does not list the axes {kernel.axes}")
    if len(kernel.stages) != len(schedule.stages):
        problems.append(f"{len(schedule.stages)} stages for {len(kernel.stages)} reductions")
    if stray := sorted(set(schedule.tile) - set(kernel.extent)):
        problems.append(f"a tile of axis {stray[0]}, which the kernel lacks")
    if (schedule.threads is None) != (target.gpu is None):
        problems.append("threads of a block, and no GPU" if schedule.threads else "no threads")
    if not problems:
        problems = list(refusals(Case(kernel, target), schedule))
    if problems:
        where = f"kernel '{kernel.name}'"
        raise LumcError("E0411", "; ".join(problems), where=where)
