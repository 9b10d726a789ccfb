"""A graph for a mesh: one axis of ranks after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from lumc.graph.collective import Collective
from lumc.graph.graph import Graph, Node
from lumc.shard.batches import in_batches
from lumc.shard.choose import choose
from lumc.shard.cost import Machine
from lumc.shard.emit import emit
from lumc.shard.stages import STAGES, in_stages


class Sharded(NamedTuple):
    """The graph of a rank, the choices for each axis of the mesh, and how many values were decided
    without a look at the others."""

    graph: Graph
    seconds: Sequence[float]
    pinned: int


def shard(
    graph: Graph,
    mesh: Mapping[str, int],
    machine: Callable[[int], Machine] = Machine,
    whole: Collection[str] = (),
    batches: int = 1,
) -> Sharded:
    """What every rank of a mesh runs: axes by name with their ranks, in order; ``machine`` says
    what so many of them take. The ranks along ``pp`` are stages; by other axes tensors are divided.
    The choice for each axis is the best one after those before it, and after a division into so
    many micro-batches. Raises E0101 (the mesh has too
    many axes or ranks), E0143 (fewer weights than stages) and E0144 (no
    micro-batches)."""
    seconds, pinned = list[float](), 0
    if batches > 1:
        graph = in_batches(graph, batches)
    for name, ranks in mesh.items():
        if name == STAGES:
            staged = in_stages(graph, machine(ranks))
            graph = staged.graph
            seconds.append(staged.seconds)
            continue
        found = choose(graph, machine(ranks), whole)
        graph = emit(graph, found.of, name, ranks, whole)
        seconds.append(found.seconds)
        pinned += found.pinned
    return Sharded(graph, seconds, pinned)


def collectives(graph: Graph) -> list[Node]:
    """The nodes at which ranks exchange values."""
    return [n for e in graph.entries for n in e.nodes if isinstance(n.op, Collective)]
