"""What a plan says of ranks: the mesh, where a rank's weights are in the file, collectives.

A rank has its own parts of weights and of states. The file holds every part once, one after the
other; in memory a rank has only its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lumc.bundle import weights
from lumc.bundle.packing import Array
from lumc.codegen.code import Value
from lumc.codegen.stages import EVERY, overlaid, word_of
from lumc.codegen.tile.memory import aligned
from lumc.graph.collective import Collective, Kind, Part
from lumc.graph.graph import Node
from lumc.graph.ops import Op

Place = Mapping[str, int]  # of a rank: its coordinates by axis of the mesh
KINDS = tuple(Kind)  # the order of enum exchange_kind
OPS = (None, Op.SUM, Op.MAX)
UNSTAGED = 7  # words of an exchange in a plan without stages


class Segment(NamedTuple):
    """Bytes of a constant: where the first of its ``parts`` begins in the data of the file, where
    this lies in the memory of a rank, and for each axis of the mesh by how many parts the next rank
    along it is further. Those of one stage, if it is of one (``stages.word_of``)."""

    start: int
    to: int
    nbytes: int
    parts: int
    steps: tuple[int, ...]
    stage: int = EVERY


class Exchange(NamedTuple):
    """A collective on memory. A value of ``elements`` is what each rank has; ``outer`` of it lie
    outside of the axis that is split, and ``joined`` of the result outside of the one that is put
    together; 1 for none. What stage ``source`` has goes to ``target``, or to all."""

    kind: int
    axis: int  # of the mesh
    op: int  # position in OPS
    dtype: int
    elements: int
    outer: int
    joined: int
    source: int = 0
    target: int = 0

    def result(self, ranks: int) -> int:
        """The elements of the result."""
        kind = KINDS[self.kind]
        times, over = ranks if kind.joins else 1, ranks if kind.splits else 1
        return self.elements * times // over


def exchange_of(node: Node, mesh: Sequence[str], dtype: int) -> Exchange:
    """A collective of a graph, in memory for the greatest extents."""
    op = node.op
    assert isinstance(op, Collective)
    source = node.reads[0].source.sizes
    outer = 1 if op.split is None else prod(source[: op.split])
    joined = 1 if op.concat is None else prod(node.sizes[: op.concat])
    how = KINDS.index(op.kind), mesh.index(op.mesh), OPS.index(op.op)
    return Exchange(*how, dtype, prod(source), outer, joined, op.source or 0, op.target or 0)


# ---- parts


def places(parts: Sequence[Part]) -> Iterator[dict[str, int]]:
    """The coordinates of all that have other parts, in the order of the file."""
    for at in product(*(range(p.ranks) for p in parts)):
        yield dict(zip((p.mesh for p in parts), at, strict=True))


def part(array: Array, parts: Sequence[Part], place: Place) -> Array:
    """What the rank at a place has of a whole array."""
    for p in parts:
        array = np.split(array, p.ranks, p.dim)[place[p.mesh]]
    return array


def whole(read: Callable[[int], Array], parts: Sequence[Part]) -> Array:
    """The array of which ``read`` gives the parts, in the order of ``places``."""
    blocks = [read(i) for i in range(prod(p.ranks for p in parts))]
    for p in reversed(parts):
        every = range(0, len(blocks), p.ranks)
        blocks = [np.concatenate(blocks[i : i + p.ranks], p.dim) for i in every]
    return blocks[0]


def title(name: str, number: int, parts: Sequence[Part]) -> str:
    """What a part of a constant is called in the file."""
    return f"{name}#{number}" if parts else name


def write(
    path: Path,
    values: Sequence[Value],
    leaf: Callable[[Value], Node],
    mesh: Sequence[str],
    read: Callable[[Value, Place], Array],
) -> tuple[weights.Layout, list[Segment]]:
    """Write all parts of constants, which are those of leaves; ``read`` gives one. Where everything
    lies in the memory of a rank, and where that is in the file, which says of itself in the last
    segment where it ends."""
    parts = {v.name: leaf(v).parts for v in values}
    flat = {
        title(v.name, i, parts[v.name]): (v, place)
        for v in values
        for i, place in enumerate(places(parts[v.name]))
    }
    stored = [Value(name, v.dtype, v.shape, v.place) for name, (v, _) in flat.items()]
    file = weights.write(path, stored, lambda v: read(*flat[v.name]))
    offsets, nbytes = overlaid((v.name, v.nbytes, word_of(leaf(v))) for v in values)
    segments = list[Segment]()
    for v in values:
        own, count, steps = parts[v.name], 1, dict.fromkeys(mesh, 0)
        for p in reversed(own):
            steps[p.mesh], count = count, count * p.ranks
        start, size = file.offsets[title(v.name, 0, own)], aligned(v.nbytes)
        where = start, offsets[v.name], size, count, tuple(steps.values())
        segments.append(Segment(*where, word_of(leaf(v))))
    return weights.Layout(offsets, file.start, nbytes), segments
