"""One forward, one backward: in which order the stages of a pipeline take their micro-batches.

What a stage computes of a micro-batch without a word of a later stage goes forward, the rest goes
back. Two rules: what is deepest first, and at most S - s micro-batches open on stage s of S; so what
waits for the way back takes memory for S - s of them (Narayanan and others, 2019, PipeDream-Flush).

No order of these can lock: what goes forward needs earlier stages only, and what goes back needs its
own micro-batch only. Suppose that all before micro-batch m went back everywhere. Then stage s is
waiting for m, and has gone forward as far as m + S - s - 1, or is on its way there; what it needs for
that an earlier stage has gone forward with, which may have one more open. So all get to m, and what
goes back of it is in the order of the graph. Who sends never waits for who receives (runner/parcels.c).
"""

from __future__ import annotations

from typing import NamedTuple

from lumc.graph.batches import WITHIN, runs
from lumc.graph.collective import Collective, Kind
from lumc.graph.graph import Entry, Node


class Turn(NamedTuple):
    """What a stage does next: a micro-batch, on one of its two ways."""

    batch: int
    back: bool

    def __str__(self) -> str:
        return f"{'B' if self.back else 'F'}{self.batch}"


def most_open(stage: int, stages: int, batches: int) -> int:
    """How many micro-batches wait for their way back on a stage, at most."""
    return min(stages - stage, batches)


def order(stage: int, stages: int, batches: int) -> list[Turn]:
    """All that a stage does: forward while it may have more open, else back."""
    out, forward, back = list[Turn](), 0, 0
    while back < batches:
        more = forward < batches and forward - back < most_open(stage, stages, batches)
        out.append(Turn(forward if more else back, not more))
        forward, back = forward + more, back + (not more)
    return out


def going_back(entry: Entry) -> frozenset[Node]:
    """What of each micro-batch is made of something that a later stage sent. Nothing of an entry
    whose stages tell each other of a micro-batch all at once: it takes one after the other."""
    phases, found = runs(entry), set[Node]()
    for n in (n for n in entry.nodes if phases.get(n) == WITHIN):
        op = n.op if isinstance(n.op, Collective) else None
        if op and op.kind is Kind.BROADCAST:
            return frozenset()
        sent_back = bool(op and op.kind is Kind.SEND and (op.target or 0) < (op.source or 0))
        if sent_back or any(r.source in found for r in n.reads):
            found.add(n)
    return frozenset(found)
