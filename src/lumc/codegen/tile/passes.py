"""The passes on tile programs, from what lowering writes to what is said.

A pass is a row: its name, the schedules and targets that ask for it, and a function from programs
to programs. They run in this order; ``watch`` sees the program after each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.abreast import write_out
from lumc.codegen.tile.across import lay_across
from lumc.codegen.tile.ahead import look_ahead, look_beside
from lumc.codegen.tile.domains import split_domains
from lumc.codegen.tile.rows import (
    drop_unread,
    finish_windows,
    fold,
    fuse_rows,
    place_scratch,
)
from lumc.codegen.tile.skew import skew_rows
from lumc.codegen.tile.vectors import whole_vectors
from lumc.kernel.target import Target
from lumc.schedule.schedule import Schedule

Watch = Callable[[str, ir.Program], None]  # the name of a pass, and the program after it


def unwatched(name: str, program: ir.Program) -> None:
    """Nobody looks."""


class Pass(NamedTuple):
    """A step on tile programs, and who asks for it."""

    name: str
    asks: Callable[[Schedule, Target], bool]
    run: Callable[[ir.Program], ir.Program]


def _always(_: Schedule, __: Target) -> bool:
    return True


def _on_cpus(_: Schedule, target: Target) -> bool:
    return not target.gpu


def _row_by_row(schedule: Schedule, target: Target) -> bool:
    return schedule.fuse_rows and not target.gpu


def _side_by_side(schedule: Schedule, target: Target) -> bool:
    return schedule.skew and not target.gpu


def _beside_tiles(schedule: Schedule, target: Target) -> bool:
    return schedule.beside and not target.gpu


def _ahead(schedule: Schedule, target: Target) -> bool:
    return schedule.prefetch and not target.gpu


PASSES = (  # on a GPU ``distribute`` goes on from here
    Pass("whole vectors", _on_cpus, whole_vectors),
    Pass("fuse rows", _row_by_row, fuse_rows),
    Pass("drop unread", _always, drop_unread),
    Pass("fold", _row_by_row, fold),
    Pass("lay across", _on_cpus, lay_across),
    Pass("finish windows", _on_cpus, finish_windows),
    Pass("look beside", _beside_tiles, look_beside),
    Pass("skew rows", _side_by_side, skew_rows),
    Pass("look ahead", _ahead, look_ahead),
    Pass("write out", _on_cpus, write_out),
    Pass("split domains", _on_cpus, split_domains),
    Pass("place scratch", _on_cpus, place_scratch),
)


def run_passes(program: ir.Program, schedule: Schedule, watch: Watch = unwatched) -> ir.Program:
    """The program after every pass that its schedule and its target ask for."""
    for step in PASSES:
        if step.asks(schedule, program.target):
            program = step.run(program)
            watch(step.name, program)
    return program
