"""The law of partial sums: the same, computed once. Against numpy in f64, and mutants die."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from unittest.mock import patch

import numpy as np
import pytest

from lumc.frontend import Model
from lumc.graph.expr import Expr, axis, subterms
from lumc.graph.graph import Graph
from lumc.graph.ops import DType
from lumc.kernel.term import Buffer, Kernel, Root, binary, load, reduce
from lumc.oracle.term import evaluate_kernel
from lumc.profile.choose import estimate
from lumc.search import partial, search
from lumc.search.cuts import assemble
from searching import TARGET, error, oracle, random_inputs, run_plan

KIND = DType.F64
EXTENT = {"i": 3, "j": 5, "k": 4}
Law = Callable[[Expr], Expr]


def x(*axes: str) -> Expr:
    return load("b0", KIND, *axes)


def kernel(value: Expr, *axes: str) -> Kernel:
    shape = tuple(EXTENT[a] for a in "ijk")
    out = Buffer("out", KIND, tuple(EXTENT[a] for a in axes))
    root = Root("out", tuple(map(axis, axes)), value)
    return assemble("sums", axes, (root,), EXTENT, (Buffer("b0", KIND, shape),), (out,))


def values_of(value: Expr) -> np.ndarray:
    data = np.random.default_rng(3).uniform(-2, 2, [EXTENT[a] for a in "ijk"])
    return evaluate_kernel(kernel(value, "i"), {"b0": data})["out"]


ROW = reduce("sum", "k", x("i", "j", "k"))  # of one row, in a sum over all of them
CASES = {
    "sum": binary("mul", reduce("sum", "j k", x("i", "j", "k")), reduce("max", "j", ROW)),
    "max": binary(
        "add",
        reduce("max", "j k", x("i", "j", "k")),
        reduce("sum", "j", reduce("max", "k", x("i", "j", "k"))),
    ),
    "other": binary("add", reduce("max", "j k", x("i", "j", "k")), reduce("max", "j", ROW)),
}


def is_sound(law: Law, name: str) -> bool:
    return bool(np.allclose(values_of(law(CASES[name])), values_of(CASES[name]), rtol=1e-12))


@pytest.mark.parametrize("name", CASES)
def test_law_is_sound(name: str) -> None:
    assert is_sound(partial.with_partial_sums, name)


def test_parts_that_are_values_are_inside() -> None:
    def wide(value: Expr) -> list[Expr]:
        return [e for e in subterms(value) if e.kind == "red" and len(e.attr[1]) > 1]

    for name in ("sum", "max"):
        assert wide(CASES[name]) and not wide(partial.with_partial_sums(CASES[name]))
    assert partial.with_partial_sums(CASES["other"]) is CASES["other"]  # no maximum of sums


def outer_sums(op: str, axes: Sequence[str], e: Expr) -> Expr:
    """A mutant of ``reduce``: over a reduction it is a sum."""
    return reduce("sum" if e.kind == "red" else op, axes, e)


def test_mutants_are_killed() -> None:
    with patch.object(partial, "reduce", outer_sums):
        assert not is_sound(partial.with_partial_sums, "max")


def normalized_depthwise(channels: int, size: int) -> Graph:
    """A depthwise convolution and the layer norm of its channels."""
    g = Model()
    rng = np.random.default_rng(1)
    a = g.input("x", (1, channels, size, size))
    w = g.constant(rng.normal(size=(channels, 1, 3, 3)).astype("f4"), "w")
    y = a.conv2d(w, padding=1, groups=channels).permute(0, 2, 3, 1)
    g.output("y", y.layer_norm(-1))
    return g.graph()


@pytest.mark.parametrize(("channels", "size"), [(64, 7), (33, 5)])
def test_a_convolution_under_a_norm_is_computed_once(channels: int, size: int) -> None:
    graph = normalized_depthwise(channels, size)
    space = search(graph, TARGET, inside=True)
    plan = estimate(space)
    taps = [
        prod(k.kernel.extent[a] for a in (*e.attr[1], *e.free))
        for k in plan.kernels.values()
        for e in subterms(*(r.value for r in k.kernel.roots))
        if e.kind == "red" and 3 in (k.kernel.extent[a] for a in e.attr[1])
    ]
    assert taps == [channels * size * size * 9]
    inputs = random_inputs(graph, "main")
    want, _ = oracle(graph, "main", inputs)
    got = run_plan(plan, "main", inputs)
    assert error(got[plan.outputs["main"][0][1]], want["y"]) < 1e-12
