"""No pass may be worse than linear in the nodes of a model: steps are counted, not timed."""

from __future__ import annotations

import functools
import gc
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
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
from lumc.search import search, translate
from lumc.search.explore import find_regions

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


def steps(work: Callable[[], object]) -> int:
    """Lines of lumc that ``work`` runs, comprehensions and generators included."""
    count = 0

    def line(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def call(frame: FrameType, event: str, _: object) -> Any:
        return line if "/lumc/" in frame.f_code.co_filename else None

    for known in gc.get_objects():  # nothing that a smaller model left
        if isinstance(known, functools._lru_cache_wrapper):
            known.cache_clear()
    before = sys.gettrace()
    sys.settrace(call)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


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
    out["estimate"] = steps(lambda: estimate(space))
    plan = estimate(space)
    out["codegen"] = steps(lambda: generate(plan))
    kernels = [k.kernel for k in plan.kernels.values()]
    out["equations"] = steps(lambda: [equations(k) for k in kernels])
    return out


@pytest.mark.parametrize("times", [1, pytest.param(DEEP, marks=pytest.mark.deep)])
@pytest.mark.parametrize("name", NODES)
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
