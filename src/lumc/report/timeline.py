"""What the stages of a pipeline do when, for ui.perfetto.dev: of a graph for a mesh, or of the one
that a bundle has."""

from __future__ import annotations

from typing import Any

from lumc.errors import Exit, LumcError
from lumc.graph.graph import Graph
from lumc.graph.stages import axis_of_stages
from lumc.report.trace import of_stages
from lumc.shard.cost import Machine
from lumc.shard.schedule import scheduled, steps_of


def timeline(kind: str, value: Any, entry: str, path: str) -> None:
    """Write that of an artifact. Raises E0203 for one that has no stages and no micro-batches, and
    E0110 (no such entry)."""
    if kind == "bundle":
        from lumc.bundle.restore import graph_of
        from lumc.bundle.unpack import opened

        with opened(value) as folder:
            kind, value = "graph", graph_of(folder)
    if kind != "graph" or not (axis_of_stages(value) or value.time):
        what = "there are no stages and no micro-batches in it"
        fix = "name a graph that 'lumc shard --mesh pp=N' wrote, or its bundle"
        raise LumcError("E0203", f"--timeline: {what}", fix=fix, exit=Exit.USAGE)
    write(path, value, Machine(value.ranks), entry)


def write(path: str, graph: Graph, machine: Machine, entry: str = "") -> None:
    """Of a run of an entry, or of the first, on such ranks."""
    chosen = graph.entry(entry) if entry else graph.entries[0]
    stages = graph.mesh.get(axis_of_stages(graph), 1)
    spans = scheduled(steps_of(graph, chosen, machine), stages, graph.mesh.get(graph.time, 1))
    of_stages("lumc", spans, stages).write(path)
