"""The net sees what changes, and nothing else: not hash seeds, processes or other kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import replay
from lumc.kernel import bound
from lumc.profile import price
from lumc.schedule import first
from lumc.schedule.schedule import Schedule
from replay import Rows, changes, kernel_rows, summary

STEP = 61  # of all kernels every so many
GRAPH = replay.ROOT / "graphs" / "conv.lg"
SEEDED = """
import replay
named = list(replay.kernels().items())[:: {step}]
made = replay.replayed(named, [replay.GRAPHS[{graph}]], jobs={jobs})
print(replay.summary(made)["digest"])
"""


def sample() -> list[tuple[str, Any]]:
    """With one that functions bind, wherever the steps fall."""
    every = list(replay.kernels().items())
    return [*every[::STEP], next((n, k) for n, k in every if n == "linear_gelu 64 96 64")]


def made() -> Rows:
    return replay.replayed(sample(), [])


@pytest.fixture(scope="module")
def before() -> Rows:
    return made()


def test_the_sample_has_every_section(before: Rows) -> None:
    found = summary(before)["sections"]
    assert {"key", "default", "bound", "price", "text", "size", "draws", "drawn texts"} <= set(
        found
    )
    assert {row.split(" on ")[1] for row in before} >= set(replay.MACHINES)


def test_hash_seeds_and_processes_change_nothing() -> None:
    digests = set()
    for seed, jobs in (("1", 1), ("77", 2)):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        text = SEEDED.format(step=4 * STEP, graph=replay.GRAPHS.index(GRAPH), jobs=jobs)
        command = [sys.executable, "-c", text]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        digests.add(done.stdout)
    assert len(digests) == 1


def test_another_price_is_seen(before: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(price, "CACHED", price.CACHED * 1.25)
    lines = list(changes(before, made()))
    assert lines and all(": price " in line for line in lines)


def test_another_bound_is_seen(before: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bound.COST, "exp2", bound.COST["exp2"] + 1)
    assert any("bound " in line for line in changes(before, made()))


def test_another_default_is_seen(before: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    default = first.default_schedule

    def streamed(*of: Any) -> Schedule:
        return replace(default(*of), stream=not default(*of).stream)

    monkeypatch.setattr(first, "default_schedule", streamed)
    lines = list(changes(before, made()))
    assert lines and all(": default " in line for line in lines)
    assert any("text " in line for line in lines)


def test_what_changed_is_named(before: Rows) -> None:
    name = next(iter(before))
    after = {**before, name: {**before[name], "price": "7"}}
    assert list(changes(before, after)) == [f"{name}: price {before[name]['price']} -> 7"]
    gone = {n: row for n, row in before.items() if n != name}
    assert len(list(changes(before, gone))) == 1
    assert summary(after)["digest"] != summary(before)["digest"] != summary(gone)["digest"]


def test_artifacts_of_a_graph_are_seen_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = "cpu:x86-64-v3"
    before = replay.graph_rows(GRAPH, (machine,))
    assert before == replay.graph_rows(GRAPH, (machine,))
    assert set(before[f"conv.lg on {machine}"]) == {"space", "plan", "code"}
    monkeypatch.setattr("lumc.codegen.generate.header_of", lambda kind: "another header")
    (line,) = changes(before, replay.graph_rows(GRAPH, (machine,)))
    assert ": code " in line


def test_kernels_of_plans_are_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "STORE", tmp_path / "kernels.gz")
    graph = replay.files.read_graph(str(GRAPH), {})
    space = replay.search(graph, replay.machine("cpu:x86-64-v3"), inside=True)
    plan = replay.estimate(space)
    (tmp_path / "conv").mkdir()
    for name in ("a.lp", "b.lp"):
        replay.files.write(plan, replay.files.graph_digest(graph), str(tmp_path / "conv" / name))
    found = replay.collect(tmp_path)
    assert list(found) == [f"conv.{n}" for n in range(len(plan.kernels))]
    replay.store(found)
    assert replay.stored() == found == replay.collect(tmp_path)
    for named in found.items():
        assert all("refused" not in row for row in kernel_rows(named).values())
