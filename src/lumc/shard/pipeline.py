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


def turns(
    forward: Sequence[float], backward: Sequence[float], batches: int, open_at_most: int = 0
) -> list[Turn]:
    """What every stage does when, of so many micro-batches. A stage takes what is deepest among
    what is ready, and has at most S - s micro-batches open (``open_at_most``: so many): that is one
    forward, one backward (Narayanan and others 2019). Without a ``backward`` all goes forward."""
    stages = len(forward)
    done = [[[0.0] * batches for _ in range(stages)] for _ in range(2)]
    begun, ended, free = [0] * stages, [0] * stages, [0.0] * stages
    out = list[Turn]()
    total = stages * batches * (2 if backward else 1)

    def ready(s: int) -> list[tuple[float, bool]]:
        """When this stage could begin what: later passes first where both could begin at once."""
        found = list[tuple[float, bool]]()
        if backward and ended[s] < begun[s] and (s == stages - 1 or ended[s + 1] > ended[s]):
            made = done[0][s][ended[s]] if s == stages - 1 else done[1][s + 1][ended[s]]
            found.append((max(free[s], made), True))
        limit = (open_at_most or stages - s) if backward else batches
        fits = begun[s] < batches and begun[s] - ended[s] < limit
        if fits and (s == 0 or begun[s - 1] > begun[s]):
            made = done[0][s - 1][begun[s]] if s else 0.0
            found.append((max(free[s], made), False))
        return found

    while len(out) < total:
        start, _, s = min((at, not back, s) for s in range(stages) for at, back in ready(s))
        back = any(at == start and b for at, b in ready(s))
        counts, seconds = (ended, backward) if back else (begun, forward)
        batch, free[s] = counts[s], start + seconds[s]
        done[back][s][batch] = free[s]
        counts[s] += 1
        out.append(Turn(s, batch, back, start, free[s]))
    return out
