"""One forward, one backward: in which order the stages of a pipeline take their micro-batches.

What a stage computes of a micro-batch without a word of a later stage goes forward, the rest goes
back. Two rules: what is deepest first, and at most S - s micro-batches open on stage s of S, so
that what waits for the way back takes memory for so many (Narayanan and others, 2021: the flush
schedule of PipeDream).

No order of these can lock, if who sends never waits for who receives (runner/parcels.c). What goes
forward needs what earlier stages did forward; what goes back needs nothing of other micro-batches.
Suppose that all micro-batches before m are done. Stage s goes back with m once it went forward with
m + S - s - 1, and earlier stages did so before they went back with m. So all stages come to m, and
what goes back of it has the order of the graph.
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
    whose stages tell each other of a micro-batch all at once: it takes one after the other. Raises
    E0101 as ``runs``."""
    phases, found = runs(entry), set[Node]()
    for n in (n for n in entry.nodes if phases.get(n) == WITHIN):
        op = n.op if isinstance(n.op, Collective) else None
        if op and op.kind is Kind.BROADCAST:
            return frozenset()
        sent_back = bool(op and op.kind is Kind.SEND and (op.target or 0) < (op.source or 0))
        if sent_back or any(r.source in found for r in n.reads):
            found.add(n)
    return frozenset(found)
