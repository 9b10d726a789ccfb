"""float64 numpy: the meaning of every operation, and what results are compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Array = np.ndarray

exp, log, tanh, permute, concat = np.exp, np.log, np.tanh, np.transpose, np.concatenate


def reshape(x: Array, shape: Sequence[int]) -> Array:
    return x.reshape(shape)


def halves(x: Array) -> list[Array]:
    return np.split(x, 2, axis=-1)


def take(table: Array, ids: Array) -> Array:
    return table[ids]


def sum(x: Array, axis: int) -> Array:
    return x.sum(axis, keepdims=True)


def mean(x: Array, axis: int) -> Array:
    return x.mean(axis, keepdims=True)


def max(x: Array, axis: int) -> Array:
    return x.max(axis, keepdims=True)


def rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def step(x: Array) -> Array:
    return (x > 0).astype(x.dtype)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x: Array) -> Array:
    e = np.exp(x - max(x, -1))
    return e / sum(e, -1)


def layer_norm(x: Array, g: Array, b: Array, eps: float) -> Array:
    d = x - mean(x, -1)
    return d * rsqrt(mean(d * d, -1) + eps) * g + b


def rms_norm(x: Array, g: Array, eps: float) -> Array:
    return x * rsqrt(mean(x * x, -1) + eps) * g


def batch_norm(x: Array, mean: Array, variance: Array, g: Array, b: Array, eps: float) -> Array:
    scale = g * rsqrt(variance + eps)
    return (x - _channel(mean)) * _channel(scale) + _channel(b)


def _channel(v: Array) -> Array:
    return v.reshape(1, -1, 1, 1)


def linear(x: Array, w: Array, b: Array | None = None) -> Array:
    return x @ w.T if b is None else x @ w.T + b


def attention(q: Array, k: Array, v: Array, causal: bool = False) -> Array:
    groups = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, groups, 1), np.repeat(v, groups, 1)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    return softmax(scores) @ v


def conv3x3(x: Array, w: Array) -> Array:
    h, width = x.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.zeros((x.shape[0], w.shape[0], h, width))
    for i in range(3):
        for j in range(3):
            window = padded[:, :, i : i + h, j : j + width]
            out += np.einsum("nchw,oc->nohw", window, w[:, :, i, j], optimize=True)
    return out
