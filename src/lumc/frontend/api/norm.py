"""Softmax and the norms, written as in the papers."""

from __future__ import annotations

from collections.abc import Sequence

from lumc.frontend.api.movement import axes_of, axis_of, unsqueeze
from lumc.frontend.api.value import V
from lumc.graph.dim import Extent


def softmax(x: V, axis: int = -1) -> V:
    """e^x over its sum along the axis."""
    axis = axis_of(x, axis)
    e = (x - unsqueeze(x.max(axis), axis)).exp()
    return e * unsqueeze(e.sum(axis).reciprocal(), axis)


def log_softmax(x: V, axis: int = -1) -> V:
    """The logarithm of the softmax."""
    axis = axis_of(x, axis)
    shifted = x - unsqueeze(x.max(axis), axis)
    return shifted - unsqueeze(shifted.exp().sum(axis).log(), axis)


def _standardised(x: V, axes: Sequence[int], eps: float) -> V:
    """Mean 0 and variance 1 over the axes."""
    centred = x - unsqueeze(x.mean(axes), *axes)
    variance = (centred * centred).mean(axes)
    return centred * unsqueeze((variance + eps).rsqrt(), *axes)


def _affine(x: V, weight: V | None, bias: V | None) -> V:
    if weight is not None:
        x = x * weight
    return x if bias is None else x + bias


def layer_norm(
    x: V,
    weight: V | None = None,
    bias: V | None = None,
    eps: float = 1e-5,
    axis: int | Sequence[int] = -1,
) -> V:
    """Over one or several (trailing) axes; weight and bias broadcast against x."""
    return _affine(_standardised(x, sorted(axes_of(x, axis)), eps), weight, bias)


def rms_norm(x: V, weight: V | None = None, eps: float = 1e-5, axis: int = -1) -> V:
    """x over the root of the mean square, times the weight."""
    axis = axis_of(x, axis)
    scale = ((x * x).mean(axis) + eps).rsqrt()
    return _affine(x * unsqueeze(scale, axis), weight, None)


def _per_channel(x: V, channels: V) -> V:
    """[c] against x [n, c, ..]."""
    if channels.shape != (x.shape[1],):
        raise x.refuse("E0120", f"{channels.describe()} per channel of {x.describe()}")
    return channels.reshape(x.shape[1], *[1] * (x.ndim - 2))


def batch_norm(
    x: V,
    mean: V,
    variance: V,
    weight: V | None = None,
    bias: V | None = None,
    eps: float = 1e-5,
) -> V:
    """With running statistics: one scale and one shift per channel (axis 1)."""
    scale = (variance + eps).rsqrt()
    scale = scale if weight is None else weight * scale
    shift = mean * scale * -1.0
    shift = shift if bias is None else bias + shift
    return x * _per_channel(x, scale) + _per_channel(x, shift)


def group_norm(
    x: V,
    groups: int,
    weight: V | None = None,
    bias: V | None = None,
    eps: float = 1e-5,
) -> V:
    """x [n, c, ..]; each of ``groups`` parts of the channels is standardised."""
    channels: Extent = x.shape[1]
    if not isinstance(channels, int) or channels % groups:
        raise x.refuse("E0121", f"{channels} channels of {x.describe()} in {groups} groups")
    parts = x.reshape(x.shape[0], groups, channels // groups, *x.shape[2:])
    flat = _standardised(parts, range(2, parts.ndim), eps).reshape(x.shape)
    weight = None if weight is None else _per_channel(x, weight)
    return _affine(flat, weight, None if bias is None else _per_channel(x, bias))


def instance_norm(x: V, weight: V | None = None, bias: V | None = None, eps: float = 1e-5) -> V:
    """x [n, c, ..]; each channel of each element is standardised."""
    flat = _standardised(x, range(2, x.ndim), eps)
    weight = None if weight is None else _per_channel(x, weight)
    return _affine(flat, weight, None if bias is None else _per_channel(x, bias))


def normalize(x: V, axis: int = -1, eps: float = 1e-12) -> V:
    """Euclidean length 1 along an axis; shorter than ``eps`` is divided by eps."""
    axis = axis_of(x, axis)
    length = (x * x).sum(axis).sqrt().maximum(eps)
    return x * unsqueeze(length.reciprocal(), axis)
