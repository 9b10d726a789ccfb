"""The samples of training in torch, and both trained on the same batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import numpy as np

import lumc

LEARN = SimpleNamespace(**run_path(str(Path(__file__).parents[1] / "docs" / "demo" / "learn.py")))
Array = np.ndarray[Any, Any]
Weights = Mapping[str, Any]
Batch = tuple[Array, Array]


def rates(steps: int, warm: int) -> list[np.float32]:
    return [np.float32(1e-3 * min(1.0, (s + 1) / warm)) for s in range(steps)]


def ours(
    bundle: lumc.Bundle, first: Mapping[str, Array], batches: Sequence[Batch], warm: int
) -> Array:
    """The losses of a bundle that begins with these weights."""
    bundle.reset()
    bundle.set_state(dict(first))
    names = [i.name for i in bundle.inputs]
    return np.array(
        [
            float(bundle.run(dict(zip(names, (x, y, lr), strict=True)))["loss"])
            for (x, y), lr in zip(batches, rates(len(batches), warm), strict=True)
        ]
    )


def theirs(
    network: Callable[[Any, Weights], Any],
    first: Mapping[str, Array],
    batches: Sequence[Batch],
    warm: int,
    dtype: str,
) -> Array:
    """The losses of torch in "float32" or "float64"."""
    import torch

    kind = getattr(torch, dtype)
    p = {k: torch.tensor(v, dtype=kind, requires_grad=True) for k, v in first.items()}
    optimizer, out = torch.optim.AdamW(p.values(), lr=1.0, weight_decay=0.01), list[float]()
    for (x, y), lr in zip(batches, rates(len(batches), warm), strict=True):
        optimizer.param_groups[0]["lr"] = float(lr)
        read = torch.tensor(x)
        logits = network(read.to(kind) if read.is_floating_point() else read, p)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), torch.tensor(y).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(float(loss.detach()))
    return np.array(out)


# ---- the networks


def dense(x: Any, p: Weights, kink: str = "relu") -> Any:
    import torch

    f = getattr(torch, kink)
    return f(f(x @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


def convolutional(x: Any, p: Weights) -> Any:
    from torch.nn.functional import conv2d, max_pool2d

    h = x.unflatten(-1, (1, 8, 8))
    for i in (0, 1):
        h = max_pool2d(conv2d(h, p[f"w{i}"], p[f"b{i}"], padding=1).relu(), 2)
    return (h.flatten(1) @ p["w2"] + p["b2"]).relu() @ p["w3"] + p["b3"]


def transformer(x: Any, p: Weights) -> Any:
    from torch.nn import functional as f

    g = LEARN.GPT
    h = f.embedding(x, p["letters"]) + p["places"]
    for i in range(g.LAYERS):
        q = {k.removeprefix(f"l{i}."): v for k, v in p.items() if k.startswith(f"l{i}.")}
        a = f.layer_norm(h, (g.WIDTH,), q["n1.w"], q["n1.b"])
        parts = (a @ q["qkv.w"] + q["qkv.b"]).chunk(3, -1)
        split = [t.unflatten(-1, (g.HEADS, -1)).transpose(1, 2) for t in parts]
        a = f.scaled_dot_product_attention(*split, is_causal=True)
        h = h + a.transpose(1, 2).flatten(-2) @ q["o.w"] + q["o.b"]
        a = f.layer_norm(h, (g.WIDTH,), q["n2.w"], q["n2.b"])
        a = f.gelu(a @ q["up.w"] + q["up.b"], approximate="tanh")
        h = h + a @ q["down.w"] + q["down.b"]
    return f.layer_norm(h, (g.WIDTH,), p["n.w"], p["n.b"]) @ p["head"]
