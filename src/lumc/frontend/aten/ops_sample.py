"""Resizing, samples at computed positions, distances, bags of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.join import concat
from lumc.frontend.api.resize import Axis, Method, resize_axis
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.aten.axes import few, static
from lumc.frontend.aten.registry import aten
from lumc.graph.ops import DType

Scales = Sequence[float | None]


def resized(x: Tensor, size: Sequence[int] | None, scales: Scales | None, method: Method) -> Tensor:
    """The axes behind the first two, to a size or by scales, as torch computes positions."""
    inner = static(x.shape[2:], "resizing")
    given = list(scales or [None] * len(inner))
    if size is None:
        size = [int(n * float(s or 0)) for n, s in zip(inner, given, strict=True)]
    for i, (n, m) in enumerate(zip(inner, size, strict=True)):
        scale = given[i] if method.coordinates != "align_corners" else None
        ratio = float(m / n if scale is None else scale)
        if ratio != 1.0 or n != m:
            x = resize_axis(x, 2 + i, Axis(n, m, ratio), method, 0.0)
    return x


def _nearest(name: str) -> None:
    @aten(f"{name}.vec", halves=True)
    def vec(
        input: Tensor, output_size: Sequence[int] | None, scale_factors: Scales | None
    ) -> Tensor:
        return resized(input, output_size, scale_factors, NEAREST)


NEAREST = Method("nearest", "asymmetric", "floor")
for _name in ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"):
    _nearest(_name)


@aten("upsample_nearest1d", halves=True)
def nearest1d(self: Tensor, output_size: Sequence[int], scales: float | None = None) -> Tensor:
    return resized(self, output_size, [scales], NEAREST)


@aten("upsample_nearest2d", halves=True)
def nearest2d(
    self: Tensor,
    output_size: Sequence[int],
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Tensor:
    return resized(self, output_size, [scales_h, scales_w], NEAREST)


def _smooth(align: bool, mode: str = "linear", antialias: bool = False) -> Method:
    where_from = "align_corners" if align else "half_pixel"
    if antialias:  # weights of what lies outside are given to the others
        return Method(mode, where_from, cubic_a=-0.5, exclude_outside=True, antialias=True)
    return Method(mode, where_from)


def _interpolated(name: str, mode: str, antialias: bool = False) -> None:
    @aten(f"{name}.vec")
    def vec(
        input: Tensor,
        output_size: Sequence[int] | None,
        align_corners: bool,
        scale_factors: Scales | None,
    ) -> Tensor:
        return resized(input, output_size, scale_factors, _smooth(align_corners, mode, antialias))


for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
    _interpolated(_name, "linear")
_interpolated("upsample_bicubic2d", "cubic")
_interpolated("_upsample_bilinear2d_aa", "linear", antialias=True)
_interpolated("_upsample_bicubic2d_aa", "cubic", antialias=True)


def _resampled(name: str, mode: str) -> None:
    @aten(name)
    def row(
        self: Tensor,
        output_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        return resized(self, output_size, [scales_h, scales_w], _smooth(align_corners, mode))


_resampled("upsample_bilinear2d", "linear")
_resampled("upsample_bicubic2d", "cubic")


@aten("grid_sampler_2d", "grid_sampler", "grid_sampler_3d")
def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    mode = ("linear", "nearest", "cubic")[interpolation_mode]
    padding = ("zeros", "border", "reflection")[padding_mode]
    return input.grid_sample(grid, mode, padding, align_corners, moved=mode != "cubic")


# ---- distances


def _distance(x: Tensor, p: float) -> Tensor:
    """The p-norm along the last axis."""
    if p == 0:
        return x.to(DType.BOOL).sum(-1).to(x.dtype)
    if p == 2:
        return (x * x).sum(-1).sqrt()
    size = x.abs()
    if p == math.inf:
        return size.max(-1)
    return size.sum(-1) if p == 1 else size.pow(p).sum(-1).pow(1.0 / p)


@aten("_cdist_forward", "cdist")
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    return _distance(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


@aten("_pdist_forward")
def pdist(self: Tensor, p: float = 2.0) -> Tensor:
    (n,) = static(self.shape[:1], "distances")
    few(n, "rows", 1024)
    first, second = (self.model.constant(np.int64(i)) for i in np.triu_indices(n, 1))
    if n < 2:
        return self.model.full((0,), 0, self.dtype)
    return _distance(self.index_select(0, first) - self.index_select(0, second), p)


# ---- bags


@aten("_embedding_bag", note="without what derivatives need")
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Sums (0), means (1) or maxima (2) of rows; a bag ends where the next one begins."""
    model, n = weight.model, indices.shape[0]
    offsets, end = offsets.to(DType.I64), model.size(n, DType.I64).reshape(1)
    starts, ends = offsets, concat([offsets[1:], end], 0)
    if include_last_offset:
        starts, ends = offsets[:-1], offsets[1:]
    place = model.arange(n)
    inside = (starts[:, None] <= place) & (place < ends[:, None])  # [bags, n]
    if padding_idx >= 0:
        inside = inside & (indices != padding_idx)[None, :]
    rows = weight.embedding(indices)  # [n, d]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    if mode == 2:
        best = where(inside[:, :, None], rows, -math.inf).max(1)
        return where(inside.any(1)[:, None], best, 0.0), None, None, None
    total = inside.to(weight.dtype) @ rows
    if mode == 1:
        total = total / inside.sum(1).maximum(1).to(weight.dtype)[:, None]
    return total, None, None, None
