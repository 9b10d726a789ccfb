"""What ``run``, ``verify`` and ``bench`` do with a bundle."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumc.bundle.restore import graph_of
from lumc.command.arrays import Arrays, read_arrays, write_arrays
from lumc.errors import Exit, LumcError
from lumc.graph.ops import DType, from_bf16, to_bf16

if TYPE_CHECKING:
    from lumc.graph.graph import Graph, Node

# a few units in the last place; of quantised weights (i8) what blocks of 32 lose
TOLERANCE = {DType.F16: 2e-3, DType.BF16: 1e-2, DType.I8: 2e-2}


@dataclass(frozen=True)
class Comparison:
    """One output against one reference; indices and values are those of the worst element."""

    output: str
    against: str
    relative_l2: float
    worst_difference: float
    worst_index: tuple[int, ...]
    got: float
    want: float
    ok: bool


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
    print(line, file=sys.stderr)


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
) -> None:
    """``lumc run``: outputs to a file, or a summary of each on stdout."""
    if (output == "-" and (as_json or sys.stdout.isatty())) or state == "-":
        what = "-o - writes the bytes of an array: not to a terminal, nor beside --json"
        what = "--state is a file that is read and written" if state == "-" else what
        raise LumcError("E0203", what, fix="name a file", exit=Exit.USAGE)
    from lumc.runtime.choose import open_bundle

    with open_bundle(path, device, say=note) as bundle:
        entry = entry or bundle.entries[0]
        arrays = read_arrays(inputs, bundle.entry(entry).inputs, "input")
        if state and Path(state).exists():
            bundle.set_state(read_arrays((state,), bundle.states, "state"))
        if trace:
            from lumc.report.trace import of_run

            results, parts = bundle.trace(arrays, entry=entry, threads=threads)
            of_run(f"lumc run, entry {entry}", parts, threads).write(trace)
        else:
            results = bundle.run(arrays, entry=entry, threads=threads)
        if state:
            write_arrays(state, bundle.state())
    if output:
        write_arrays(output, results)
    if as_json:
        print(json.dumps({k: _summary(v) for k, v in results.items()}))
    elif not output:
        for name, value in results.items():
            s = _summary(value)
            print(f"{name} {s['dtype']}{s['shape']} min {s['min']:.6g} max {s['max']:.6g}")


def _summary(value: np.ndarray) -> dict[str, Any]:
    finite = value[np.isfinite(value)] if value.dtype.kind == "f" else value
    least, most = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    return {"dtype": str(value.dtype), "shape": list(value.shape), "min": least, "max": most}


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
) -> None:
    """``lumc verify``: the worst element of every output against every reference."""
    from lumc.bundle.restore import weight_reader
    from lumc.bundle.unpack import opened
    from lumc.oracle.graph import evaluate
    from lumc.oracle.kernel import TF32
    from lumc.runtime.choose import open_bundle

    with opened(path) as folder, open_bundle(folder, device, say=note) as bundle:
        entry = entry or bundle.entries[0]
        graph = graph_of(folder)
        computed = [n.dtype for n in (*graph.entry(entry).nodes, *graph.states) if n.dtype.is_float]
        derived = [w.dtype for w in graph.weights if w.how]  # the source has them in f32
        spec = bundle.entry(entry)
        dtypes = {t.name: t.dtype for t in spec.outputs}
        arrays = complete(graph, entry, read_arrays(inputs, spec.inputs, "input"), seed)
        rounding = TF32 if "tf32" in bundle.features else 0.0
        got = bundle.run(arrays, entry=entry, threads=threads)
        want, _ = evaluate(graph, entry, arrays, weight_reader(folder))
        references = {"oracle": want}
        if source:
            from lumc.report.reference import run_original

            found = run_original(source.model, arrays, entry, source.allowed)
            references |= common_outputs(found, list(got), source.model)
    rows = [
        compare(
            *(name, against, got[name], values[name]),
            allowed(tolerance, dtypes[name], rounded, rounding),
        )
        for against, values in references.items()
        for rounded in [computed if against == "oracle" else [*computed, *derived]]
        for name in got
        if name in values
    ]
    if rounding and tolerance is None:
        note(f"verify: operands of products have 11 bits (tf32): up to {rounding:.1e} is allowed")
    print(json.dumps([asdict(r) for r in rows]) if as_json else "\n".join(map(said, rows)))
    if not all(r.ok for r in rows):
        sys.exit(int(Exit.MISMATCH))


def said(r: Comparison) -> str:
    """A comparison in a line."""
    where = ", ".join(map(str, r.worst_index))
    return (
        f"{'ok  ' if r.ok else 'FAIL'} {r.output} against {r.against}: relative L2 "
        f"{r.relative_l2:.2e}, worst [{where}] got {r.got:.9g} want {r.want:.9g}"
    )


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


def allowed(
    tolerance: float | None, dtype: DType, rounded: Sequence[DType] = (), rounding: float = 0.0
) -> float:
    """The relative L2 error that an output of this dtype may have, when values on the way to it
    are rounded to these, or operands of products cause so much."""
    if tolerance is not None:
        return tolerance
    if not dtype.is_float:
        return 0.0
    return max(rounding, *(TOLERANCE.get(d, 1e-5) for d in (dtype, *rounded)))


def compare(
    output: str, against: str, got: np.ndarray, want: np.ndarray, tolerance: float
) -> Comparison:
    """Relative L2 error over the finite elements; NaN and inf must stand in the same places."""
    if got.dtype == np.uint16 and want.dtype.kind == "f":  # bf16 bits
        got = from_bf16(got)
    a, b = got.astype(np.float64), np.asarray(want, np.float64).reshape(got.shape)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        diff = np.where(same, 0.0, np.abs(a - b))
    diff = np.where(np.isnan(diff), np.inf, diff)
    finite = np.isfinite(diff) & np.isfinite(b)
    norm = float(np.linalg.norm(b[finite])) or 1.0
    error = float(np.linalg.norm(diff[finite])) / norm if np.isfinite(diff).all() else float("inf")
    at = np.unravel_index(int(diff.argmax()), diff.shape) if diff.size else ()
    index = tuple(int(i) for i in at)
    worst, left, right = (float(x[at]) for x in (diff, a, b)) if diff.size else (0.0, 0.0, 0.0)
    return Comparison(output, against, error, worst, index, left, right, error <= tolerance)


def bench(
    path: str,
    inputs: tuple[str, ...],
    seconds: float,
    entry: str,
    threads: int,
    seed: int,
    as_json: bool,
    device: str = "",
) -> None:
    """``lumc bench``: minimum, median and 90th percentile of the times of single runs."""
    from lumc.bundle.unpack import opened
    from lumc.runtime.choose import open_bundle

    with opened(path) as folder, open_bundle(folder, device, say=note) as bundle:
        entry = entry or bundle.entries[0]
        given = read_arrays(inputs, bundle.entry(entry).inputs, "input")
        arrays = complete(graph_of(folder), entry, given, seed)
        times = sorted(bundle.bench(arrays, entry=entry, threads=threads, seconds=seconds))
    figures = {
        "entry": entry,
        "device": bundle.device,
        "threads": threads,
        "min_us": times[0],
        "median_us": times[len(times) // 2],
        "p90_us": times[min(len(times) - 1, len(times) * 9 // 10)],
        "iterations": len(times),
    }
    if as_json:
        print(json.dumps(figures))
    else:
        print(
            " · ".join(
                f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items()
            )
        )
