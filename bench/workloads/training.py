"""Whole steps of training: forward, back, and AdamW on states in place.

A step changes what the next one begins with. Every example is there twice, with two labels, so
that no run learns them by heart: gradients that fade to nothing would be another work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from workloads.base import F32, WORKLOADS, Arrays, nbytes, normal

RATE, BETAS, EPS, DECAY = 1e-3, (0.9, 0.999), 1e-8, 0.01  # of AdamW, as torch has them
ADAM = 14  # operations of AdamW for a parameter
Loss = Callable[..., Any]  # (ops, parameters, *inputs) -> one float


@dataclass(frozen=True)
class Training:
    """``flops``, ``reads`` and ``writes`` are those of a step."""

    inputs: Arrays  # a batch, in order
    parameters: Arrays  # as the first step finds them
    loss: Loss
    flops: float

    @property
    def size(self) -> int:
        return sum(p.size for p in self.parameters.values())

    @property
    def reads(self) -> float:
        """The batch, the parameters, and their first and second moments."""
        return nbytes(*self.inputs.values()) + 3 * 4 * self.size

    @property
    def writes(self) -> float:
        return 3 * 4 * self.size

    def reference(self) -> list[np.ndarray]:
        """What is compared, after one step of torch in float64: the loss, all parameters in a row,
        all first moments, all second moments."""
        from trainers import in_float64

        return in_float64(self)

    def save_graph(self, path: Path) -> None:
        from lumc import train
        from lumc.frontend import Model
        from lumc.grad import gradients
        from ops import lumc_ops

        g = Model()
        inputs = [g.input(k, v.shape, v.dtype) for k, v in self.inputs.items()]
        parameters = {k: g.state(k, v.shape, value=v) for k, v in self.parameters.items()}
        loss, weights = self.loss(lumc_ops, parameters, *inputs), [*parameters.values()]
        slopes, rate = gradients(loss, weights), g.input("lr", ())
        train.adamw(weights, slopes, rate, BETAS, EPS, DECAY)
        g.output("loss", loss)
        g.save(path)


def training(make: Callable[[], Training]) -> Callable[[], Training]:
    WORKLOADS[make.__name__] = make
    return make


def twice(*arrays: np.ndarray) -> list[np.ndarray]:
    return [np.concatenate([a, a]) for a in arrays]


def labels(rng: np.random.Generator, below: int, *shape: int) -> np.ndarray:
    return rng.integers(0, below, shape)


# ---- the networks of graphs/digits.py


@training
def train_digits_mlp() -> Training:
    """64-256-256-10, 128 pictures."""
    rng, sizes, half = np.random.default_rng(14), [64, 256, 256, 10], 64
    parameters = Arrays()
    for i, (n, m) in enumerate(pairwise(sizes)):
        parameters[f"w{i}"] = normal(rng, m, n, scale=n**-0.5)
        parameters[f"b{i}"] = normal(rng, m, scale=0.1)
    inputs = dict(zip("x", twice(rng.random((half, 64), dtype=F32)), strict=True))
    inputs["y"] = labels(rng, 10, 2 * half)

    def loss(o: Any, p: Any, x: Any, y: Any) -> Any:
        h = o.relu(o.linear(x, p["w0"], p["b0"]))
        h = o.relu(o.linear(h, p["w1"], p["b1"]))
        return o.cross_entropy(o.linear(h, p["w2"], p["b2"]), y)

    dense = sum(n * m for n, m in pairwise(sizes))
    products = 2 * 2 * half * (3 * dense - sizes[0] * sizes[1])  # x has no gradient
    return Training(inputs, parameters, loss, products + ADAM * _size(parameters))


@training
def train_digits_cnn() -> Training:
    """Two convolutions, each with pooling, and two dense layers; 128 pictures of 8 x 8."""
    rng, half, maps = np.random.default_rng(15), 64, (1, 16, 32)
    parameters = Arrays()
    for i, (n, m) in enumerate(pairwise(maps)):
        parameters[f"w{i}"] = normal(rng, m, n, 3, 3, scale=(9 * n) ** -0.5)
        parameters[f"b{i}"] = normal(rng, m, scale=0.1)
    for i, (n, m) in enumerate(((128, 64), (64, 10)), 2):
        parameters[f"w{i}"] = normal(rng, m, n, scale=n**-0.5)
        parameters[f"b{i}"] = normal(rng, m, scale=0.1)
    inputs = dict(zip("x", twice(rng.random((half, 1, 8, 8), dtype=F32)), strict=True))
    inputs["y"] = labels(rng, 10, 2 * half)

    def loss(o: Any, p: Any, x: Any, y: Any) -> Any:
        for i in (0, 1):
            x = o.max_pool2x2(o.relu(o.conv3x3(x, p[f"w{i}"], p[f"b{i}"])))
        h = o.relu(o.linear(o.reshape(x, (2 * half, 128)), p["w2"], p["b2"]))
        return o.cross_entropy(o.linear(h, p["w3"], p["b3"]), y)

    first, second = 64 * 9 * maps[0] * maps[1], 16 * 9 * maps[1] * maps[2]
    points = 2 * first + 3 * (second + 128 * 64 + 64 * 10)
    return Training(inputs, parameters, loss, 4 * half * points + ADAM * _size(parameters))


# ---- transformers as in graphs/gpt.py, which learn a text letter by letter


def _gpt(layers: int, d: int, heads: int, s: int, batch: int, letters: int = 96) -> Training:
    """Without a bias of the keys, whose gradient is 0 but for rounding: Adam would make whole steps
    of that, and no two peers the same."""
    rng = np.random.default_rng(16)
    parameters = {"letters": normal(rng, letters, d, scale=0.02)}
    parameters["places"] = normal(rng, s, d, scale=0.02)
    shapes = {"qkv": (3 * d, d), "o": (d, d), "up": (4 * d, d), "down": (d, 4 * d)}
    norms = [f"l{i}.n{k}" for i in range(layers) for k in (1, 2)]
    for i in range(layers):
        for name, shape in shapes.items():
            parameters[f"l{i}.{name}.w"] = normal(rng, *shape, scale=shape[1] ** -0.5)
            if name != "qkv":
                parameters[f"l{i}.{name}.b"] = normal(rng, shape[0], scale=0.02)
    for name in (*norms, "n"):
        parameters |= {f"{name}.w": np.ones(d, F32), f"{name}.b": normal(rng, d, scale=0.02)}
    parameters["head"] = normal(rng, letters, d, scale=d**-0.5)
    inputs = dict(zip("x", twice(labels(rng, letters, batch // 2, s)), strict=True))
    inputs["y"] = labels(rng, letters, batch, s)

    def loss(o: Any, p: Any, x: Any, y: Any) -> Any:
        def norm(h: Any, name: str) -> Any:
            return o.layer_norm(h, p[f"{name}.w"], p[f"{name}.b"], 1e-5)

        def dense(h: Any, name: str) -> Any:
            return o.linear(h, p[f"{name}.w"], p[f"{name}.b"])

        def split(t: Any) -> Any:
            return o.permute(o.reshape(t, (batch, s, heads, d // heads)), (0, 2, 1, 3))

        h = o.take(p["letters"], x) + p["places"]
        for i in range(layers):
            parts = o.thirds(o.linear(norm(h, f"l{i}.n1"), p[f"l{i}.qkv.w"]))
            a = o.attention(*map(split, parts), causal=True)
            h = h + dense(o.reshape(o.permute(a, (0, 2, 1, 3)), (batch, s, d)), f"l{i}.o")
            a = o.gelu_tanh(dense(norm(h, f"l{i}.n2"), f"l{i}.up"))
            h = h + dense(a, f"l{i}.down")
        logits = o.linear(norm(h, "n"), p["head"])
        return o.cross_entropy(o.reshape(logits, (batch * s, letters)), o.reshape(y, (batch * s,)))

    products = sum(v.size for k, v in parameters.items() if v.ndim == 2 and k != "places")
    products -= letters * d  # the table is looked up
    token = 2 * products + layers * (2 * s * d + 7 * heads * s + 18 * 4 * d)
    return Training(inputs, parameters, loss, 3 * batch * s * token + ADAM * _size(parameters))


@training
def train_gpt_2_layers() -> Training:
    """0.4 M parameters, 16 texts of 64 letters."""
    return _gpt(layers=2, d=128, heads=4, s=64, batch=16)


@training
def train_gpt_10m() -> Training:
    """Six layers, 10.8 M parameters, 4 texts of 256 letters."""
    return _gpt(layers=6, d=384, heads=6, s=256, batch=4)


def _size(parameters: Arrays) -> int:
    return sum(p.size for p in parameters.values())
