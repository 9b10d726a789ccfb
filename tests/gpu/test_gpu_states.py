"""Updates on both emulators: rows of states as arguments of one kernel, values that live in their
state, and copies where a value is made of the state, which only CPUs do in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpu_launching
import launching
from lumc.codegen.generate import generate, launched
from lumc.graph.graph import Graph, Node
from lumc.graph.text import parse_graph
from lumc.kernel.instance import elements_of
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from lumc.oracle.graph import evaluate
from lumc.profile.choose import estimate
from lumc.search import search
from rollouts import STEPS, rollout
from searching import error
from training import step

TARGETS = [resolve_target("cuda:sm_90"), resolve_target("metal:apple7")]
by_target = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.kind)
MOVED = """lumc graph 1
state s f32[6, 8]
state r f32[6, 8]
input x f32[6, 8]
v f32[i:6, j:8] = add x[i, j], 1.0
q f32[i:6] = max j:8 of v[i, j]
u f32[i:6, j:8] = mul r[i, j], q[i]
p f32[] = max k:48 of u[k // 8, k % 8]
output p = p
update s[i, j] = v[i, j]
update r[i, j] = u[i, j]
"""


def drawn(node: Node) -> np.ndarray:
    rng = np.random.default_rng(sum(node.name.encode()))
    if node.dtype.is_int:
        return rng.integers(0, 9, node.sizes)
    return rng.uniform(0.5, 1.5, node.sizes).astype("f4")


def wrong(graph: Graph, target: Target, folder: Path, order: str) -> list[str]:
    """What differs from the oracle after two runs."""
    code = generate(estimate(search(graph, target, inside=True)))
    kernels = gpu_launching.module(folder, [code], checked=True)
    m = launching.Memory(code, code.entries[0], drawn, 1)
    inputs = {n.name: drawn(n) for n in graph.entries[0].inputs}
    states, outputs = {s.name: drawn(s) for s in graph.states}, dict[str, np.ndarray]()
    got = dict[str, np.ndarray]()
    for _ in range(2):
        got = gpu_launching.launched(kernels, "g0_", code, code.entries[0], m, order)
        outputs, states = evaluate(graph, "main", inputs, drawn, states)
    return [n for n, want in {**outputs, **states}.items() if error(got[n], want) > 1e-5]


@by_target
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_rows_of_states(target: Target, order: str, built: Path) -> None:
    graph = rollout()
    assert wrong(graph, target, built, order) == []
    code = generate(estimate(search(graph, target, inside=True)))
    slabs = {v.name for v in code.entries[0].values if v.place == "state" and elements_of(v.name)}
    assert len(slabs) >= 2 * (STEPS - 2)


@by_target
def test_values_that_live_in_states(target: Target, built: Path) -> None:
    graph = parse_graph(MOVED)
    assert wrong(graph, target, built, "random") == []
    plan = estimate(search(graph, target, inside=True))
    written = [x.args[-1] for x in launched(plan, graph.entries[0])]
    assert written.count("s") == 1 and "v" not in written  # made of no state: in place
    assert "u" in written and written.count("r") == 1  # made of itself: copied


@by_target
def test_a_step_of_training(target: Target, built: Path) -> None:
    assert wrong(step([6, 16, 10], 8).graph(), target, built, "reverse") == []
