"""Steps through the schedule space of a kernel: other structures, and neighbours of a schedule.

The structure - form, axes and staging of every reduction - decides most of the time, so it is
varied first, with the default tiles around it; then tiles, order and the rest, one at a time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from lumc.errors import LumcError
from lumc.graph.expr import Expr, bound_axes
from lumc.kernel.contraction import can_dot, lanes, pairs, staging_modes
from lumc.kernel.legal import check_schedule, grain, shared_prefix
from lumc.kernel.normal import normalize
from lumc.kernel.schedule import Schedule, Stage
from lumc.kernel.space import (
    DOT_TILES,
    REGISTER_TILES,
    contraction_stage,
    default_schedule,
    tiled,
)
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, dtype

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
STREAMS = (1, 2, 4, 8)


def structures(kernel: Kernel, target: Target) -> list[Schedule]:
    """The default and everything that differs from it in the structure of one reduction."""
    kernel = normalize(kernel)
    default = default_schedule(kernel, target)
    out = [default]
    for i, stage in enumerate(kernel.stages):
        for other in _stages(kernel, stage, target):
            stages = (*default.stages[:i], other, *default.stages[i + 1 :])
            out.append(tiled(kernel, stages, target))
    return _legal(kernel, out, target)


def neighbours(kernel: Kernel, schedule: Schedule, target: Target) -> list[Schedule]:
    """Everything legal that is one step away."""
    kernel = normalize(kernel)
    found = [*_other_stages(kernel, schedule, target), *_other_tiles(kernel, schedule, target)]
    found += _other_orders(kernel, schedule)
    found += [_flipped(schedule, name) for name in ("keep", "fuse_rows", "transpose")]
    return [s for s in _legal(kernel, found, target) if s != schedule]


def stroll(kernel: Kernel, schedule: Schedule, target: Target, rng: random.Random) -> Schedule:
    """A few random steps."""
    for _ in range(rng.choice((2, 2, 3, 4))):
        schedule = rng.choice(neighbours(kernel, schedule, target) or [schedule])
    return schedule


def _legal(kernel: Kernel, schedules: Sequence[Schedule], target: Target) -> list[Schedule]:
    out = []
    for s in schedules:
        try:
            check_schedule(kernel, s, target)
        except LumcError:
            continue
        if s not in out:
            out.append(s)
    return out


def _stages(kernel: Kernel, stage: Expr, target: Target) -> Iterator[Stage]:
    """Every structure of one reduction, with a sound register tile."""
    for pair in pairs(stage):
        base = contraction_stage(kernel, stage, pair, target)
        yield from _staged(kernel, stage, base)
        if can_dot(stage, pair):
            rows = kernel.extent[pair[0]] if pair[0] else 1
            yield from _staged(kernel, stage, Stage("dot", *pair, min(4, rows), 2))
    for streams in STREAMS:
        yield Stage(streams=streams)
    if stage.kind == "red" and any(a in stage.free for a in kernel.axes):
        yield Stage(lanes="kept")


def _staged(kernel: Kernel, stage: Expr, base: Stage) -> Iterator[Stage]:
    a, b = (staging_modes(kernel, stage, base, side) for side in "ab")
    first = sorted(a, key=lambda m: m != base.stage_a), sorted(b, key=lambda m: m != base.stage_b)
    for stage_b in first[1]:
        for stage_a in first[0]:
            yield replace(base, stage_a=stage_a, stage_b=stage_b)


def _other_stages(kernel: Kernel, schedule: Schedule, target: Target) -> Iterator[Schedule]:
    for i, (stage, p) in enumerate(zip(kernel.stages, schedule.stages, strict=True)):
        for q in _near(kernel, stage, p, target):
            stages = (*schedule.stages[:i], q, *schedule.stages[i + 1 :])
            yield _rounded(kernel, replace(schedule, stages=stages), target)


def _near(kernel: Kernel, stage: Expr, p: Stage, target: Target) -> Iterator[Stage]:
    yield from (replace(p, streams=n) for n in STREAMS)
    if p.form == "rows":
        yield replace(p, lanes="kept" if p.lanes == "reduced" else "reduced")
        return
    tiles = DOT_TILES if p.form == "dot" else REGISTER_TILES[target.registers]
    yield from (replace(p, mr=mr, nv=nv) for mr, nv in tiles)
    yield from _staged(kernel, stage, p)
    for flag in ("window", "panels_first", "panels_outside"):
        yield _flipped(p, flag)


T = TypeVar("T", Schedule, Stage)


def _flipped(part: T, name: str) -> T:
    change: dict[str, Any] = {name: not getattr(part, name)}
    return replace(part, **change)


def _other_tiles(kernel: Kernel, schedule: Schedule, target: Target) -> Iterator[Schedule]:
    """Each axis with a tile of another size, among them those that divide it evenly."""
    for axis, extent in kernel.extent.items():
        unit = grain(kernel, schedule.stages, axis, target)
        own = _register_tile(kernel, schedule, axis, target)
        now = schedule.tile.get(axis, extent)
        sizes = {
            n for n in (*SIZES, *(own * k for k in (1, 2, 4, 8, 16))) if now / 8 <= n <= now * 8
        }
        sizes |= {-(-extent // parts) for parts in (1, 2, 3, 4, 6, 8)}
        whole = {min(extent, -(-n // unit) * unit) for n in sizes}
        for n in sorted(whole - {now}):
            rest = {a: t for a, t in schedule.tile.items() if a != axis}
            yield _dealt(kernel, replace(schedule, tile=rest if n >= extent else {**rest, axis: n}))


def _register_tile(kernel: Kernel, schedule: Schedule, axis: str, target: Target) -> int:
    for stage, p in zip(kernel.stages, schedule.stages, strict=True):
        if axis == p.rows_axis:
            return p.mr
        if axis == p.lane_axis and p.form == "contract":
            return p.nv * lanes(target, dtype(stage))
        if axis in bound_axes(stage):
            return 64
    return 1


def _other_orders(kernel: Kernel, schedule: Schedule) -> Iterator[Schedule]:
    order = schedule.order
    for i in range(len(order)):
        for j in range(i + 1, len(order)):
            new = list(order)
            new[i], new[j] = new[j], new[i]
            yield _dealt(kernel, replace(schedule, order=tuple(new)))
    for parallel in range(shared_prefix(kernel, order) + 1):
        yield replace(schedule, parallel=parallel)


def _dealt(kernel: Kernel, schedule: Schedule) -> Schedule:
    """As many loops distributed as before, as far as that is possible."""
    most = shared_prefix(kernel, schedule.order)
    return replace(schedule, parallel=min(max(1, schedule.parallel), most))


def _rounded(kernel: Kernel, schedule: Schedule, target: Target) -> Schedule:
    """Tiles that hold whole panels of the new stages."""
    tile = {}
    for axis, n in schedule.tile.items():
        unit = grain(kernel, schedule.stages, axis, target)
        size = -(-n // unit) * unit
        if size < kernel.extent[axis]:
            tile[axis] = size
    return replace(schedule, tile=tile)
