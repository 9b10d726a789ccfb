"""What ``run`` and ``verify`` do with a bundle."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumc.bundle.restore import graph_of
from lumc.command import lengths, states
from lumc.command.arrays import SAFETENSORS, Arrays, read_arrays, write_arrays
from lumc.command.judge import (
    Comparison,
    allowed,
    compare,
    cut_off,
    judged,
    said,
    stored,
)
from lumc.command.lengths import greatest, known, parse_values, points
from lumc.errors import Exit, LumcError
from lumc.graph.bind import bind_dims
from lumc.graph.ops import DType, to_bf16
from lumc.graph.ranks import require_one_rank
from lumc.oracle.kernel import TF32
from lumc.voice import VOICE

if TYPE_CHECKING:
    from lumc.command.bisect import Difference
    from lumc.graph.graph import Graph, Node
    from lumc.runtime.opened import Opened


class Source(NamedTuple):
    """What a bundle was made from, and where the weights of a .lg may lie."""

    model: str
    allowed: tuple[str, ...] = ()


# ---- inputs


def draw(node: Node, rng: np.random.Generator) -> np.ndarray:
    """Random values for an input: normal floats, integers within its declared range."""
    shape = tuple(int(e) for e in node.shape)  # type: ignore[arg-type]
    if node.dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if node.dtype.is_int:
        lo, hi = node.values or (0, 1)  # a mask is safe, and so is an id
        return rng.integers(lo, hi, shape, endpoint=True).astype(node.dtype.numpy)
    values = rng.standard_normal(shape)
    if node.dtype is DType.BF16:
        return to_bf16(values)
    return values.astype(node.dtype.numpy)


def complete(graph: Graph, entry: str, given: Arrays, seed: int) -> Arrays:
    """The given inputs, and random ones for the rest."""
    rng = np.random.default_rng(seed)
    drawn = {node.name: draw(node, rng) for node in graph.entry(entry).inputs}
    return drawn | given


# ---- commands


def note(line: str) -> None:
    VOICE.get().say(0, line)


def run(
    path: str,
    inputs: tuple[str, ...],
    output: str | None,
    state: str | None,
    entry: str,
    threads: int,
    as_json: bool,
    trace: str | None = None,
    device: str = "",
    dims: Sequence[str] = (),
    save: str | None = None,
    mesh: bool = False,
) -> None:
    """``lumc run``: outputs to a file, or a summary of each on stdout. The states that there are
    afterwards go to ``save``, else where they came from. Of a ``mesh`` all ranks are started."""
    if (output == "-" and (as_json or not sys.stdout or sys.stdout.isatty())) or state == "-":
        what = "-o - writes the bytes of an array: not to a terminal, nor beside --json"
        what = "--state is a file that is read and written" if state == "-" else what
        raise LumcError("E0203", what, fix="name a file", exit=Exit.USAGE)
    from lumc.runtime.choose import open_bundle

    named = parse_values(dims)
    with open_bundle(path, device, say=note, mesh=mesh) as bundle:
        entry = entry or bundle.entries[0]
        arrays = read_arrays(inputs, bundle.entry(entry).inputs, "input")
        require_states(bundle, state, save)
        if state and (save or Path(state).exists()):
            bundle.set_state(read_arrays((state,), bundle.states, "state"))
        if trace:
            from lumc.report.trace import of_run

            results, parts = bundle.trace(arrays, entry=entry, threads=threads, dims=named)
            of_run(f"lumc run, entry {entry}", parts, threads).write(trace)
        else:
            results = bundle.run(arrays, entry=entry, threads=threads, dims=named)
        if to := save or state:
            write_states(to, bundle)
    if bundle.rank:
        return  # all ranks have the same results, and the first one tells
    if output:
        write_arrays(output, results)
    if as_json:
        print(json.dumps({k: _summary(v) for k, v in results.items()}))
    elif not output:
        for name, value in results.items():
            s = _summary(value)
            print(f"{name} {s['dtype']}{s['shape']} min {s['min']:.6g} max {s['max']:.6g}")


def require_states(bundle: Opened, state: str | None, save: str | None) -> None:
    """Raises E0602 for states that a bundle has not, and E0610 for those of one rank."""
    if not (state or save):
        return
    if not bundle.states:
        fix = f"leave --{'state' if state else 'save'} out"
        raise LumcError("E0602", "this bundle has no states", fix=fix, exit=Exit.USAGE)
    if bundle.rank is not None:
        what = "a rank has its part of states only"
        fix = "start all ranks with --mesh, or start lumc-run of the bundle, which joins them"
        raise LumcError("E0610", what, fix=fix, exit=Exit.USAGE)


def write_states(path: str, bundle: Opened) -> None:
    """All of them, in the format that the name says."""
    if path.endswith(SAFETENSORS):
        bundle.save_state(path)
    else:
        write_arrays(path, bundle.state())


def _summary(value: np.ndarray) -> dict[str, Any]:
    finite = value[np.isfinite(value)] if value.dtype.kind == "f" else value
    least, most = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    return {"dtype": str(value.dtype), "shape": list(value.shape), "min": least, "max": most}


class Judging(NamedTuple):
    """How ``verify`` runs a bundle, and what it allows."""

    entry: str
    threads: int
    seed: int
    tolerance: float | None
    each: tuple[float, float] | None
    source: Source | None
    first: Arrays  # the states of a bundle that was just opened
    states: Arrays  # those that are given


def verify(
    path: str,
    inputs: tuple[str, ...],
    source: Source | None,
    tolerance: float | None,
    entry: str,
    threads: int,
    seed: int,
    as_json: bool,
    device: str = "",
    bisect: bool = False,
    each: tuple[float, float] | None = None,
    dims: Sequence[str] = (),
    state: str | None = None,
    mesh: bool = False,
) -> None:
    """``lumc verify``: every output against every reference, and every state after the run, or the
    first kernel that differs. Of dims that are not given, some values are tried. Of a ``mesh`` all
    ranks are started."""
    from lumc.bundle.unpack import opened
    from lumc.runtime.choose import open_bundle

    rows, first = list[Comparison](), None
    with opened(path) as folder, open_bundle(folder, device, say=note, mesh=mesh) as bundle:
        entry = entry or bundle.entries[0]
        graph = graph_of(folder)
        if bisect:
            require_one_rank(graph, "--bisect")
        given = read_arrays(inputs, bundle.entry(entry).inputs, "input")
        own = read_arrays((state,), bundle.states, "state") if state else {}
        how = Judging(entry, threads, seed, tolerance, each, source, bundle.state(), own)
        fixed = known(graph, entry, given, parse_values(dims))
        tried = list(points(graph, entry, fixed)) if graph.dims else [{}]
        for values in tried:
            one = bind_dims(graph, values) if values else graph
            arrays = complete(one, entry, given, seed)
            found, start = compared(bundle, folder, one, arrays, values, how)
            rows += found
            if bisect and not first:
                first = bisected(folder, path, entry, arrays, threads, tolerance, values, start)
        if graph.dims and tried[-1] != greatest(graph, entry, fixed):
            note(f"verify: greater dims than {lengths.said(tried[-1])} take long: --dim names them")
        if "tf32" in bundle.features and tolerance is None:
            note(f"verify: operands of products have 11 bits (tf32): up to {TF32:.1e} is allowed")
    tell(rows, first, bisect, as_json)
    if first or not all(r.ok for r in rows):
        sys.exit(int(Exit.MISMATCH))


def compared(
    bundle: Opened, folder: Path, graph: Graph, arrays: Arrays, dims: lengths.Dims, how: Judging
) -> tuple[list[Comparison], Arrays]:
    """The outputs and the states of one run, of a graph of fixed shapes, against all references;
    and the states that it began with. Other models begin with states as they are at first."""
    from lumc.bundle.restore import weight_reader
    from lumc.oracle.touched import touched

    entry, weights = how.entry, weight_reader(folder)
    tf32 = TF32 if "tf32" in bundle.features else 0.0
    cut = cut_off(graph, entry) if bundle.device != "cpu" else 0.0
    start, want = began(graph, arrays, weights, how)
    bundle.set_state(start)
    got = bundle.run(arrays, entry=entry, threads=how.threads, dims=dims)
    after, kept = states.left(graph, entry, start, bundle.state(), want[1])
    # of several ranks nobody knows what an infinity touches
    unsure = None if graph.mesh else cache(lambda: touched(graph, entry, arrays, weights, start))
    limits = how.tolerance, max(tf32, cut), unsure, how.each
    rows = judged(graph, entry, got | after, {"oracle": want[0] | kept}, *limits)
    if how.source:
        from lumc.report.reference import run_original

        model = how.source.model
        found = run_original(model, arrays, entry, how.source.allowed, dims)
        references = common_outputs(found, list(got), model)
        if how.first:
            bundle.set_state(how.first)
            got = bundle.run(arrays, entry=entry, threads=how.threads, dims=dims)
            if not graph.mesh:
                unsure = cache(lambda: touched(graph, entry, arrays, weights, how.first))
        limits = how.tolerance, max(tf32, cut), unsure, how.each
        rows += judged(graph, entry, got, references, *limits)
    return [replace(r, dims=lengths.said(dims)) for r in rows], start


def began(
    graph: Graph, arrays: Arrays, weights: Callable[[Node], np.ndarray], how: Judging
) -> tuple[Arrays, tuple[Arrays, Arrays]]:
    """The states that a run begins with, and the outputs and states that the oracle makes of them.
    Where those that were drawn make infinities or NaN they are not negative."""
    from lumc.oracle.graph import evaluate
    from lumc.oracle.ranks import evaluate_mesh

    evaluated = evaluate_mesh if graph.mesh else evaluate
    start = states.start_states([s.whole for s in graph.states], how.states, how.seed)
    want = evaluated(graph, how.entry, arrays, weights, start)
    if not states.are_finite(*want):
        other = states.without_signs(graph.states, start) | how.states
        again = evaluated(graph, how.entry, arrays, weights, other)
        if states.are_finite(*again):
            return other, again
    return start, want


def bisected(
    folder: Path,
    path: str,
    entry: str,
    arrays: Arrays,
    threads: int,
    tolerance: float | None,
    dims: lengths.Dims,
    start: Arrays,
) -> Difference | None:
    """The first kernel that differs, as far as values of its dtype may be off. Raises E0613."""
    from lumc.bundle.restore import weight_reader
    from lumc.command.bisect import Given, first_difference, with_every_value
    from lumc.oracle.touched import touched

    graph = bind_dims(graph_of(folder), dims)
    dtypes = {n.name: n.dtype for n in (*graph.states, *graph.entry(entry).nodes)}
    titles = {s.name: states.title(s.name) for s in graph.states}
    rounded, every = stored(graph, entry, of_source=False), with_every_value(graph, entry)
    unsure = cache(lambda: touched(every, entry, arrays, weight_reader(folder), start))

    def against_graph(name: str, got: np.ndarray, want: np.ndarray) -> Comparison:
        limit = allowed(tolerance, dtypes[name], rounded)
        title = titles.get(name, name)
        return compare(title, "graph", got, want, limit, dtypes[name], unsure)

    given = Given(graph, entry, arrays, start)
    return first_difference(folder, path, given, threads, against_graph, dims)


def tell(rows: Sequence[Comparison], first: Difference | None, bisect: bool, as_json: bool) -> None:
    """Print what was compared, and what the bisection found."""
    found: Any = [{k: v for k, v in asdict(r).items() if k != "dims" or v} for r in rows]
    if bisect and as_json:
        said_of = {k: v for k, v in asdict(first).items() if k != "dims" or v} if first else None
        found = {"outputs": found, "first": said_of}
    print(json.dumps(numbers(found)) if as_json else "\n".join(map(said, rows)))
    if bisect and not as_json:
        from lumc.command import bisect as bisection

        print(bisection.said(first))


def numbers(found: Any) -> Any:
    """JSON has no number for NaN and infinities: they are texts, as in artifacts."""
    if isinstance(found, dict):
        return {k: numbers(v) for k, v in found.items()}
    if isinstance(found, list | tuple):
        return [numbers(v) for v in found]
    return str(found) if isinstance(found, float) and not isfinite(found) else found


def common_outputs(
    references: Mapping[str, Mapping[str, np.ndarray]], names: list[str], model: str
) -> Mapping[str, Mapping[str, np.ndarray]]:
    """The references, when they have an output of the bundle: comparing nothing proves nothing."""
    theirs = [name for values in references.values() for name in values]
    if not set(theirs) & set(names):
        what = f"{model} and the bundle have no output in common"
        where = f"theirs: {', '.join(theirs)}; the bundle's: {', '.join(names)}"
        raise LumcError("E0607", what, where=where, exit=Exit.USAGE)
    return references
