"""When an output of a bundle is right: see docs/accuracy.md, "What verify allows"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lumc.command.states import title
from lumc.graph.graph import Graph, Node, Read
from lumc.graph.ops import DType, Op, from_bf16

# a few units in the last place; of quantised weights (i8) what blocks of 32 lose
TOLERANCE = {DType.F16: 2e-3, DType.BF16: 1e-2, DType.I8: 2e-2}
HALVES = (DType.F16, DType.BF16)
# of every dtype: the step below its greatest number, and what counts as nothing: the least normal
# number, where kernels may flush what is smaller, of f16 the least number of all
RANGE = {
    DType.F16: (32.0, 2.0**-24),
    DType.BF16: (2.0**120, 2.0**-126),
    DType.F32: (2.0**104, 2.0**-126),
    DType.F64: (0.0, 2.0**-1022),
}
Arrays = Mapping[str, np.ndarray]


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
    unjudged: int = 0  # elements that are infinite or NaN, as what they are made from is
    beyond: int = 0  # elements that are farther off than each may be
    dims: str = ""  # of the run, where a bundle has any: "s=17, p=3"


def judged(
    graph: Graph,
    entry: str,
    got: Arrays,
    references: Mapping[str, Arrays],
    tolerance: float | None,
    rounding: float,
    touched: Callable[[], Arrays] | None,
    each: tuple[float, float] | None = None,
) -> list[Comparison]:
    """Every output, and every state under its title, against every reference that has it."""
    dtypes = {name: node.dtype for name, node in graph.entry(entry).outputs}
    dtypes |= {title(s.name): s.dtype for s in graph.states}
    rows = list[Comparison]()
    for against, values in references.items():
        rounded = stored(graph, entry, of_source=against != "oracle")
        for name in (n for n in got if n in values):
            limit = allowed(tolerance, dtypes[name], rounded, rounding)
            pair = got[name], values[name]
            rows.append(compare(name, against, *pair, limit, dtypes[name], touched, each))
    return rows


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


def stored(graph: Graph, entry: str, of_source: bool) -> list[DType]:
    """What values on the way are rounded to; weights are rounded against the source only, which
    has them in f32, if they are not as they lie in their file."""
    floats = [n.dtype for n in (*graph.entry(entry).nodes, *graph.states) if n.dtype.is_float]
    return floats + [w.dtype for w in graph.weights if w.how and not w.how.layout and of_source]


def cut_off(graph: Graph, entry: str) -> float:
    """What a tensor core loses of sums of 16-bit products, as it cuts off where others round: half
    a unit of 2^-23 for every term of the longest sum."""
    made = graph.entry(entry)
    if not any(n.dtype in HALVES for n in (*graph.weights, *made.inputs, *made.nodes)):
        return 0.0
    return max(map(_terms, made.nodes), default=0) * 2.0**-24


def _terms(node: Node) -> int:
    """How many terms a sum has, with the sums that it is of; 0 of another node."""
    count = 0
    while node.op is Op.SUM and node.reduced and isinstance(node.reduced[1], int):
        count = max(count, 1) * node.reduced[1]
        below = node.operands[0]
        if not isinstance(below, Read):
            break
        node = below.source
    return count


def compare(
    output: str,
    against: str,
    got: np.ndarray,
    want: np.ndarray,
    tolerance: float,
    dtype: DType = DType.F32,
    touched: Callable[[], Arrays] | None = None,
    each: tuple[float, float] | None = None,
) -> Comparison:
    """Relative L2 error over the finite elements, each less what counts as nothing in its dtype.

    NaN and infinities must stand in the same places; but a value that overflows in the dtype is
    infinite, and where ``touched`` one may be the other. ``each`` are rtol and atol of every
    element, as numpy.isclose has them.
    """
    if got.dtype == np.uint16 and want.dtype.kind == "f":  # bf16 bits
        got = from_bf16(got)
    a, b = got.astype(np.float64), np.asarray(want, np.float64).reshape(got.shape)
    b = _in_range(a, b, tolerance, dtype)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        diff = np.where(same, 0.0, np.abs(a - b))
    if dtype in RANGE:
        diff = np.maximum(diff - RANGE[dtype][1], 0.0)  # NaN stays
    diff = np.where(np.isnan(diff), np.inf, diff)
    pardoned = np.zeros(got.shape, bool)
    if np.isinf(diff).any() and touched:
        pardoned = np.isinf(diff) & touched()[output].reshape(got.shape)
        diff = np.where(pardoned, 0.0, diff)
    finite = np.isfinite(diff) & np.isfinite(b)
    norm = float(np.linalg.norm(b[finite])) or 1.0
    error = float(np.linalg.norm(diff[finite])) / norm if np.isfinite(diff).all() else float("inf")
    at = np.unravel_index(int(diff.argmax()), diff.shape) if diff.size else ()
    index = tuple(int(i) for i in at)
    worst, left, right = (float(x[at]) for x in (diff, a, b)) if diff.size else (0.0, 0.0, 0.0)
    beyond, count = outside(diff, b, each) if each else 0, int(pardoned.sum())
    ok = error <= tolerance and not beyond
    return Comparison(output, against, error, worst, index, left, right, ok, count, beyond)


def outside(diff: np.ndarray, want: np.ndarray, each: tuple[float, float]) -> int:
    """How many elements are off by more than atol + rtol |want|."""
    rtol, atol = each
    size = np.where(np.isfinite(want), np.abs(want), 0.0)
    return int((diff > atol + rtol * size).sum())


def _in_range(got: np.ndarray, want: np.ndarray, tolerance: float, dtype: DType) -> np.ndarray:
    """What is wanted, in the range of the dtype: infinite where it rounds to that, and where it
    may, as it is nearer to the end of the range than the tolerance, as ``got`` has it."""
    if dtype not in RANGE:
        return want
    most, step = dtype.greatest, RANGE[dtype][0]
    size = np.abs(want)
    beyond = np.where(size >= most + step / 2, np.copysign(np.inf, want), want)
    near = (size <= most * (1 + tolerance)) & (size >= most * (1 - tolerance))
    near &= np.isinf(beyond) != np.isinf(got)
    near &= np.copysign(1.0, got) == np.copysign(1.0, want)
    return np.where(near & (np.abs(got) >= most * (1 - tolerance)), got, beyond)


def said(r: Comparison) -> str:
    """A comparison in a line."""
    where = ", ".join(map(str, r.worst_index))
    skipped = f", {r.unjudged} unjudged (infinite or NaN on the way)" if r.unjudged else ""
    skipped += f", {r.beyond} beyond --rtol and --atol" if r.beyond else ""
    return (
        f"{'ok  ' if r.ok else 'FAIL'} {r.output}{f' at {r.dims}' if r.dims else ''} against "
        f"{r.against}: relative L2 "
        f"{r.relative_l2:.2e}, worst [{where}] got {r.got:.9g} want {r.want:.9g}{skipped}"
    )
