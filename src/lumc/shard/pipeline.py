"""Stages of a pipeline, and in what order they take their micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from lumc.shard.work import Floats


class Stages(NamedTuple):
    """Where a pipeline is cut: stage i has the weights from ``cuts[i]`` to before
    ``cuts[i + 1]``; and the seconds of its greatest stage for a micro-batch."""

    cuts: tuple[int, ...]
    seconds: float


def cut(own: Floats, enter: Floats, leave: Floats, most: int) -> list[Stages]:
    """The cuts into 1, 2, .. ``most`` stages whose greatest stage takes least. ``own`` is what the
    weights take, ``enter`` and ``leave`` what a stage takes besides that begins, or ends, before a
    weight. Exact, by stages and then by the end of the last one."""
    n = len(own)
    before = np.concatenate([[0.0], np.cumsum(own)])
    cost = before[None, :] - before[:, None] + enter[:, None] + leave[None, :]
    cost[np.tril_indices(n + 1)] = inf  # a stage has a weight at least
    best, trail, out = cost[0], list[Floats](), [Stages((0, n), float(cost[0, n]))]
    for _ in range(1, min(most, n)):
        both = np.maximum(best[:, None], cost)
        trail.append(both.argmin(0))
        best = both.min(0)
        ends = [n]
        for back in reversed(trail):
            ends.append(int(back[ends[-1]]))
        out.append(Stages((0, *reversed(ends)), float(best[n])))
    return out


class Turn(NamedTuple):
    """A micro-batch on a stage, forward or backward, in seconds from the beginning."""

    stage: int
    batch: int
    backward: bool
    start: float
    end: float


def turns(forward: Sequence[float], backward: Sequence[float], batches: int) -> list[Turn]:
    """What every stage does when, of so many micro-batches; with no ``backward`` all goes forward.

    Two rules: of what is ready a stage takes what is deepest, and stage s of S has at most S - s
    micro-batches open. That is one forward, one backward (Narayanan and others, 2019). What may
    begin first in all the pipeline is taken first: nothing that is not known yet begins before."""
    line, out = _Line(forward, backward, batches), list[Turn]()
    stages = len(forward)
    first = [line.next(s) for s in range(stages)]
    while (soonest := min(first))[0] < inf:
        start, late, s = soonest
        out.append(line.take(s, start, not late))
        for near in range(max(s - 1, 0), min(s + 2, stages)):
            first[near] = line.next(near)
    return out


class _Line:
    """How far every stage is."""

    def __init__(self, forward: Sequence[float], backward: Sequence[float], batches: int) -> None:
        self.seconds, self.batches, self.stages = (forward, backward), batches, len(forward)
        self.free = [0.0] * self.stages
        self.ends = [[list[float]() for _ in forward] for _ in range(2)]  # of what is done

    def next(self, s: int) -> tuple[float, bool, int]:
        """When a stage can begin what it takes next, whether that goes forward, and the stage."""
        found = [(inf, True, s)]
        forward, backward = (len(self.ends[way][s]) for way in range(2))
        if self.seconds[1] and backward < forward:
            above = self.ends[0][s] if s == self.stages - 1 else self.ends[1][s + 1]
            if len(above) > backward:
                found.append((max(self.free[s], above[backward]), False, s))
        limit = self.stages - s if self.seconds[1] else self.batches
        if forward < self.batches and forward - backward < limit:
            below = self.ends[0][s - 1] if s else [0.0] * self.batches
            if len(below) > forward:
                found.append((max(self.free[s], below[forward]), True, s))
        return min(found)

    def take(self, s: int, start: float, back: bool) -> Turn:
        ends = self.ends[back][s]
        self.free[s] = start + self.seconds[back][s]
        ends.append(self.free[s])
        return Turn(s, len(ends) - 1, back, start, self.free[s])
