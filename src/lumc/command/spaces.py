"""What equals a graph: how it is made, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lumc.command.sources import parse_points
from lumc.limits import AGAIN
from lumc.report.log import Log

if TYPE_CHECKING:
    from lumc.graph.graph import Graph
    from lumc.kernel.target import Target
    from lumc.search.space import Space


def make_space(
    graph: Graph,
    target: str,
    max_nodes: int,
    tuned: Sequence[str] = (),
    again: int = AGAIN,
    memory: int = 0,
    log: Log | None = None,
) -> Space:
    """What equals the graph; with ``memory``, of a graph whose regions hand on no more bytes.
    Raises E0419 and as ``search``."""
    from lumc.graph.ranks import require_processes
    from lumc.kernel.machines import resolve_target
    from lumc.search import search
    from lumc.search.saturate import Limits

    machine, graph = resolve_target(target), in_points(graph, tuned)
    require_processes(graph, machine.kind)
    if memory:
        graph, again = within_memory(graph, again, memory, machine, log or Log())
    return search(graph, machine, Limits(nodes=max_nodes), again=again, equations=memory > 0)


def within_memory(
    graph: Graph, again: int, memory: int, target: Target, log: Log
) -> tuple[Graph, int]:
    """The graph with values made again so that regions hand on no more bytes, and how many
    operations per element they do again (``--recompute``); what changes is said. Raises E0419."""
    from lumc.profile.rematerialize import lean

    found = lean(graph, again, memory, target)
    if found.again or found.level != again:
        level = f", --recompute {found.level}" if found.level != again else ""
        what = "nodes in blocks" if found.in_blocks else "nodes made again"
        log(
            0,
            f"{log.named('search')}: {found.nbytes:,} bytes between regions of {found.before:,}: "
            f"{len(found.stored)} values stored, {len(found.again)} {what}{level}, "
            f"{found.more:+.1%} operations",
        )
        log(1, f"  stored: {', '.join(found.stored)}\n  {what}: {', '.join(found.again)}")
    return found.graph, found.level


def in_points(graph: Graph, tuned: Sequence[str]) -> Graph:
    """The graph as it is searched: tuned at these values of its dims."""
    from lumc.graph.bind import require_bounds
    from lumc.graph.buckets import with_points
    from lumc.graph.ends import with_whole_ends

    require_bounds(graph)
    return with_points(with_whole_ends(graph), parse_points(tuned))


def report_space(space: Space, log: Log) -> None:
    """One line always, and one for every region that ended by accident; with -v one more per
    unique region."""
    unique, every = len(space.regions), len(space.instances)
    log(0, f"{log.named('search')}: {every} regions, {unique} unique")
    for region in space.regions:
        stats = region.stats
        if stats.stop.is_accident:
            values = [name for i in space.instances if i.region == region.key for name in i.outputs]
            log(
                0,
                f"warning: the search of region {region.key[:12]} ({', '.join(values[:3])}) ended "
                f"by {stats.stop.value} after {stats.iterations} iterations: it may know fewer "
                "variants than another run would find",
            )
        log(
            1,
            f"  {region.key[:12]} x{region.count}  {stats.nodes} e-nodes  "
            f"{len(region.variants)} variants  stop: {stats.stop.value}",
        )
