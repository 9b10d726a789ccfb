"""Inverses of trigonometric and hyperbolic functions."""

from __future__ import annotations

import math

from lumc.frontend.api.elementwise import eq, pair, where
from lumc.frontend.api.functions import LOG2E
from lumc.frontend.api.minimax import in_f32, polynomial
from lumc.frontend.api.value import V
from lumc.graph.ops import DType

# odd polynomial of atan on [0, tan(pi/8)]: the Taylor terms fall below 1e-9 of it
_ATAN = tuple((-1.0) ** i / (2 * i + 1) for i in range(11))


@in_f32
def atan(x: V) -> V:
    """Arc tangent, reduced to |x| <= tan(pi / 8) by 1/x and (x - 1) / (x + 1)."""
    size = x.abs()
    large = size > 1.0
    inner = where(large, size.maximum(1.0).reciprocal(), size)  # whose slope is finite at 0
    middle = inner > math.tan(math.pi / 8)
    small = where(middle, (inner - 1.0) / (inner + 1.0), inner)
    square = small * small
    angle = small * polynomial(square, _ATAN) + where(middle, math.pi / 4, 0.0)
    return where(large, math.pi / 2 - angle, angle) * where(x < 0.0, -1.0, 1.0)


@in_f32
def asin(x: V) -> V:
    """Arc sine."""
    return atan(x / ((1.0 - x) * (x + 1.0)).sqrt())


@in_f32
def acos(x: V) -> V:
    """Arc cosine."""
    return atan(((1.0 - x) / (x + 1.0)).sqrt()) * 2.0


def atan2(y: V, x: V) -> V:
    """The angle of the point (x, y), from -pi to pi."""
    y, x = pair(y, x)
    if not y.dtype.is_float:
        y, x = y.to(DType.F32), x.to(DType.F32)
    height, width = y.abs(), x.abs()
    steep = width < height
    near, far = where(steep, width, height), where(steep, height, width)
    ratio = where(eq(near, far), 1.0, near / far)  # of infinities, too
    angle = atan(where(eq(far, 0.0), 0.0, ratio))
    angle = where(steep, math.pi / 2 - angle, angle)
    angle = where(_is_negative(x), math.pi - angle, angle)
    return where(x.isnan() | y.isnan(), math.nan, where(_is_negative(y), -angle, angle))


def _is_negative(x: V) -> V:
    """Below zero, or -0.0."""
    return (x < 0.0) | (x.reciprocal() < 0.0)


@in_f32
def cosh(x: V) -> V:
    """``(exp(x) + exp(-x)) / 2``, the halves in the exponents."""
    return (x * LOG2E - 1.0).exp2() + (x * -LOG2E - 1.0).exp2()


@in_f32
def asinh(x: V) -> V:
    """Inverse of ``sinh``."""
    size = _inverse_sinh(x.abs())
    return where(x < 0.0, -size, size)


def _inverse_sinh(x: V) -> V:
    """Of x >= 0; a square would overflow where x is large. Slopes are finite at 0."""
    near = (x + x * x / ((x * x + 1.0).sqrt() + 1.0)).log1p()
    return where(x > 1e4, x.maximum(1.0).log() + math.log(2), near)


@in_f32
def acosh(x: V) -> V:
    """Inverse of ``cosh``, of x from 1 on."""
    return where(x > 1e4, x.log() + math.log(2), _inverse_cosh(x))


def _inverse_cosh(x: V) -> V:
    more = x - 1.0
    return (more + (more * (x + 1.0)).sqrt()).log1p()


@in_f32
def atanh(x: V) -> V:
    """Inverse of ``tanh``, of x between -1 and 1."""
    return (x.abs() * 2.0 / (1.0 - x.abs())).log1p() * where(x < 0.0, -0.5, 0.5)
