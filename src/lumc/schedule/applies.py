"""Where the choices of a schedule apply: what of a kernel gives them something to do.

All of it is asked of normalized kernels, and of no schedule: other choices may still leave nothing
to do, which the rows of ``choices`` say.
"""

from __future__ import annotations

from math import gcd, lcm, prod

from lumc.graph.expr import Expr, axis, bound_axes, linear, substitute, subterms
from lumc.kernel.access import row_major
from lumc.kernel.running import running
from lumc.kernel.target import Target
from lumc.kernel.term import REDUCTIONS, Kernel, Root, dtype
from lumc.schedule.levels import levels_of, panel_width
from lumc.schedule.operands import NARROW, lanes, pairs
from lumc.schedule.schedule import Stage
from lumc.schedule.staging import reads_levels

PANELS = ("hoist", "link", "narrow")  # packed outside the loop over tiles
WRITTEN_OUT = 4  # values of an axis that are written out beside lanes along another one
PIECE = 256  # bytes: the whole lines that are stored around the caches together
SKEWED = 256  # elements of a row that is walked behind others, at least: no piece is longer
FETCHED = 64  # elements of a row that is fetched ahead, at least; others are left to the hardware
TURNED = 8  # elements along both axes of what is turned in registers, at least
EXPENSIVE = ("exp2", "exp2_ftz", "exp", "exp_ftz", "decay", "log2", "sin", "recip")


def own_axes(stage: Expr, gpu: bool) -> frozenset[str]:
    """What the lanes of a walk may keep; of a weighted sum not the axes of its weights."""
    if stage.kind == "wsum":
        return stage.free - stage.kids[0].free if gpu else frozenset()
    return stage.free


def streamable(kernel: Kernel, root: Root) -> bool:
    """Can this store go around the caches? It must not accumulate, and fill whole pieces."""
    buffer, lane = kernel.buffer(root.buffer), [a for a in kernel.axes if a in root.axes][-1:]
    along = all(map(row_major(root.index, buffer.shape).is_contiguous, lane))
    long = any(kernel.extent[a] * buffer.dtype.nbytes >= PIECE for a in lane)
    return along and long and root.value.kind not in REDUCTIONS


def skewable(kernel: Kernel) -> bool:
    """Are rows walked more than once, all along axes of one length that is long enough and known,
    and nothing contracted?"""
    plain = all(len(bound_axes(s)) == 1 and not running(kernel, s) for s in kernel.stages)
    over = {a for s in kernel.stages for a in bound_axes(s)}
    lengths, known = {kernel.extent[a] for a in over}, over.isdisjoint(kernel.lengths.of)
    contracts = any(pairs(s) for s in kernel.stages)
    return plain and known and not contracts and len(lengths) == 1 and min(lengths) >= SKEWED


def fusable(kernel: Kernel) -> bool:
    """Is there something to do beside a reduction, row by row?"""
    return any(
        len(kernel.stages) > 1 or r.value is not s or r.axes != s.free or running(kernel, s)
        for s in kernel.stages
        for r in kernel.roots
    )


def keepable(kernel: Kernel) -> bool:
    """Does a reduction compute something expensive along its axis that is read again along another
    one of the same length?"""
    wanted = {e for v in kernel.values for e in subterms(v)}
    for stage in (s for s in kernel.stages if s.kind == "red" and len(bound_axes(s)) == 1):
        (j,) = bound_axes(stage)
        same = [a for a, n in kernel.told.items() if n == kernel.told[j] and a != j]
        for e in subterms(stage.kids[0]):
            hard = (t for t in subterms(e) if t.kind == "un" and t.attr[0] in EXPENSIVE)
            dear = e.kind in ("un", "bin") and j in e.free and any(j in t.free for t in hard)
            if dear and any(substitute(e, {axis(j): axis(a)}) in wanted for a in same):
                return True
    return False


def contracts(kernel: Kernel) -> bool:
    """May a reduction be a contraction, and so copy its operands?"""
    return any(pairs(s) for s in kernel.stages)


def turnable(kernel: Kernel) -> bool:
    """Is something read across the axis along which it lies, and computed in four bytes? Copies
    of the operands of contractions may be."""
    if contracts(kernel):
        return True
    long = {a for a, n in kernel.extent.items() if n >= TURNED}
    loads = (e for v in kernel.values for e in subterms(v) if e.kind == "load")
    reads = [kernel.access(e) for e in loads if dtype(e) in NARROW or dtype(e).nbytes == 4]
    last = long.intersection(kernel.axes[-1:])
    return any(not long.isdisjoint(read.transposed(a)) for a in last for read in reads)


def fetchable(kernel: Kernel) -> bool:
    """Is an argument that stays as it is read in long rows?"""
    loads = (e for v in kernel.values for e in subterms(v) if e.kind == "load")
    reads = (kernel.access(e) for e in loads if e.attr[0] not in kernel.stored)
    return any(kernel.extent[a] >= FETCHED for read in reads for a in read.contiguous)


def has_windows(kernel: Kernel, operand: Expr) -> bool:
    """Is it read at windows that overlap?"""
    for i in (i for i in subterms(operand) if i.kind == "lin"):
        atoms = linear(i)[1]
        steps = {a.attr[0]: n for a, n in atoms.items() if a.kind == "axis" and n > 0}
        if not 1 < len(steps) == len(atoms):
            continue
        by = gcd(*steps.values())
        span = 1 + sum(n // by * (kernel.extent[a] - 1) for a, n in steps.items())
        if span < prod(kernel.extent[a] for a in steps):
            return True
    return False


def shared_prefix(kernel: Kernel, order: tuple[str, ...]) -> int:
    """How many leading loops can be distributed: every root must have their axes."""
    for i, a in enumerate(order):
        if not all(a in root.axes for root in kernel.roots):
            return i
    return len(order)


def grain(kernel: Kernel, stages: tuple[Stage, ...], axis: str, target: Target) -> int:
    """A tile of this axis is a multiple of the panels that are packed outside its loop."""
    each = zip(kernel.stages, stages, strict=False)
    return lcm(*(unit_of(kernel, stage, p, axis, target) for stage, p in each))


def unit_of(kernel: Kernel, stage: Expr, p: Stage, axis: str, target: Target) -> int:
    """Rows or lanes of the panels of one stage, if they are packed outside the loop; all of the
    inner axis of levels."""
    lane = p.lane_axis or ""
    if axis != p.rows_axis and reads_levels(kernel, stage, p):
        levels = levels_of(kernel, stage, lane)
        if axis == lane:
            return panel_width(kernel, stage, lane, target)
        return kernel.extent[axis] if levels and axis == levels.inner else 1
    if p.form == "contract" and axis == p.rows_axis and p.stage_a in PANELS:
        return p.mr
    if p.form == "contract" and axis == p.lane_axis and p.stage_b in PANELS:
        return p.nv * lanes(target, dtype(stage))
    return 1
