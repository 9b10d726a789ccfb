"""What kernels cost by what they are lowered to, each once: regions that differ in the layout of a
value, and sets of cuts, have most of their kernels in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from lumc.codegen.tile.program import Contract, Par, Program, Reduce, is_copy, leaves
from lumc.errors import LumcError
from lumc.kernel.access import gathers
from lumc.kernel.inside import require_inside
from lumc.kernel.key import renamed
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.profile.price import (
    LAST,
    LAUNCH_US,
    cached_us,
    least_price_us,
    program_us,
    scheduled,
)
from lumc.profile.reads import Spent
from lumc.profile.scratch import within
from lumc.schedule.schedule import Schedule

LEAST_US = 8.0  # of a kernel that may be several; derived: two more launches are a quarter of it
FAR = 1.5  # times its bound: a walk that may be better off with other lanes; a guess


class Lowered(NamedTuple):
    """The price of a kernel with its default schedule, in us."""

    whole: float  # infinite if it is not valid
    cached: float = inf  # the same where caches hold all values
    idle: float = inf  # less than in two steps, where the target has too little to do
    across: bool = False  # whether it may be cheaper turned
    why: str = ""  # it is not valid


@dataclass
class Kernels:
    """What is known of kernels on a target, with ``scratch`` bytes of scratch memory on every
    thread, or as few more as they need."""

    target: Target
    scratch: float = inf
    leasts: dict[object, float] = field(default_factory=dict)
    known: dict[object, Lowered] = field(default_factory=dict)
    alike: dict[object, object] = field(default_factory=dict)  # identities without names of buffers

    def least(self, kernel: Kernel) -> float:
        """No price is less, in us."""
        key = self._without_names(kernel, _identity(kernel))
        if key not in self.leasts:
            self.leasts[key] = least_price_us(kernel, self.target)
        return self.leasts[key]

    def lowered(self, kernel: Kernel) -> Lowered:
        """Its prices, or why it is not valid."""
        own = _identity(kernel)
        key = self._without_names(kernel, own)
        if key not in self.known:
            key = own if own in self.known else key
        if key not in self.known:
            found = self._lower(kernel)
            key = own if found.why else key  # which says names
            self.known[key] = found
        return self.known[key]

    def scheduled(self, kernel: Kernel) -> tuple[Schedule, Program]:
        """The default schedule of a kernel and what it is lowered to. Raises E0411 as
        ``price.scheduled``."""
        made = scheduled(kernel, self.target)
        if made[1].scratch_bytes <= self.scratch:
            return made
        return within(normalize(kernel), made, self.target, self.scratch)

    def _without_names(self, kernel: Kernel, own: object) -> object:
        """Its identity but for the names of its buffers: values that are handed on are numbered,
        which differ from variant to variant. Where an index is data, that its sums are ordered by,
        names count."""
        if own not in self.alike:
            indices = (i for r in kernel.roots for i in r.index)
            named = gathers(*kernel.values) or gathers(*indices)
            names = {b.name: str(n) for n, b in enumerate(kernel.buffers)}
            self.alike[own] = own if named else _identity(renamed(kernel, {}, names))
        return self.alike[own]

    def _lower(self, kernel: Kernel) -> Lowered:
        try:
            require_inside(kernel)
            schedule, program = self.scheduled(kernel)
        except LumcError as e:
            return Lowered(inf, why=f"{e.code} {e.what}")
        spent, launch_us = Spent(), LAUNCH_US + self.target.launch_us
        # of what is done, not of a launch of a GPU: how these differ by kernels was never measured
        us, idle = program_us(program, spent=spent), inf
        if is_idle(program):
            full = program_us(program, full=True, spent=spent)
            idle = full + launch_us
        walks = all(p.form == "rows" for p in schedule.stages) and len(schedule.stages) > 0
        cached = us if LAST[self.target.machine] == 1 else cached_us(program, spent)
        worth = cached > max(FAR * self.least(kernel), LEAST_US)
        return Lowered(us, cached, idle, walks and worth and self.target.lanes > 1)


def _identity(kernel: Kernel) -> object:
    """Equal for kernels that differ in nothing but their own name."""
    return kernel.axes, kernel.roots, kernel.buffers, *kernel.extent.items(), kernel.lengths


def is_idle(program: Program) -> bool:
    """Whether the target does less side by side than it could, or a reduction apart from that; of
    copies every part has its own."""
    apart = leaves([op for op in program.body if not isinstance(op, Par)])
    few = program.tiles < program.target.units
    return few or any(isinstance(op, Reduce | Contract) and not is_copy(op) for op in apart)
