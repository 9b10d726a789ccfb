"""``lumc grad``: gradients as outputs of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lumc.artifacts import files
from lumc.command.sources import parse_dims
from lumc.disk import artifact
from lumc.grad.entries import listed, with_gradients
from lumc.graph.text import print_graph
from lumc.graph.verify import verify_graph
from lumc.report.log import Log


def differentiate(
    source: str,
    output: str,
    loss: str,
    wrt: Sequence[str],
    stop: Sequence[str],
    entry: str,
    dims: Sequence[str],
    verbose: int,
) -> None:
    """Write the graph with gradients; weights stay where they lie."""
    log = Log(verbose)
    artifact.check_writable(output)
    with log.step("read"):
        graph = files.read_graph(source, parse_dims(dims))
    name = graph.entry(entry).name if entry else graph.entries[0].name
    with log.step("grad"):
        made = with_gradients(graph, name, loss, wrt, stop)
        verify_graph(made.graph)
    base = Path.cwd() if output == "-" else Path(output).resolve().parent
    artifact.write_text(output, print_graph(made.graph, lambda f: files.relative(f, base)))
    before, after = (len(g.entry(name).nodes) for g in (graph, made.graph))
    log(0, f"grad: '{loss}' by {listed(made.wrt)}; {before} nodes, {after} with gradients")
    if made.unused:
        log(0, f"note: '{loss}' has no derivative by {listed(made.unused)}")
