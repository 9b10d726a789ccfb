"""When the stages of a pipeline do what: the order in which ranks run a graph, by a model of time.

Every stage goes through its steps for one micro-batch after the other, and through those before and
after them once. It waits for what it is sent, and who sends waits for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lumc.graph.batches import AFTER, BEFORE, WITHIN, runs
from lumc.graph.collective import Collective
from lumc.graph.graph import Entry, Graph
from lumc.graph.stages import axis_of_stages, needed_on, stages_of
from lumc.shard.choose import fused
from lumc.shard.cost import Machine, cost
from lumc.shard.held import WHOLE
from lumc.shard.pipeline import Turn


class Step(NamedTuple):
    """What some stages do: compute for so many seconds, or hear of ``source``, which sends."""

    phase: int  # before, in each of, or after the micro-batches
    stages: Sequence[int]
    seconds: float
    source: int | None = None


def scheduled(steps: Sequence[Step], stages: int, batches: int) -> list[Turn]:
    """What every stage does when. It goes backward after it heard of a later stage."""
    line, out = _Line(stages), list[Turn]()
    for phase, times in ((BEFORE, 1), (WITHIN, batches), (AFTER, 1)):
        own = [s for s in steps if s.phase == phase]
        for batch in range(times):
            for s in own:
                out += line.take(s, batch if phase == WITHIN else max(phase - 1, 0) * batches)
    return out + [t for s in range(stages) for t in line.closed(s)]


class _Line:
    """How far every stage is, and what it does without a pause."""

    def __init__(self, stages: int) -> None:
        self.now = [0.0] * stages
        self.open: list[Turn | None] = [None] * stages
        self.back = [False] * stages

    def closed(self, stage: int) -> Iterator[Turn]:
        if turn := self.open[stage]:
            yield turn
        self.open[stage] = None

    def take(self, step: Step, batch: int) -> Iterator[Turn]:
        """Go on with a step; what ends by it."""
        starts = step.stages if step.source is None else (step.source,)
        for s in starts:
            yield from self.work(s, batch, step.seconds)
        for s in step.stages if step.source is not None else ():
            arrival = self.now[step.source or 0]
            if s == step.source:
                continue
            if self.now[s] < arrival or self.back[s] != (step.source or 0) > s:
                yield from self.closed(s)
            self.now[s], self.back[s] = max(self.now[s], arrival), (step.source or 0) > s

    def work(self, s: int, batch: int, seconds: float) -> Iterator[Turn]:
        turn, start = self.open[s], self.now[s]
        if turn and turn.batch != batch:
            yield from self.closed(s)
            turn, self.back[s] = None, False
        self.now[s] += seconds
        begun = turn.start if turn else start
        self.open[s] = Turn(s, batch, self.back[s], begun, self.now[s])


def steps_of(graph: Graph, entry: Entry, machine: Machine) -> list[Step]:
    """The steps of a graph in stages: its nodes, with what they are expected to take."""
    count = graph.mesh.get(axis_of_stages(graph), 1)
    phases, stages, inner = runs(entry), stages_of(entry), fused(entry)
    needed, every, out = needed_on(entry, stages), range(count), list[Step]()
    for n in entry.nodes:
        phase = phases.get(n, AFTER)
        if isinstance(n.op, Collective) and n.op.source is not None:
            seconds = machine.sending(n.op, n.size * n.dtype.nbytes)
            ends = every if n.op.target is None else (n.op.target,)
            out.append(Step(phase, tuple(ends), seconds, n.op.source))
            continue
        below = any(r.source in inner for r in n.reads)
        in_time = isinstance(n.op, Collective) and n.op.mesh == entry.time
        seconds = machine.streaming(3 * n.size * n.dtype.nbytes) if in_time else 0.0
        seconds = seconds or cost(n, WHOLE, False, n in inner, below, machine)
        own = [stages[n]] if n in stages else sorted(needed.get(n, every) or every)
        out.append(Step(phase, own, seconds))
    return out
