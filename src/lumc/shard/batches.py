"""A graph in micro-batches: parts of its inputs are taken one after the other by each rank.

These are ranks of an axis in time: nothing goes from one to another but sums, which accumulate. So
what divides tensors among ranks (``choose``) divides a batch, with other prices.
"""

from __future__ import annotations

from dataclasses import dataclass

from lumc.errors import Exit, LumcError
from lumc.graph.batches import check_batches
from lumc.graph.collective import Collective, Kind
from lumc.graph.graph import Graph
from lumc.shard.choose import choose
from lumc.shard.cost import Machine
from lumc.shard.emit import emit

TIME = "batches"  # the axis of a mesh that is in time


@dataclass(frozen=True)
class InTime(Machine):
    """Moments as ranks: a sum of what they have accumulates, and takes nothing; nothing else goes
    from one to another."""

    def sending(self, op: Collective, nbytes: float) -> float:
        return 0.0 if op.kind is Kind.ALL_REDUCE else float("inf")


def in_batches(graph: Graph, count: int) -> Graph:
    """The graph with so many micro-batches, each of as many rows of what is divided. Raises E0144
    (nothing can be, or one of them needs what all make)."""
    chosen = choose(graph, InTime(count), common=True)
    made = emit(graph, chosen.of, TIME, count, in_time=True)
    if not any(p.mesh == TIME for e in made.entries for n in e.inputs for p in n.parts):
        what = f"no input can be divided into {count} micro-batches that need nothing of each other"
        raise LumcError("E0144", what, exit=Exit.UNSUPPORTED)
    try:
        check_batches(made)
    except LumcError as e:
        what = f"{count} micro-batches need each other: {e.what}"
        raise LumcError("E0144", what, exit=Exit.UNSUPPORTED) from None
    return made
