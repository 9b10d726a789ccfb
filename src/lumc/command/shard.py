"""``lumc shard``: graphs for the ranks of a mesh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lumc.artifacts import files
from lumc.command.bundles import draw
from lumc.command.sources import parse_dims
from lumc.disk import artifact
from lumc.disk.weights import read_weight
from lumc.errors import Exit, LumcError
from lumc.graph.bind import require_static
from lumc.graph.collective import Collective
from lumc.graph.graph import Graph, Node
from lumc.graph.lines import held_text
from lumc.graph.ranks import said
from lumc.graph.text import print_graph
from lumc.graph.verify import verify_graph
from lumc.oracle.graph import Array, evaluate
from lumc.oracle.ranks import evaluate_mesh
from lumc.report.log import Log
from lumc.report.timeline import write as write_timeline
from lumc.shard.batches import TIME
from lumc.shard.cost import Machine
from lumc.shard.mesh import collectives, shard

CLOSE = 1e-9  # of float64: sums in another order


class Speeds(NamedTuple):
    """Of a rank: operations, bytes of memory and bytes sent in a second; the seconds of a step of a
    collective, and the price of a byte held."""

    flops: float
    stream: float
    link: float
    latency: float
    price: float


def divide(
    source: str,
    output: str,
    mesh: Mapping[str, int],
    speeds: Speeds,
    whole: Sequence[str],
    check: bool,
    dims: Sequence[str],
    batches: int,
    timeline: str | None,
    verbose: int,
) -> None:
    """Write what every rank runs. Raises E0203, E0212 (an axis or an output that cannot be), E0101
    (too many ranks), E0143 (too few weights), E0144 (no micro-batches) and E0141 (``check``: the
    results differ)."""
    log = Log(verbose)
    artifact.check_writable(output)
    if timeline:
        artifact.check_writable(timeline)
    with log.step("read"):
        graph = files.read_graph(source, parse_dims(dims), mesh=True)
    require_names(graph, mesh, whole, batches)
    with log.step("shard"):
        found = shard(graph, mesh, lambda ranks: Machine(ranks, *speeds), whole, batches)
        verify_graph(found.graph)
    if check:
        files.require_near(graph, source)
        with log.step("check"):
            apart = compared(graph, found.graph)
        log(0, f"check: all outputs and states are those of the whole graph, {apart:.0e} apart")
    base = Path.cwd() if output == "-" else Path(output).resolve().parent
    artifact.write_text(output, print_graph(found.graph, lambda f: files.relative(f, base)))
    tell(graph, found.graph, found.pinned, log)
    if timeline:
        write_timeline(timeline, found.graph, Machine(found.graph.ranks, *speeds))


def require_names(
    graph: Graph, mesh: Mapping[str, int], whole: Sequence[str], batches: int
) -> None:
    """New names of axes, micro-batches before them, and outputs that there are."""
    if batches > 1 and (graph.mesh or TIME in mesh):
        why = (
            f"the graph is for {said(graph)} already" if graph.mesh else f"axis '{TIME}' is theirs"
        )
        what, fix = f"--batches {batches}: {why}", "micro-batches are the first axis of a mesh"
        raise LumcError("E0203", what, fix=fix, exit=Exit.USAGE)
    if twice := [name for name in mesh if name in graph.mesh]:
        what = f"--mesh {twice[0]}={mesh[twice[0]]}: the graph is for {said(graph)} already"
        raise LumcError("E0203", what, fix="name the new axis otherwise", exit=Exit.USAGE)
    known = list(dict.fromkeys(name for e in graph.entries for name, _ in e.outputs))
    if odd := [name for name in whole if name not in known]:
        fix = f"outputs: {', '.join(known)}"
        raise LumcError("E0212", f"--whole {odd[0]}: no output", fix=fix, exit=Exit.USAGE)


def tell(before: Graph, after: Graph, pinned: int, log: Log) -> None:
    """One line; with -v one for every tensor in parts and every collective."""
    every = collectives(after)
    kinds = Counter(n.op.kind.value for n in every if isinstance(n.op, Collective))
    exchanged = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
    held, all_of = held_at_most(after), held_at_most(before)
    log(
        0,
        f"shard: {said(after)}; collectives: {exchanged}; a rank holds {held / 1e6:.3g} of "
        f"{all_of / 1e6:.3g} MB of weights and states",
    )
    ends = (*kept(after), *(i for e in after.entries for i in e.inputs))
    if not any(n.parts or n.stage for n in ends):
        log(0, "note: nothing is divided: every rank does all of it")
    if pinned:
        log(0, f"note: {pinned} values depend on too many others, and were decided alone")
    for n in ends:
        log(1, f"  {n.op} {n.name} {n.dtype}{list(n.shape)}{held_text(n) or ' whole'}")
    for n in every:
        assert isinstance(n.op, Collective)
        ends_at = f" to {n.op.target}" if n.op.target is not None else ""
        way = f" {n.op.source}{ends_at}" if n.op.source is not None else ""
        log(1, f"  {n.op.kind.value}{way} by {n.op.mesh}: {n.name} {n.dtype}{list(n.shape)}")


def kept(graph: Graph) -> tuple[Node, ...]:
    """What a rank holds between runs."""
    return (*graph.weights, *graph.states)


def held_at_most(graph: Graph) -> int:
    """The bytes of weights and states that a rank holds; of stages the one that has most."""
    nbytes = Counter[int | None]()
    for n in kept(graph):
        nbytes[n.stage.at if n.stage else None] += n.size * n.dtype.nbytes
    return nbytes.pop(None, 0) + max(nbytes.values(), default=0)


def compared(whole: Graph, ranks: Graph) -> float:
    """By how much results of the two graphs differ, beside the greatest of each: of inputs at
    random, in float64. Raises E0112 (a dim without a number) and E0141 (too much)."""
    require_static(whole, "--check")
    worst = 0.0
    for entry in whole.entries:
        rng = np.random.default_rng(0)
        inputs = {n.name: draw(n.whole, rng) for n in entry.inputs}
        states = {n.name: begin(n.whole, rng) for n in whole.states}
        given = entry.name, inputs, lambda n: read_weight(n, Path.cwd()), states
        run = evaluate_mesh if whole.mesh else evaluate
        want, got = run(whole, *given), evaluate_mesh(ranks, *given)
        for a, b in zip(want, got, strict=True):
            worst = max(worst, *(apart(name, b[name], a[name]) for name in a), 0.0)
    return worst


def begin(state: Node, rng: np.random.Generator) -> Array:
    return read_weight(state, Path.cwd()) if state.file else draw(state, rng)


def apart(name: str, got: Array, want: Array) -> float:
    """The greatest difference beside the greatest value."""
    wide = np.asarray(want, "f8"), np.asarray(got, "f8")
    fine = np.isfinite(wide[0])
    same = np.array_equal(wide[0][~fine], wide[1][~fine], equal_nan=True)
    scale = np.abs(wide[0][fine]).max(initial=1e-300)
    off = np.abs(wide[0][fine] - wide[1][fine]).max(initial=0.0) / scale
    if not same or not off <= CLOSE:
        what = f"'{name}' of the ranks differs from that of the whole graph by {off:.1e}"
        raise LumcError("E0141", what, exit=Exit.MISMATCH)
    return float(off)
