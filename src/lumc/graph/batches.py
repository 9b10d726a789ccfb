"""Micro-batches: moments of one process as ranks along an axis of the mesh that is in time.

What a run computes before them, in each of them and after them follows from what is read: parts of
inputs are of one of them, sums over them and joined parts are there after the last.
"""

from __future__ import annotations

from lumc.graph.collective import Collective, Kind
from lumc.graph.graph import Entry, Graph, Node, fail

BEFORE, WITHIN, AFTER = range(3)
KINDS = (Kind.ALL_REDUCE, Kind.ALL_SLICE, Kind.ALL_GATHER)  # that go on in time


def phases_of(entry: Entry) -> dict[Node, int]:
    """When each node is computed, and each input there; nothing without an axis in time. Raises
    E0101 for a node that needs one micro-batch, and what comes after the last."""
    found, time = dict[Node, int](), entry.time
    if not time:
        return found
    found |= {n: WITHIN for n in entry.inputs if any(p.mesh == time for p in n.parts)}
    written = {u.value for u in entry.writes}
    for n in entry.nodes:
        every = {found.get(r.source, BEFORE) for r in n.reads}
        phase = max(every, default=BEFORE)
        if isinstance(n.op, Collective) and n.op.mesh == time:
            phase = _through(n, n.op, phase)
        elif {WITHIN, AFTER} <= every:
            names = {k: r.source.name for r in n.reads for k in [found.get(r.source, BEFORE)]}
            what = (
                f"reads '{names[WITHIN]}' of one micro-batch and '{names[AFTER]}', which all make"
            )
            fail(n, what)
        elif phase == BEFORE and (n in written or n.op == "update"):
            phase = AFTER  # so that all read a state as it was
        found[n] = phase
    return found


def _through(n: Node, op: Collective, phase: int) -> int:
    if op.kind not in KINDS:
        fail(n, f"{op.kind.value} goes on between ranks, and '{op.mesh}' is in time")
    if phase == AFTER or (op.kind is Kind.ALL_SLICE and phase == WITHIN):
        fail(n, f"{op.kind.value} of what all micro-batches make")
    return WITHIN if op.kind is Kind.ALL_SLICE else AFTER


def check_batches(graph: Graph) -> None:
    """That nothing but inputs and outputs is in parts of micro-batches, and that these do not need
    each other. Raises E0101."""
    for n in (*graph.weights, *graph.states) if graph.time else ():
        if any(p.mesh == graph.time for p in n.parts) or (n.stage and n.stage.mesh == graph.time):
            fail(n, f"'{graph.time}' is in time, and weights and states are there all the time")
    for entry in graph.entries:
        phases_of(entry)


def runs(entry: Entry) -> dict[Node, int]:
    """When each node is made: sums over micro-batches, and joined parts, in each of them. Raises
    E0101 as ``phases_of``."""
    phases = phases_of(entry)
    return {n: WITHIN if _goes_on(n, entry.time) else phase for n, phase in phases.items()}


def _goes_on(n: Node, time: str) -> bool:
    return isinstance(n.op, Collective) and n.op.mesh == time
