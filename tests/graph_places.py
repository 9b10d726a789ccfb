"""Where the operands of a node read, as arrays, for other frameworks that compute graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lumc.graph.expr import Expr, index_value
from lumc.graph.graph import Iota, Operand, Read

Array = np.ndarray[Any, Any]
Loops = Sequence[tuple[str, Any]]


def sizes(loops: Loops) -> list[int]:
    return [int(n) for _, n in loops]


def inside(o: Operand, loops: Loops) -> Array:
    """At which points of the loops the bounds of an operand hold: bool[loops]."""
    holds = np.ones(sizes(loops), bool)
    for b in o.bounds:
        at = _values(b.index, loops)
        holds &= (b.lo <= at) & (at < b.hi)
    return holds


def places(read: Read, loops: Loops) -> Array:
    """The elements of the source, numbered in order, that are read where the bounds hold:
    i64[loops]; 0 elsewhere."""
    flat = np.zeros(sizes(loops), np.int64)
    for e, n in zip(read.index, read.source.shape, strict=True):
        flat = flat * int(n) + _values(e, loops)
    return np.where(inside(read, loops), flat, 0)


def counted(iota: Iota, loops: Loops) -> Array:
    """The values of an index: i64[loops]."""
    return np.array(_values(iota.index, loops))


def _values(e: Expr, loops: Loops) -> Array:
    shape = sizes(loops)
    grid = dict(zip((a for a, _ in loops), np.indices(shape) if shape else [], strict=True))
    return np.broadcast_to(index_value(e, grid), shape)
