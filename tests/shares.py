"""What threads have of the work of a kernel, counted tile by tile."""

from __future__ import annotations

from itertools import product
from math import prod

from lumc.kernel.term import Kernel
from lumc.schedule.schedule import Schedule


def largest_share(k: Kernel, s: Schedule) -> float:
    """Of all points, those that one of two threads of a CPU computes at most."""
    starts = [range(0, k.extent[a], s.tile.get(a, k.extent[a])) for a in s.order[: s.parallel]]
    work = [
        prod(min(r.step, k.extent[a] - n) for a, r, n in zip(s.order, starts, tile, strict=False))
        for tile in product(*starts)
    ]
    half = len(work) // 2
    return max(sum(work[:half]), sum(work[half:])) / sum(work)
