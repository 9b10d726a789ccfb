"""Weights as kernels want them, by numpy from a description, and back again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from msgspec import UNSET

from lumc.codegen.tile.packing import Packing, least_of, step_order
from lumc.graph.expr import index_value, num
from lumc.graph.ops import DType, from_bf16, to_bf16
from lumc.kernel.access import row_major

Array = np.ndarray[Any, np.dtype[Any]]


def pack(weight: Array, dtype: DType, packing: Packing) -> Array:
    """The packed elements in a row; ``dtype`` is the weight's. Raises ValueError out of bounds."""
    shape = packing.seen(weight.shape)
    vector = weight.reshape(shape or 1)  # so that every index is an array
    values = vector[_index(packing, shape)]
    values = values if packing.bits else convert(values, dtype, packing.dtype)
    if packing.panel is None:
        return np.ascontiguousarray(values).reshape(-1)
    lane, width = packing.panel
    values = np.moveaxis(values, lane, -1)
    if packing.bits:
        values = _words(values, packing.bits, dtype)
    *others, n = values.shape
    values = np.pad(values, [(0, 0)] * len(others) + [(0, -n % width)])
    blocks = values.reshape(*others, -(-n // width), width)
    return np.ascontiguousarray(np.moveaxis(blocks, -2, 0)).reshape(-1)


@dataclass(frozen=True)
class Recipe:
    """How the runner packs a weight when it loads it: ``dims`` are (extent, stride) as the result
    lies in memory, strides in elements of the weight, which starts at element ``base``. With a
    ``width`` the first and the last of them are the panels of ``lanes`` elements, zero beyond."""

    base: int
    width: int
    lanes: int
    dims: tuple[tuple[int, int], ...]


def recipe(packing: Packing, shape: tuple[int, ...], dtype: DType) -> Recipe | None:
    """The recipe of a packing of a weight, if strides say it all and nothing is converted."""
    read = row_major(packing.index, packing.seen(shape))
    plain = [(n, read.stride(a)) for a, n in packing.axes]
    if (
        read.irregular
        or packing.bits
        or dtype is not packing.dtype
        or any(n < 1 or s < 0 for n, s in plain)
    ):
        return None
    if packing.panel is None:
        return Recipe(read.start, 0, 0, tuple(plain))
    lane, width = packing.panel
    n, step = plain.pop(lane)
    dims = ((-(-n // width), width * step), *plain, (width, step))
    return Recipe(read.start, width, n, dims)


def unpack(packed: Array, packing: Packing, dtype: DType, into: Array) -> None:
    """The inverse: write the elements that a packed tensor holds where they lie in the weight."""
    numbers = np.arange(1, into.size + 1).reshape(into.shape)
    apart = replace(packing, bits=UNSET)
    places = pack(numbers, packing.dtype, apart)
    held = places > 0  # not the padding of a panel
    if packing.bits:
        width = packing.panel[1] if packing.panel else 1
        packed = _numbers(packed.reshape(-1, width), packing.bits, dtype).reshape(-1)
    old = dtype if packing.bits else packing.dtype
    into.reshape(-1)[places[held] - 1] = convert(packed[held], old, dtype)


def _words(values: Array, bits: int, kind: DType) -> Array:
    """Integers [.., steps, lanes] as words of several steps, each as what it is above the least.
    Raises ValueError for those that have more bits."""
    above, order = values.astype(np.int16) - least_of(bits, kind), step_order(bits)
    if values.size and (above.min() < 0 or above.max() >> bits):
        raise ValueError(f"numbers of more than {bits} bits")
    *others, steps, n = values.shape
    parts = above.astype(np.uint8).reshape(*others, steps // len(order), len(order), n)
    out = np.zeros((*others, steps // len(order), n), np.uint32)
    for i, step in enumerate(order):
        out |= parts[..., step, :].astype(np.uint32) << np.uint32(bits * i)
    return out.view(np.int32)


def _numbers(words: Array, bits: int, dtype: DType) -> Array:
    """The inverse, of words [.., lanes]: integers [.., steps of a word, lanes]."""
    order, mask = step_order(bits), np.uint32((1 << bits) - 1)
    out = np.zeros((len(words), len(order), words.shape[1]), np.int64)
    for i, step in enumerate(order):
        out[:, step] = words.view(np.uint32) >> np.uint32(bits * i) & mask
    return (out + least_of(bits, dtype)).astype(dtype.numpy)


def convert(values: Array, old: DType, new: DType) -> Array:
    """Between the dtypes that a packed copy may have; bf16 travels as its 16 bits."""
    if old is new:
        return values
    if old is DType.BF16:
        values = from_bf16(values)
    return to_bf16(values) if new is DType.BF16 else values.astype(new.numpy)


def _index(packing: Packing, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """The index of every point of the axes, checked against the weight's shape."""
    extents = [n for _, n in packing.axes]
    grid = {
        name: np.arange(n).reshape([n if k == i else 1 for k in range(len(extents))])
        for i, (name, n) in enumerate(packing.axes)
    }
    index, sizes = packing.index or (num(0),), shape or (1,)
    arrays = [np.asarray(index_value(e, grid)) for e in index]
    inside = [
        a.size == 0 or (a.min() >= 0 and a.max() < n) for a, n in zip(arrays, sizes, strict=False)
    ]
    if len(index) != len(sizes) or not all(inside):
        raise ValueError(f"packing of '{packing.weight}' reads outside of {shape}")
    return tuple(np.broadcast_to(a, extents) for a in arrays)
