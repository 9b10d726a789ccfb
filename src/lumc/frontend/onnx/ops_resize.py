"""Resize: along each axis every output element is a short weighted sum of input elements."""

from __future__ import annotations

from typing import Any

from lumc.frontend.api.halves import in_f32
from lumc.frontend.api.resize import Method, resize
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.ops_shape import integers, normal
from lumc.frontend.onnx.registry import operator


@operator("Resize", since=11, known=["roi", "scales", "sizes"])
@in_f32
def resize_11(
    X: Tensor,
    roi: Any = None,
    scales: Any = None,
    sizes: Any = None,
    *,
    antialias: int = 0,
    axes: Any = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    along = list(range(X.ndim)) if axes is None else [normal(a, X.ndim) for a in axes]
    method = Method(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside),
        bool(antialias),
    )
    targets = None if sizes is None or not len(sizes) else integers(sizes, "sizes")
    if targets is None and (scales is None or not len(scales)):
        raise ValueError("neither scales nor sizes are given")
    factors = None if targets is not None else [float(s) for s in scales]
    region = [] if roi is None else [float(v) for v in roi]
    return resize(
        X, factors, targets, along, keep_aspect_ratio_policy, region, method, extrapolation_value
    )


@operator("Resize", since=10, known=["scales"])
@operator("Upsample", known=["scales"])
@in_f32
def resize_10(X: Tensor, scales: Any, *, mode: str = "nearest") -> Tensor:
    method = Method(mode if mode != "bilinear" else "linear", "asymmetric", "floor")
    factors = [float(s) for s in scales]
    return resize(X, factors, None, range(X.ndim), "stretch", [], method, 0.0)
