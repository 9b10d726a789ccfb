"""Steps through the schedule space of a kernel: other structures, and neighbours of a schedule.

The structure - form, axes and staging of every reduction - decides most of the time, so it is
varied first, with the default tiles around it; then tiles, order and the rest, one at a time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

from lumc.graph.expr import Expr
from lumc.schedule.choices import STREAMS
from lumc.schedule.first import contraction_stage, tiled
from lumc.schedule.first_blocks import guesses
from lumc.schedule.operands import can_dot, pairs, staging_modes
from lumc.schedule.schedule import Schedule, Stage
from lumc.schedule.space import Grammar, Name

REACH = 8  # a step makes a tile at most so many times larger or smaller


def structures(grammar: Grammar) -> list[Schedule]:
    """The default and everything that differs from it in the structure of one reduction, or in how
    memory is written and read ahead where nothing is contracted; on a GPU all guesses."""
    kernel, default = grammar.kernel, grammar.default
    out = {grammar.nearest(grammar.values(default)): None}
    if grammar.target.gpu:
        found = guesses(kernel, grammar.target)
        return [grammar.build(grammar.nearest(grammar.values(s))) for s in found]
    for i, stage in enumerate(kernel.stages):
        for other in _stages(grammar, stage):
            stages = (*default.stages[:i], other, *default.stages[i + 1 :])
            wanted = grammar.values(tiled(kernel, stages, grammar.target))
            out[grammar.nearest(wanted)] = None
    if all(p.form == "rows" for p in default.stages):  # memory decides, and moods of its neighbours
        for stream, prefetch, skew in product((False, True), repeat=3):
            memory = replace(default, stream=stream, prefetch=prefetch, skew=skew)
            wanted = grammar.values(memory)
            out[grammar.nearest(wanted)] = None
    return [grammar.build(path) for path in out]


def neighbours(grammar: Grammar, schedule: Schedule) -> list[Schedule]:
    """Everything that makes one choice differently, and the others as far as that allows."""
    out = dict.fromkeys(map(grammar.nearest, _steps(grammar, schedule)))
    return [s for s in map(grammar.build, out) if s != schedule]


def stroll(grammar: Grammar, schedule: Schedule, rng: random.Random) -> Schedule:
    """A few random steps."""
    for _ in range(rng.choice((2, 2, 3, 4))):
        schedule = grammar.build(grammar.nearest(rng.choice(_steps(grammar, schedule))))
    return schedule


def carried(grammar: Grammar, schedule: Schedule, axes: Sequence[str]) -> Schedule:
    """The nearest to the schedule of another kernel, whose axes these are in the same places."""
    to: dict[str | None, str] = dict(zip(axes, grammar.axes, strict=True))
    stages = [
        replace(s, rows_axis=to.get(s.rows_axis), lane_axis=to.get(s.lane_axis))
        for s in schedule.stages
    ]
    order, tile = tuple(to[a] for a in schedule.order), {to[a]: n for a, n in schedule.tile.items()}
    wanted = replace(schedule, order=order, tile=tile, stages=tuple(stages))
    return grammar.build(grammar.nearest(grammar.values(wanted)))


def _steps(grammar: Grammar, schedule: Schedule) -> list[dict[Name, Any]]:
    """The values of a schedule, and these with one choice made differently."""
    values = grammar.values(schedule)
    here, out = grammar.nearest(values), [values]
    for depth, (name, now) in enumerate(zip(grammar.names, here, strict=True)):
        steps = grammar.rows[name[0]].steps
        for value, _ in grammar.options(here[:depth]) if steps in ("each", "near") else ():
            if value != now and (steps == "each" or now <= value * REACH <= now * REACH**2):
                out.append({**values, name: value})
    swaps = combinations(enumerate(schedule.order), 2)
    return out + [{**values, ("order", i): b, ("order", j): a} for (i, a), (j, b) in swaps]


def _stages(grammar: Grammar, stage: Expr) -> Iterator[Stage]:
    """Every structure of one reduction, with a sound register tile."""
    kernel = grammar.kernel
    for pair in pairs(stage):
        yield from _staged(grammar, stage, contraction_stage(kernel, stage, pair, grammar.target))
        if can_dot(stage, pair):
            rows = kernel.extent[pair[0]] if pair[0] else 1
            yield from _staged(grammar, stage, Stage("dot", *pair, min(4, rows), 2))
    yield from (Stage(streams=n) for n in STREAMS)
    if stage.kind == "red" and any(a in stage.free for a in kernel.axes):
        yield Stage(lanes="kept")


def _staged(grammar: Grammar, stage: Expr, base: Stage) -> Iterator[Stage]:
    a, b = (staging_modes(grammar.kernel, stage, base, side) for side in "ab")
    for stage_b in sorted(b, key=lambda m: m != base.stage_b):
        for stage_a in sorted(a, key=lambda m: m != base.stage_a):
            yield replace(base, stage_a=stage_a, stage_b=stage_b)
