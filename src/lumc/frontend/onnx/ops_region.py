"""Regions and deformed windows: bilinear samples at computed positions of two axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.halves import in_f32
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.registry import Unsupported, operator
from lumc.graph.ops import DType

Corner = tuple[Tensor, Tensor]  # an index along one axis, and its weight


def sampled(x: Tensor, ys: Sequence[Corner], xs: Sequence[Corner]) -> list[Tensor]:
    """The weighted elements of x [b, c, h, w] at the corners [b, s] of samples: [b, c, s] each.

    Indices lie inside, or their weight is 0.
    """
    batch, channels, _, width = x.shape
    flat = x.flatten(2, 3)
    out = []
    for row, high in ys:
        for column, wide in xs:
            place = (row * x.model.size(width, row.dtype) + column).to(DType.I64)
            ids = place.unsqueeze(1).expand(batch, channels, place.shape[1])
            out.append(flat.gather(2, ids) * (high * wide).unsqueeze(1))
    return out


def _static(x: Tensor) -> tuple[int, int]:
    """The extents of the last two axes."""
    height, width = x.shape[-2:]
    if not isinstance(height, int) or not isinstance(width, int):
        raise Unsupported("of an input with symbolic sizes", "bind the dims with --dim")
    return height, width


# ---- deformed convolution


def _inside(position: Tensor, length: int) -> list[Corner]:
    """The two neighbours of a position; of those outside the weight is 0."""
    base = position.floor()
    share = position - base
    out = []
    for at, weight in ((base, 1.0 - share), (base + 1.0, share)):
        near = at.clip(0.0, length - 1.0)
        out.append((near, where(at == near, weight, 0.0)))
    return out


@operator("DeformConv", since=19)
@in_f32
def deform_conv(
    X: Tensor,
    W: Tensor,
    offset: Tensor,
    B: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: Sequence[int] = (1, 1),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    offset_group: int = 1,
    pads: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
) -> Tensor:
    """X [n, c, h, w], W [o, c / group, k, l], offset [n, offset_group * k * l * 2, y, x], mask the
    same without 2 -> [n, o, y, x]. Every element of a window is read beside its place."""
    if X.ndim != 4:
        raise Unsupported(f"of {X.ndim - 2} axes", "of images only")
    height, width = _static(X)
    n = X.shape[0]
    out, _, k, l = W.shape  # noqa: E741  a kernel of k by l
    rows, columns = offset.shape[2:]
    parts = n * offset_group  # type: ignore[operator]  # every part has offsets of its own
    shifts = offset.reshape(parts, k, l, 2, rows, columns)
    starts = []
    for count, size, step, apart, before in zip(
        (rows, columns), (k, l), strides, dilations, pads[:2], strict=True
    ):
        places = X.model.arange(count, dtype=X.dtype) * float(step) - float(before)
        inner = X.model.arange(size, dtype=X.dtype) * float(apart)
        starts.append(inner[:, None] + places[None, :])  # [k, y]
    y = shifts[:, :, :, 0] + starts[0][:, None, :, None]  # [parts, k, l, y, x]
    x = shifts[:, :, :, 1] + starts[1][None, :, None, :]
    ys, xs = _inside(y.reshape(parts, -1), height), _inside(x.reshape(parts, -1), width)
    image = X.reshape(parts, -1, height, width)
    first, *others = sampled(image, ys, xs)
    values = sum(others, first)  # [parts, c', k * l * y * x]
    if mask is not None:
        values = values * mask.reshape(parts, 1, -1)
    values = values.reshape(n, group, -1, rows, columns)  # [n, group, c'' * k * l, y, x]
    product = values.flatten(3, 4).unsqueeze(2) * W.reshape(group, -1, values.shape[2], 1)
    result: Tensor = product.sum(3).reshape(n, out, rows, columns)
    return result if B is None else result + B.reshape(-1, 1, 1)


# ---- regions of interest


def _clamped(position: Tensor, length: int) -> list[Corner]:
    """The two neighbours of a position, at the border the border itself; nothing beyond it."""
    known = (position >= -1.0) & (position <= float(length))
    at = position.clip(0.0, length - 1.0)
    base = at.floor()
    share = at - base
    above = (base + 1.0).minimum(length - 1.0)
    return [(base, where(known, 1.0 - share, 0.0)), (above, where(known, share, 0.0))]


@operator("RoiAlign", since=16, note="`sampling_ratio` is given")
@in_f32
def roi_align(
    X: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    """X [n, c, h, w], rois [r, (x1, y1, x2, y2)], batch_indices [r] -> [r, c, height, width]."""
    if sampling_ratio < 1:
        raise Unsupported("as many samples as a region is large", "export with a sampling_ratio")
    height, width = _static(X)
    half = coordinate_transformation_mode == "half_pixel"
    edges = rois * spatial_scale - (0.5 if half else 0.0)
    corners = []
    for at, length, bins in ((1, height, output_height), (0, width, output_width)):
        start, size = edges[:, at], edges[:, at + 2] - edges[:, at]
        size = size if half else size.maximum(1.0)
        inner = X.model.arange(bins * sampling_ratio, dtype=X.dtype)
        step = size * (1.0 / (bins * sampling_ratio))
        corners.append((start[:, None] + (inner + 0.5)[None, :] * step[:, None], length))
    (y, _), (x, _) = corners  # [r, samples]
    tall, wide = y.shape[1], x.shape[1]
    grid = (rois.shape[0], tall, wide)
    ys = _clamped(y.unsqueeze(2).expand(*grid).flatten(1, 2), height)
    xs = _clamped(x.unsqueeze(1).expand(*grid).flatten(1, 2), width)
    values = sampled(X.index_select(0, batch_indices), ys, xs)
    if mode == "max":  # of the weighted neighbours, as the standard says
        whole = values[0]
        for other in values[1:]:
            whole = whole.maximum(other)
    elif mode == "avg":
        whole = sum(values[1:], values[0])
    else:
        raise Unsupported(f"mode {mode}")
    cells = (output_height, sampling_ratio, output_width, sampling_ratio)
    split: Any = whole.reshape(rois.shape[0], X.shape[1], *cells)
    result: Tensor = split.max((3, 5)) if mode == "max" else split.mean((3, 5))
    return result


@operator("RoiAlign", since=10, note="`sampling_ratio` is given")
def roi_align_10(X: Tensor, rois: Tensor, batch_indices: Tensor, **attributes: Any) -> Tensor:
    """Pixels are points before opset 16."""
    result: Tensor = roi_align(
        X, rois, batch_indices, coordinate_transformation_mode="output_half_pixel", **attributes
    )
    return result
