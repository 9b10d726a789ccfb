"""What a kernel and a schedule must obey before they are lowered."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from lumc.errors import Exit, LumcError
from lumc.graph.expr import subterms
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import NAME, TITLE, Kernel
from lumc.schedule.case import Case, Choice, having, held
from lumc.schedule.choices import CHOICES, absent, choices_on
from lumc.schedule.schedule import Schedule, Stage, Threads


def check_kernel(kernel: Kernel) -> None:
    """Names, lengths, axes of the roots, and in-place updates; raises E0410."""
    dims = [d.name for d in kernel.lengths.dims]
    names = (*kernel.extent, *dims, *(b.name for b in kernel.buffers))
    bad = [n for n in names if not re.fullmatch(NAME, n)]
    bad += [] if re.fullmatch(TITLE, kernel.name) else [kernel.name]
    problems = [f"'{n}' is not a name" for n in bad]
    problems += kernel.lengths.problems(kernel.extent)
    if len(set(kernel.stored)) != len(kernel.roots):
        problems.append("two roots store the same buffer")
    for i, root in enumerate(kernel.roots):
        if stray := sorted(root.value.free - root.axes):
            problems.append(f"root {i} depends on axis {stray[0]}, which its index lacks")
        if not root.axes <= set(kernel.axes):
            problems.append(f"root {i} has axes that the kernel lacks")
        for e in subterms(root.value, *root.index):
            if e.kind == "dim" and e.attr[0] not in dims:
                problems.append(f"root {i} uses dim {e.attr[0]}, which the kernel lacks")
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


def refusals(c: Case, schedule: Schedule) -> Iterator[str]:
    """What is not legal in a schedule of this kernel: whatever a row does not allow, or what has
    no row on this kind of machine."""
    s, rows, others = schedule, choices_on(c.gpu), absent(c.gpu)
    own = [row for row in rows if row.of == "reduction"]
    for i, p in enumerate(s.stages):
        found = (*_unlawful(c, i, p, s.threads, own), *_astray(c, "reduction", p, Stage(), others))
        yield from (f"stage {i}: {what}" for what in found)
    records = {"kernel": s, "nest": s, "block": s.threads, "threads": s.threads}
    for row in (row for row in rows if row.of in records):
        if not row.allows(c, None, s, held(records[row.of], row.fields)):
            yield _refused(row, records[row.of])
    tiles = next(row for row in CHOICES if row.of == "axis")
    bad = (a for a, n in s.tile.items() if not tiles.allows(c, a, s, n))
    yield from (f"tile {s.tile[a]} of axis {a}: {tiles.law}" for a in bad)
    yield from _astray(c, "kernel", s, Schedule((), 0), others)


def _unlawful(
    c: Case, i: int, p: Stage, threads: Threads | None, rows: Sequence[Choice]
) -> Iterator[str]:
    """The first choice of a reduction that those before it do not allow."""
    state = c.start(threads.count if threads else 0)
    for row in rows:
        value = held(p, row.fields)
        if not row.allows(c, i, state, value):
            yield _refused(row, p)
            return
        if row.asked and held(state.stage, row.fields) != value:
            state = state._replace(stage=having(state.stage, row.fields, value))


def _refused(row: Choice, record: Any) -> str:
    return f"{_told(row, record)}: {row.law}"


def _told(row: Choice, record: Any) -> str:
    return ", ".join(f"{f} {getattr(record, f)}" for f in row.fields)


def _astray(c: Case, of: str, record: Any, usual: Any, rows: Sequence[Choice]) -> Iterator[str]:
    """What is asked of another kind of machine."""
    for row in (row for row in rows if row.of == of):
        if held(record, row.fields) not in (held(usual, row.fields), row.idle):
            yield f"{_told(row, record)}: not on {c.target.name}"
