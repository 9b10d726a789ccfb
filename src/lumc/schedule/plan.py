"""What was chosen: the kernels of a program, their schedules, and who calls them with what.

A graph is a sequence of region instances; equal regions share one ``RegionPlan``. What instances
call their values is said in ``kernel.instance``; a region calls its local ones ``v0, v1, ..``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lumc.graph.graph import Graph
from lumc.kernel.instance import Instance, Outputs
from lumc.kernel.target import Target
from lumc.kernel.term import Buffer, Kernel, Title
from lumc.schedule.schedule import Schedule


@dataclass(frozen=True)
class Step:
    """One launch inside a region: a kernel on named values, in the kernel's buffer order."""

    kernel: str  # key
    args: tuple[str, ...]


@dataclass(frozen=True)
class RegionPlan:
    """The launches of one region; ``local`` are the values between them."""

    key: Title
    steps: tuple[Step, ...]
    local: tuple[Buffer, ...]


@dataclass(frozen=True)
class KernelPlan:
    """A kernel with the schedule that was chosen for it."""

    key: Title
    kernel: Kernel
    schedule: Schedule
    bound_us: float  # roofline: no schedule can be faster
    time_us: float | None = None  # measured minimum, when it was measured
    stop: str = ""  # why its search ended


@dataclass(frozen=True)
class Plan:
    """The ``.lp`` artifact."""

    graph: Graph
    target: Target
    kernels: Mapping[str, KernelPlan]  # by key
    regions: Mapping[str, RegionPlan]  # by key
    instances: tuple[Instance, ...]
    outputs: Outputs
