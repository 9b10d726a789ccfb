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
from lumc.codegen.tile.ahead import look_ahead
from lumc.codegen.tile.domains import split_domains
from lumc.codegen.tile.rows import (
    drop_unread,
    finish_windows,
    fold,
    fuse_rows,
    place_scratch,
)
from lumc.codegen.tile.skew import skew_rows
from lumc.codegen.tile.turned import turn_operands
from lumc.codegen.tile.vectors import whole_vectors
from lumc.kernel.target import Target
from lumc.schedule.schedule import Schedule

Watch = Callable[[str, ir.Program], None]  # the name of a pass, and the program after it


def unwatched(name: str, program: ir.Program) -> None:
    """Nobody looks."""


class Pass(NamedTuple):
    """A step on tile programs, and who asks for it."""

    name: str
    run: Callable[[ir.Program], ir.Program]
    choice: str = ""  # the field of schedules that asks for it; "": all do
    machines: tuple[str, ...] = ("cpu",)

    def asks(self, schedule: Schedule, target: Target) -> bool:
        """Does a schedule of this target ask for it?"""
        chosen = not self.choice or bool(getattr(schedule, self.choice))
        return chosen and target.machine in self.machines


PASSES = (  # on a GPU ``distribute`` goes on from here
    Pass("whole vectors", whole_vectors),
    Pass("fuse rows", fuse_rows, "fuse_rows"),
    Pass("drop unread", drop_unread, machines=("cpu", "gpu")),
    Pass("fold", fold, "fuse_rows"),
    Pass("lay across", lay_across),
    Pass("finish windows", finish_windows),
    Pass("skew rows", skew_rows, "skew"),
    Pass("look ahead", look_ahead, "prefetch"),
    Pass("write out", write_out),
    Pass("split domains", split_domains),
    Pass("drop unread in pieces", drop_unread),
    Pass("place scratch", place_scratch),
    Pass("turn operands", turn_operands, "transpose"),
)


def run_passes(program: ir.Program, schedule: Schedule, watch: Watch = unwatched) -> ir.Program:
    """The program after every pass that its schedule and its target ask for."""
    for step in PASSES:
        if step.asks(schedule, program.target):
            program = step.run(program)
            watch(step.name, program)
    return program
