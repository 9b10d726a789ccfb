"""Graphs with long reductions and little else to do side by side."""

from __future__ import annotations

from dataclasses import replace

from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.graph import Graph
from lumc.kernel.target import Target
from lumc.profile.choose import estimate
from lumc.report.derivation import variant_of
from lumc.search import search
from lumc.search.saturate import Limits
from zoo import build


def total(n: int) -> Graph:
    return build(lambda g: g.input("real_x", (n,)).sum())


def product(m: int, k: int, n: int, dtype: str = "f32") -> Graph:
    return build(lambda g: g.input("real_x", (m, k), dtype) @ g.input("real_w", (k, n), dtype))


def softmax(m: int, n: int) -> Graph:
    return build(lambda g: g.input("real_x", (m, n)).softmax(-1))


def decode(heads: int, keys: int, d: int, dtype: str = "f32") -> Graph:
    """One query beside many keys, with a mask."""

    def write(g: Model) -> Tensor:
        q = g.input("real_q", (heads, 1, d), dtype)
        k, v = (g.input(f"real_{name}", (heads, keys, d), dtype) for name in "kv")
        scores = (q @ k.transpose(-1, -2)) * d**-0.5 + g.input("real_mask", (1, keys), dtype)
        return scores.softmax(-1) @ v

    return build(write)


def transposed(channels: int, at: int, size: int, stride: int, dtype: str = "f32") -> Graph:
    """A transposed convolution of an image of at x at."""

    def write(g: Model) -> Tensor:
        x = g.input("real_x", (1, channels, at, at), dtype)
        w = g.input("real_w", (channels, 6, size, size), dtype)
        return x.conv_transpose(w, stride=stride, padding=1)

    return build(write)


def slow(target: Target, processors: int = 24) -> Target:
    """A target on which short reductions take long, so that tests need no large ones."""
    gpu = replace(target.gpu, processors=processors) if target.gpu else None
    return replace(target, bandwidth=target.bandwidth / 2e4, gflops=target.gflops / 2e4, gpu=gpu)


def laws(graph: Graph, target: Target, limits: Limits | None = None) -> list[str]:
    """Those that split kernels of the chosen program."""
    space = search(graph, target, limits, inside=True)
    plan, (region,) = estimate(space), space.regions
    variant, found = variant_of(region, plan.regions[region.key], target)
    assert variant is not None
    return found
