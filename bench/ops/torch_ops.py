"""PyTorch, with its fused operators."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as f
from torch import Tensor

exp, log, tanh, rsqrt, relu = torch.exp, torch.log, torch.tanh, torch.rsqrt, f.relu
silu, gelu, linear = f.silu, f.gelu, f.linear
permute, reshape, concat = torch.permute, torch.reshape, torch.cat


def halves(x: Tensor) -> Sequence[Tensor]:
    return x.chunk(2, -1)


def thirds(x: Tensor) -> Sequence[Tensor]:
    return x.chunk(3, -1)


def take(table: Tensor, ids: Tensor) -> Tensor:
    return f.embedding(ids, table)


def sum(x: Tensor, axis: int) -> Tensor:
    return x.sum(axis, keepdim=True)


def mean(x: Tensor, axis: int) -> Tensor:
    return x.mean(axis, keepdim=True)


def max(x: Tensor, axis: int) -> Tensor:
    return x.amax(axis, keepdim=True)


def step(x: Tensor) -> Tensor:
    return (x > 0).to(x.dtype)


def gelu_tanh(x: Tensor) -> Tensor:
    return f.gelu(x, approximate="tanh")


def softmax(x: Tensor) -> Tensor:
    return f.softmax(x, -1)


def layer_norm(x: Tensor, g: Tensor, b: Tensor, eps: float) -> Tensor:
    return f.layer_norm(x, x.shape[-1:], g, b, eps)


def rms_norm(x: Tensor, g: Tensor, eps: float) -> Tensor:
    return f.rms_norm(x, x.shape[-1:], g, eps)


def batch_norm(
    x: Tensor, mean: Tensor, variance: Tensor, g: Tensor, b: Tensor, eps: float
) -> Tensor:
    return f.batch_norm(x, mean, variance, g, b, eps=eps)


def conv3x3(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return f.conv2d(x, w, b, padding=1)


def max_pool2x2(x: Tensor) -> Tensor:
    return f.max_pool2d(x, 2)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return f.cross_entropy(logits, labels)


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    return f.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
