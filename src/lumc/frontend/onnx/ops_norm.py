"""Normalisations and activations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.halves import in_f32
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.ops_math import unary
from lumc.frontend.onnx.ops_reduce import as_matrix
from lumc.frontend.onnx.ops_shape import normal
from lumc.frontend.onnx.registry import Unsupported, operator
from lumc.frontend.onnx.values import dtype_of
from lumc.graph.ops import DType

if TYPE_CHECKING:
    from lumc.frontend.onnx.lower import Call

# ---- activations

unary("Relu", lambda x: x.relu(), halves=True)
unary("Softplus", lambda x: x.softplus())
unary("Softsign", lambda x: x / (x.abs() + 1.0))
unary("Mish", lambda x: x.mish())
unary("HardSwish", lambda x: x.hardswish())


@operator("LeakyRelu")
@in_f32
def leaky_relu(X: Tensor, *, alpha: float = 0.01, consumed_inputs: Any = None) -> Tensor:
    return X.leaky_relu(alpha)


@operator("PRelu", since=7)
@in_f32
def prelu(X: Tensor, slope: Tensor) -> Tensor:
    return where(X < 0, X * slope, X)


@operator("PRelu", since=1)
@in_f32
def prelu_1(X: Tensor, slope: Tensor, *, consumed_inputs: Any = None) -> Tensor:
    """The slope is one number or one per channel."""
    per_channel = slope.ndim == 1 and X.ndim > 2 and slope.shape[0] != 1
    return where(X < 0, X * (slope.reshape(-1, *[1] * (X.ndim - 2)) if per_channel else slope), X)


@operator("Elu")
@in_f32
def elu(X: Tensor, *, alpha: float = 1.0, consumed_inputs: Any = None) -> Tensor:
    return X.elu(alpha)


@operator("Celu")
@in_f32
def celu(X: Tensor, *, alpha: float = 1.0) -> Tensor:
    return where(X < 0.0, (X * (1.0 / alpha)).expm1() * alpha, X)


@operator("Selu")
@in_f32
def selu_1(
    X: Tensor, *, alpha: float = 1.6732, gamma: float = 1.0507, consumed_inputs: Any = None
) -> Tensor:
    return X.elu(alpha) * gamma


@operator("Selu", since=6)
@in_f32
def selu(
    X: Tensor, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323
) -> Tensor:
    return X.elu(alpha) * gamma


@operator("ThresholdedRelu")
@in_f32
def thresholded_relu(X: Tensor, *, alpha: float = 1.0) -> Tensor:
    return where(alpha < X, X, 0.0)


@operator("HardSigmoid")
@in_f32
def hard_sigmoid(
    X: Tensor, *, alpha: float = 0.2, beta: float = 0.5, consumed_inputs: Any = None
) -> Tensor:
    return (X * alpha + beta).clip(0.0, 1.0)


@operator("Gelu")
@in_f32
def gelu(X: Tensor, *, approximate: str = "none") -> Tensor:
    return X.gelu(approximate)


@operator("Swish")
@in_f32
def swish(X: Tensor, *, alpha: float = 1.0) -> Tensor:
    return X * (X * alpha).sigmoid()


@operator("Shrink")
@in_f32
def shrink(input: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    """Integers in f64, as the standard's reference: f32 does not hold those beyond 2^24."""
    x = input if input.dtype.is_float else input.to(DType.F64)
    out = where(x < -lambd, x + bias, where(x > lambd, x - bias, 0.0))
    return out.to(input.dtype)


@operator("Softmax", since=13)
@in_f32
def softmax(input: Tensor, *, axis: int = -1) -> Tensor:
    return input.softmax(normal(axis, input.ndim))


@operator("LogSoftmax", since=13)
@in_f32
def log_softmax(input: Tensor, *, axis: int = -1) -> Tensor:
    return input.log_softmax(normal(axis, input.ndim))


@operator("Softmax", since=1)
@in_f32
def softmax_1(input: Tensor, *, axis: int = 1) -> Tensor:
    """Before opset 13: over all axes from ``axis`` on."""
    if normal(axis, input.ndim) == input.ndim - 1:
        return input.softmax(-1)
    return as_matrix(input, axis).softmax(-1).reshape(*input.shape)


@operator("LogSoftmax", since=1)
@in_f32
def log_softmax_1(input: Tensor, *, axis: int = 1) -> Tensor:
    if normal(axis, input.ndim) == input.ndim - 1:
        return input.log_softmax(-1)
    return as_matrix(input, axis).log_softmax(-1).reshape(*input.shape)


# ---- norms


@operator("BatchNormalization")
@in_f32
def batch_normalization(
    call: Call,
    X: Tensor,
    scale: Tensor,
    B: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    spatial: int = 1,
    is_test: int = 0,
    consumed_inputs: Any = None,
) -> Any:
    if not spatial:
        raise Unsupported("statistics per element (spatial = 0)")
    if not training_mode:
        if call.wanted > 1 and call.opset >= 14:
            raise Unsupported("running statistics as outputs outside training")
        return X.batch_norm(input_mean, input_var, scale, B, epsilon)
    axes = (0, *range(2, X.ndim))
    mean, variance = X.mean(axes), X.var(axes)
    out = X.batch_norm(mean, variance, scale, B, epsilon)
    running_mean = input_mean * momentum + mean * (1.0 - momentum)
    running_var = input_var * momentum + variance * (1.0 - momentum)
    return out, running_mean, running_var


@operator("LayerNormalization")
@in_f32
def layer_normalization(
    call: Call,
    X: Tensor,
    Scale: Tensor | None = None,
    B: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Any:
    axes = tuple(range(normal(axis, X.ndim), X.ndim))
    if call.wanted < 2:
        return X.layer_norm(Scale, B, epsilon, axes)
    mean = X.mean(axes, True)
    centred = X - mean
    inverse = ((centred * centred).mean(axes, True) + epsilon).rsqrt()
    out = centred * inverse
    out = out if Scale is None else out * Scale
    out = out if B is None else out + B
    stash = dtype_of(stash_type)
    return out, mean.to(stash), inverse.to(stash)


@operator("RMSNormalization")
@operator("SimplifiedLayerNormalization")
@in_f32
def rms_normalization(
    X: Tensor,
    scale: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Tensor:
    axes = tuple(range(normal(axis, X.ndim), X.ndim))
    out = X * ((X * X).mean(axes, True) + epsilon).rsqrt()
    return out if scale is None else out * scale


@operator("InstanceNormalization")
@in_f32
def instance_normalization(
    input: Tensor,
    scale: Tensor,
    B: Tensor,
    *,
    epsilon: float = 1e-5,
    consumed_inputs: Any = None,
) -> Tensor:
    return input.instance_norm(scale, B, epsilon)


@operator("GroupNormalization", since=21)
@in_f32
def group_normalization(
    X: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    epsilon: float = 1e-5,
    num_groups: int,
    stash_type: int = 1,
) -> Tensor:
    return X.group_norm(num_groups, scale, bias, epsilon)


@operator("GroupNormalization", since=18)
@in_f32
def group_normalization_18(
    X: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, num_groups: int
) -> Tensor:
    """Scale and bias are per group."""
    channels = X.shape[1]
    if not isinstance(channels, int):
        raise Unsupported("a symbolic number of channels", "bind the dim with --dim")
    each = channels // num_groups
    wide = [v.repeat_interleave(each, 0) for v in (scale, bias)]
    return X.group_norm(num_groups, wide[0], wide[1], epsilon)


@operator("LpNormalization")
@in_f32
def lp_normalization(input: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    if p not in (1, 2):
        raise Unsupported(f"p = {p}")
    size = input.abs().sum(axis, True) if p == 1 else (input * input).sum(axis, True).sqrt()
    return where(size == 0.0, 0.0, input / size)


@operator("MeanVarianceNormalization")
@in_f32
def mean_variance_normalization(X: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    along = tuple(axes)
    centred = X - X.mean(along, True)
    return centred / ((centred * centred).mean(along, True).sqrt() + 1e-9)


@operator("LRN")
@in_f32
def local_response_normalization(
    X: Tensor, *, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0, size: int
) -> Tensor:
    before, after = (size - 1) // 2, math.ceil((size - 1) / 2)
    widths = [(0, 0), (before, after), *[(0, 0)] * (X.ndim - 2)]
    total = (X * X).pad(widths).unfold(1, size).sum(-1)
    return X * (total * (alpha / size) + bias).pow(-beta)
