"""Reading arrays at index maps, over parts of loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lumc.graph.expr import Expr, add, bounds, index_value, mul
from lumc.graph.graph import Bound
from lumc.kernel.access import access

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Span:
    """A part of an axis: ``start .. start + count``."""

    axis: str
    start: int
    count: int


def flat(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The row-major position of an element as one index expression."""
    place, step = add(0), 1
    for e, n in zip(reversed(index), reversed(shape), strict=True):
        place, step = add(place, mul(e, step)), step * n
    return place


def values_of(e: Expr, spans: Sequence[Span]) -> Array:
    """An index expression as integers over spans; of size 1 along axes that it does not use."""
    axes = {
        s.axis: np.arange(s.start, s.start + s.count).reshape([-1 if t is s else 1 for t in spans])
        for s in spans
    }
    places: Array = np.zeros([1] * len(spans), int) + index_value(e, axes)
    return places


def mask_of(guards: Sequence[Bound], spans: Sequence[Span]) -> Array | None:
    """Where all bounds hold; None if that is everywhere."""
    ranges = {s.axis: (s.start, s.start + s.count - 1) for s in spans}
    mask: Array | None = None
    for g in guards:
        assert isinstance(g.hi, int)
        lo, hi = bounds(g.index, ranges)
        if g.lo > lo or hi >= g.hi:
            at = values_of(g.index, spans)
            inside = (g.lo <= at) & (at < g.hi)
            mask = inside if mask is None else mask & inside
    return mask


def gathered(array: Array, place: Expr, spans: Sequence[Span], masked: bool) -> Array:
    """The elements of an array at flat places: a strided view where the places are affine."""
    flat = array.reshape(-1)
    read = access(place)
    if masked or read.irregular:
        places = values_of(place, spans)
        return flat.take(places, mode="clip") if flat.size else np.zeros(places.shape, flat.dtype)
    counts = [s.count if s.axis in read.strides else 1 for s in spans]
    if 0 in counts:
        return np.zeros(counts, flat.dtype)
    start = read.start + sum(read.stride(s.axis) * s.start for s in spans)
    strides = [read.stride(s.axis) * flat.itemsize for s in spans]
    return np.lib.stride_tricks.as_strided(flat[start:], counts, strides, writeable=False)
