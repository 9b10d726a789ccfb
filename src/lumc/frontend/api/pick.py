"""Elements of an axis at positions that are known when the model is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.join import concat as join
from lumc.frontend.api.symbols import Array
from lumc.frontend.api.value import Maker, V, Value
from lumc.frontend.api.view import plus
from lumc.graph.ops import DType

MAX_REFLECTED = 1 << 16  # elements that a pad repeats


def padded(x: V, axis: int, before: int, after: int, mode: str, fill: Any) -> V:
    """Pad one axis; negative widths cut. ``mode`` is constant, reflect, edge or wrap."""
    if before < 0 or after < 0:
        x = x.slice(axis, max(-before, 0), plus(x.shape[axis], min(after, 0)))
        before, after = max(before, 0), max(after, 0)
    if before == 0 and after == 0:
        return x
    if mode == "constant":
        widths = [(0, 0)] * x.ndim
        widths[axis] = (before, after)
        if not isinstance(fill, Value):
            return x.pad(widths, fill)
        inside = x.model.full(x.shape, True, "bool").pad(widths)
        return where(inside, x.pad(widths), fill.reshape(()))
    length = x.shape[axis]
    if not isinstance(length, int):
        what = f"padding by {mode} along a symbolic dim"
        raise x.refuse("E0125", what, "bind the dim with --dim")
    return picked(x, axis, _reflected(x, length, before, after, mode))


def _reflected(x: V, length: int, before: int, after: int, mode: str) -> list[int]:
    """Where each element of a padded axis comes from."""
    if before + after > MAX_REFLECTED:
        raise x.refuse("E0125", f"padding by {before} and {after} elements of mode {mode}")
    numpy_mode = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}.get(mode)
    if numpy_mode is None:
        raise x.refuse("E0125", f"padding mode {mode}")
    places = np.pad(np.arange(length), (before, after), numpy_mode)  # type: ignore[call-overload]
    return [int(p) for p in places]


def picked(x: V, axis: int, positions: Sequence[int]) -> V:
    """Known positions of an axis, as a concatenation of slices with a constant step."""
    parts, i = list[V](), 0
    while i < len(positions):
        step = positions[i + 1] - positions[i] if i + 1 < len(positions) else 1
        j = i + 1
        while j < len(positions) and positions[j] - positions[j - 1] == step:
            j += 1
        parts.append(_run(x, axis, positions[i], step, j - i))
        i = j
    return join(parts, axis) if parts else x.slice(axis, 0, 0)


def _run(x: V, axis: int, first: int, step: int, count: int) -> V:
    key: list[Any] = [slice(None)] * x.ndim
    if step == 0:
        key[axis] = slice(first, first + 1)
        shape = list(x.shape)
        shape[axis] = count
        return x[tuple(key)].expand(*shape)
    last = first + step * count
    key[axis] = slice(first, last if last >= 0 else None, step)
    return x[tuple(key)]


def stored(model: Maker, array: Array, name: str = "", dtype: DType | None = None) -> Any:
    """An array as a constant or weight of the model; equally spaced ints need no storage."""
    if array.dtype in (np.int64, np.int32) and array.size == max(array.shape, default=1) > 1:
        flat = [int(v) for v in (*array.ravel()[:2], array.ravel()[-1])]
        step = flat[1] - flat[0]
        if step and np.array_equal(np.diff(array.ravel()), np.full(array.size - 1, step)):
            kind = DType.I64 if array.dtype == np.int64 else DType.I32
            return model.arange(flat[0], flat[2] + step, step, kind).reshape(*array.shape)
    return model.constant(array, name, dtype)
