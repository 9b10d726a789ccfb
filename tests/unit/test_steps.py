"""No pass may be worse than linear in the nodes of a model: steps are counted, not timed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from lumc.artifacts import files
from lumc.codegen.generate import generate
from lumc.frontend import Model
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph, print_graph
from lumc.kernel.machines import resolve_target
from lumc.profile.choose import estimate
from lumc.report.words import equations
from lumc.schedule.plan import Plan
from lumc.search import search, translate
from lumc.search.explore import find_regions
from steps import steps

ROOT = Path(__file__).parents[2]
TARGET = resolve_target("cpu:x86-64-v3")
MOST = 2.3  # times the steps for twice the nodes
NODES = {"chain": 250, "slices": 250, "nested": 400, "layers": 50}  # several full regions
DEEP = 4  # times as many


def _bench(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "bench" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


made = _bench("compile_time").made


def _graph(name: str, nodes: int, folder: Path) -> Graph:
    made(name, nodes).save(folder / "model.lg")
    return files.read_graph(str(folder / "model.lg"), {})


def of_passes(graph: Graph) -> dict[str, int]:
    """The steps of every pass that runs in this process, in order."""
    out = {"print": steps(lambda: print_graph(graph))}
    said = print_graph(graph)
    out["parse"] = steps(lambda: parse_graph(said))
    out["regions"] = steps(lambda: [find_regions(e) for e in graph.entries])
    space = search(graph, TARGET)
    plans = list[Plan]()
    out["estimate"] = steps(lambda: plans.append(estimate(space)))
    (plan,) = plans
    out["codegen"] = steps(lambda: generate(plan))
    kernels = [k.kernel for k in plan.kernels.values()]
    out["equations"] = steps(lambda: [equations(k) for k in kernels])
    return out


@pytest.mark.parametrize("times", [1, pytest.param(DEEP, marks=pytest.mark.deep)])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.deep if n == "nested" else ()) for n in NODES]
)
def test_twice_the_nodes_take_twice_the_steps(
    name: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translate, "MAX_VIEWS", 8)  # many regions of few nodes
    nodes = times * NODES[name]
    few, many = (of_passes(_graph(name, n, tmp_path)) for n in (nodes, 2 * nodes))
    grown = {k: round(many[k] / few[k], 2) for k in few}
    assert max(grown.values()) <= MOST, grown


def test_views_of_views_do_not_multiply() -> None:
    """Reshapes whose sizes do not divide, read through each other or through values."""
    shapes = ((30, 42), (42, 30), (28, 45), (35, 36))

    def walked(count: int, value: bool) -> int:
        g = Model()
        x = g.input("x", shapes[0])
        for i in range(count):
            x = x.reshape(shapes[i % 4]).transpose(0, 1)
            x = x.sin() if value else x
        g.output("y", x * 1.5)
        return steps(lambda: [find_regions(e) for e in g.graph().entries])

    for value in (False, True):
        few, many = walked(32, value), walked(64, value)
        assert many <= MOST * few, (few, many)
