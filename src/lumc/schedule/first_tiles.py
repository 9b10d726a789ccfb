"""The default tiles: how much of every axis is done at once."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from math import ceil, prod

from lumc.graph.expr import Expr, bound_axes, subterms
from lumc.kernel.running import running
from lumc.kernel.selected import selection
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, dtype
from lumc.schedule.applies import WRITTEN_OUT
from lumc.schedule.first_stages import (
    BLOCK_LANES,
    is_window,
    own_copies,
    slides_across,
    stores_across,
)
from lumc.schedule.operands import lanes
from lumc.schedule.schedule import Stage
from lumc.schedule.shares import BLOCK_ROWS, MANY_TILES, ROW_SHARE, largest_of, largest_share

SHARES = 50  # of the work: by fewer of them shares do not differ
LONG_ROW = 1 << 12
SQUARE = 16  # rows of a tile; as many as registers turn at once
ROWS_OF_WINDOWS = 28  # that share a copy of what they read
PANELS = 4  # of b that the second cache holds: this one, the next one, what is read with them


def default_tiles(
    kernel: Kernel, stages: tuple[Stage, ...], target: Target
) -> tuple[dict[str, int], list[str]]:
    """The tile of every axis that is cut, in elements, and the order of the result's loops."""
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
    own = p.stage_b == "hoist" and own_copies(kernel, stage, (p.rows_axis, p.lane_axis), target)
    if once and p.rows_axis in order and p.lane_axis in order:
        outer, inner = (p.rows_axis, p.lane_axis) if own else (p.lane_axis, p.rows_axis)
        order.remove(outer)
        order.insert(order.index(inner), outer)
    most = (
        _lanes(kernel, stage, p.lane_axis, width, target) if p.stage_b == "hoist" else BLOCK_LANES
    )
    # results that are turned wait in the first cache, unless that takes further copies of b
    few = stores_across(kernel, p.lane_axis) and not (own and most < extent[p.lane_axis])
    rows = BLOCK_ROWS if few or p.stage_b != "hoist" else extent.get(p.rows_axis or "", 1)
    rows = ceil(rows / target.threads / p.mr) * p.mr if own and not few else rows
    beside = {p.rows_axis, p.lane_axis} - {p.lane_axis if once and not own else p.rows_axis}
    usual = {a for a in order if a not in beside} if p.rows_axis else {*order}
    # the outermost loop alone, which cuts none of those inside, or where the shares are equal
    ways: tuple[Container[str], ...] = (order[:1], usual, {p.lane_axis})
    tiles = [_block_tiles(kernel, stage, p, order, w, (rows, most), target) for w in ways]
    tile = min(tiles, key=lambda t: ceil(largest_share(kernel, order, t, target) * SHARES))
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
        largest = largest_of(works, many, target.threads) if target.threads > 1 else 1.0
        return ceil(largest * SHARES), ceil(tiles / target.threads) * size

    return unit * min(range(top, (top - 1) // 2, -1), key=share)


def _even(extent: int, unit: int, most: int) -> int:
    """A tile of whole units up to ``most`` that divides the extent into nearly equal tiles."""
    count = ceil(extent / max(most, unit))
    return ceil(ceil(extent / unit) / count) * unit


def _row_tiles(kernel: Kernel, target: Target) -> dict[str, int]:
    """Some rows per tile. Only maps cut the last axis, if it is long and no guard does."""
    axes, extent = kernel.axes, kernel.extent
    tile, pieces = dict.fromkeys(axes, 1), False
    for a in axes[-1:]:
        several = _even(extent[a], 16, max(16, extent[a] // MANY_TILES))
        pieces = _is_in_pieces(kernel, a, target)
        tile[a] = several if len(axes) == 1 else extent[a] if kernel.stages or pieces else LONG_ROW
    short = not kernel.stages and extent[axes[-1]] <= WRITTEN_OUT if axes else False
    for a in axes[-2:-1] if short else ():
        tile[a] = LONG_ROW // WRITTEN_OUT
    for a in axes[-3:-2] if short else axes[-2:-1]:
        few = kernel.stages and not _is_turned(kernel, a)  # registers turn squares
        tile[a] = min(SQUARE, max(1, extent[a] // MANY_TILES)) if few else SQUARE
        if pieces:  # threads share the rows
            tile[a] = _dealt(extent[a], 1, SQUARE, target)
        if any(is_window(kernel, s) and a in s.free for s in kernel.stages):
            tile[a] = _even(extent[a], 1, ROWS_OF_WINDOWS)
    for a in axes[-3:-2]:  # lines of windows across the lanes share a copy too
        found = [s for s in kernel.stages if a in s.free and _is_copied(kernel, s)]
        for s in found[:1]:
            line = prod(extent[b] for b in axes[-2:]) * dtype(s).nbytes
            some = max(1, target.l2 // 4 // line)
            tile[a] = _even(extent[a], 1, min(some, ceil(extent[a] / target.threads)))
    for s in kernel.stages if target.gpu is None else ():
        if chosen := selection(kernel, s):  # every tile walks over all steps
            row = dtype(s).nbytes * kernel.points(s.free - {chosen.axis})
            some = max(1, min(target.l2 // 2 // row, ceil(extent[chosen.axis] / target.threads)))
            tile[chosen.axis] = max(tile[chosen.axis], _even(extent[chosen.axis], 1, some))
    return tile


def _is_in_pieces(kernel: Kernel, lane: str, target: Target) -> bool:
    """Is it a map of long rows, enough for the threads, whose guards hold for whole runs of the
    lanes? Which ones hold is known where a tile has all lanes (codegen/tile/domains.py)."""
    guards = (e for v in kernel.values for e in subterms(v) if e.kind == "guard")
    rows = kernel.points(set(kernel.axes) - {lane})
    many = not kernel.stages and rows >= MANY_TILES * target.threads
    return many and kernel.extent[lane] > LONG_ROW and any(e.kids[0].free == {lane} for e in guards)


def _is_turned(kernel: Kernel, rows: str) -> bool:
    """Does something lie along the rows and go across the lanes?"""
    loads = (e for v in kernel.values for e in subterms(v) if e.kind == "load")
    return any(rows in kernel.access(e).transposed(kernel.axes[-1]) for e in loads)


def _is_copied(kernel: Kernel, stage: Expr) -> bool:
    """Is it a maximum of windows that lie across the lanes?"""
    maximum = stage.kind == "red" and stage.attr[0] == "max" and is_window(kernel, stage)
    return maximum and not any(slides_across(stage, kernel.axes[-1], a) for a in bound_axes(stage))
