"""lumc's Tensor API; everything is written naively, the search finds the fast forms."""

from __future__ import annotations

from lumc.frontend import Tensor
from lumc.frontend import concat as concat
from lumc.frontend.api import nn

exp, log, tanh, rsqrt = Tensor.exp, Tensor.log, Tensor.tanh, Tensor.rsqrt
relu, silu, gelu = Tensor.relu, Tensor.silu, Tensor.gelu
softmax, layer_norm, rms_norm = Tensor.softmax, Tensor.layer_norm, Tensor.rms_norm
permute, reshape, take = Tensor.permute, Tensor.reshape, Tensor.embedding


def halves(x: Tensor) -> list[Tensor]:
    return x.chunk(2, -1)


def thirds(x: Tensor) -> list[Tensor]:
    return x.chunk(3, -1)


def sum(x: Tensor, axis: int) -> Tensor:
    return x.sum(axis, keepdim=True)


def mean(x: Tensor, axis: int) -> Tensor:
    return x.mean(axis, keepdim=True)


def max(x: Tensor, axis: int) -> Tensor:
    return x.max(axis, keepdim=True)


def step(x: Tensor) -> Tensor:
    return (x > 0).to("f32")


def gelu_tanh(x: Tensor) -> Tensor:
    return x.gelu("tanh")


def batch_norm(
    x: Tensor, mean: Tensor, variance: Tensor, g: Tensor, b: Tensor, eps: float
) -> Tensor:
    return x.batch_norm(mean, variance, g, b, eps)


def linear(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return x @ w.T if b is None else x @ w.T + b


def conv3x3(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return x.conv2d(w, b, padding=1)


def max_pool2x2(x: Tensor) -> Tensor:
    return x.max_pool(2)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.cross_entropy(labels)


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = nn.repeat_heads(k, groups), nn.repeat_heads(v, groups)
    return nn.attention(q, k, v, nn.causal_bias(q.model, q.shape[2]) if causal else None)
