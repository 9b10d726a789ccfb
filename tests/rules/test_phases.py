"""Sums of which one term is left: the law against numpy, and what transposed convolutions cost."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest

from lumc.frontend import Model
from lumc.graph.expr import Expr, add, mod, mul
from lumc.graph.ops import DType
from lumc.kernel.term import binary, guard, load, reduce
from lumc.oracle.term import evaluate_term
from lumc.profile.choose import estimate
from lumc.search import phases, search
from lumc.search.phases import at, pinned
from searching import TARGET, error, oracle, random_inputs, run_plan

KIND = DType.F64
EXTENT = {"r": 3, "x": 7, "k": 4}
RANGES = {a: (0, n - 1) for a, n in EXTENT.items()}


def drawn(seed: int) -> Expr:
    """A product over r with guards that have one of its values, all but for one or none."""
    rng = random.Random(seed)
    index = add(mul("x", rng.choice((1, 2))), mul("r", rng.choice((1, -1, 2))), rng.randint(-3, 3))
    lo = rng.randint(0, 2)
    width = 1 if rng.random() < 0.8 else 2
    inside = mod(index, rng.choice((3, 3, 3, 2)), RANGES)
    factor = guard(inside, lo, lo + width, load("a", KIND, "x", "r"))
    if rng.random() < 0.3:
        factor = reduce("sum", "k", binary("mul", factor, load("c", KIND, "k")))
    if rng.random() < 0.3:
        factor = guard("x", 1, 5, factor)
    value = binary("mul", load("b", KIND, "r"), factor)
    return binary("add", value, load("b", KIND, "r")) if rng.random() < 0.1 else value


def agrees(seed: int) -> bool | None:
    """Whether the one term is the sum; None where the law says nothing."""
    body = drawn(seed)
    only = pinned(body, "r", EXTENT["r"], RANGES)
    if only is None:
        return None
    rng = np.random.default_rng(seed)
    arrays = {"a": rng.normal(size=(7, 3)), "b": rng.normal(size=3), "c": rng.normal(size=4)}
    want, _ = evaluate_term(reduce("sum", "r", body), EXTENT, arrays)
    got, _ = evaluate_term(at(body, "r", only, RANGES), EXTENT, arrays)
    return bool(np.allclose(np.broadcast_to(got, want.shape), want))


def test_law_is_sound() -> None:
    said = [agrees(seed) for seed in range(500)]
    assert False not in said and said.count(True) > 50


@pytest.mark.parametrize("mutant", ["wide guards", "sums count", "sign", "guards stay gone"])
def test_mutants_are_killed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant == "wide guards":
        wide = phases.guards_of
        monkeypatch.setattr(
            phases,
            "guards_of",
            lambda body: (guard(g.kids[0], g.attr[0], g.attr[0] + 1, g) for g in wide(body)),
        )
    elif mutant == "sums count":

        def every(body: Expr) -> list[Expr]:
            todo, out = [body], []
            while todo:
                e = todo.pop()
                todo += e.kids
                out += [e] if e.kind == "guard" else []
            return out

        monkeypatch.setattr(phases, "guards_of", every)
    elif mutant == "sign":
        monkeypatch.setattr(phases, "mod", lambda e, n, ranges: mod(mul(e, -1), n, ranges))
    else:
        monkeypatch.setattr(phases, "_holds", lambda guard, ranges: True)
    assert False in [agrees(seed) for seed in range(500)]


def plan_of(g: Model) -> tuple[float, int]:
    """The error of the plan of a model, and the steps of all its reductions."""
    graph = g.graph()
    plan = estimate(search(graph, TARGET, inside=True))
    inputs = random_inputs(graph, "main")
    want, _ = oracle(graph, "main", inputs)
    got = run_plan(plan, "main", inputs)
    ((name, value),) = plan.outputs["main"]
    kernels = [plan.kernels[s.kernel].kernel for r in plan.regions.values() for s in r.steps]
    steps = sum(
        prod(k.extent[a] for a in s.free | {*(s.attr[1] if s.kind == "red" else s.attr)})
        for k in kernels
        for s in k.stages
    )
    return error(got[value], want[name]), steps


@pytest.mark.parametrize(
    ("size", "stride"), [(2, 2), (4, 2), (6, 3), (3, 3), (3, 2), (5, 3), (2, 3)]
)
def test_transposed_convolutions_multiply_nothing_with_zero(size: int, stride: int) -> None:
    g = Model()
    x = g.input("x", (1, 6, 5, 5))
    w = g.constant(np.random.default_rng(1).normal(size=(6, 4, size, size)).astype("f4"), "w")
    y = x.conv_transpose(w, stride=stride, padding=1)
    g.output("y", y)
    wrong, steps = plan_of(g)
    assert wrong < 1e-12
    taps = (-(-size // stride)) ** 2  # of each result, some of them zeros where phases have fewer
    whole = (-(-int(str(n)) // stride) * stride for n in y.shape[2:])  # phases of the same size
    assert steps == prod(whole) * 4 * 6 * taps


def test_statistics_of_groups_are_computed_once_for_each_group() -> None:
    """Normalised in groups of channels: read at c // 5, stored over the groups."""
    g = Model()
    x = g.input("x", (2, 20, 6, 6))
    parts = x.reshape(2, 4, 5 * 36)
    centred = parts - parts.mean(-1, keepdim=True)
    scale = ((centred * centred).mean(-1, keepdim=True) + 1e-5).sqrt().reciprocal()
    y = (centred * scale).reshape(2, 20, 6, 6) * g.input("g", (20, 1, 1))
    g.output("y", y)
    wrong, steps = plan_of(g)
    assert wrong < 1e-12
    assert steps <= 3 * prod((2, 20, 6, 6))
