"""tinygrad."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinygrad import Tensor

exp, log, tanh, rsqrt = Tensor.exp, Tensor.log, Tensor.tanh, Tensor.rsqrt
relu, silu, gelu_tanh, softmax = Tensor.relu, Tensor.silu, Tensor.gelu, Tensor.softmax
permute, reshape = Tensor.permute, Tensor.reshape


def concat(xs: Sequence[Tensor], axis: int) -> Tensor:
    return xs[0].cat(*xs[1:], dim=axis)


def halves(x: Tensor) -> Sequence[Tensor]:
    return x.chunk(2, -1)


def take(table: Tensor, ids: Tensor) -> Tensor:
    return table[ids]


def sum(x: Tensor, axis: int) -> Tensor:
    return x.sum(axis, keepdim=True)


def mean(x: Tensor, axis: int) -> Tensor:
    return x.mean(axis, keepdim=True)


def max(x: Tensor, axis: int) -> Tensor:
    return x.max(axis, keepdim=True)


def step(x: Tensor) -> Tensor:
    return (x > 0).cast("float32")


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + (x / math.sqrt(2)).erf())


def layer_norm(x: Tensor, g: Tensor, b: Tensor, eps: float) -> Tensor:
    return x.layernorm(eps=eps) * g + b


def rms_norm(x: Tensor, g: Tensor, eps: float) -> Tensor:
    return x * (mean(x * x, -1) + eps).rsqrt() * g


def batch_norm(
    x: Tensor, mean: Tensor, variance: Tensor, g: Tensor, b: Tensor, eps: float
) -> Tensor:
    return x.batchnorm(g, b, mean, (variance + eps).rsqrt())


def linear(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return x.linear(w.T, b)


def conv3x3(x: Tensor, w: Tensor) -> Tensor:
    return x.conv2d(w, padding=1)


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    return q.scaled_dot_product_attention(k, v, is_causal=causal)
