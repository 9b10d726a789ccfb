"""Reduced precision as a choice: what is stored in less, and what is multiplied in less."""

from __future__ import annotations

from dataclasses import dataclass

from lumc.frontend.activations import quantise_activations
from lumc.frontend.storage import BLOCK as BLOCK
from lumc.frontend.storage import store_less
from lumc.graph.graph import Graph


@dataclass(frozen=True)
class Precision:
    """``dtype`` is bf16 or f16, ``weights`` q8, ``activations`` i8."""

    dtype: str | None = None
    weights: str | None = None
    activations: str | None = None


def reduce_precision(graph: Graph, wanted: Precision) -> Graph:
    """The graph with these choices; applying it again changes nothing."""
    graph = store_less(graph, wanted.dtype, wanted.weights)
    return quantise_activations(graph) if wanted.activations else graph
