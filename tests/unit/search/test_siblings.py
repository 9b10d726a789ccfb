"""Kernels side by side: which instances may be joined, when they are, and what comes out."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from differential import Case, check_compiled, check_emulated
from kernels import native
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph
from lumc.kernel.inside import require_inside
from lumc.kernel.machines import CPUS, resolve_target
from lumc.kernel.target import Target
from lumc.profile.choose import estimate
from lumc.schedule.plan import Plan
from lumc.search import search
from lumc.search.siblings import families
from steps import steps

CUDA, METAL = resolve_target("cuda:sm_90"), resolve_target("metal:apple7")
CPU = CPUS["x86-64-v3"]
Writer = dict[str, Tensor]


def written(results: Writer, g: Model) -> Graph:
    for name, value in results.items():
        g.output(name, value)
    return g.graph()


def projections(m: int, k: int, *widths: int, layers: int = 1, dtype: str = "f32") -> Graph:
    """Products of one input with weights, and their sum as the input of the next layer."""
    g = Model()
    x, out = g.input("real_x", (m, k), dtype), dict[str, Tensor]()
    for layer in range(layers):
        last = {}
        for i, n in enumerate(widths):
            name = f"{'qkvo'[i]}{layer}"
            last[name] = x @ g.input(f"real_w{name}", (k, n), dtype) + g.input(
                f"real_b{name}", (n,), dtype
            )
        out |= last
        if layer + 1 < layers:
            a, b, *_ = last.values()
            x = ((a + b).sin() @ g.input(f"real_u{layer}", (widths[0], k))).sin()
    return written(out, g)


def apart() -> Graph:
    """Products of as many elements that have nothing in common."""
    g = Model()
    return written(
        {n: g.input(f"real_x{n}", (16, 24)) @ g.input(f"real_w{n}", (24, 16)) for n in "ab"}, g
    )


def chain(length: int = 3) -> Graph:
    """Products of the same weight, of which each needs the one before."""
    g = Model()
    x, w = g.input("real_x", (16, 16)), g.input("real_w", (16, 16))
    results = accumulate(range(length), lambda last, _: last @ w, initial=x)
    return written({f"y{i}": y for i, y in enumerate(results) if i}, g)


def late() -> Graph:
    """The second reader of x needs a value that comes after the first."""
    g = Model()
    x = g.input("real_x", (16, 16))
    a = x @ g.input("real_w", (16, 16))
    return written({"a": a, "b": x @ (a @ g.input("real_u", (16, 16)))}, g)


def turned() -> Graph:
    """A result that lies the other way round, and a map."""
    g = Model()
    x, v, w = g.input("real_x", (9, 20)), g.input("real_v", (20, 7)), g.input("real_w", (20, 7))
    return written({"a": x @ v, "b": (x @ w).transpose(0, 1) * 2.0, "c": x.sum(1) + 1.0}, g)


def statistics(m: int, n: int) -> Graph:
    """Several values of every row."""
    g = Model()
    x = g.input("real_x", (m, n))
    return written({"sum": x.sum(1), "most": x.max(1), "squares": (x * x).sum(1)}, g)


def cached() -> Graph:
    """Two states, each with its own update, from what is projected of one input."""
    g = Model()
    x = g.input("real_x", (1, 12))
    for name in "kv":
        cache = g.state(f"real_{name}_cache", (5, 8))
        new = x @ g.input(f"real_w{name}", (12, 8))
        g.output(f"{name}_seen", cache.sum(0) + new.sum(0))
        g.update(cache, new, (slice(2, 3), slice(None)))
    return g.graph()


def planned(graph: Graph, target: Target) -> Plan:
    return estimate(search(graph, target, inside=True))


def joints(plan: Plan) -> list[tuple[int, int]]:
    """Of every joint region: its results, its launches."""
    return [
        (len(i.outputs), len(plan.regions[i.region].steps))
        for i in plan.instances
        if len(i.outputs) > 1
    ]


@pytest.mark.parametrize(
    ("graph", "want"),
    [
        (projections(128, 384, 384, 384, 384), [3]),
        (projections(128, 384, 384, 128, 128), [2]),
        (projections(16, 24, 16, 16, layers=2), [2, 2]),
        (projections(16, 24, 8, 8, 8, 8), [4]),
        (apart(), []),
        (chain(), []),
        (late(), []),
        (turned(), [2]),
        (cached(), [2]),
    ],
)
def test_families(graph: Graph, want: list[int]) -> None:
    """Instances that read a common value, when none needs another."""
    found = families(search(graph, CUDA, inside=True))
    assert [len(places) for _, places in found] == want


def test_a_value_that_is_seen_in_two_shapes_is_not_shared() -> None:
    """A sum over all of it as one axis, and one over its rows."""
    text = """lumc graph 1
input whole_w f32[5, 9]
input whole_v f32[4, 45]
t f32[i:4, j:45] = mul whole_w[j // 9, j % 9], whole_v[i, j]
y f32[i:4] = sum j:45 of t[i, j]
u f32[i:4, k:9] = mul whole_w[i, k], whole_v[i, k]
z f32[i:4] = sum k:9 of u[i, k]
output y = y
output z = z
"""
    plan = planned(parse_graph(text), CUDA)
    for k in plan.kernels.values():
        require_inside(k.kernel)


def test_many_readers_of_a_value_that_wait_for_each_other() -> None:
    """Each is looked at when it may run, not whenever another one may."""
    few, many = (search(chain(n), CUDA, inside=True) for n in (100, 200))
    assert steps(lambda: families(many)) < 2.3 * steps(lambda: families(few))


def test_equal_families_are_one_joint_region() -> None:
    plan = planned(projections(16, 24, 16, 16, layers=3), CUDA)
    assert joints(plan) == [(2, 1)] * 3
    assert len({i.region for i in plan.instances if len(i.outputs) > 1}) == 1
    assert {i.region for i in plan.instances} == set(plan.regions)


@pytest.mark.parametrize("target", [CUDA, METAL], ids=lambda t: t.kind)
def test_what_is_fused_on_gpus(target: Target) -> None:
    assert joints(planned(projections(128, 384, 384, 384, 384), target)) == [(3, 1)]
    assert joints(planned(apart(), target)) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_fused_on_cpus(threads: int) -> None:
    """A launch costs next to nothing there, and what is in the cache may be read again."""
    target = replace(CPU, threads=threads)
    assert joints(planned(projections(128, 384, 384, 384, 384), target)) == []
    assert joints(planned(projections(6, 16, 16, 16, 16), target)) == []
    assert joints(planned(statistics(64, 100), target)) == []
    assert joints(planned(statistics(4000, 3000), target)) == [(3, 1)]


def test_fusing_is_deterministic() -> None:
    graph = projections(16, 24, 16, 16, layers=2)
    assert planned(graph, CUDA) == planned(graph, CUDA)


GRAPHS = {
    "projections": projections(33, 20, 17, 17, 17, layers=2),
    "halves": projections(32, 32, 32, 32, dtype="f16"),
    "turned": turned(),
    "cached": cached(),
    "statistics": statistics(9, 70),
    "rows": projections(1, 24, 40, 40, 40, 40),
}


def cases(target: Target, *names: str) -> list[Case]:
    """Everything is small here: launches are what it takes, or what a small cache cannot hold."""
    made = [Case(GRAPHS[name], target=target) for name in names]
    for case in made:
        case.prepare()
        assert case.plan
        assert any(steps == 1 for _, steps in joints(case.plan))
        case.check_plan()
    return made


def test_fused_on_this_machine(tmp_path: Path) -> None:
    target = replace(native(), bandwidth=native().bandwidth / 1e4, l2=1024)
    made = cases(target, "statistics")
    check_compiled(tmp_path, made, [c.plan for c in made if c.plan])


@pytest.mark.parametrize("target", [CUDA, METAL], ids=lambda t: t.kind)
def test_fused_on_gpus(target: Target, tmp_path: Path) -> None:
    check_emulated(tmp_path, cases(target, *GRAPHS), checked=True)
