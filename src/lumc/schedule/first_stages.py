"""The default of every reduction: its form, its rows and lanes, how operands are read.

Measured order of effect (the tile prototype): form and axes of each contraction, staging of its
operands, block tiles and loop order, then the register tile (``registers.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from lumc.graph.expr import Expr, bound_axes, substitute, subterms
from lumc.kernel.borders import share_within
from lumc.kernel.running import Running, running
from lumc.kernel.selected import selection
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, const, dtype
from lumc.schedule.levels import (
    OF_BYTES,
    multiplies_digits,
    multiplies_integers,
    panel_vectors,
)
from lumc.schedule.operands import (
    VECTOR,
    Pair,
    can_dot,
    lanes,
    least_step,
    loaded,
    operand_of,
    pairs,
)
from lumc.schedule.registers import (
    FMAS,
    NESTED_TILES,
    WINDOW,
    efficiency,
    register_tile,
    rows_of,
)
from lumc.schedule.schedule import Stage
from lumc.schedule.staging import can_link, has_levels, staging_modes

STREAMED = 8  # rows of a matrix that are read side by side
LINE = 64  # bytes
BLOCK_LANES = 256
WIDE = 4  # times the steps of a window that is written out: along each axis of its own it is short
FEW_ROWS = 8  # up to here reading the weights takes longer than converting them again
# how contractions along different axes compare: the time to turn an element in that of two vectors
# of multiply-adds (0.2 ns where one takes 0.17), the share of its speed where b does not lie along
# the lanes, and what is too near to the best one to tell
TURN, APART, ALIKE = 0.5, 0.6, 0.95
STEPS = 4  # of every accumulator of a row, at least; measured: 2 and 4 are alike, 8 is slower
SHORT_DOT = 64  # elements; sums across lanes cost as much


def default_stage(kernel: Kernel, stage: Expr, target: Target) -> Stage:
    """How a reduction runs if nothing else is known, on a CPU."""
    if run := running(kernel, stage):
        return _run(kernel, stage, run)
    found = [p for p in pairs(stage) if kernel.extent[p[1]] >= 4]
    if columns := [p for p in found if _by_columns(kernel, stage, p, target)]:
        return contraction_stage(kernel, stage, columns[0], target)
    if levels := [p for p in found if has_levels(kernel, stage, Stage("contract", *p), "b")]:
        most = max(levels, key=lambda p: (rows_of(kernel, p), kernel.extent[p[1]]))
        return level_stage(kernel, stage, most, target)
    best = _best(kernel, stage, found, target)
    in_place = [p for p in found if _dots(kernel, stage, p, target)]
    skinny = [p for p in in_place if _is_skinny(kernel, stage, p)]
    square = any(r and kernel.extent[r] > 8 and kernel.extent[v] >= 16 for r, v in found)
    if skinny and not square and stage.kind == "red":
        return _dot(kernel, stage, skinny[0], target, 2)
    ready = best and not in_place and _lies_ready(kernel, stage, best)
    ready = ready or (best and _comes_from_memory(kernel, stage, best, target))
    ready = ready and not (stage.kind == "red" and kernel.points(bound_axes(stage)) <= WINDOW)
    if best and (rows_of(kernel, best) > 1 or ready):
        return contraction_stage(kernel, stage, best, target)
    if in_place:
        most = max(in_place, key=lambda p: min(rows_of(kernel, p), 4))
        return _dot(kernel, stage, most, target, 4)
    return _row_walk(kernel, stage, target)


def _summed(kernel: Kernel, stage: Expr) -> Expr | None:
    """The weighted sum whose scores contain this stage."""
    sums = (s for s in kernel.stages if s.kind == "wsum" and s.attr[0] in stage.free)
    return next((s for s in sums if stage in subterms(s.kids[0])), None)


def _by_columns(kernel: Kernel, stage: Expr, pair: Pair, target: Target) -> bool:
    """Can scores have their lanes along an axis of the result, and everything else that is read
    with them too? Maxima, weights and sums of vectors need no step across lanes."""
    (rows, lane), above = pair, _summed(kernel, stage)
    if above is None or rows != above.attr[0] or kernel.extent[lane] < lanes(target, dtype(stage)):
        return False
    rest = substitute(above.kids[0], {stage: const(0, dtype(stage))})
    loads = [e for e in subterms(rest) if e.kind == "load" and lane in e.free]
    return lane in kernel.axes and all(least_step(kernel, e, lane) == 1 for e in loads)


def _lies_ready(kernel: Kernel, stage: Expr, pair: Pair) -> bool:
    """Does b lie along the lanes, or can it at link time?"""
    steps = least_step(kernel, operand_of(stage, pair, "b"), pair[1])
    return steps == 1 or can_link(kernel, stage, pair)


def _best(kernel: Kernel, stage: Expr, found: Sequence[Pair], target: Target) -> Pair | None:
    """The rows and lanes of a contraction that multiply for most of their time; of those that are
    alike those with enough rows, link-time windows, little to turn."""

    def preferred(pair: Pair) -> tuple[float, ...]:
        return (
            min(rows_of(kernel, pair), 8),
            can_link(kernel, stage, pair) and len(bound_axes(stage)) > 1,
            -_turned(kernel, stage, pair, target),
            kernel.extent[pair[1]],
            kernel.axes.index(pair[0]) if pair[0] in kernel.axes else -1,
        )

    shares = {p: _busy(kernel, stage, p, target) for p in found}
    alike = [p for p in found if shares[p] >= max(shares.values()) * ALIKE]
    return max(alike, key=preferred, default=None)


def _busy(kernel: Kernel, stage: Expr, pair: Pair, target: Target) -> float:
    """The share of the time of a contraction in which it multiplies; more where steps that add
    nothing can be left out."""
    steps = kernel.points(stage.free.union(bound_axes(stage))) / lanes(target, dtype(stage)) / FMAS
    turning = TURN * _turned(kernel, stage, pair, target)
    done = max(1.0, steps * share_within(stage, pair, kernel.extent))
    share = steps / (done / efficiency(kernel, stage, pair, target) + turning) if steps else 1.0
    return share * (1 if _lies_ready(kernel, stage, pair) else APART)


def _turned(kernel: Kernel, stage: Expr, pair: Pair, target: Target) -> int:
    """Elements that lie across the lanes: of copies of b, and of the result."""
    copies = target.threads if own_copies(kernel, stage, pair, target) else 1
    copies = 0 if _lies_ready(kernel, stage, pair) else copies
    result = kernel.points(kernel.axes) if stores_across(kernel, pair[1]) else 0
    return result + copies * kernel.points(operand_of(stage, pair, "b").free)


def stores_across(kernel: Kernel, lane: str | None) -> bool:
    """Is the axis of the lanes one of the result's, but not the last?"""
    return lane in kernel.axes[:-1]


def _dots(kernel: Kernel, stage: Expr, pair: Pair, target: Target) -> tuple[str, str] | None:
    """How a dot form with lanes along the reduced axis would read its operands: in place. One
    row may be computed before; then the matrix need not lie ready either. If it does not stay in
    the cache it may be laid out at link time."""
    last = bound_axes(stage)[-1]
    short = SHORT_DOT if can_link(kernel, stage, pair) else 16
    if not can_dot(stage, pair) or kernel.extent[last] < short:
        return None
    p, a, b = Stage("dot", *pair), ["none"], ["none"]
    modes = [staging_modes(kernel, stage, p, side) for side in "ab"]
    if rows_of(kernel, pair) <= FEW_ROWS and stage.kind == "red":
        a += ["hoist"]
    if rows_of(kernel, pair) == 1 and stage.kind == "red":
        if kernel.extent[pair[1]] * kernel.extent[last] * dtype(stage).nbytes > target.l2:
            b += ["narrow", "link"]
        if "none" not in modes[0] and least_step(kernel, operand_of(stage, pair, "b"), last) == 1:
            b += ["inner"]
    found = [next((m for m in w if m in have), "") for w, have in zip((a, b), modes, strict=True)]
    return (found[0], found[1]) if all(found) else None


def _comes_from_memory(kernel: Kernel, stage: Expr, pair: Pair, target: Target) -> bool:
    """Is b a weight that the second cache does not hold? Panels are one stream; rows side by side
    are short ones, which hardware fetches late (f16 of 49152 x 576: 0.96 and 0.66 of the memory's
    speed)."""
    b = loaded(operand_of(stage, pair, "b"), VECTOR[dtype(stage)])
    return can_link(kernel, stage, pair) and kernel.points(b.free) * dtype(b).nbytes > target.l2


def _is_skinny(kernel: Kernel, stage: Expr, pair: Pair) -> bool:
    few = 1 < rows_of(kernel, pair) <= 8 and kernel.extent[pair[1]] > 64
    return few and not can_link(kernel, stage, pair)


def _dot(kernel: Kernel, stage: Expr, pair: Pair, target: Target, columns: int) -> Stage:
    """One row walks many columns at once: as many streams as it takes to keep memory busy."""
    modes, mr = _dots(kernel, stage, pair, target), min(4, rows_of(kernel, pair))
    assert modes
    nv = STREAMED if mr == 1 else columns
    return Stage("dot", *pair, mr=mr, nv=nv, stage_a=modes[0], stage_b=modes[1])


def contraction_stage(kernel: Kernel, stage: Expr, pair: Pair, target: Target) -> Stage:
    """A sound register tile and staging of the contraction with these rows and lanes."""
    rows, lane = pair
    width, extent = lanes(target, dtype(stage)), kernel.extent[lane]
    weighted = stage.kind == "wsum"
    nested = any(s is not stage and stage in subterms(s) for s in kernel.stages)
    above = _summed(kernel, stage)
    columns = above is not None and rows == above.attr[0]
    if nested or weighted:
        most, nv = NESTED_TILES[target.registers][0 if weighted else 1 + columns]
        mr = min(most, rows_of(kernel, pair))
        if weighted:  # few rows read as much of a row of b at a time as there is room for
            nv = min(nv * (most // mr), target.registers // (mr + 1))
        nv = min(nv, -(-extent // width))
    else:
        own = own_copies(kernel, stage, pair, target)
        mr, nv = register_tile(kernel, stage, pair, replace(target, threads=1) if own else target)
    p = Stage("contract", rows, lane, mr, nv, panels_outside=len(bound_axes(stage)) > 1)
    # two multiply-adds in a cycle leave a short step no time for its part of the loop
    p = replace(p, unroll=target.fmas > 1)
    b = staging_modes(kernel, stage, p, "b")
    p = replace(p, stage_b=_default_b(kernel, stage, pair, b, target))
    # weights come from memory, which a register tile should not wait for
    p = replace(p, next_panel=p.stage_b in ("link", "narrow"))
    a = staging_modes(kernel, stage, p, "a")
    copied = p.stage_b == "link" and target.threads > 1 and rows_of(kernel, pair) > 2 * mr
    copied &= stage.kind == "red" and _are_apart(kernel, stage, pair)
    streams = p.stage_b == "none" and _deep(kernel, stage, target) and target.threads == 1
    return replace(
        p,
        # where several threads share a cache, rows that lie apart throw each other out
        stage_a=_default_a(kernel, stage, pair, a, copied),
        # where b lies in the second cache, every row panel of a is read once
        panels_first=not (p.stage_b == "hoist" or streams) or nested or weighted,
    )


def level_tiles(
    kernel: Kernel, stage: Expr, pair: Pair, target: Target, mode: str = "narrow"
) -> list[tuple[int, int]]:
    """Register tiles that read levels: the vectors of a panel, or parts of it. Sums of integers
    become floats, which are other sums."""
    width, rows = lanes(target, dtype(stage)), rows_of(kernel, pair)
    most = panel_vectors(kernel.extent[pair[1]], width)
    sizes = [nv for nv in range(1, most + 1) if most % nv == 0]
    sums, _ = OF_BYTES.get(mode, (0, 1.0))
    fit = {nv: (target.registers - 2 * nv) // nv // (1 + sums) for nv in sizes}
    return sorted({(min(mr, rows), nv) for nv, top in fit.items() for mr in range(1, top + 1)})


def level_stage(kernel: Kernel, stage: Expr, pair: Pair, target: Target, mode: str = "") -> Stage:
    """The register tile of levels that multiplies for most of its time, and rows in tiles that are
    alike; in this ``mode``, else the usual one."""

    def busy(tile: tuple[int, int]) -> float:
        (mr, nv) = tile  # levels become floats in two instructions, elements of a are loaded
        products = mr * nv * digits
        return products / (products + 2 * nv + mr * digits)

    mode = mode or _multiplied(kernel, stage, pair[1], target)
    digits, _ = OF_BYTES.get(mode, (1, 1.0))
    most, nv = max(level_tiles(kernel, stage, pair, target, mode), key=busy)
    rows = rows_of(kernel, pair)
    mr = ceil(rows / ceil(rows / most))
    p = Stage("contract", *pair, mr, nv, stage_b=mode, next_panel=True)
    p = replace(p, panels_outside=len(stage.free) > 1 + (pair[0] is not None))
    a = staging_modes(kernel, stage, p, "a")
    return replace(p, stage_a=next(m for m in ("none", "hoist", "inner") if m in a))


def _multiplied(kernel: Kernel, stage: Expr, lane: str, target: Target) -> str:
    """How levels are multiplied: as integers where there are instructions for it."""
    if "vnni" not in target.features:
        return "narrow"
    if multiplies_integers(kernel, stage, lane):
        return "integers"
    return "digits" if multiplies_digits(kernel, stage, lane) else "narrow"


def _default_a(kernel: Kernel, stage: Expr, pair: Pair, modes: list[str], copied: bool) -> str:
    """In place, or copied; weights whose steps lie apart are laid out at link time: every one of
    them would be on a line, and soon on a page, of its own."""
    apart = least_step(kernel, operand_of(stage, pair, "a"), bound_axes(stage)[-1]) > 1
    if apart and "link" in modes and stage.kind == "red":
        return "link"
    return next(m for m in ("none", "hoist", "inner")[copied:] if m in modes)


def _are_apart(kernel: Kernel, stage: Expr, pair: Pair) -> bool:
    """Do the rows of a lie in different lines?"""
    rows = pair[0]
    return rows is not None and least_step(kernel, operand_of(stage, pair, "a"), rows) != 1


def _default_b(kernel: Kernel, stage: Expr, pair: Pair, modes: list[str], target: Target) -> str:
    """In place if the rows of b that a panel crosses fit in the cache: lines that are a power of
    two apart share few of its sets."""
    if "narrow" in modes and rows_of(kernel, pair) <= FEW_ROWS:
        return "narrow"
    if "link" in modes:
        return "link"
    last = bound_axes(stage)[-1]
    span = kernel.extent[last] * least_step(kernel, operand_of(stage, pair, "b"), last)
    small = span * dtype(stage).nbytes <= target.l2 and pair[1] in kernel.axes[-1:]
    small &= not own_copies(kernel, stage, pair, target)
    if "none" in modes and (small or rows_of(kernel, pair) <= 8 or stage.kind == "wsum"):
        return "none"
    return "hoist" if "hoist" in modes else "inner"


def own_copies(kernel: Kernel, stage: Expr, pair: Pair, target: Target) -> bool:
    """Does every thread have a share of the rows and a copy of b? Else it has a share of the lanes
    and reads all of a for every block of these: lines that several cores read come slowly."""
    several = target.threads > 1 and _deep(kernel, stage, target)
    many = rows_of(kernel, pair) >= target.threads * BLOCK_LANES
    return several and many and not can_link(kernel, stage, pair)


def _deep(kernel: Kernel, stage: Expr, target: Target) -> bool:
    """Does a panel of b, three vectors wide, leave no room in the first cache?"""
    return kernel.points(bound_axes(stage)) * 3 * LINE > target.l1


def _row_walk(kernel: Kernel, stage: Expr, target: Target) -> Stage:
    """Lanes along the reduced axis, unless it is short or the data lies along a kept one."""
    last = bound_axes(stage)[-1]
    extent, kept = kernel.extent[last], [a for a in kernel.axes if a in stage.free]
    along = least_step(kernel, stage, last) == 1 or not (
        kept and least_step(kernel, stage, kept[-1]) == 1
    )
    slides = (
        kept and kernel.points(bound_axes(stage)) <= WINDOW and slides_across(stage, kept[-1], last)
    )
    scatters = target.gpu is None and selection(kernel, stage) is not None
    if stage.kind == "red" and kept and (extent < 16 or not along or slides or scatters):
        return Stage(lanes="kept")
    vectors = extent // target.lanes
    return Stage(streams=next(n for n in (4, 2, 1) if vectors >= n * STEPS or n == 1))


def slides_across(stage: Expr, kept: str, last: str) -> bool:
    """Does an index go along both axes? Neighbouring results read nearly the same then."""
    loads = (e for e in subterms(stage) if e.kind == "load")
    return any({kept, last} <= i.free for e in loads for i in e.kids)


def _run(kernel: Kernel, stage: Expr, run: Running) -> Stage:
    """Lanes along another axis, where the data lies along that."""
    kept = [a for a in kernel.axes if a in stage.free and a != run.along][-1:]
    beside = any(least_step(kernel, run.term, a) == 1 for a in kept)
    return Stage(lanes="kept" if beside else "reduced")


def is_window(kernel: Kernel, stage: Expr) -> bool:
    """A short sum or maximum over several axes: neighbouring rows read the same."""
    over = bound_axes(stage)
    return len(over) > 1 and kernel.points(over) <= WIDE * WINDOW
