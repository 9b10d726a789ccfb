"""How fast a kernel can possibly be: compulsory traffic and arithmetic against the target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lumc.graph.expr import Expr, bound_axes, subterms
from lumc.graph.ops import DType
from lumc.kernel.borders import share_adding
from lumc.kernel.key import structural_numbers
from lumc.kernel.masked import masks, share
from lumc.kernel.running import stepped
from lumc.kernel.target import Target
from lumc.kernel.term import INDEX_KINDS, REDUCTIONS, Kernel, dtype

TILE = 256  # points of the other axes over which one tile keeps a nested value
# f32 operations that a polynomial or a division costs, against one fused multiply-add's two
COST = {
    **{"exp2": 12, "exp2_ftz": 10, "decay": 9, "log2": 14, "sin": 16},
    **{"exp": 14, "exp_ftz": 12},
    **{"sqrt": 4, "recip": 4, "mod": 8},
}
WEIGHT = COST["exp2"] + 2  # maximum, difference and exponential
PIECES = 64  # of an axis, for whose points masks are looked at together


@dataclass(frozen=True)
class Work:
    """The least work of a kernel: arithmetic in f32 operations, traffic in bytes."""

    flops: float
    nbytes: float


def bound_us(kernel: Kernel, target: Target, faster: float = 1.0) -> float:
    """Roofline: no schedule on the target takes less than this many microseconds. ``faster``: how
    much faster than f32 multiply-adds matrix units are, if they multiply."""
    return roofline_us(least_work(kernel, target.ends_early), target, faster)


def roofline_us(work: Work, target: Target, faster: float = 1.0) -> float:
    """Microseconds of the slower of arithmetic, on all threads, and traffic to memory; and of a
    launch."""
    compute = work.flops / (target.gflops * 1e3 * target.threads * faster)
    traffic = work.nbytes / (target.bandwidth * 1e3)
    return max(compute, traffic) + target.launch_us


def least_work(
    kernel: Kernel, ends_early: bool = False, sizes: Mapping[str, float] | None = None
) -> Work:
    """Every distinct value once over its free axes, every element of a buffer once. ``ends_early``:
    but for what only steps need that a mask leaves out. ``sizes``: bytes of an element, of buffers
    that have others than their dtype.

    A reduction nested in another one that ranges over its axes is recomputed when the axes that the
    outer one adds do not fit in a tile. Of results that follow from one another only the steps
    count. Values that are equal up to names of axes count once, as a schedule may keep them.
    """
    values = [*stepped(kernel, kernel.values), *(i for root in kernel.roots for i in root.index)]
    same = structural_numbers(values, kernel.told)
    repeats, added = _recomputed(kernel), _added(kernel)
    counting = _counting(kernel) if ends_early else {}
    flops: dict[object, float] = {}
    touched: dict[str, dict[Expr, float]] = {}
    for e in subterms(*values):
        if e.kind == "load":
            touched.setdefault(e.attr[0], {})[e] = kernel.points(e.free) * counting.get(e, 1.0)
        elif e.kind not in INDEX_KINDS:
            width = repeats.get(e, 1) * (2 if dtype(e) is DType.F64 else 1)
            spent = _operations(e) * kernel.points(e.free.union(bound_axes(e))) * width
            spent *= added.get(e, 1.0) * counting.get(e, 1.0)
            flops[same[e]] = max(flops.get(same[e], 0.0), spent)
            if e.kind == "wsum":  # weights are shared by all sums with these scores
                over = e.kids[0].free.union(bound_axes(e))
                spent = WEIGHT * kernel.points(over) * width * counting.get(e, 1.0)
                flops["weights", same[e.kids[0]]] = spent
    nbytes = 0.0
    for b in kernel.buffers:
        points = sum(touched.get(b.name, {}).values())
        points += sum(kernel.points(r.axes) for r in kernel.roots if r.buffer == b.name)
        nbytes += min(points, math.prod(b.shape)) * (sizes or {}).get(b.name, b.dtype.nbytes)
    return Work(sum(flops.values()), nbytes)


def _operations(e: Expr) -> float:
    """Per point of the free and bound axes."""
    if e.kind == "wsum":
        return 2.0
    if e.kind in ("un", "bin"):
        return float(COST.get(e.attr[0], 1))
    return 1.0 if e.kind in ("red", "where") else 0.0


def _added(kernel: Kernel) -> dict[Expr, float]:
    """Of sums over windows and the products in them, the share of steps within the border."""
    out: dict[Expr, float] = {}
    for e in (e for e in kernel.stages if e.attr[0] == "sum"):
        if (share := share_adding(e, kernel.extent)) < 1:
            out[e] = out[e.kids[0]] = share
    return out


def _counting(kernel: Kernel) -> dict[Expr, float]:
    """Of what masked reductions compute for their steps only, the share that counts, at least."""
    lost = dict[tuple[Expr, tuple[str, ...]], float]()  # by the axes that bind a term
    for stage in kernel.stages:
        found, own = masks(kernel, [stage]), bound_axes(stage)
        pieces = {a: -(-n // PIECES) for a, n in kernel.extent.items()} | dict.fromkeys(own, 1)
        part = 1 - share(found, kernel, pieces, within=True) if found else 0.0
        for e in subterms(stage):
            if e is stage or not e.free.isdisjoint(own):
                lost[e, own] = min(part, lost.get((e, own), 1.0))
    out = dict[Expr, float]()
    for (e, _), part in lost.items():
        out[e] = max(0.0, out.get(e, 1.0) - part)
    return out


def _recomputed(kernel: Kernel) -> dict[Expr, int]:
    """How often a nested reduction, with what it ranges over, is computed at least."""
    out: dict[Expr, int] = {}
    for outer in kernel.stages:
        over = set(bound_axes(outer))
        for inner in subterms(outer):
            if inner is not outer and inner.kind in REDUCTIONS and inner.free & over:
                extra = kernel.points(outer.free - inner.free)
                times, own = math.ceil(extra / TILE), set(bound_axes(inner))
                for e in (e for e in subterms(inner) if e is inner or e.free & own):
                    out[e] = max(out.get(e, 1), times)
    return out
