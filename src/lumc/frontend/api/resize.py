"""Resizing: along each axis every output element is a short weighted sum of input elements.

The positions and weights follow the ONNX specification and are known when the model is written.
Where they repeat elements a whole number of times the result is a view; other picks are slices
side by side; weights form a matrix that the axis is multiplied with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.pick import picked, stored
from lumc.frontend.api.refusal import refuse
from lumc.frontend.api.symbols import Array
from lumc.frontend.api.value import V


@dataclass(frozen=True)
class Method:
    """The attributes of Resize that decide positions and weights."""

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


@dataclass(frozen=True)
class Axis:
    """One axis: its old and new length, the scale between them, the region of interest."""

    length: int
    result: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)


def coordinates(axis: Axis, mode: str) -> Array:
    """Where each output element lies in the input, as a real number."""
    place = np.arange(axis.result, dtype=np.float64)
    width = axis.scale * axis.length
    last = axis.length - 1
    if mode == "align_corners":
        return place * 0 if width == 1 else place * last / (width - 1)
    if mode == "asymmetric":
        return place / axis.scale
    if mode == "tf_crop_and_resize":
        low, high = axis.roi
        span = (high - low) * last
        inner = place * 0 + span / 2 if width == 1 else place * span / (width - 1)
        return inner + low * last
    centred = (place + 0.5) / axis.scale - 0.5
    if mode == "pytorch_half_pixel":
        return place * 0 - 0.5 if width == 1 else centred
    if mode == "half_pixel":
        return centred
    if mode == "half_pixel_symmetric":
        return centred + axis.length / 2 * (1 - axis.result / width)
    if mode == "tf_half_pixel_for_nn":
        return (place + 0.5) / axis.scale
    raise refuse("E0125", f"coordinate_transformation_mode {mode}")


def weights(ratio: float, axis: Axis, method: Method) -> Any:
    """Weights of the neighbours of a point that lies ``ratio`` in (0, 1] behind the second."""
    scale = min(axis.scale, 1.0) if method.antialias else 1.0
    reach = 1 if method.mode == "linear" else 2
    first = int(np.floor(-reach / scale)) + 1
    distance = np.abs(np.arange(first, 2 - first) - ratio) * scale
    if method.mode == "linear":
        found = np.clip(1 - distance, 0, 1)
    else:
        a, d = method.cubic_a, distance
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        found = np.where(d <= 1, near, np.where(d < 2, far, 0.0))
    return found / found.sum() if method.antialias else found


def matrix(axis: Axis, method: Method) -> Array:
    """[result, length]: the weight of every input element in every output element."""
    out = np.zeros((axis.result, axis.length))
    for i, x in enumerate(coordinates(axis, method.coordinates)):
        whole = int(np.ceil(x)) - 1
        found = weights(float(x - whole), axis, method)
        places = whole + 1 - len(found) // 2 + np.arange(len(found))
        if method.exclude_outside:
            found = np.where((places < 0) | (places >= axis.length), 0.0, found)
            found = found / (found.sum() or 1.0)
        np.add.at(out[i], np.clip(places, 0, axis.length - 1), found)
    return out


def nearest(axis: Axis, method: Method) -> list[int]:
    """The input element of every output element."""
    x = coordinates(axis, method.coordinates)
    rounding: dict[str, Any] = {
        "round_prefer_floor": lambda v: np.ceil(v - 0.5),
        "round_prefer_ceil": lambda v: np.floor(v + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    if method.nearest not in rounding:
        raise refuse("E0125", f"nearest_mode {method.nearest}")
    return [int(p) for p in np.clip(rounding[method.nearest](x), 0, axis.length - 1)]


MAX_WEIGHTS = 1 << 24  # elements of the matrix of an axis


def resize_axis(x: V, at: int, axis: Axis, method: Method, outside: float) -> V:
    """Resize one axis."""
    if axis.length * axis.result > MAX_WEIGHTS:
        raise refuse("E0125", f"an axis resized from {axis.length} to {axis.result} elements")
    if axis.length == 0 or axis.result == 0:
        shape = [axis.result if i == at else e for i, e in enumerate(x.shape)]
        return x.model.full(shape, 0, x.dtype)
    if method.mode == "nearest":
        out = _repeated(x, at, nearest(axis, method))
    elif method.mode in ("linear", "cubic"):
        if not x.dtype.is_float:
            raise x.refuse("E0125", f"{method.mode} interpolation of ints", "cast to floats")
        table = matrix(axis, method).astype(x.dtype.numpy)
        out = (x.moveaxis(at, -1) @ stored(x.model, table).T).moveaxis(-1, at)
    else:
        raise refuse("E0125", f"mode {method.mode}")
    if method.coordinates != "tf_crop_and_resize":
        return out
    where_from = coordinates(axis, method.coordinates)
    inside = (where_from >= 0) & (where_from <= axis.length - 1)
    mask = stored(x.model, inside).reshape(-1, *[1] * (x.ndim - at - 1))
    return where(mask, out, x.lift(outside, x.dtype))


def _repeated(x: V, at: int, places: Sequence[int]) -> V:
    """Known positions of an axis: a view where each element is repeated equally often."""
    length = x.shape[at]
    assert isinstance(length, int)
    times, rest = divmod(len(places), length)
    if not rest and list(places) == [i // times for i in range(len(places))]:
        return x.repeat_interleave(times, at)
    if len(places) <= 256:
        return picked(x, at, places)
    return x.index_select(at, stored(x.model, np.array(places, np.int64)))


def resize(
    x: V,
    scales: Sequence[float] | None,
    targets: Sequence[int] | None,
    axes: Sequence[int],
    policy: str,
    roi: Sequence[float],
    method: Method,
    outside: float,
) -> V:
    """Resize the axes one after the other to ``targets`` or by ``scales``."""
    lengths = [x.shape[a] for a in axes]
    if targets is not None:
        ratios = [t / n for t, n in zip(targets, _static(lengths, targets), strict=True)]
        if policy != "stretch":
            ratio = min(ratios) if policy == "not_larger" else max(ratios)
            ratios = [ratio] * len(axes)
            targets = [int(ratio * n + 0.5) for n in _static(lengths, targets)]
    else:
        assert scales is not None
        ratios = [float(s) for s in scales]
        kept = [n if s == 1.0 else int(s * _one(n)) for s, n in zip(ratios, lengths, strict=True)]
        targets = kept  # type: ignore[assignment]
    for i, at in enumerate(axes):
        region = (float(roi[i]), float(roi[len(axes) + i])) if len(roi) else (0.0, 1.0)
        crop = method.coordinates == "tf_crop_and_resize" and region != (0.0, 1.0)
        if ratios[i] == 1.0 and targets[i] == lengths[i] and not crop:  # type: ignore[index]
            continue
        axis = Axis(_one(lengths[i]), int(targets[i]), ratios[i], region)  # type: ignore[index]
        x = resize_axis(x, at, axis, method, outside)
    return x


def _one(length: Any) -> int:
    if not isinstance(length, int):
        raise refuse("E0125", f"resizing the symbolic dim {length}", fix="bind the dim with --dim")
    return length


def _static(lengths: Sequence[Any], targets: Sequence[int]) -> list[int]:
    return [_one(n) for n, _ in zip(lengths, targets, strict=True)]
