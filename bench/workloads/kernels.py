"""Single operations and small blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from workloads.base import F32, Arrays, Workload, nbytes, normal, workload

TANH_SCALE = 0.7978845608028654  # sqrt(2 / pi)

# ---- matrix products


def _matmul(m: int, k: int, n: int, constant: bool = False) -> Workload:
    rng = np.random.default_rng(1)
    a, b = normal(rng, m, k), normal(rng, k, n, scale=k**-0.5)
    cost = (2 * m * k * n, nbytes(a, b), 4 * m * n)
    if constant:
        return Workload({"a": a}, {"b": b}, lambda o, w, a: [a @ w["b"]], *cost)
    return Workload({"a": a, "b": b}, {}, lambda o, w, a, b: [a @ b], *cost)


@workload
def matmul_512() -> Workload:
    return _matmul(512, 512, 512)


@workload
def matmul_1024() -> Workload:
    return _matmul(1024, 1024, 1024)


@workload
def matmul_2048() -> Workload:
    return _matmul(2048, 2048, 2048)


@workload
def matmul_m1() -> Workload:
    return _matmul(1, 4096, 4096, constant=True)


@workload
def matmul_tall() -> Workload:
    return _matmul(128, 768, 3072, constant=True)


# ---- rows and elements


@workload
def softmax_4096x1024() -> Workload:
    x = normal(np.random.default_rng(2), 4096, 1024, scale=3)
    return Workload({"x": x}, {}, lambda o, w, x: [o.softmax(x)], 14 * x.size, x.nbytes, x.nbytes)


@workload
def layernorm_4096x1024() -> Workload:
    rng = np.random.default_rng(3)
    x = normal(rng, 4096, 1024)
    weights = {"g": normal(rng, 1024), "b": normal(rng, 1024)}

    def function(o: Any, w: Any, x: Any) -> list[Any]:
        return [o.layer_norm(x, w["g"], w["b"], 1e-5)]

    return Workload({"x": x}, weights, function, 8 * x.size, x.nbytes, x.nbytes)


@workload
def rmsnorm_4096x1024() -> Workload:
    rng = np.random.default_rng(4)
    x, weights = normal(rng, 4096, 1024), {"g": normal(rng, 1024)}

    def function(o: Any, w: Any, x: Any) -> list[Any]:
        return [o.rms_norm(x, w["g"], 1e-5)]

    return Workload({"x": x}, weights, function, 4 * x.size, x.nbytes, x.nbytes)


def _written_gelu(o: Any, x: Any) -> Any:
    """The tanh form, spelled out in every framework."""
    return x * 0.5 * (1 + o.tanh(TANH_SCALE * (x + 0.044715 * x * x * x)))


@workload
def gelu_chain() -> Workload:
    x = normal(np.random.default_rng(5), 16 << 20)

    def function(o: Any, w: Any, x: Any) -> list[Any]:
        return [_written_gelu(o, x)]

    return Workload({"x": x}, {}, function, 18 * x.size, x.nbytes, x.nbytes)


@workload
def bias_gelu_residual() -> Workload:
    rng = np.random.default_rng(6)
    x, residual, bias = normal(rng, 8192, 1024), normal(rng, 8192, 1024), normal(rng, 1024)

    def function(o: Any, w: Any, x: Any, residual: Any) -> list[Any]:
        return [_written_gelu(o, x + w["b"]) + residual]

    inputs = {"x": x, "residual": residual}
    cost = (20 * x.size, nbytes(x, residual), x.nbytes)
    return Workload(inputs, {"b": bias}, function, *cost)


# ---- blocks


@workload
def mlp() -> Workload:
    rng, t, d, h = np.random.default_rng(7), 128, 768, 3072
    x = normal(rng, t, d)
    weights = {"w1": normal(rng, h, d, scale=d**-0.5), "b1": normal(rng, h)}
    weights |= {"w2": normal(rng, d, h, scale=h**-0.5), "b2": normal(rng, d)}

    def function(o: Any, w: Any, x: Any) -> list[Any]:
        return [o.linear(o.gelu_tanh(o.linear(x, w["w1"], w["b1"])), w["w2"], w["b2"])]

    cost = (4 * t * d * h + 18 * t * h, nbytes(x, *weights.values()), x.nbytes)
    return Workload({"x": x}, weights, function, *cost)


def _attention(h: int, s: int, d: int, fused: bool) -> Workload:
    """Written out, or through the operator that a framework offers for it."""
    rng = np.random.default_rng(8)
    inputs = {n: normal(rng, 1, h, s, d) for n in "qkv"}

    def naive(o: Any, w: Any, q: Any, k: Any, v: Any) -> list[Any]:
        return [o.softmax(q @ o.permute(k, (0, 1, 3, 2)) * d**-0.5) @ v]

    def operator(o: Any, w: Any, q: Any, k: Any, v: Any) -> list[Any]:
        return [o.attention(q, k, v)]

    cost = (4 * h * s * s * d + 14 * h * s * s, nbytes(*inputs.values()), 4 * h * s * d)
    return Workload(inputs, {}, operator if fused else naive, *cost)


@workload
def attention() -> Workload:
    return _attention(12, 512, 64, fused=False)


@workload
def attention_2048() -> Workload:
    return _attention(8, 2048, 64, fused=False)


@workload
def attention_sdpa() -> Workload:
    return _attention(12, 512, 64, fused=True)


@workload
def attention_2048_sdpa() -> Workload:
    return _attention(8, 2048, 64, fused=True)


@workload
def conv3x3() -> Workload:
    rng = np.random.default_rng(9)
    x, weights = normal(rng, 1, 64, 56, 56), {"w": normal(rng, 64, 64, 3, 3, scale=1 / 24)}

    def function(o: Any, w: Any, x: Any) -> list[Any]:
        return [o.conv3x3(x, w["w"])]

    cost = (2 * 64 * 9 * x.size, nbytes(x, weights["w"]), x.nbytes)
    return Workload({"x": x}, weights, function, *cost)


@workload
def resnet_block() -> Workload:
    rng = np.random.default_rng(10)
    x, weights = normal(rng, 1, 64, 56, 56), Arrays()
    for n in "12":
        weights[f"w{n}"] = normal(rng, 64, 64, 3, 3, scale=1 / 24)
        weights |= {f"{k}{n}": normal(rng, 64) for k in ("mean", "scale", "shift")}
        weights[f"variance{n}"] = rng.random(64, dtype=F32) + F32(0.5)

    def function(o: Any, w: Any, x: Any) -> list[Any]:
        def norm(y: Any, n: str) -> Any:
            names = ("mean", "variance", "scale", "shift")
            return o.batch_norm(y, *(w[f"{k}{n}"] for k in names), 1e-5)

        y = o.relu(norm(o.conv3x3(x, w["w1"]), "1"))
        return [o.relu(norm(o.conv3x3(y, w["w2"]), "2") + x)]

    cost = (4 * 64 * 9 * x.size, nbytes(x, *weights.values()), x.nbytes)
    return Workload({"x": x}, weights, function, *cost)
