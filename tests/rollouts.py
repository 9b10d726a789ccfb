"""Steps that are written out one after the other, each of which writes its row of two states."""

from __future__ import annotations

from typing import Any

import numpy as np

from lumc.frontend import Model
from lumc.graph.graph import Graph, Node

STEPS, WIDE = 6, 32
Array = np.ndarray[Any, Any]


def rollout(wide: int = WIDE, start: int = 0) -> Graph:
    """Steps of a policy, written out: each writes its row of two trajectories."""
    g = Model()
    seen, took = g.state("seen", (STEPS + start, wide)), g.state("took", (STEPS + start, wide))
    h, w = g.input("h", (wide,)), g.input("w", (wide, wide))
    for t in range(STEPS):
        a = (h[None] @ w)[0]
        g.update(seen, h * 0.5, (t + start,))
        g.update(took, a + h, (t + start,))
        h = a * 0.1 + h
    g.output("h", h)
    return g.graph()


def drawn(node: Node) -> Array:
    rng = np.random.default_rng(sum(node.name.encode()))
    return rng.standard_normal(node.sizes).astype("f4")
