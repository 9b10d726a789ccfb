"""Register tiles: those worth a try, and the one with the fewest cycles by a model of a step."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import NamedTuple

from lumc.graph.expr import Expr, bound_axes, subterms
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, dtype
from lumc.schedule.operands import Pair, lanes, least_step, operand_of

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
FEW = 8  # rows of a that lie apart and stay in the first cache: those a power of two apart meet


class Costs(NamedTuple):
    """What a step takes beside its FMAs, in the time of two FMAs, by ``Target.fmas``: with fewer of
    them in a cycle the rest is cheaper, but a second thread on the core takes issue slots."""

    issue: float  # of an instruction
    load: float  # of a load of an element of a
    read: float  # of an FMA that reads an element of a from memory
    apart: float  # of a row of a that is no part of a window, and is read by FMAs
    loaded: float  # the same, where it is loaded once and there are many
    line: float  # of a line of b that comes from the second cache
    near: float  # times the least: the first such register tile is taken


# Measured with loops of this form, rows in windows and 4 KiB apart, b in the first and the second
# cache: an EPYC of Zen 4, where most of these were fitted to convolutions, and a Xeon of the fourth
# generation (of 243 GFLOP/s on registers, 8 x 3, 6 x 4 and 12 x 2 reach 200, 28 x 1 185 in windows
# and 110 apart, 14 x 2 from memory 185 and 160).
COSTS = {
    1: Costs(issue=0.12, load=0.0, read=0.0, apart=0.3, loaded=0.6, line=1.0, near=1.15),
    2: Costs(issue=0.02, load=0.02, read=0.04, apart=0.6, loaded=0.02, line=2.0, near=1.03),
}
# steps of a sum with its lanes along the result that are written out, so that it stays in
# registers, and how many of its rows share what they read then
WINDOW, ABREAST = 64, 6
STEP = 4  # instructions of a step beside loads and FMAs
LINE = 64  # bytes
EVEN = 1.05  # times the least: shares of the threads that are alike


def rows_of(kernel: Kernel, pair: Pair) -> int:
    """The rows that a contraction has: the extent of its rows axis, or one."""
    return kernel.extent[pair[0]] if pair[0] else 1


def _has_windows(kernel: Kernel, stage: Expr, pair: Pair) -> bool:
    """Do the rows of a lie in the same lines? They overlap, as an index goes along them and along a
    reduced axis, or are so short that several fill a line."""
    a = operand_of(stage, pair, "a")
    loads = (e for e in subterms(a) if e.kind == "load")
    both = (i.free & {*bound_axes(stage)} for e in loads for i in e.kids if pair[0] in i.free)
    step = least_step(kernel, a, pair[0] or "")
    short = step > 1 and least_step(kernel, a, bound_axes(stage)[-1]) == 1
    return (any(both) or short) and step * dtype(a).nbytes < LINE


def register_tile(kernel: Kernel, stage: Expr, pair: Pair, target: Target) -> tuple[int, int]:
    """The rows x vectors with the fewest cycles for all of a step, remainders included; of those
    that are near, the first one that gives the threads the most equal shares."""
    width, rows, extent = lanes(target, dtype(stage)), rows_of(kernel, pair), kernel.extent[pair[1]]
    tiles = {
        (min(m, rows), min(v, -(-extent // width))) for m, v in REGISTER_TILES[target.registers]
    }
    order = [t for t in REGISTER_TILES[target.registers] if t in tiles] + sorted(tiles)
    window = _has_windows(kernel, stage, pair)
    taken = {t: _cycles(kernel, stage, pair, target, t, window) for t in order}
    near = 1 if window else COSTS[target.fmas].near
    found = [t for t in order if taken[t] <= min(taken.values()) * near]
    shares = [_largest_share(kernel, pair, (m, v * width), target) for m, v in found]
    return next(t for t, n in zip(found, shares, strict=True) if n <= min(shares) * EVEN)


def _largest_share(kernel: Kernel, pair: Pair, tile: tuple[int, int], target: Target) -> float:
    """Of the thread with most of the axis that is dealt best, in equal shares: 1 or more."""
    units = {**dict.fromkeys(kernel.axes, 1), pair[1]: tile[1]}
    units |= {pair[0]: tile[0]} if pair[0] else {}
    parts, found = target.threads, [(kernel.extent[a], unit) for a, unit in units.items()]
    return min(ceil(ceil(n / k) / parts) * k * parts / max(1, n) for n, k in found)


def efficiency(kernel: Kernel, stage: Expr, pair: Pair, target: Target) -> float:
    """The share of the time of its best register tile in which FMAs are at work, at most 1."""
    tile = register_tile(kernel, stage, pair, replace(target, threads=1))
    points = rows_of(kernel, pair) * kernel.extent[pair[1]]
    cycles = _cycles(kernel, stage, pair, target, tile, _has_windows(kernel, stage, pair))
    return points / lanes(target, dtype(stage)) / FMAS / cycles if points else 1.0


def _cycles(
    kernel: Kernel, stage: Expr, pair: Pair, target: Target, tile: tuple[int, int], window: bool
) -> float:
    """Of a step of all rows and lanes, in register tiles of this size."""
    width, extent = lanes(target, dtype(stage)), kernel.extent[pair[1]]
    nbytes = width * dtype(stage).nbytes
    deep = kernel.points(bound_axes(stage)) * tile[1] * LINE > target.l1
    return sum(
        n * k * _step(m, v, nbytes, window, deep, target)
        for m, n in _blocks(rows_of(kernel, pair), tile[0])
        for v, k in _panels(extent, tile[1], width, nbytes == LINE)
    )


def _step(m: int, v: int, nbytes: int, window: bool, deep: bool, target: Target) -> float:
    """Cycles of a step of m rows by v vectors; ``deep``: b comes from the second cache."""
    costs = COSTS[target.fmas]
    reads = v == 1 and nbytes == LINE  # compilers let the FMA read what few of them need
    many = max(1, m / FEW)
    apart = m * many * costs.apart if reads else m * many * costs.loaded * (m > FEW)
    busy = max(m * v / FMAS, LATENCY, v * costs.line if deep else 0)
    loads = m * v * costs.read if reads else m * costs.load
    return busy + costs.issue * (m * v + v + STEP) + loads + (0 if window else apart)


def _blocks(extent: int, by: int) -> list[tuple[int, int]]:
    """(size, how many) of the blocks of an extent."""
    return [(n, k) for n, k in ((by, extent // by), (extent % by, 1)) if n and k]


def _panels(extent: int, nv: int, width: int, masked: bool) -> list[tuple[int, int]]:
    """(vectors, how many) of the panels of an extent; the last lanes are vectors of 8, 4, .., or
    one of which a part is used."""
    out = _blocks(extent, nv * width)
    rests = [min(1, n % width) if masked else (n % width).bit_count() for n, _ in out]
    return [(n // width + rest, k) for (n, k), rest in zip(out, rests, strict=True)]
