"""Updates of one row of a state after the other: one kernel on several slabs of it, in every form
that code takes, and what a name of a slab may not say."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import launching
import lumc as package
from commands import Lumc
from forging import forge
from kernels import PLAIN, native
from lumc.codegen import slabs
from lumc.codegen.code import Code, Value
from lumc.codegen.generate import generate
from lumc.codegen.tile.verify import verify
from lumc.graph.graph import Graph
from lumc.graph.ops import DType
from lumc.kernel.instance import elements_of, whole_of
from lumc.oracle.graph import evaluate
from lumc.profile.choose import estimate
from lumc.search import search
from rollouts import STEPS, WIDE, drawn, rollout
from searching import error


def coded(graph: Graph) -> Code:
    return generate(estimate(search(graph, replace(native(), threads=2), inside=True)), verify)


def written(code: Code, state: str) -> list[tuple[str, str]]:
    """Kernels and the values in the state that they write."""
    launches = code.entries[0].launches
    return [(x.kernel, x.args[-1]) for x in launches if whole_of(x.args[-1]) == state]


def wrong(folder: Path, graph: Graph, code: Code) -> list[str]:
    lib = ctypes.CDLL(str(launching.library(folder, [code], PLAIN)))
    got = launching.run(lib, "g0_", code, "main", drawn, 3)
    inputs = {n.name: drawn(n) for n in graph.entries[0].inputs}
    states = {s.name: drawn(s) for s in graph.states}
    outputs, after = evaluate(graph, "main", inputs, drawn, states)
    return [n for n, want in {**outputs, **after}.items() if error(got[n], want) > 1e-5]


@pytest.mark.parametrize("start", [0, 3])
def test_rows_are_slabs_of_one_kernel(start: int, tmp_path: Path) -> None:
    graph = rollout(start=start)
    code = coded(graph)
    assert wrong(tmp_path, graph, code) == []
    for state in ("seen", "took"):
        rows = [(k, name) for k, name in written(code, state) if name != state]
        assert len(rows) >= STEPS - 2 and len({k for k, _ in rows}) == 1
        assert len({name for _, name in rows}) == len(rows)
        parts = [elements_of(name) for _, name in rows]
        assert all(part and part.start % WIDE == 0 for part in parts)
    places = {v.name: v.start for v in code.entries[0].values if v.place == "state"}
    assert sorted(places.values())[-1] == (STEPS + start - 1) * WIDE * 4


def test_fewer_kernels_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = rollout()
    with_slabs = len(coded(graph).kernels)
    monkeypatch.setattr(slabs, "_slab", lambda kernel: None)
    assert len(coded(graph).kernels) >= with_slabs + STEPS


def test_rows_that_begin_within_a_line_keep_their_kernels(tmp_path: Path) -> None:
    graph = rollout(wide=9)
    code = coded(graph)
    assert wrong(tmp_path, graph, code) == []
    assert {name for _, name in written(code, "seen")} == {"seen"}


@pytest.mark.parametrize("by", [-1, 1])
def test_a_slab_at_another_place_is_seen(
    by: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, right = rollout(), slabs._slab

    def moved(kernel: Any) -> Any:
        found = right(kernel)
        return found and (found[0], (found[1] + by * WIDE) % (STEPS * WIDE), found[2])

    monkeypatch.setattr(slabs, "_slab", moved)
    assert set(wrong(tmp_path, graph, coded(graph))) & {"seen", "took"}


def test_bundles_python_plain_c_and_bisect_agree(lumc: Lumc) -> None:
    from lumc.graph.text import print_graph

    graph = rollout()
    Path("m.lg").write_text(print_graph(graph))
    lumc("compile", "--estimate", "m.lg", "-o", "m.lb", "--save-temps", ".")
    assert "FAIL" not in lumc("verify", "m.lb", "--threads", "2")
    assert "every launch computes what it should" in lumc("verify", "m.lb", "--bisect")
    inputs = {n.name: drawn(n) for n in graph.entries[0].inputs}
    zeros = {s.name: np.zeros(s.sizes, "f4") for s in graph.states}
    _, want = evaluate(graph, "main", inputs, drawn, zeros)
    with package.load("m.lb") as bundle:
        bundle.run(inputs)
        assert all(error(bundle.state()[n], want[n]) < 1e-5 for n in want)
    lumc("link", "m.lk", "--emit", "c", "-o", "net")
    text = Path("net/src/net.c").read_text()
    assert f"states + {5 * WIDE * 4}" in text


@pytest.mark.parametrize(
    "name",
    ["seen 0", "seen ", "seen 0..x", "seen 192..224", "seen 176..193", "seen 8..16", "seen 32..32",
     "seen 32..16", "none 0..32", "h 0..8", "seen 1" + "0" * 50 + "..2"],
)  # fmt: skip
def test_slabs_that_are_none_are_refused(name: str, lumc: Lumc) -> None:
    from lumc.graph.text import print_graph

    Path("m.lg").write_text(print_graph(rollout()))
    lumc("compile", "--estimate", "m.lg", "-o", "m.lb", "--save-temps", ".")

    def other(body: Any) -> None:
        entry = body["entries"][0]
        value = next(v for v in entry["values"] if elements_of(v["name"]) and v["place"] == "state")
        for launch in entry["launches"]:
            launch["args"] = [name if a == value["name"] else a for a in launch["args"]]
        value["name"] = name
        part = elements_of(name)
        value["shape"] = [len(part)] if part else value["shape"]

    forge(Path("m.lk"), other)
    assert "E0501" in lumc.fails(5, "link", "m.lk", "-o", "new.lb")
    assert json.loads(Path("m.lk").read_text())["lumc"] == "kernels"


def test_where_a_slab_begins() -> None:
    assert Value("s 16..48", DType.F32, (32,), "state", 0).start == 64
    assert Value("s", DType.F32, (64,), "state", 0).start == 0
