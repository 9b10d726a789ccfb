"""The states that ``verify`` starts from, and what a run left of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np

from lumc.command.arrays import Arrays
from lumc.graph.graph import Graph, Node
from lumc.graph.ops import DType, to_bf16

SIGN = np.uint16(0x7FFF)  # all bits of a bf16 but its sign


def start_states(states: Sequence[Node], given: Mapping[str, np.ndarray], seed: int) -> Arrays:
    """What is given, and random values for the rest, of the size that weights and what is learned
    of them have: an error that comes with the values of a state would not show with zeros."""
    rng = np.random.default_rng((seed, 1))
    drawn = {s.name: _draw(s, rng) for s in states}
    return drawn | dict(given)


def _draw(state: Node, rng: np.random.Generator) -> np.ndarray:
    shape = state.sizes
    if state.dtype is DType.BOOL or state.dtype.is_int:  # a count and a place may be 0 and 1
        return rng.integers(0, 2, shape).astype(state.dtype.numpy)
    values = np.asarray(rng.standard_normal(shape) / sqrt(max(shape, default=1) or 1))
    return to_bf16(values) if state.dtype is DType.BF16 else values.astype(state.dtype.numpy)


def without_signs(states: Sequence[Node], values: Mapping[str, np.ndarray]) -> Arrays:
    """Their absolute values: sums of squares have a root."""
    bits = {s.name for s in states if s.dtype is DType.BF16}
    return {
        name: value & SIGN if name in bits else value if value.dtype == bool else np.abs(value)
        for name, value in values.items()
    }


def are_finite(*every: Mapping[str, np.ndarray]) -> bool:
    return all(bool(np.isfinite(v).all()) for values in every for v in values.values())


def left(
    graph: Graph, entry: str, start: Arrays, after: Arrays, want: Mapping[str, np.ndarray]
) -> tuple[Arrays, Arrays]:
    """Under titles beside those of outputs: of the states that an entry updates, and of others that
    a run changed, what they are and what they should be."""
    written = {u.state.name for u in graph.entry(entry).writes}
    changed = {n for n in start if start[n].tobytes() != after[n].tobytes()}
    names = [s.name for s in graph.states if s.name in written | changed]
    return {title(n): after[n] for n in names}, {title(n): want[n] for n in names}


def title(state: str) -> str:
    """What a state is called where outputs have names too."""
    return f"state {state}"
