"""When the stages of a pipeline do what: the order in which ranks run a graph, by a model of time.

Every stage goes through its steps for one micro-batch after the other, or forward and back in turn
(``graph.turns``), and through those before and after them once. It waits for what it is sent, and
who sends waits for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lumc.graph.batches import AFTER, BEFORE, WITHIN, runs
from lumc.graph.collective import Collective
from lumc.graph.graph import Entry, Graph
from lumc.graph.stages import axis_of_stages, needed_on, stages_of
from lumc.graph.turns import going_back, order
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
    back: Sequence[int] = ()  # the stages of which it is on the way back


def scheduled(steps: Sequence[Step], stages: int, batches: int) -> list[Turn]:
    """What every stage does when. Raises ValueError where stages wait for each other for ever."""
    lines = [_Line(s, steps, stages, batches) for s in range(stages)]
    sent = dict[tuple[int, int], float]()  # when each message of a micro-batch has gone
    while any(line.todo for line in lines):
        if not sum(line.advance(sent) for line in lines):
            raise ValueError("stages wait for each other")
    return [t for line in lines for t in line.turns]


class _Line:
    """A stage: how far it is, and what it does without a pause."""

    def __init__(self, stage: int, steps: Sequence[Step], stages: int, batches: int) -> None:
        self.stage, self.now, self.turns = stage, 0.0, list[Turn]()
        self.steps = steps
        both = any(s.back for s in steps)
        plain = [(b, back) for b in range(batches) for back in (False, True)]
        turns = order(stage, stages, batches) if both else plain
        self.todo = [*self._of(BEFORE, 0, False)]
        self.todo += [step for b, back in turns for step in self._of(WITHIN, b, back)]
        self.todo += self._of(AFTER, batches, False)
        self.todo.reverse()

    def _of(self, phase: int, batch: int, back: bool) -> Iterator[tuple[int, int, bool]]:
        """Its steps of a turn: which, of which micro-batch, on the way back or not."""
        for i, s in enumerate(self.steps):
            ours = self.stage == s.source or self.stage in s.stages
            if s.phase == phase and ours and (self.stage in s.back) == back:
                yield i, batch, back

    def advance(self, sent: dict[tuple[int, int], float]) -> bool:
        """Go on until something has not been sent yet; whether it did something."""
        count = len(self.todo)
        while self.todo:
            number, batch, back = self.todo[-1]
            step = self.steps[number]
            if step.source is not None and step.source != self.stage:
                if (number, batch) not in sent:
                    break
                self.now = max(self.now, sent[number, batch])
            else:
                self._work(batch, back, step.seconds)
                sent[number, batch] = self.now
            self.todo.pop()
        return len(self.todo) < count

    def _work(self, batch: int, back: bool, seconds: float) -> None:
        last = self.turns[-1] if self.turns else None
        end = self.now + seconds
        if last and (last.batch, last.backward, last.end) == (batch, back, self.now):
            self.turns[-1] = last._replace(end=end)
        else:
            self.turns.append(Turn(self.stage, batch, back, self.now, end))
        self.now = end


def steps_of(graph: Graph, entry: Entry, machine: Machine) -> list[Step]:
    """The steps of a graph in stages: its nodes, with what they are expected to take."""
    count = graph.mesh.get(axis_of_stages(graph), 1)
    phases, stages, inner = runs(entry), stages_of(entry), fused(entry)
    needed, every, out = needed_on(entry, stages), range(count), list[Step]()
    late = going_back(entry)
    for n in entry.nodes:
        phase = phases.get(n, AFTER)
        if isinstance(n.op, Collective) and n.op.source is not None:
            seconds = machine.sending(n.op, n.size * n.dtype.nbytes)
            ends = tuple(every) if n.op.target is None else (n.op.target,)
            back = (*(ends if n in late else ()), *([n.op.source] * (n.reads[0].source in late)))
            out.append(Step(phase, ends, seconds, n.op.source, back))
            continue
        below = any(r.source in inner for r in n.reads)
        in_time = isinstance(n.op, Collective) and n.op.mesh == entry.time
        seconds = machine.streaming(3 * n.size * n.dtype.nbytes) if in_time else 0.0
        seconds = seconds or cost(n, WHOLE, False, n in inner, below, machine)
        own = [stages[n]] if n in stages else sorted(needed.get(n, every) or every)
        out.append(Step(phase, own, seconds, None, own if n in late else ()))
    return out
