"""A sound default schedule for every kernel on a CPU.

Measured order of effect (the tile prototype): form and axes of each contraction, staging of its
operands, block tiles and loop order, then the register tile (``registers.py``).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from math import ceil, prod

from lumc.graph.expr import Expr, bound_axes, substitute, subterms
from lumc.kernel.borders import share_within
from lumc.kernel.normal import normalize
from lumc.kernel.running import Running, running
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, const, dtype
from lumc.schedule.applies import WRITTEN_OUT, grain, shared_prefix, skewable, streamable
from lumc.schedule.operands import (
    Pair,
    can_dot,
    can_link,
    lanes,
    least_step,
    operand_of,
    pairs,
    staging_modes,
)
from lumc.schedule.registers import (
    FMAS,
    NESTED_TILES,
    WINDOW,
    efficiency,
    loads_rows,
    register_tile,
    rows_of,
)
from lumc.schedule.schedule import Schedule, Stage

STREAMED = 8  # rows of a matrix that are read side by side
MANY_TILES = 8  # enough parts for a static partition
SEVERAL = 64  # tiles of a thread: beyond, one more or less makes no difference
SHARES = 50  # of the work: by fewer of them shares do not differ
WORTH_PARTS = 1 << 13  # steps; below, waking a second thread costs more than it saves
LONG_ROW = 1 << 12
LARGE = 8 << 20  # bytes: of such a result the next kernel finds little in the caches of a core
LINE = 64  # bytes
SKEWED = 2  # accumulators of one of several walks side by side: they share the registers
BLOCK_LANES = 256
BLOCK_ROWS = 64
WIDE = 4  # times the steps of a window that is written out: along each axis of its own it is short
ROWS_OF_WINDOWS = 28  # that share a copy of what they read
FEW_ROWS = 8  # up to here reading the weights takes longer than converting them again
ROW_SHARE = 64  # elements of a row that another thread may take
# how contractions along different axes compare: the time to turn an element in that of two vectors
# of multiply-adds (0.2 ns where one takes 0.17), the share of its speed where b does not lie along
# the lanes, and what is too near to the best one to tell
TURN, APART, ALIKE = 0.5, 0.6, 0.95
PANELS = 4  # of b that the second cache holds: this one, the next one, what is read with them
SHORT_DOT = 64  # elements; sums across lanes cost as much


def default_schedule(kernel: Kernel, target: Target) -> Schedule:
    """A sound guess for every kernel on a CPU."""
    kernel = normalize(kernel)
    return tiled(kernel, tuple(_default_stage(kernel, s, target) for s in kernel.stages), target)


def tiled(kernel: Kernel, stages: tuple[Stage, ...], target: Target) -> Schedule:
    """The default tiles and order around these stages of a normalized kernel."""
    tile, order = _default_tiles(kernel, stages, target)
    return _finish(kernel, order, tile, stages, target)


def _finish(
    kernel: Kernel,
    order: Sequence[str],
    tile: dict[str, int],
    stages: tuple[Stage, ...],
    target: Target,
) -> Schedule:
    """Distribute as many leading loops as it takes to have enough tiles for every part."""
    tile = _whole_panels(kernel, tile, stages, target)
    parallel = _distributed(kernel, order, tile)
    order = _evenly_dealt(kernel, order, parallel, tile, stages, target)
    order, tile = _lanes_dealt(kernel, order, tile, stages, target)
    parallel = _distributed(kernel, order, tile)
    return _memory(kernel, Schedule(tuple(order), parallel, tile, stages), target)


def _distributed(kernel: Kernel, order: Sequence[str], tile: Mapping[str, int]) -> int:
    """How many of the leading loops it takes to have enough tiles for every part."""
    count, parallel = MANY_TILES if _work(kernel) < WORTH_PARTS else 1, 0
    for i, axis in enumerate(order[: shared_prefix(kernel, tuple(order))], 1):
        if axis in tile and count < MANY_TILES:
            count *= -(-kernel.extent[axis] // tile[axis])
            parallel = i
    return parallel


def _evenly_dealt(
    kernel: Kernel,
    order: Sequence[str],
    parallel: int,
    tile: dict[str, int],
    stages: tuple[Stage, ...],
    target: Target,
) -> Sequence[str]:
    """The distributed loops with another one outside, where the threads get more equal shares so
    and every pass over the lanes, which the threads had parts of, is for many rows."""
    lanes_axes = [p.lane_axis for p in stages if p.form == "contract"]
    tiles = prod(-(-kernel.extent[a] // tile.get(a, kernel.extent[a])) for a in order[:parallel])
    if tiles < target.threads or order[:1] != lanes_axes[:1]:
        return order
    best, least = order, _share(kernel, order[:parallel], tile, target)
    for a in order[1:parallel]:
        rows = prod(tile.get(b, kernel.extent[b]) for b in order[1:])
        moved = [a, *(b for b in order if b != a)]
        share = _share(kernel, moved[:parallel], tile, target)
        if share < least * ALIKE and rows >= BLOCK_ROWS:
            best, least = moved, share
    return best


def _lanes_dealt(
    kernel: Kernel,
    order: Sequence[str],
    tile: dict[str, int],
    stages: tuple[Stage, ...],
    target: Target,
) -> tuple[Sequence[str], dict[str, int]]:
    """Long rows of lanes in parts for the threads, where these get more equal shares so than of
    few rows. Nothing is reduced along them, and no result follows from another one."""
    walked = any(p.lanes != "kept" for p in stages) or any(
        running(kernel, s) for s in kernel.stages
    )
    if len(order) < 2 or walked:
        return order, tile
    *outer, lane = order
    part = 16 * ceil(kernel.extent[lane] / target.threads / 16)
    parts, moved = tile | {lane: part}, [lane, *outer]
    more = _share(kernel, moved, parts, target) < _share(kernel, order, tile, target) * ALIKE
    return (moved, parts) if more and part >= ROW_SHARE else (order, tile)


def _share(kernel: Kernel, order: Sequence[str], tile: Mapping[str, int], target: Target) -> float:
    """Of all that is done, what the thread with most of it does: tiles are dealt in order."""
    axes, threads = order[: _distributed(kernel, order, tile)], target.threads
    tiles = prod(-(-kernel.extent[a] // tile.get(a, kernel.extent[a])) for a in axes)
    if threads == 1 or tiles > threads * SEVERAL:
        return 1.0 / threads
    cut = [range(0, kernel.extent[a], tile.get(a, kernel.extent[a])) for a in axes]
    sizes = [[min(r.step, kernel.extent[a] - n) for n in r] for a, r in zip(axes, cut, strict=True)]
    return _largest([prod(each) for each in product(*sizes)], 1, threads)


def _largest(works: Sequence[int], times: int, threads: int) -> float:
    """Of all that is done, what the thread with most of it does: tiles, each so many times, are
    dealt in order."""
    every = [w for w in works for _ in range(times)]
    ends = [len(every) * part // threads for part in range(threads + 1)]
    return max(sum(every[a:b]) for a, b in pairwise(ends)) / max(1, sum(every))


def _memory(kernel: Kernel, schedule: Schedule, target: Target) -> Schedule:
    """Go around the caches with large results made of whole lines, unless there is a contraction
    to feed or the store hits what was just read. Prefetching beside plain stores only pays when
    there is much to compute between, and then walks go side by side: one computes, others move."""
    if any(p.form != "rows" for p in schedule.stages):
        ahead = any(p.stage_a == "none" and not p.panels_first for p in schedule.stages)
        return replace(schedule, prefetch=ahead)
    terms = subterms(*kernel.values)
    read = {e.attr[0] for e in terms if e.kind == "load"}
    out = [kernel.buffer(r.buffer) for r in kernel.roots if streamable(kernel, r)]
    whole = all(b.shape[-1] * b.dtype.nbytes % LINE == 0 and b.name not in read for b in out)
    nbytes = {b.name: prod(b.shape) * b.dtype.nbytes for b in kernel.buffers}
    stream = bool(out) and whole and all(nbytes[b.name] >= LARGE for b in out)
    heavy = any(e.attr[:1] in (("exp2",), ("log2",), ("sin",)) for e in terms)
    ahead = stream or (heavy and sum(nbytes.values()) > target.l2)
    if skew := stream and heavy and skewable(kernel):
        few = tuple(replace(s, streams=min(s.streams, SKEWED)) for s in schedule.stages)
        schedule = replace(schedule, stages=few)
    return replace(schedule, stream=stream, skew=skew, prefetch=ahead)


def _whole_panels(
    kernel: Kernel, tile: dict[str, int], stages: tuple[Stage, ...], target: Target
) -> dict[str, int]:
    """Tiles rounded up to whole panels; those of the whole extent are left out."""
    out = {}
    for a in sorted(tile):
        unit = grain(kernel, stages, a, target)
        size = -(-tile[a] // unit) * unit
        if size < kernel.extent[a]:
            out[a] = size
    return out


# ---- the default of one stage


def _default_stage(kernel: Kernel, stage: Expr, target: Target) -> Stage:
    if run := running(kernel, stage):
        return _run(kernel, stage, run)
    found = [p for p in pairs(stage) if kernel.extent[p[1]] >= 4]
    if columns := [p for p in found if _by_columns(kernel, stage, p, target)]:
        return contraction_stage(kernel, stage, columns[0], target)
    best = _best(kernel, stage, found, target)
    in_place = [p for p in found if _dots(kernel, stage, p, target)]
    skinny = [p for p in in_place if _is_skinny(kernel, stage, p)]
    square = any(r and kernel.extent[r] > 8 and kernel.extent[v] >= 16 for r, v in found)
    if skinny and not square and stage.kind == "red":
        return _dot(kernel, stage, skinny[0], target, 2)
    ready = best and not in_place and _lies_ready(kernel, stage, best)
    ready = ready and not (stage.kind == "red" and kernel.points(bound_axes(stage)) <= WINDOW)
    if best and (rows_of(kernel, best) > 1 or ready):
        return contraction_stage(kernel, stage, best, target)
    if in_place:
        most = max(in_place, key=lambda p: min(rows_of(kernel, p), 4))
        return _dot(kernel, stage, most, target, 4)
    return _row_walk(kernel, stage)


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
    copies = target.threads if _own_copies(kernel, stage, pair, target) else 1
    copies = 0 if _lies_ready(kernel, stage, pair) else copies
    result = kernel.points(kernel.axes) if _stores_across(kernel, pair[1]) else 0
    return result + copies * kernel.points(operand_of(stage, pair, "b").free)


def _stores_across(kernel: Kernel, lane: str | None) -> bool:
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
    if rows_of(kernel, pair) == 1 and stage.kind == "red":
        a += ["hoist"]
        if kernel.extent[pair[1]] * kernel.extent[last] * dtype(stage).nbytes > target.l2:
            b += ["narrow", "link"]
        if "none" not in modes[0] and least_step(kernel, operand_of(stage, pair, "b"), last) == 1:
            b += ["inner"]
    found = [next((m for m in w if m in have), "") for w, have in zip((a, b), modes, strict=True)]
    return (found[0], found[1]) if all(found) else None


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
        mr, nv = NESTED_TILES[target.registers][0 if weighted else 1 + columns]
        mr, nv = min(mr, rows_of(kernel, pair)), min(nv, -(-extent // width))
    else:
        own = _own_copies(kernel, stage, pair, target)
        mr, nv = register_tile(kernel, stage, pair, replace(target, threads=1) if own else target)
    p = Stage("contract", rows, lane, mr, nv, panels_outside=len(bound_axes(stage)) > 1)
    p = replace(p, broadcast=loads_rows(target, mr, nv, width * dtype(stage).nbytes))
    b = staging_modes(kernel, stage, p, "b")
    p = replace(p, stage_b=_default_b(kernel, stage, pair, b, target))
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
    small &= not _own_copies(kernel, stage, pair, target)
    if "none" in modes and (small or rows_of(kernel, pair) <= 8 or stage.kind == "wsum"):
        return "none"
    return "hoist" if "hoist" in modes else "inner"


def _own_copies(kernel: Kernel, stage: Expr, pair: Pair, target: Target) -> bool:
    """Does every thread have a share of the rows and a copy of b? Else it has a share of the lanes
    and reads all of a for every block of these: lines that several cores read come slowly."""
    several = target.threads > 1 and _deep(kernel, stage, target)
    many = rows_of(kernel, pair) >= target.threads * BLOCK_LANES
    return several and many and not can_link(kernel, stage, pair)


def _deep(kernel: Kernel, stage: Expr, target: Target) -> bool:
    """Does a panel of b, three vectors wide, leave no room in the first cache?"""
    return kernel.points(bound_axes(stage)) * 3 * LINE > target.l1


def _row_walk(kernel: Kernel, stage: Expr) -> Stage:
    """Lanes along the reduced axis, unless it is short or the data lies along a kept one."""
    last = bound_axes(stage)[-1]
    extent, kept = kernel.extent[last], [a for a in kernel.axes if a in stage.free]
    along = least_step(kernel, stage, last) == 1 or not (
        kept and least_step(kernel, stage, kept[-1]) == 1
    )
    slides = kept and kernel.points(bound_axes(stage)) <= WINDOW and _slides(stage, kept[-1], last)
    if stage.kind == "red" and kept and (extent < 16 or not along or slides):
        return Stage(lanes="kept")
    sums = stage.kind == "red" and stage.attr[0] == "sum"
    return Stage(streams=2 if sums else 4 if extent >= 64 else 1)


def _slides(stage: Expr, kept: str, last: str) -> bool:
    """Does an index go along both axes? Neighbouring results read nearly the same then."""
    loads = (e for e in subterms(stage) if e.kind == "load")
    return any({kept, last} <= i.free for e in loads for i in e.kids)


def _run(kernel: Kernel, stage: Expr, run: Running) -> Stage:
    """Lanes along another axis, where the data lies along that."""
    kept = [a for a in kernel.axes if a in stage.free and a != run.along][-1:]
    beside = any(least_step(kernel, run.term, a) == 1 for a in kept)
    return Stage(lanes="kept" if beside else "reduced")


# ---- the default tiles


def _is_window(kernel: Kernel, stage: Expr) -> bool:
    """A short sum or maximum over several axes: neighbouring rows read the same."""
    over = bound_axes(stage)
    return len(over) > 1 and kernel.points(over) <= WIDE * WINDOW


def _default_tiles(
    kernel: Kernel, stages: tuple[Stage, ...], target: Target
) -> tuple[dict[str, int], list[str]]:
    order, extent = list(kernel.axes), kernel.extent
    found = [(s, p) for s, p in zip(kernel.stages, stages, strict=True) if p.form == "contract"]
    if not found:
        return _runs_whole(kernel, _row_tiles(kernel, target), order, target)
    stage, p = found[0]
    assert p.lane_axis is not None
    width = p.nv * lanes(target, dtype(stage))
    of_rows = any(p.rows_axis in s.free and p.lane_axis not in s.free for s in kernel.stages)
    # a block of b is copied, or read from memory, once for all rows
    once = p.stage_b == "hoist" or (p.stage_b == "link" and p.stage_a == "none" and not of_rows)
    own = p.stage_b == "hoist" and _own_copies(kernel, stage, (p.rows_axis, p.lane_axis), target)
    if once and p.rows_axis in order and p.lane_axis in order:
        outer, inner = (p.rows_axis, p.lane_axis) if own else (p.lane_axis, p.rows_axis)
        order.remove(outer)
        order.insert(order.index(inner), outer)
    most = (
        _lanes(kernel, stage, p.lane_axis, width, target) if p.stage_b == "hoist" else BLOCK_LANES
    )
    # results that are turned wait in the first cache, unless that takes further copies of b
    few = _stores_across(kernel, p.lane_axis) and not (own and most < extent[p.lane_axis])
    rows = BLOCK_ROWS if few or p.stage_b != "hoist" else extent.get(p.rows_axis or "", 1)
    rows = ceil(rows / target.threads / p.mr) * p.mr if own and not few else rows
    beside = {p.rows_axis, p.lane_axis} - {p.lane_axis if once and not own else p.rows_axis}
    usual = {a for a in order if a not in beside} if p.rows_axis else {*order}
    tile, other = (
        _block_tiles(kernel, stage, p, order, dealt, (rows, most), target)
        for dealt in (usual, order[:1])
    )
    if _share(kernel, order, other, target) < _share(kernel, order, tile, target) * ALIKE:
        tile = other
    tile |= _reduced_tile(kernel, stage, p, width, target)
    for s, q in found:
        if s.kind == "wsum":
            over, columns = s.attr[0], any(p.rows_axis == s.attr[0] for _, p in found)
            some, rows = (128, 48) if columns else (256, 84)
            held = min(rows, extent.get(q.rows_axis or "", 1)) * dtype(s).nbytes
            # all weights of a few rows at once: no sum is loaded and scaled again
            tile[over] = extent[over] if held * extent[over] <= target.l2 // 2 else some
            if q.rows_axis in kernel.axes:
                tile[q.rows_axis] = _even(extent[q.rows_axis], 1, rows)
    return tile, order


def _block_tiles(
    kernel: Kernel,
    stage: Expr,
    p: Stage,
    order: Sequence[str],
    dealt: Container[str],
    most: tuple[int, int],
    target: Target,
) -> dict[str, int]:
    """Tiles of up to so many rows and lanes, those of some axes in equal shares for the threads.
    Inner loops first: the outer ones are dealt together with their tiles."""
    tile, extent, alone = dict[str, int](), kernel.extent, replace(target, threads=1)
    for a in reversed(order):
        beside = prod(-(-extent[b] // n) for b, n in tile.items())
        here = target if a in dealt else alone
        if a == p.rows_axis:
            tile[a] = _dealt(extent[a], p.mr, most[0], here, beside)
        elif a == p.lane_axis:
            whole, width = (
                p.stage_b == "none" and stage.kind == "red",
                p.nv * lanes(target, dtype(stage)),
            )
            tile[a] = extent[a] if whole else _dealt(extent[a], width, most[1], here, beside)
        elif a != kernel.axes[-1]:
            halo = stage.kind == "red" and len(bound_axes(stage)) > 1  # rows share their windows
            tile[a] = _dealt(extent[a], 1, 8, here, beside) if halo and a in stage.free else 1
    return {a: tile[a] for a in kernel.axes if a in tile}


def _reduced_tile(
    kernel: Kernel, stage: Expr, p: Stage, width: int, target: Target
) -> dict[str, int]:
    """Of the first reduced axis, where b is packed at link time and a row panel of a does not fit
    the first cache, or for windows a panel of b the second."""
    (deep, *others), alone = bound_axes(stage), replace(target, threads=1)
    nbytes, steps = dtype(stage).nbytes, kernel.extent[bound_axes(stage)[0]]
    fits = target.l1 // (p.mr * nbytes)  # steps of a row panel of a
    panel = kernel.points(others) * width * nbytes  # of b, for a step along deep
    if p.stage_b != "link":
        return {}
    if others:
        most = target.l2 // PANELS
        return (
            {deep: _dealt(steps, 1, max(1, most // panel), alone)} if panel * steps > most else {}
        )
    return {deep: _dealt(steps, 1, fits, alone)} if p.mr > 1 and steps > 1.5 * fits else {}


def _runs_whole(
    kernel: Kernel, tile: dict[str, int], order: list[str], target: Target
) -> tuple[dict[str, int], list[str]]:
    """These tiles, but all of an axis that results follow from one another along, below the others:
    these are dealt. Where only few results do, all of them are made before."""
    runs = [(s, r) for s in kernel.stages if (r := running(kernel, s))]
    whole = {r.along: kernel.extent[r.along] for s, r in runs if s.free == {*kernel.axes}}
    order = sorted(order, key=whole.__contains__)
    *outer, lane = [a for a in order if a not in whole] or [""]
    if whole and lane and kernel.points(outer) < target.threads:
        share = ceil(kernel.extent[lane] / target.threads)
        tile = tile | {lane: _even(kernel.extent[lane], 16, max(ROW_SHARE, share))}
    return tile | whole, order


def _lanes(kernel: Kernel, stage: Expr, lane: str, width: int, target: Target) -> int:
    """Lanes of a block of b that fits in the cache, with all of the reduced axes. Where all of b
    leaves room for results that lie along it, whole rows of these are stored."""
    column = kernel.points(bound_axes(stage)) * dtype(stage).nbytes
    if lane in kernel.axes[-1:] and column * kernel.extent[lane] <= target.l2 // 4:
        return kernel.extent[lane]
    return min(BLOCK_LANES, max(1, round(target.l2 / (column * width))) * width)


def _dealt(extent: int, unit: int, most: int, target: Target, beside: int = 1) -> int:
    """A tile of whole units up to ``most``, not much smaller, that gives the parts equal shares;
    each of them stands for ``beside`` tiles of the loops inside, which are dealt with few."""
    units = ceil(extent / unit)
    top = units if most >= extent else max(1, most // unit)

    def share(size: int) -> tuple[int, int]:
        tiles = ceil(units / size)
        many = beside if tiles < MANY_TILES else 1
        works = [min(size * unit, extent - n) for n in range(0, extent, size * unit)]
        largest = _largest(works, many, target.threads) if target.threads > 1 else 1.0
        return ceil(largest * SHARES), ceil(tiles / target.threads) * size

    return unit * min(range(top, (top - 1) // 2, -1), key=share)


def _even(extent: int, unit: int, most: int) -> int:
    """A tile of whole units up to ``most`` that divides the extent into nearly equal tiles."""
    count = ceil(extent / max(most, unit))
    return ceil(ceil(extent / unit) / count) * unit


def _row_tiles(kernel: Kernel, target: Target) -> dict[str, int]:
    """Some rows per tile. Only maps cut the last axis, if it is long."""
    axes, extent = kernel.axes, kernel.extent
    tile = dict.fromkeys(axes, 1)
    for a in axes[-1:]:
        several = _even(extent[a], 16, max(16, extent[a] // MANY_TILES))
        tile[a] = several if len(axes) == 1 else extent[a] if kernel.stages else LONG_ROW
    short = not kernel.stages and extent[axes[-1]] <= WRITTEN_OUT if axes else False
    for a in axes[-2:-1] if short else ():
        tile[a] = LONG_ROW // WRITTEN_OUT
    for a in axes[-3:-2] if short else axes[-2:-1]:
        tile[a] = min(16, max(1, extent[a] // MANY_TILES)) if kernel.stages else 16
        if any(_is_window(kernel, s) and a in s.free for s in kernel.stages):
            tile[a] = _even(extent[a], 1, ROWS_OF_WINDOWS)
    for a in axes[-3:-2]:  # lines of windows across the lanes share a copy too
        found = [s for s in kernel.stages if a in s.free and _is_copied(kernel, s)]
        for s in found[:1]:
            line = prod(extent[b] for b in axes[-2:]) * dtype(s).nbytes
            some = max(1, target.l2 // 4 // line)
            tile[a] = _even(extent[a], 1, min(some, ceil(extent[a] / target.threads)))
    return tile


def _is_copied(kernel: Kernel, stage: Expr) -> bool:
    """Is it a maximum of windows that lie across the lanes?"""
    maximum = stage.kind == "red" and stage.attr[0] == "max" and _is_window(kernel, stage)
    return maximum and not any(_slides(stage, kernel.axes[-1], a) for a in bound_axes(stage))


def _work(kernel: Kernel) -> int:
    """Steps of the largest loop nest."""
    loops = [s.free.union(bound_axes(s)) for s in kernel.stages if not running(kernel, s)]
    loops += [r.axes for r in kernel.roots]
    return max(map(kernel.points, loops), default=0)
