"""Steps through the schedule space of a kernel: other structures, and neighbours of a schedule.

The structure - form, axes and staging of every reduction - decides most of the time, so it is
varied first, with the default tiles around it; then tiles, order and the rest, one at a time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from operator import ne
from typing import Any

from lumc.graph.expr import Expr
from lumc.schedule.case import spread
from lumc.schedule.first import tiled
from lumc.schedule.first_blocks import guesses
from lumc.schedule.first_stages import contraction_stage
from lumc.schedule.schedule import Schedule, Stage
from lumc.schedule.space import Grammar, Name

REACH = 8  # a step makes a tile at most so many times larger or smaller


def structures(grammar: Grammar) -> list[Schedule]:
    """The default and everything that differs from it in the structure of one reduction, or in how
    memory is written and read ahead where nothing is contracted; on a GPU all guesses."""
    kernel, default = grammar.kernel, grammar.default
    out = {grammar.nearest(grammar.values(default)): None}
    if grammar.case.gpu:
        found = guesses(kernel, grammar.target)
        return [grammar.build(grammar.nearest(grammar.values(s))) for s in found]
    for i, stage in enumerate(kernel.stages):
        for other in _stages(grammar, i, stage):
            stages = (*default.stages[:i], other, *default.stages[i + 1 :])
            wanted = grammar.values(tiled(kernel, stages, grammar.target))
            out[grammar.nearest(wanted)] = None
    if all(p.form == "rows" for p in default.stages):  # memory decides, and moods of its neighbours
        early = [row.name for row in grammar.rows.values() if row.early]
        for on in product((False, True), repeat=len(early)):
            memory: dict[str, Any] = dict(zip(early, on, strict=True))
            out[grammar.nearest(grammar.values(replace(default, **memory)))] = None
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
        for value in grammar.options(here[:depth]) if steps in ("each", "near") else ():
            if value != now and (steps == "each" or now <= value * REACH <= now * REACH**2):
                out.append({**values, name: value})
    swaps = combinations(enumerate(schedule.order), 2)
    return out + [{**values, ("order", i): b, ("order", j): a} for (i, a), (j, b) in swaps]


def _stages(grammar: Grammar, i: int, stage: Expr) -> Iterator[Stage]:
    """Every structure of one reduction, with a sound register tile."""
    c, extent = grammar.case, grammar.kernel.extent
    for form, rows, lane, along in grammar.rows["axes"].values(c, i, c.start()):
        if form == "contract":
            base = contraction_stage(c.kernel, stage, (rows, lane), c.target)
            yield from _staged(grammar, i, base)
        elif form == "dot":
            yield from _staged(grammar, i, Stage("dot", rows, lane, min(4, extent.get(rows, 1)), 2))
        else:
            walk = c.start()._replace(stage=Stage(lanes=along))
            for n in grammar.rows["streams"].values(c, i, walk):
                yield replace(walk.stage, streams=n)


def _staged(grammar: Grammar, i: int, base: Stage) -> Iterator[Stage]:
    """Every way to stage the operands, that of the sound one first."""
    c, found = grammar.case, [base]
    for side in "ba":
        before, found = found, []
        row = grammar.rows[side]
        for p in before:
            bare = replace(p, **spread(row.fields, "none"))
            modes = row.values(c, i, c.start()._replace(stage=bare))
            usual_first = sorted(modes, key=partial(ne, base.staging(side)))
            found += (replace(p, **spread(row.fields, m)) for m in usual_first)
    yield from found
