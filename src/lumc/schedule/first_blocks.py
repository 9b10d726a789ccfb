"""Sound schedules for the blocks of threads of a GPU.

Structure comes first, as on a CPU: which axes a contraction puts on the rows and the lanes, which
fragment computes it, how its operands are staged. Then the tile of a block. Whether the threads of
a block can hold what a schedule keeps is only known when its program is distributed, so these are
guesses, the most promising first; a later one asks for less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from math import ceil, gcd, prod

from lumc.graph.expr import Expr, bound_axes, subterms
from lumc.kernel.normal import normalize
from lumc.kernel.target import Gpu, Target
from lumc.kernel.term import Kernel, dtype
from lumc.schedule.applies import shared_prefix
from lumc.schedule.first_shapes import Shape, shapes, warps
from lumc.schedule.fragment import Product, multiplied
from lumc.schedule.operands import Pair, pairs
from lumc.schedule.schedule import Schedule, Stage, Threads, power
from lumc.schedule.staging import staging_modes

# rows, and steps of the sum, of a block that multiplies what it has just made; its threads, slots
GROUPED = ((128, 128, 256, 2), (128, 64, 256, 2), (64, 64, 128, 2))  # by warpgroups
NESTED = ((64, 64, 128, 1), (32, 64, 128, 1), (32, 32, 128, 1), (16, 32, 64, 1), (16, 16, 32, 1))
FEW = 4  # rows up to which a contraction only waits for its operand to arrive
GROUP = 16  # threads along the lanes of a contraction
LEAST = 4  # threads along a row
POINTS = 1024  # of a map, in one block
WALKED = 64  # elements of a row that one thread holds, at most
SECTOR = 32  # bytes that caches fetch at least
FAR = 1 << 31  # elements: what moves through // or data
WASTE = 1.25  # sectors that are fetched for each that is needed, at most; a choice
COLUMNS = 256  # threads of a block that walks columns
WIDTHS = (64, 32, 16, 8)  # columns, as many as leave every processor a block
WIDE = 8  # of them side by side, where a load can take as many
MOVED = 16  # bytes that a thread moves at once
ROWS = ((32, 128), (256, 256), (1024, 1024))  # threads along a row, and of the block


def guesses(kernel: Kernel, target: Target) -> Iterator[Schedule]:
    """Schedules of a kernel for the blocks of a GPU, best first; the last ones ask for little."""
    assert target.gpu
    kernel, warp = normalize(kernel), target.gpu.warp
    found = {s: p for s in kernel.stages if (p := _pair(kernel, s))}
    if found:
        for product in (*_products(found, target), None):
            for shape in _shapes(kernel, found, product, target):
                whole = shape._replace(threads=max(shape.threads, warp))
                yield _contracted(kernel, found, product, whole, warp)
    yield from _walked(kernel, target)


# ---- contractions


def _pair(kernel: Kernel, stage: Expr) -> Pair | None:
    """Rows and lanes of a contraction that is worth a tile of operands, of rows alike those that
    lie nearest to each other."""
    extent = kernel.extent
    good = [(r, v) for r, v in pairs(stage) if r and min(extent[r], extent[v]) > FEW]
    loads = [e for e in subterms(stage) if e.kind == "load"]

    def score(pair: Pair) -> tuple[int, ...]:
        rows, lane = pair
        assert rows
        held = min(extent[rows], 64) * min(extent[lane], 64)
        apart = min(
            (kernel.access(e).stride(rows) or FAR for e in loads if rows in e.free), default=0
        )
        last = lane in kernel.axes[-1:] or lane not in kernel.axes
        return held, last, rows in kernel.axes, -apart

    return max(good, key=score, default=None)


def _products(found: Mapping[Expr, Pair], target: Target) -> list[Product]:
    """How the matrix units multiply the operands of all these stages, the fastest first."""
    every = [multiplied(stage, lane, target) for stage, (_, lane) in found.items()]
    known = [f for f in every[0] if all(f in products for products in every)]
    best = [max((products[f] for products in every), key=lambda p: p.shape) for f in known]
    return sorted(best, key=lambda p: -p.shape[0])


def _shapes(
    kernel: Kernel, found: Mapping[Expr, Pair], product: Product | None, target: Target
) -> list[Shape]:
    """The most promising tiles of a block first."""
    assert target.gpu
    if any(s.kind == "wsum" for s in found):
        nested = GROUPED if product and product.fragment == "wgmma" else NESTED
        return [Shape(rows, steps, 0, threads, ring) for rows, steps, threads, ring in nested]

    def blocks(shape: Shape) -> int:
        pair = next(iter(found.values()))
        sizes = dict(zip(pair, (shape.rows, shape.lanes), strict=True))
        return prod(ceil(kernel.extent[a] / sizes.get(a, 1)) for a in kernel.axes)

    def shared(shape: Shape) -> bool:
        rows, _ = next(iter(found.values()))
        assert rows
        whole = ceil(kernel.extent[rows] / shape.rows) % shape.bulk == 0
        return whole and len(found) == 1 and not kernel.lengths.dims

    return shapes(product, target.gpu, blocks, shared)


def _contracted(
    kernel: Kernel, found: Mapping[Expr, Pair], product: Product | None, shape: Shape, warp: int
) -> Schedule:
    """Every contraction in tiles of this shape, by warps of so many threads, the other reductions
    row by row."""
    fragment = product.fragment if product else "simt"
    weighted = any(s.kind == "wsum" for s in found)
    tile = dict.fromkeys(kernel.axes, 1)
    for stage, (rows, lane) in found.items():
        assert rows
        over = sorted(bound_axes(stage), key=lambda a: -kernel.extent[a])
        walk = _walk_over_blocks(kernel, stage, product)
        deep, *others = walk or over
        around = kernel.points(others)
        nested = weighted and stage.kind != "wsum"
        steps = _whole(shape.deep, around, None if walk else product)
        steps = steps if walk else _whole_sectors(kernel, stage, deep, steps)
        tile[deep] = kernel.extent[deep] if nested else steps
        tile[rows] = shape.rows
        if stage.kind == "wsum":
            tile[deep], tile[lane] = shape.lanes, kernel.extent[lane]
        elif not nested:
            tile[lane] = shape.lanes
    units = shape.threads if fragment == "simt" else shape.threads // warp
    stages = tuple(
        _stage(kernel, s, found[s], fragment, units, tile, shape.along) if s in found else Stage()
        for s in kernel.stages
    )
    threads = Threads(shape.threads, vector=4, ring=shape.ring, bulk=shape.bulk)
    last = next(rows for rows, _ in found.values()) if shape.bulk > 1 else None
    return _schedule(kernel, tile, stages, threads, last)


def _walk_over_blocks(kernel: Kernel, stage: Expr, product: Product | None) -> list[str]:
    """Of two reduced axes that which walks over blocks of the other one, and that: such blocks lie
    one behind the other and are read whole, if they are several steps of the matrix units."""
    loads = [kernel.access(e) for e in subterms(stage) if e.kind == "load"]
    for o, k in permutations(bound_axes(stage), 2) if len(bound_axes(stage)) == 2 else ():
        both = [e for e in loads if e.stride(o) and e.stride(k)]
        n, steps = kernel.extent[k], product.shape[2] if product else 1
        if (
            both
            and all(e.is_contiguous(k) and e.stride(o) == n for e in both)
            and n % steps == 0 < n - steps
        ):
            return [o, k]
    return []


def _whole(deep: int, around: int, product: Product | None) -> int:
    """Steps of the longest reduced axis: fragments want whole ones of theirs, and bytes twice as
    many steps."""
    steps, more = (product.shape[2], max(1, product.word // 2)) if product else (1, 1)
    return max(steps, deep * more // max(1, around))


def _whole_sectors(kernel: Kernel, stage: Expr, deep: str, steps: int) -> int:
    """So many steps of a reduced axis, or more, so that what is read of it together, where it lies
    along the axis, is not much less than the sectors that it lies in. The other reduced axes are
    whole: several of the innermost ones are read as one."""
    extent = kernel.extent[deep]
    for e in (e for e in subterms(stage) if e.kind == "load" and deep in e.free):
        access, nbytes = kernel.access(e), kernel.buffer(e.attr[0]).dtype.nbytes
        run, inside = 1, {deep}
        for a, n in sorted(access.strides.items(), key=lambda item: item[1]):
            if n == run and a in bound_axes(stage) and a != deep:
                run, inside = run * kernel.extent[a], inside | {a}
        if not access.is_affine(deep) or access.stride(deep) != run:
            continue
        others = [n * nbytes for a, n in access.strides.items() if a not in inside]
        while steps < extent:
            runs, rest = (n * run * nbytes for n in (steps, extent % steps))
            found = extent // steps * _sectors(runs, others) + _sectors(rest, others)
            if found <= WASTE * extent * run * nbytes / SECTOR:
                break
            steps *= 2
    return steps


def _sectors(nbytes: int, strides: Sequence[int]) -> float:
    """That so many bytes lie in on average, which begin at multiples of these strides in bytes."""
    return 1 + max(0, nbytes - gcd(SECTOR, nbytes, *strides)) / SECTOR if nbytes else 0.0


def _stage(
    kernel: Kernel,
    stage: Expr,
    pair: Pair,
    fragment: str,
    units: int,
    tile: Mapping[str, int],
    most: int,
) -> Stage:
    """``units`` (threads or warps) share the contraction; ``most`` warps along the lanes."""
    rows, lane = pair
    p = Stage("contract", rows, lane, fragment=fragment)
    along = power(min(GROUP if fragment == "simt" else most, tile.get(lane, kernel.extent[lane])))
    weighted = any(s.kind == "wsum" for s in kernel.stages)
    if fragment == "wgmma" or (fragment != "simt" and weighted):
        along = 1  # whole rows stay with one warp
    grid = warps(units, along)
    modes = staging_modes(kernel, stage, p, "a")
    inner = any(s is not stage and stage in subterms(s) for s in kernel.stages)
    a = "hoist" if inner and "hoist" in modes else "inner"
    return replace(
        p,
        grid=grid,
        stage_a="none" if stage.kind == "wsum" else a,
        stage_b="inner",
    )


# ---- maps and rows


def _walked(kernel: Kernel, target: Target) -> Iterator[Schedule]:
    """No contraction: rows of threads walk the reduced axes, or the last axis of a map."""
    stages = tuple(Stage() for _ in kernel.stages)
    assert target.gpu
    longest = max((kernel.extent[a] for s in kernel.stages for a in bound_axes(s)), default=0)
    last = kernel.extent[kernel.axes[-1]] if kernel.axes else 1
    if not stages:
        for vector in dict.fromkeys((_vector(kernel), 1)):
            row = max(LEAST, min(256, power(ceil(last / vector))))
            yield _spread(kernel, stages, Threads(256, row, vector), POINTS)
    if across := [s for s in kernel.stages if _is_across(kernel, s)]:
        kept = tuple(Stage(lanes="kept" if s in across else "reduced") for s in kernel.stages)
        points = kernel.points(kernel.axes)
        row = next((n for n in WIDTHS if points >= n * target.gpu.processors), WIDTHS[-1])
        yield _spread(kernel, kept, Threads(COLUMNS, row), row, WALKED // 2 * COLUMNS // row)
    yield from _in_common(kernel, target.gpu)
    for row, threads in ROWS:
        if longest <= row * WALKED:
            yield _spread(kernel, stages, Threads(threads, row, WIDE), threads // row)
    for row, threads in ROWS[1:]:
        yield _spread(kernel, stages, Threads(threads, row), threads // row, row)
    yield _spread(kernel, stages, Threads(target.gpu.warp), 1, 32)


def _in_common(kernel: Kernel, gpu: Gpu) -> Iterator[Schedule]:
    """Points that read a row of their own and all of something else, as a product by one vector,
    where the other guesses have too few of them in a block: a block fetches from the second cache
    what they have in common, and from memory no less of their own. A thread walks several whole
    accesses, so that sums across threads are few."""
    rows, narrow, walked = FEW, WIDE, set[str]()
    for stage in kernel.stages if len(kernel.axes) == 1 else ():
        if stage.kind != "red" or stage.attr[0] != "sum":
            return
        loads = {e for e in subterms(stage.kids[-1]) if e.kind == "load"}
        own = {e for e in loads if kernel.axes[-1] in e.free}
        apart = sum(map(partial(_nbytes, kernel), own))
        if not apart or any(e.kind == "dyn" for e in subterms(stage)):
            return
        together = sum(map(partial(_nbytes, kernel), loads - own))
        rows = max(rows, power(ceil(together / apart)))
        walked.update(bound_axes(stage))
        narrow = min(narrow, *(kernel.buffer(e.attr[0]).dtype.nbytes for e in own))
    while rows > FEW and kernel.points(kernel.axes) < rows * gpu.processors:
        rows //= 2
    if rows > FEW:
        threads = max(gpu.warp, min(ROWS[-1][1], power(ceil(kernel.points(walked) / WALKED))))
        stages = tuple(Stage() for _ in kernel.stages)
        yield _spread(kernel, stages, Threads(threads, threads, MOVED // narrow), rows)


def _nbytes(kernel: Kernel, load: Expr) -> float:
    """Of what a point of the output reads."""
    b = kernel.buffer(load.attr[0])
    points = kernel.points(a for a in load.free if a not in kernel.axes)
    return points * (b.bits / 8 if b.bits else b.dtype.nbytes)


def _is_across(kernel: Kernel, stage: Expr) -> bool:
    """Do neighbours in memory lie along the last axis that a reduction keeps?"""
    lane, red = (kernel.axes or ("",))[-1], bound_axes(stage)[-1]
    values = stage.kids[-1]
    loads = (e for e in subterms(values) if e.kind == "load" and {lane, red} <= e.free)
    reads = [kernel.access(e) for e in loads]
    own = lane in values.free and kernel.extent[lane] > FEW
    apart = stage.kind == "red" or lane not in stage.kids[0].free
    across = all(e.is_contiguous(lane) and not e.is_contiguous(red) for e in reads)
    return bool(own and apart and reads) and across


def _spread(
    kernel: Kernel, stages: tuple[Stage, ...], threads: Threads, points: int, deep: int = 0
) -> Schedule:
    """So many points of the output axes in a block, those of the last axes first, or so many rows;
    so many steps of the reduced axes, if not all."""
    left, tile, whole = points, dict[str, int](), set() if deep else _along_reduced(kernel)
    for a in reversed(kernel.axes):
        extent = kernel.extent[a]
        tile[a] = extent if a in whole else min(extent, max(1, left))
        left //= 1 if a in whole else tile[a]
    if deep:
        tile |= {a: deep for s in kernel.stages for a in bound_axes(s)}
    return _schedule(kernel, tile, stages, threads)


def _along_reduced(kernel: Kernel) -> set[str]:
    """Output axes that lie along a reduced one of the same extent: a row is read once for both."""
    sizes = {kernel.extent[a] for s in kernel.stages for a in bound_axes(s)}
    free = {a for s in kernel.stages for a in s.free}
    return {a for a in kernel.axes[-1:] if a not in free and kernel.extent[a] in sizes}


def _vector(kernel: Kernel) -> int:
    """Consecutive elements of the last axis that every load and store of a map can move at once:
    16 bytes of the widest."""
    if not kernel.axes:
        return 1
    last, terms = kernel.axes[-1], {e for v in kernel.values for e in subterms(v)}
    loads = [e for e in terms if e.kind == "load" and last in e.free]
    widest = max(dtype(e).nbytes for e in (*loads, *kernel.values))
    n = max(4, min(WIDE, MOVED // widest))
    plain = all(kernel.access(e).is_contiguous(last) for e in loads)
    return next((w for w in (n, 4) if kernel.extent[last] % w == 0), 1) if plain else 1


def _schedule(
    kernel: Kernel,
    tile: dict[str, int],
    stages: tuple[Stage, ...],
    threads: Threads,
    last: str | None = None,
) -> Schedule:
    """The loops over tiles come first, and those of axes that every root has are dealt to the
    blocks, an axis ``last`` of which blocks that follow one another are; whole axes stay inside, so
    that stages that lack them share what is around."""
    tile = {a: n for a, n in sorted(tile.items()) if n < kernel.extent[a]}
    order = tuple(sorted(kernel.axes, key=lambda a: (a not in tile, a == last)))
    cut = sum(a in tile for a in kernel.axes)
    return Schedule(
        order,
        min(cut, shared_prefix(kernel, order)),
        tile,
        stages,
        fuse_rows=False,
        transpose=False,
        threads=threads,
    )
