"""Schedules that take less scratch memory.

What a reduction reads of another one lies in scratch memory for all points of a tile at once. With
smaller tiles there is less of it, as long as the inner reduction does not have to be done again for
each. Tiles of reduced axes often cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from lumc.codegen.tile.execution import EXECUTION
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.program import Program
from lumc.errors import LumcError
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.profile.price import program_us
from lumc.schedule.applies import grain
from lumc.schedule.schedule import Schedule

LESS = 4  # times: how much smaller a tile is tried; a guess
WORTH = 0.9  # of the bytes: more are not worth a look; a guess

Lowered = tuple[Schedule, Program]


def within(kernel: Kernel, made: Lowered, target: Target, most: float) -> Lowered:
    """A schedule of a normalized kernel, and what it is lowered to, which takes at most so many
    bytes of scratch memory on every thread: one tile after the other is cut, each time that by
    which the least of the product of bytes and price is left. Where that ends earlier, the last
    one. What fits stays as it is, and what is for a machine whose tiles lie in registers."""
    schedule, program = made
    while program.scratch_bytes > most and EXECUTION[target.machine].in_memory:
        enough = program.scratch_bytes * WORTH
        smaller = [m for m in _smaller(kernel, schedule, target) if m[1].scratch_bytes <= enough]
        if not smaller:
            break
        schedule, program = min(smaller, key=lambda m: m[1].scratch_bytes * program_us(m[1]))
    return schedule, program


def _smaller(kernel: Kernel, schedule: Schedule, target: Target) -> Iterator[Lowered]:
    """The same with a smaller tile of one axis, in whole panels."""
    for axis, extent in kernel.extent.items():
        size, unit = schedule.tile.get(axis, extent), grain(kernel, schedule.stages, axis, target)
        less = ceil(size / LESS / unit) * unit
        if less < size:
            other = replace(schedule, tile={**schedule.tile, axis: less})
            try:
                yield other, lower(kernel, other, target)
            except LumcError:  # not every axis can be cut
                continue
