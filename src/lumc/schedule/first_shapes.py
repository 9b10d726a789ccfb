"""The tile of a block of a GPU that multiplies matrices, for a first guess.

Large tiles fetch less and a small problem needs small ones, as the tables below say. A launch takes
as many turns as the processor with most blocks has, and the last one is rarely full: where there
are several, a tile has as many lanes as make the turns, times what one of them takes, least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil
from typing import NamedTuple

from lumc.kernel.target import Gpu
from lumc.schedule.fragment import Product


class Shape(NamedTuple):
    """The tile of a block: rows, lanes, steps of the reduced axes; its threads; slots of copies;
    warps along the lanes, at most; blocks along the rows that share what the lanes fetch, by tensor
    maps."""

    rows: int
    lanes: int
    deep: int
    threads: int
    ring: int = 1
    along: int = 2
    bulk: int = 0


# large tiles first; a small problem takes the first one that gives every processor a block
SHAPES = {
    "wgmma": (
        Shape(128, 256, 64, 256, 4),
        Shape(128, 128, 64, 256, 4),
        Shape(64, 128, 64, 128, 4),
        Shape(64, 64, 64, 128, 4),
    ),
    "mma": (
        Shape(256, 128, 32, 256, 3),
        Shape(128, 128, 32, 256, 3),
        Shape(64, 64, 32, 128, 3),
        Shape(32, 64, 32, 128, 2),
        Shape(16, 64, 32, 64),
        Shape(16, 32, 16, 32),
    ),
    "mfma": (
        Shape(128, 128, 32, 256),
        Shape(64, 64, 32, 256),
        Shape(32, 64, 32, 128),
        Shape(16, 32, 16, 64),
    ),
    "wmma": (
        Shape(128, 128, 32, 256),
        Shape(64, 64, 32, 128),
        Shape(32, 32, 16, 64),
        Shape(16, 16, 16, 32),
    ),
    "simdgroup": (
        Shape(64, 64, 16, 128),
        Shape(32, 64, 16, 128),
        Shape(32, 32, 16, 128),
        Shape(16, 16, 8, 32),
    ),
    "simt": (
        Shape(128, 128, 16, 256),
        Shape(64, 64, 16, 256),
        Shape(32, 64, 16, 128),
        Shape(32, 32, 16, 64),
        Shape(16, 16, 16, 32),
    ),
}
# Of tiles whose lanes are chosen: the shape with most of them, and the lanes come in so many. A
# thread holds 152 and 88 sums then, and what ptxas needs beside them without a spill
# (docs/gpu-bounds.md).
CHOSEN = {
    "wgmma": (
        (
            Shape(128, 256, 64, 256, 4, 1),
            Shape(256, 176, 64, 512, 4, 1),
            Shape(128, 256, 64, 256, 4, 1, 2),
        ),
        16,
    ),
    "mma": ((Shape(256, 152, 32, 256, 3, 1), Shape(256, 128, 32, 256, 3)), 8),
}
WORTH = 0.97  # of the time of a known tile, which counts cannot tell apart from less
Blocks = Callable[[Shape], int]  # of a launch
Fits = Callable[[Shape], bool]


def shapes(product: Product | None, gpu: Gpu, blocks: Blocks, shared: Fits) -> list[Shape]:
    """The shapes from the largest one that keeps every processor busy; then the larger ones.
    ``shared``: are there whole clusters of blocks along the rows?"""
    fragment = product.fragment if product else "simt"
    known = SHAPES[fragment]
    if fragment == "wgmma":  # what a processor has to fetch, in turns
        turns = {s: ceil(blocks(s) / gpu.processors) for s in known}
        found = sorted(known, key=lambda s: turns[s] * (s.rows + s.lanes))
    else:
        enough = [i for i, s in enumerate(known) if blocks(s) >= gpu.processors]
        first = enough[0] if enough else len(known) // 2
        if product and fragment == "mma" and enough and gpu.rates:
            # the largest, unless the next one leaves fewer processors idle in the last turn
            first = min(enough[:2], key=lambda i: _launch(known[i], product, gpu, blocks))
        found = [*known[first:], *reversed(known[:first])]
    if product and gpu.rates and fragment in CHOSEN and blocks(found[0]) > gpu.processors:
        usual = _launch(found[0], product, gpu, blocks)
        taken = {s: _launch(s, product, gpu, blocks) for s in _chosen(fragment)}
        alone = [s for s in taken if not s.bulk]  # for those whose copies no map can make
        for apt in (alone, [*alone, *(s for s in taken if s.bulk and shared(s))]):
            best = min(apt, key=lambda s: taken[s])
            if taken[best] < WORTH * usual and best not in found:
                found.insert(0, best)
    return found


def _chosen(fragment: str) -> Iterator[Shape]:
    most, unit = CHOSEN[fragment]
    for shape in most:
        for lanes in range(shape.lanes, shape.lanes // 2, -unit):
            if lanes % (unit * shape.along) == 0:
                yield shape._replace(lanes=lanes)


def _launch(shape: Shape, product: Product, gpu: Gpu, blocks: Blocks) -> float:
    """Cycles of a step of the sum in all blocks: those of the processor with most of them, or of
    the second cache, which serves all processors, where it takes longer."""
    assert gpu.rates
    n = blocks(shape)
    fetched = n * (shape.rows + shape.lanes / max(1, shape.bulk)) * product.operands[0].nbytes
    own = ceil(n / gpu.processors) * _cycles(shape, product, gpu)
    return max(own, fetched / gpu.rates.l2) if gpu.rates.l2 else own


def _cycles(shape: Shape, product: Product, gpu: Gpu) -> float:
    """Of a step of the sum in a block of this shape: those of the matrix units, or of shared memory
    where it takes longer. There a warp, or a warpgroup, reads both of its operands, and copies are
    written."""
    assert gpu.rates
    down, along = warps(shape.threads // gpu.warp, shape.along)
    if product.fragment == "wgmma":
        down, along = shape.rows // product.shape[0], 1
    multiplied = 2 * shape.rows * shape.lanes / (gpu.rates.tensor * product.rate)
    moved = shape.rows * (along + 1) + shape.lanes * (down + 1)
    return max(multiplied, moved * product.operands[0].nbytes / gpu.rates.shared)


def warps(units: int, most: int) -> tuple[int, int]:
    """How many along the rows and the lanes, at most so many along these."""
    along = min(most, units)
    return units // along, along
