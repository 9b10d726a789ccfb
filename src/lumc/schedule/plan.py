"""What was chosen: the kernels of a program, their schedules, and who calls them with what.

A graph is a sequence of region instances; equal regions share one ``RegionPlan``. Names of values
are the names of graph nodes; inside a region ``b0, b1, ..`` are its inputs in order of first use,
``v0, v1, ..`` its local values and ``out`` its result, or ``out0, out1, ..`` if it has several.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lumc.graph.graph import Graph
from lumc.kernel.target import Target
from lumc.kernel.term import Buffer, Kernel
from lumc.schedule.schedule import Schedule

Outputs = Mapping[str, tuple[tuple[str, str], ...]]  # entry -> (output name, value name)


def results(count: int) -> tuple[str, ...]:
    """What a region calls its results."""
    return ("out",) if count == 1 else tuple(f"out{n}" for n in range(count))


@dataclass(frozen=True)
class Instance:
    """One occurrence of a region in an entry, in execution order."""

    entry: str
    region: str  # key
    inputs: tuple[str, ...]  # names of graph values: b0, b1, ..
    outputs: tuple[str, ...]  # names of the graph values (or the state) that it writes

    @property
    def names(self) -> dict[str, str]:
        """The names of graph values by those that the region has for them."""
        read = {f"b{n}": name for n, name in enumerate(self.inputs)}
        return read | dict(zip(results(len(self.outputs)), self.outputs, strict=True))


@dataclass(frozen=True)
class Step:
    """One launch inside a region: a kernel on named values, in the kernel's buffer order."""

    kernel: str  # key
    args: tuple[str, ...]


@dataclass(frozen=True)
class RegionPlan:
    """The launches of one region; ``local`` are the values between them."""

    key: str
    steps: tuple[Step, ...]
    local: tuple[Buffer, ...]


@dataclass(frozen=True)
class KernelPlan:
    """A kernel with the schedule that was chosen for it."""

    key: str
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
