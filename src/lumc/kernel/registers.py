"""Register tiles: those worth a try, and the one with the fewest cycles by a model of a step."""

from __future__ import annotations

from math import ceil

from lumc.graph.expr import Expr, bound_axes, subterms
from lumc.kernel.contraction import Pair, from_memory, lanes, least_step, operand_of
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, dtype

# rows x vectors that keep the accumulators, one row of b and one element of a in registers
REGISTER_TILES = {
    32: (
        *((28, 1), (8, 3), (6, 4), (8, 2), (14, 2), (12, 2), (8, 1), (14, 1), (16, 1), (24, 1)),
        *((9, 3), (6, 3), (6, 1)),
    ),
    16: ((4, 3), (6, 2), (4, 2), (8, 1), (6, 1), (12, 1)),
}
DOT_TILES = ((4, 2), (1, 4), (2, 4), (1, 8))
# of weighted values, of scores, of scores with their lanes along the rows of the weighted values
NESTED_TILES = {32: ((12, 2), (14, 2), (8, 3)), 16: ((6, 2), (6, 2), (6, 2))}
FMAS, LATENCY = 2, 4  # vector FMAs in a cycle; cycles until a sum can be added to again
# cycles that an instruction costs beside the FMAs, as the core may serve a second thread, and a
# row of a that is no part of a window: its lines stay in the first cache, which has few for rows
# that are a power of two apart
ISSUE, ROW, FEW = 0.12, 0.6, 8
# steps of a sum with its lanes along the result that are written out, so that it stays in
# registers, and how many of its rows share what they read then
WINDOW, ABREAST = 64, 6
STEP = 4  # instructions of a step beside loads and FMAs
LINE = 64  # bytes
NEAR = 1.15  # times the fewest cycles: the first such register tile is taken


def rows_of(kernel: Kernel, pair: Pair) -> int:
    return kernel.extent[pair[0]] if pair[0] else 1


def _has_windows(kernel: Kernel, stage: Expr, pair: Pair) -> bool:
    """Do the rows of a overlap, in the same lines: does an index go along them and along a reduced
    axis?"""
    a = operand_of(stage, pair, "a")
    loads = (e for e in subterms(a) if e.kind == "load")
    both = (i.free & {*bound_axes(stage)} for e in loads for i in e.kids if pair[0] in i.free)
    return any(both) and least_step(kernel, a, pair[0] or "") * dtype(a).nbytes < LINE


def register_tile(kernel: Kernel, stage: Expr, pair: Pair, target: Target) -> tuple[int, int]:
    """The rows x vectors with the fewest cycles for all of a step, remainders included."""
    width, rows, extent = lanes(target, dtype(stage)), rows_of(kernel, pair), kernel.extent[pair[1]]
    tiles = {
        (min(m, rows), min(v, -(-extent // width))) for m, v in REGISTER_TILES[target.registers]
    }
    order = [t for t in REGISTER_TILES[target.registers] if t in tiles] + sorted(tiles)
    window = _has_windows(kernel, stage, pair)

    def step(m: int, v: int) -> float:
        """Cycles of a step of m rows by v vectors."""
        broadcasts = 0 if from_memory(m, v, width * dtype(stage).nbytes) else m
        instructions = m * v + v + broadcasts + STEP
        apart = 0 if window else ROW * m * max(1, m / FEW)
        return max(m * v / FMAS, LATENCY) + ISSUE * instructions + apart

    def cycles(tile: tuple[int, int]) -> float:
        panel = tile[1] * width
        share = ceil(ceil(extent / panel) / target.threads) * panel * target.threads / extent
        uneven = max(1.0, (1 + share) / 2) if target.threads > 1 and not window else 1.0
        return uneven * sum(
            n * k * step(m, v)
            for m, n in _blocks(rows, tile[0])
            for v, k in _panels(extent, tile[1], width)
        )

    least = min(map(cycles, order))
    return next(t for t in order if cycles(t) <= least * (1 if window else NEAR))


def _blocks(extent: int, by: int) -> list[tuple[int, int]]:
    """(size, how many) of the blocks of an extent."""
    return [(n, k) for n, k in ((by, extent // by), (extent % by, 1)) if n and k]


def _panels(extent: int, nv: int, width: int) -> list[tuple[int, int]]:
    """(vectors, how many) of the panels of an extent; the last lanes are vectors of 8, 4, .."""
    out = _blocks(extent, nv * width)
    return [(n // width + (n % width).bit_count(), k) for n, k in out]
