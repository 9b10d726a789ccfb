"""Functions of few values that are read often are regions of their own, computed once in a run."""

from __future__ import annotations

import numpy as np

from lumc.frontend.api.model import Model
from lumc.frontend.api.nn import Random, Scope, linear, rotary, rotary_tables
from lumc.frontend.api.tensor import Tensor
from lumc.graph.dim import Extent
from lumc.graph.ops import Op
from lumc.search.regions import partition

TURNS = 100.0 ** (-np.arange(0, 8, 2) / 8)


def stored(model: Model) -> list[tuple[Op | str, tuple[int, ...]]]:
    (entry,) = model.graph().entries
    return [(n.op, n.sizes) for n in partition(entry)]


def turned(
    model: Model, positions: Tensor, s: Extent, layers: int
) -> list[tuple[Op | str, tuple[int, ...]]]:
    w = Scope(model, Random(np.random.default_rng(0)))
    x = model.input("x", (s, 32))
    cos, sin = rotary_tables(model, positions, TURNS)
    for i in range(layers):
        h = rotary(
            linear(w / f"w{i}", x, 32, False).unflatten(-1, (4, 8)).transpose(0, 1), cos, sin
        )
        x = x + h.transpose(0, 1).flatten(-2)
    model.output("y", x)
    return stored(model)


def test_angles_of_positions_are_computed_once() -> None:
    for layers in (1, 3):
        g = Model()
        s = g.dim("s", 1, 64)
        assert turned(g, g.arange(s), s, layers)[:2] == [(Op.ADD, (64, 4)), (Op.SIN, (64, 4))]


def test_also_where_positions_are_an_input_or_one_dim() -> None:
    g = Model()
    assert turned(g, g.input("at", (16,), "i64"), 16, 2)[:2] == [
        (Op.ADD, (16, 4)),
        (Op.SIN, (16, 4)),
    ]
    g = Model()
    p = g.dim("p", 0, 30)
    assert turned(g, g.size(p, "i64").reshape(1), 1, 2)[:2] == [(Op.ADD, (4,)), (Op.SIN, (4,))]


def test_functions_of_what_is_as_large_stay_where_they_are() -> None:
    """Of an input, of scores; and a function that is read once."""
    g = Model()
    x, w = g.input("x", (16, 32)), g.input("w", (32, 24))
    g.output("y", x.exp2() @ w)
    assert len(stored(g)) == 1
    g = Model()
    x, w = g.input("x", (16, 32)), g.input("w", (32, 24))
    g.output("y", x.softmax(-1) @ w)
    assert len(stored(g)) == 1
    g = Model()
    g.output("y", g.input("x", (64,)) + g.arange(64).to("f32").sin())
    assert len(stored(g)) == 1
