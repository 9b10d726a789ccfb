"""Frontend functions on arrays: build a graph of one call, evaluate it with the oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lumc.frontend import Model, Tensor
from lumc.graph.bind import bind_dims
from lumc.graph.dim import Extent
from lumc.graph.graph import Graph
from lumc.graph.verify import verify_graph
from lumc.oracle.graph import evaluate

Array = np.ndarray[Any, Any]


def inputs_of(g: Model, arrays: tuple[Array, ...]) -> list[Tensor]:
    return [g.input(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate(arrays)]


def results(
    g: Model, *arrays: Array, declared: bool = False, dims: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """All outputs of the only entry; inputs by position."""
    graph: Graph = g.graph()
    verify_graph(graph)
    graph = bind_dims(graph, dims) if dims else graph
    entry = graph.entries[0]
    given = dict(zip([n.name for n in entry.inputs], arrays, strict=True))
    return evaluate(graph, entry.name, given, g.read_weight, declared=declared)[0]


def apply(function: Callable[..., Tensor], *arrays: Array, declared: bool = False) -> Array:
    """``function`` of tensors that hold the arrays, as an array."""
    g = Model()
    g.output("y", function(*inputs_of(g, arrays)))
    return results(g, *arrays, declared=declared)["y"]


def apply_symbolic(
    function: Callable[..., Tensor], shapes: list[tuple[Extent, ...]], *arrays: Array
) -> Array:
    """As ``apply``, built over symbolic dims ("s" or ("s", 2, 9)) that are bound afterwards."""
    g, dims = Model(), dict[str, int]()
    tensors = list[Tensor]()
    for i, (shape, a) in enumerate(zip(shapes, arrays, strict=True)):
        extents = list[Extent]()
        for e, n in zip(shape, a.shape, strict=True):
            if isinstance(e, str):
                dims[e] = n
                extents.append(g.dim(e, 2, 16) if e not in g.dims else _dim(e))
            else:
                extents.append(e)
        tensors.append(g.input(f"x{i}", extents, a.dtype.name))
    g.output("y", function(*tensors))
    return results(g, *arrays, dims=dims)["y"]


def _dim(name: str) -> Extent:
    from lumc.graph.expr import dim

    return dim(name)
