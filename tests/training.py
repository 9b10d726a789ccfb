"""A training step as a graph, written out by hand: a network of dense layers, cross entropy, AdamW
as torch has it, weights as states with values of their own."""

from __future__ import annotations

from itertools import pairwise
from math import log2
from typing import Any

import numpy as np

from lumc.frontend import Model

BETA1, BETA2, EPS, DECAY = 0.9, 0.999, 1e-8, 0.01
Array = np.ndarray[Any, Any]


def parameters(sizes: list[int], seed: int = 0) -> dict[str, Array]:
    """As torch.nn.Linear begins: uniform within 1 / sqrt of what a layer reads."""
    rng, out = np.random.default_rng(seed), dict[str, Array]()
    for i, (n, k) in enumerate(pairwise(sizes)):
        out[f"w{i}"] = (rng.uniform(-1, 1, (k, n)) * n**-0.5).astype(np.float32)
        out[f"b{i}"] = (rng.uniform(-1, 1, k) * n**-0.5).astype(np.float32)
    return out


def step(sizes: list[int], batch: int, first: dict[str, Array] | None = None) -> Model:
    """Inputs x f32[batch, n], y i64[batch], lr f32[]; output loss f32[]."""
    g = Model()
    values = first or {}
    x = g.input("x", (batch, sizes[0]))
    y, lr = g.input("y", (batch,), "i64", values=(0, sizes[-1] - 1)), g.input("lr", ())
    params, read, hidden = list[Any](), list[Any](), x
    for i, (n, k) in enumerate(pairwise(sizes)):
        w = g.state(f"w{i}", (k, n), value=values.get(f"w{i}"))
        b = g.state(f"b{i}", (k,), value=values.get(f"b{i}"))
        params.append((w, b))
        read.append(hidden)
        hidden = hidden @ w.T + b
        if i < len(sizes) - 2:
            hidden = hidden.relu()
    log = hidden.log_softmax(-1)
    hot = (g.arange(sizes[-1])[None] == y[:, None]).to("f32")
    g.output("loss", -(log * hot).sum() * (1.0 / batch))
    back, grads = (log.exp() - hot) * (1.0 / batch), dict[str, Any]()
    for i in reversed(range(len(params))):
        grads[f"w{i}"], grads[f"b{i}"] = back.T @ read[i], back.sum(0)
        if i:
            back = (back @ params[i][0]) * (read[i] > 0).to("f32")
    t = g.state("t", ())
    t1 = t + 1.0
    c1, c2 = (1.0 / (1.0 - (t1 * log2(b)).exp2()) for b in (BETA1, BETA2))
    for i, pair in enumerate(params):
        for name, p in zip((f"w{i}", f"b{i}"), pair, strict=True):
            m, v = g.state(f"{name}.m", p.shape), g.state(f"{name}.v", p.shape)
            m1 = m * BETA1 + grads[name] * (1 - BETA1)
            v1 = v * BETA2 + grads[name] * grads[name] * (1 - BETA2)
            move = (m1 * c1) / ((v1 * c2).sqrt() + EPS)
            g.update(p, p * (1.0 - lr * DECAY) - move * lr)
            g.update(m, m1)
            g.update(v, v1)
    g.update(t, t1)
    return g


def reference(
    sizes: list[int], first: dict[str, Array], batches: list[tuple[Array, Array, float]]
) -> tuple[list[float], dict[str, Array]]:
    """The losses of torch in float64, and the parameters after the last step."""
    import torch

    depth = len(sizes) - 1
    params = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in first.items()}
    optimizer = torch.optim.AdamW(params.values(), lr=1.0, eps=EPS, weight_decay=DECAY)
    losses = []
    for x, y, lr in batches:
        for group in optimizer.param_groups:
            group["lr"] = float(lr)
        h = torch.tensor(x, dtype=torch.float64)
        for i in range(depth):
            h = h @ params[f"w{i}"].T + params[f"b{i}"]
            h = torch.relu(h) if i < depth - 1 else h
        loss = torch.nn.functional.cross_entropy(h, torch.tensor(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, {k: p.detach().numpy() for k, p in params.items()}
