"""Random legal schedules for tests: of the space, and with tiles of any size, beyond it."""

from __future__ import annotations

import random
from dataclasses import replace

from lumc.graph.expr import Expr, bound_axes
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, dtype
from lumc.schedule.applies import shared_prefix, streamable
from lumc.schedule.case import Case, held, spread
from lumc.schedule.choices import choices_on
from lumc.schedule.first import _finish, _whole_panels
from lumc.schedule.first_stages import level_tiles
from lumc.schedule.operands import Pair, can_dot, lanes, least_step, pairs
from lumc.schedule.registers import DOT_TILES, REGISTER_TILES
from lumc.schedule.schedule import Schedule, Stage
from lumc.schedule.space import Grammar, Path
from lumc.schedule.staging import reads_levels, staging_modes


def random_schedule(kernel: Kernel, target: Target, rng: random.Random) -> Schedule:
    """Any legal schedule."""
    kernel = normalize(kernel)
    stages = tuple(_random_stage(kernel, s, target, rng) for s in kernel.stages)
    order = list(kernel.axes)
    rng.shuffle(order)
    sizes = (1, 2, 4, 7, 8, 16, 24, 32, 48, 64, 96, 128, 256)
    tile = {a: rng.choice([*sizes, n, n, n]) for a, n in kernel.extent.items()}
    stream = any(streamable(kernel, root) for root in kernel.roots)
    drawn = Schedule(
        order=tuple(order),
        parallel=rng.randint(0, shared_prefix(kernel, tuple(order))),
        tile=_whole_panels(kernel, tile, stages, target),
        stages=stages,
        keep=rng.random() < 0.7,
        fuse_rows=rng.random() < 0.7,
        transpose=rng.random() < 0.7,
        stream=stream and rng.random() < 0.5,
        prefetch=rng.random() < 0.5,
        skew=rng.random() < 0.5,
    )
    return lawful(kernel, drawn, target)


def lawful(kernel: Kernel, schedule: Schedule, target: Target) -> Schedule:
    """The same with what applies here: other choices are as by default."""
    c, stages, usual = Case(kernel, target), list[Stage](), Schedule((), 0)
    for i, p in enumerate(schedule.stages):
        state = c.start(schedule.threads.count if schedule.threads else 0)
        for row in (row for row in choices_on(c.gpu) if row.of == "reduction"):
            value = held(p, row.fields)
            value = value if row.allows(c, i, state, value) else held(Stage(), row.fields)
            p = replace(p, **spread(row.fields, value))
            state = state._replace(stage=replace(state.stage, **spread(row.fields, value)))
        stages.append(state.stage)
    for row in (row for row in choices_on(c.gpu) if row.of == "kernel"):
        if not row.allows(c, None, schedule, held(schedule, row.fields)):
            schedule = replace(schedule, **spread(row.fields, held(usual, row.fields)))
    return replace(schedule, stages=tuple(stages))


def sane_schedule(kernel: Kernel, target: Target, rng: random.Random) -> Schedule:
    """A random schedule that a search would draw: tiles are multiples of the register tiles,
    batch axes are small."""
    kernel = normalize(kernel)
    draw = random_schedule(kernel, target, rng)
    rows, vectors, reduced = dict[str, int](), dict[str, int](), set[str]()
    for s, p in zip(kernel.stages, draw.stages, strict=True):
        reduced |= set(bound_axes(s))
        if p.form == "contract" and p.lane_axis:
            vectors[p.lane_axis] = p.nv * lanes(target, dtype(s))
        if p.form != "rows" and p.rows_axis:
            rows[p.rows_axis] = p.mr
    tile = {}
    for a, n in kernel.extent.items():
        if a in reduced:
            tile[a] = rng.choice((64, 128, 256, 512, n, n))
        elif a in vectors:
            tile[a] = vectors[a] * rng.choice((1, 2, 4, 8, 16))
        elif a in rows:
            tile[a] = rows[a] * rng.choice((2, 4, 8, 16, 64))
        else:
            tile[a] = n if a in kernel.axes[-1:] else rng.choice((1, 1, 4, 8, 16, 32))
    return _finish(kernel, draw.order, tile, draw.stages, target)


def _random_stage(kernel: Kernel, stage: Expr, target: Target, rng: random.Random) -> Stage:
    found = pairs(stage)
    if found and rng.random() < 0.8:
        return _random_contraction(kernel, stage, rng.choice(found), target, rng)
    # lanes on a kept axis only where the data is contiguous along it: gathers take gcc seconds
    kept = [a for a in kernel.axes if a in stage.free]
    unit = bool(kept) and stage.kind == "red" and least_step(kernel, stage, kept[-1]) == 1
    lane = rng.choice(("reduced", "kept")) if unit else "reduced"
    return Stage(lanes=lane, streams=rng.choice((1, 2, 4)))


def _random_contraction(
    kernel: Kernel, stage: Expr, pair: Pair, target: Target, rng: random.Random
) -> Stage:
    dot = rng.random() < 0.25 and can_dot(stage, pair)
    mr, nv = rng.choice(DOT_TILES if dot else REGISTER_TILES[target.registers])
    p = Stage("dot" if dot else "contract", *pair, mr, nv)
    a, b = (staging_modes(kernel, stage, p, side) for side in "ab")
    b = [m for m in b if m != "digits" or "vnni" in target.features]
    a, b = (modes + ["narrow"] * 2 * ("narrow" in modes) for modes in (a, b))  # few kernels can
    p = replace(p, stage_a=rng.choice(a), stage_b=rng.choice(b))
    if reads_levels(kernel, stage, p):
        mr, nv = rng.choice(level_tiles(kernel, stage, pair, target, p.stage_b))
        p = replace(p, mr=mr, nv=nv, next_panel=rng.random() < 0.5)
    return replace(
        p,
        unroll=rng.random() < 0.5,
        window=rng.random() < 0.7,
        panels_first=rng.random() < 0.5,
        panels_outside=rng.random() < 0.4,
        streams=rng.choice((1, 2, 4)),
    )


def a_path(grammar: Grammar, rng: random.Random) -> Path:
    """A path of the space by one choice at a time, each value alike: ``sample`` draws all schedules
    alike, and counts them for that."""
    path: Path = ()
    while len(path) < len(grammar.names):
        path = (*path, rng.choice(grammar.options(path)))
    return path
