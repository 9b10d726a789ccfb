"""JAX; IREE compiles the same functions."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

Array = jax.Array

exp, log, tanh, rsqrt = jnp.exp, jnp.log, jnp.tanh, jax.lax.rsqrt
relu, silu, softmax = jax.nn.relu, jax.nn.silu, jax.nn.softmax
permute, reshape, concat = jnp.transpose, jnp.reshape, jnp.concatenate


def halves(x: Array) -> list[Array]:
    return jnp.split(x, 2, -1)


def thirds(x: Array) -> list[Array]:
    return jnp.split(x, 3, -1)


def take(table: Array, ids: Array) -> Array:
    return table[ids]


def sum(x: Array, axis: int) -> Array:
    return x.sum(axis, keepdims=True)


def mean(x: Array, axis: int) -> Array:
    return x.mean(axis, keepdims=True)


def max(x: Array, axis: int) -> Array:
    return x.max(axis, keepdims=True)


def step(x: Array) -> Array:
    return (x > 0).astype(x.dtype)


def gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=False)


def gelu_tanh(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=True)


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


def conv3x3(x: Array, w: Array, b: Array | None = None) -> Array:
    layout = ("NCHW", "OIHW", "NCHW")
    y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout)
    return y if b is None else y + _channel(b)


def max_pool2x2(x: Array) -> Array:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def cross_entropy(logits: Array, labels: Array) -> Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], -1).mean()


def attention(q: Array, k: Array, v: Array, causal: bool = False) -> Array:
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = jnp.repeat(k, groups, 1), jnp.repeat(v, groups, 1)
    scores = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]))
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    return softmax(scores, -1) @ v
