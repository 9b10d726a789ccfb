"""Saturation stops at its limits, says why, and what it has is sound; workers may die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from lumc import process
from lumc.command.spaces import report_space
from lumc.errors import LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.graph import Graph
from lumc.process import Lost, Process
from lumc.profile.choose import estimate
from lumc.report.log import Log
from lumc.search import saturate, search, worker
from lumc.search.saturate import Limits, StopReason
from lumc.search.space import Space
from searching import TARGET, error, oracle, random_inputs, run_plan
from zoo import ATTENTIONS, attention, build, model


def check(space: Space) -> None:
    plan = estimate(space)
    inputs = random_inputs(space.graph, "main")
    want, _ = oracle(space.graph, "main", inputs)
    got = run_plan(plan, "main", inputs)
    assert error(got[plan.outputs["main"][0][1]], want["y"]) < 1e-12


def test_where_nothing_can_be_chosen_there_is_what_was_before_any_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after two steps for a convolution of 7 x 7 and the norm of its channels."""
    every, answers = worker.variants, iter([[]])
    monkeypatch.setattr(worker, "variants", lambda g, n: next(answers, every(g, n)))
    space = search(attention(ATTENTIONS["causal"]), TARGET, Limits(iterations=2), inside=True)
    (region,) = space.regions
    assert len(region.variants) == 1
    assert region.stats.iterations == 2
    check(space)


@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        (Limits(), StopReason.SATURATED),
        (Limits(iterations=2), StopReason.ITERATIONS),
        (Limits(nodes=30), StopReason.NODES),
        (Limits(matches=30), StopReason.MATCHES),
        (Limits(seconds=0.0), StopReason.TIME),
        (Limits(megabytes=-1), StopReason.MEMORY),
    ],
)
def test_every_limit_stops(limits: Limits, stop: StopReason) -> None:
    space = search(attention(ATTENTIONS["causal"]), TARGET, limits, inside=True)
    (region,) = space.regions
    assert region.stats.stop is stop
    assert region.stats.nodes >= region.stats.classes > 0
    check(space)


def test_memory_that_was_held_before_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in this process, nor by the one that starts the worker."""
    monkeypatch.setattr(saturate, "resident", lambda: 3 << 30)
    (region,) = search(attention(ATTENTIONS["causal"]), TARGET, inside=True).regions
    assert region.stats.stop is StopReason.SATURATED
    monkeypatch.undo()
    held = np.ones(50_000_000)  # 400 MB
    (region,) = search(attention(ATTENTIONS["causal"]), TARGET, Limits(megabytes=300)).regions
    assert region.stats.stop is StopReason.SATURATED
    assert held.nbytes == 400_000_000


def test_memory_is_what_a_process_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = saturate.Spent()
    held = np.ones(20_000_000)
    assert held.nbytes * 0.9 < spent.nbytes() < held.nbytes * 1.5
    monkeypatch.setattr(Path, "read_text", Mock(side_effect=FileNotFoundError))
    assert process.resident() > held.nbytes  # the peak


def test_other_work_of_the_machine_does_not_change_what_is_found() -> None:
    """With a clock that runs a thousand times faster, and among processes that only compute."""
    graph = attention(ATTENTIONS["scaled"])
    alone = search(graph, TARGET)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: 1000 * time.perf_counter())
            assert search(graph, TARGET, inside=True) == alone
        assert search(graph, TARGET) == alone
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.parametrize("stop", StopReason)
def test_what_ends_by_accident_is_said(
    stop: StopReason, capsys: pytest.CaptureFixture[str]
) -> None:
    space = search(model("mlp"), TARGET, inside=True)
    first, *rest = space.regions
    first = replace(first, stats=replace(first.stats, stop=stop))
    report_space(replace(space, regions=(first, *rest)), Log())
    (instance, *_) = (i for i in space.instances if i.region == first.key)
    said = capsys.readouterr().err
    assert ("warning" in said) == (stop in (StopReason.TIME, StopReason.MEMORY))
    assert "warning" not in said or (stop.value in said and instance.outputs[0] in said)


def test_fired_rules_are_counted() -> None:
    (region,) = search(attention(ATTENTIONS["scaled"]), TARGET, inside=True).regions
    fired = region.stats.fired
    assert {"factor", "mul-assoc", "mul-comm", "online-scaled", "online-scaled-1"} <= set(fired)
    assert all(n > 0 for n in fired.values())
    assert "one-hot" not in fired


def test_a_product_of_many_factors_ends() -> None:
    """Associativity and commutativity give 3^n products; the limit on nodes holds."""

    def product(g: Model) -> Tensor:
        out = g.input("x0", (4, 5))
        for i in range(1, 13):
            out = out * g.input(f"x{i}", (4, 5))
        return out.sum(-1)

    space = search(build(product), TARGET, Limits(nodes=3000), inside=True)
    assert space.regions[0].stats.stop is StopReason.NODES
    assert space.regions[0].stats.nodes < 40_000


def test_a_worker_gives_what_this_process_gives() -> None:
    graph = model("block")
    alone = search(graph, TARGET, inside=True)
    assert search(graph, TARGET).regions == alone.regions


def test_a_hanging_worker_is_killed_and_its_region_stays_as_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "GRACE", 0.0)
    space = search(attention(ATTENTIONS["scaled"]), TARGET, Limits(seconds=0.0))
    (region,) = space.regions
    assert region.stats.stop is StopReason.TIME
    assert (region.stats.iterations, len(region.variants)) == (0, 1)
    check(space)


def test_a_dying_worker_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    ask, killed = Process.ask, []

    def kill_and_ask(self: Process, *args: Any) -> Any:
        if not killed and self.process.pid:
            killed.append(self.process.pid)
            os.kill(self.process.pid, signal.SIGKILL)
        return ask(self, *args)

    monkeypatch.setattr(Process, "ask", kill_and_ask)
    space = search(model("mlp"), TARGET)
    assert [r.stats.stop for r in space.regions] == [StopReason.MEMORY, StopReason.SATURATED]
    check(space)


def test_a_region_that_kills_every_worker_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(self: Process, *args: Any) -> Any:
        raise Lost("hang: no answer in 120 s")

    monkeypatch.setattr(Process, "ask", ask)
    with pytest.raises(LumcError, match=r"E0414.*no answer in 120 s"):
        search(model("mlp"), TARGET)


def test_a_fault_in_the_worker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "encode", lambda roots: ([], [5]))
    with pytest.raises(ValueError, match="no term 5"):
        search(model("mlp"), TARGET)


DIGEST = """
import hashlib, json, sys
from lumc.artifacts.bodies import plan_to_json, space_to_json
from lumc.graph.text import parse_graph
from lumc.kernel.machines import CPUS
from lumc.profile.choose import estimate
from lumc.search import search
found = search(parse_graph(sys.stdin.read()), CPUS["x86-64-v3"], inside=True)
text = json.dumps([space_to_json(found), plan_to_json(estimate(found))])
print(hashlib.sha256(text.encode()).hexdigest())
"""


def test_equal_bytes_for_every_hash_seed() -> None:
    from lumc.graph.text import print_graph

    texts = [print_graph(g) for g in (model("conv"), attention(ATTENTIONS["with sink"]))]
    for text in texts:
        seen = set()
        for seed in ("0", "7"):
            env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
            run = [sys.executable, "-c", DIGEST]
            done = subprocess.run(run, input=text, env=env, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            seen.add(done.stdout)
        assert len(seen) == 1


def test_names_in_the_graph_do_not_change_the_region() -> None:
    def named(a: str, b: str) -> Graph:
        g = Model()
        g.output("y", g.input(a, (4, 5)) @ g.input(b, (5, 6)))
        return g.graph()

    spaces = [search(g, TARGET, inside=True) for g in (named("x", "w"), named("p", "q"))]
    assert spaces[0].regions == spaces[1].regions
