"""Random graphs of the frontend: the estimated plan agrees with the oracle."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.graph import Graph
from lumc.profile.choose import estimate
from lumc.search import search
from lumc.search.saturate import Limits
from searching import TARGET, error, oracle, random_inputs, run_plan

GRAPHS = 600 if os.environ.get("LUMC_FUZZ") else 40
SIZES = (1, 2, 3, 4, 6)


def small(x: Tensor) -> Tensor:
    """Within 0 .. 2, so that nothing overflows however deep the graph is."""
    return (x * 0.7).sigmoid() * 2.0 if x.dtype.is_float else x


def step(g: Model, draw: random.Random, known: list[Tensor]) -> Tensor:
    x = draw.choice(known)
    axis = draw.randrange(x.ndim) if x.ndim else 0
    n = x.shape[axis] if x.ndim else 1
    assert isinstance(n, int)
    choices: list[Callable[[], Tensor]] = [
        lambda: x + draw.choice([0.5, -1.0, 3.0]),
        lambda: x * draw.choice([0.5, -1.0, 3.0]),
        lambda: (x * 0.3).exp2(),
        lambda: (x * x + 0.1).sqrt(),
        lambda: (x * x + 0.5).reciprocal(),
        lambda: x.sin(),
        lambda: x.relu(),
        lambda: x.where(x > 0.6, -1.0),
        lambda: x.to("f64").to("f32") * 2.0,
    ]
    same = [y for y in known if y.shape == x.shape]
    choices += [lambda: x + draw.choice(same), lambda: x * draw.choice(same)] * 2
    choices += [lambda: x.where(x < draw.choice(same), draw.choice(same))]
    if x.ndim:
        choices += [
            lambda: x.sum(axis, keepdim=draw.random() < 0.5),
            lambda: x.max(axis, keepdim=draw.random() < 0.5),
            lambda: x * x.sum(axis, keepdim=True),
            lambda: x - x.max(axis, keepdim=True),
            lambda: x.softmax(axis),
            lambda: x.flip(axis),
            lambda: x.slice(axis, n // 2, n),
            lambda: x.flatten(),
            lambda: x.transpose() if x.ndim > 1 else x.unsqueeze(0),
            lambda: x.repeat_interleave(2, axis) if n < 4 else x,
            lambda: x.unfold(axis, max(n // 2, 1), 1),
            lambda: x.pad([(0, 0)] * axis + [(1, 2)] + [(0, 0)] * (x.ndim - axis - 1)),
            lambda: x.index_select(axis, g.input(f"ids{len(known)}", (3,), "i64"), wrap=True),
            lambda: x.cumsum(axis),
        ]
    if x.ndim >= 2:
        fits = [y for y in known if y.ndim == 2 and y.shape[0] == x.shape[-1]]
        choices += [lambda: x @ draw.choice(fits)] * (4 if fits else 0)
        choices += [lambda: x @ x.transpose()] * 2
        choices += [lambda: (x @ x.transpose()).softmax(-1) @ x] * 2
    return draw.choice(choices)()


def random_graph(seed: int) -> Graph:
    draw = random.Random(seed)
    g = Model()
    known = [
        g.input(f"x{i}", [draw.choice(SIZES) for _ in range(draw.randrange(1, 4))])
        for i in range(3)
    ]
    for _ in range(draw.randrange(3, 9)):
        y = step(g, draw, known)
        if y.ndim <= 4 and all(isinstance(e, int) and e < 40 for e in y.shape):
            known.append(small(y) if draw.random() < 0.5 else y)
    for i in range(draw.randrange(1, 3)):
        g.output(f"y{i}", known[-1 - i])
    return g.graph()


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_random_graph(seed: int) -> None:
    graph = random_graph(seed)
    plan = estimate(search(graph, TARGET, Limits(nodes=1500), inside=True))
    inputs = random_inputs(graph, "main", seed)
    want, _ = oracle(graph, "main", inputs)
    got = run_plan(plan, "main", inputs)
    for name, value in plan.outputs["main"]:
        assert error(got[value], want[name]) < 1e-9, name
