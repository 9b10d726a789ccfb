"""What the threads have of a kernel: how many loops are dealt, and in equal shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from math import ceil, prod

from lumc.graph.expr import bound_axes
from lumc.kernel.running import running
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.schedule.applies import shared_prefix
from lumc.schedule.first_stages import ALIKE
from lumc.schedule.schedule import Stage

MANY_TILES = 8  # enough parts for a static partition
SEVERAL = 64  # tiles of a thread: beyond, one more or less makes no difference
WORTH_PARTS = 1 << 13  # steps; below, waking a second thread costs more than it saves
BLOCK_ROWS = 64
ROW_SHARE = 64  # elements of a row that another thread may take


def distributed(kernel: Kernel, order: Sequence[str], tile: Mapping[str, int]) -> int:
    """How many of the leading loops it takes to have enough tiles for every part."""
    count, parallel = MANY_TILES if _work(kernel) < WORTH_PARTS else 1, 0
    for i, axis in enumerate(order[: shared_prefix(kernel, tuple(order))], 1):
        if axis in tile and count < MANY_TILES:
            count *= -(-kernel.extent[axis] // tile[axis])
            parallel = i
    return parallel


def evenly_dealt(
    kernel: Kernel,
    order: Sequence[str],
    tile: dict[str, int],
    stages: tuple[Stage, ...],
    target: Target,
) -> Sequence[str]:
    """The distributed loops with another one outside, where the threads get more equal shares so
    and every pass over the lanes, which the threads had parts of, is for many rows."""
    lanes_axes = [p.lane_axis for p in stages if p.form == "contract"]
    parallel = distributed(kernel, order, tile)
    tiles = prod(-(-kernel.extent[a] // tile.get(a, kernel.extent[a])) for a in order[:parallel])
    if tiles < target.threads or order[:1] != lanes_axes[:1]:
        return order
    best, least = order, largest_share(kernel, order[:parallel], tile, target)
    for a in order[1:parallel]:
        rows = prod(tile.get(b, kernel.extent[b]) for b in order[1:])
        moved = [a, *(b for b in order if b != a)]
        share = largest_share(kernel, moved[:parallel], tile, target)
        if share < least * ALIKE and rows >= BLOCK_ROWS:
            best, least = moved, share
    return best


def lanes_dealt(
    kernel: Kernel,
    order: Sequence[str],
    tile: dict[str, int],
    stages: tuple[Stage, ...],
    target: Target,
) -> tuple[Sequence[str], dict[str, int]]:
    """Long rows of lanes in parts for the threads, where these get more equal shares so than of
    few rows. Nothing is reduced along them, and no result follows from another one."""
    walked = any(p.lanes != "kept" for p in stages) or any(
        running(kernel, s) for s in kernel.stages
    )
    if len(order) < 2 or walked:
        return order, tile
    *outer, lane = order
    part = 16 * ceil(kernel.extent[lane] / target.threads / 16)
    parts, moved = tile | {lane: part}, [lane, *outer]
    more = (
        largest_share(kernel, moved, parts, target)
        < largest_share(kernel, order, tile, target) * ALIKE
    )
    return (moved, parts) if more and part >= ROW_SHARE else (order, tile)


def largest_share(
    kernel: Kernel, order: Sequence[str], tile: Mapping[str, int], target: Target
) -> float:
    """The share, of all that is done, of the thread with most of it: tiles are dealt in order."""
    axes, threads = order[: distributed(kernel, order, tile)], target.threads
    tiles = prod(-(-kernel.extent[a] // tile.get(a, kernel.extent[a])) for a in axes)
    if threads == 1 or tiles > threads * SEVERAL:
        return 1.0 / threads
    cut = [range(0, kernel.extent[a], tile.get(a, kernel.extent[a])) for a in axes]
    sizes = [[min(r.step, kernel.extent[a] - n) for n in r] for a, r in zip(axes, cut, strict=True)]
    return largest_of([prod(each) for each in product(*sizes)], 1, threads)


def largest_of(works: Sequence[int], times: int, threads: int) -> float:
    """The share, of all that is done, of the thread with most of it: tiles, each so many times,
    are dealt in order."""
    every = [w for w in works for _ in range(times)]
    ends = [len(every) * part // threads for part in range(threads + 1)]
    return max(sum(every[a:b]) for a, b in pairwise(ends)) / max(1, sum(every))


def _work(kernel: Kernel) -> int:
    """Steps of the largest loop nest."""
    loops = [s.free.union(bound_axes(s)) for s in kernel.stages if not running(kernel, s)]
    loops += [r.axes for r in kernel.roots]
    return max(map(kernel.points, loops), default=0)
