"""Training steps over stages whose micro-batches go forward and back in turn, by real processes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planned
import running_ranks as ranks
import sharded_models as models
from lumc.bundle.reader import Plan, decode
from lumc.errors import LumcError
from lumc.graph.graph import Graph
from lumc.graph.turns import most_open, order
from lumc.oracle.graph import evaluate
from lumc.shard.schedule import scheduled

CLOSE = 1e-5
SIZES = (64, 32, 32, 32, 16)
MODELS: dict[str, Callable[[], Graph]] = {
    "mlp": lambda: models.training(64, SIZES),
    "llama": models.llama_step,
    "gpt": lambda: planned.gpt(1, 32, 4, s=8, vocab=32, batch=8),
    "tied": lambda: models.tied(32),
}


def plan_in(path: Path) -> Plan:
    (file,) = (path / "plan").glob("*.bin")
    return decode(file.read_bytes())


def said_in(path: Path) -> Mapping[str, Any]:
    body: dict[str, Any] = json.loads((path / "manifest.json").read_text())
    return body


CASES = [(name, pp, b) for name in ("mlp", "llama") for pp in (2, 4) for b in (1, 2, 4, 8)]
CASES += [("gpt", 2, 8), ("gpt", 4, 4), ("tied", 2, 8)]


@pytest.mark.parametrize(("name", "count", "batches"), CASES)
@pytest.mark.deep
def test_processes_compute_what_the_oracle_does(
    name: str, count: int, batches: int, tmp_path: Path
) -> None:
    """Over TCP and, with the same bits, over MPI: outputs and states after a step."""
    mesh = {"pp": count}
    worst, path = ranks.compared(MODELS[name](), mesh, tmp_path, mpi=True, batches=batches)
    print(f"{name} {mesh} {batches}: {worst:.1e}")
    assert worst <= CLOSE
    assert len(plan_in(path).entries[0].lists[-1].turns.ways) == count * (batches > 1)


@pytest.mark.deep
@pytest.mark.parametrize("mesh", [{"pp": 2, "tp": 2}, {"dp": 2, "pp": 2}], ids=str)
def test_stages_of_several_ranks(mesh: dict[str, int], tmp_path: Path) -> None:
    worst, path = ranks.compared(models.training(64, SIZES), mesh, tmp_path, mpi=True, batches=4)
    assert worst <= CLOSE and plan_in(path).entries[0].lists[-1].turns.ways


# ---- what each stage does

NOTE = """static void note(struct cpu *m, const struct list *l, int i) {
  char name[300];
  snprintf(name, sizeof name, "%s.%d", getenv("LUMC_TEST_TURNS"), mesh_rank(m->mesh));
  FILE *f = fopen(name, "a");
  fprintf(f, "%c%d %zu\\n", "FB"[l->turns[i] & 1], (int)(l->turns[i] >> 1), (size_t)arena_of(l));
  fclose(f);
}
/* Micro-batches forward and back,"""
TURN = "mesh_turn(m->mesh, m->plan, (int)batch);"


def noting(patched: Path) -> None:
    """The runner writes down what it does."""
    ranks.broken(patched, "cpu.c", "/* Micro-batches forward and back,", NOTE)
    ranks.broken(patched, "cpu.c", TURN, f"{TURN} note(m, l, i);")


def in_turn(
    folder: Path, monkeypatch: pytest.MonkeyPatch, count: int = 4, batches: int = 8
) -> None:
    """Stages do what the two rules say, hold memory for what is open, and compute a step."""
    monkeypatch.setenv("LUMC_TEST_TURNS", str(folder / "turns"))
    graph = MODELS["mlp"]()
    path = ranks.bundle(graph, {"pp": count}, folder, batches=batches)
    for old in folder.glob("turns.*"):
        old.unlink()  # of the trial of the bundle
    inputs, states = ranks.drawn(graph, "main")
    want = evaluate(graph, "main", inputs, lambda n: np.zeros(0), states)
    got = ranks.run(path, inputs, states, folder)
    assert max(map(ranks.off, got, want)) <= CLOSE
    turns = plan_in(path).entries[0].lists[-1].turns
    said = said_in(path)["schedule"]["main"]
    start, size = turns.wait
    assert said[0]["open_bytes"] == count * size and said[-1]["open_bytes"] == 0
    assert [s["stage"] for s in said] == [*range(count)]
    for s in range(count):
        lines = [x.split() for x in (folder / f"turns.{s}").read_text().splitlines()]
        done = [turn for turn, _ in lines]
        assert done == [str(t) for t in order(s, count, batches)] == said[s]["turns"].split()
        opened = [sum(1 if t[0] == "F" else -1 for t in done[: i + 1]) for i in range(len(done))]
        assert (
            max(opened)
            == most_open(s, count, batches)
            == said[s]["open"]
            == min(count - s, batches)
        )
        assert {int(n) for _, n in lines} == {start + size * max(opened)}


def test_stages_take_micro_batches_in_the_order_of_the_plan(
    patched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noting(patched)
    in_turn(tmp_path, monkeypatch)


MUTANTS = [
    ("ranks.c", "l->ways + own *", "l->ways + (p->axes[p->stages - 1].ranks - 1 - own) *"),
    ("ranks.c", "l->ways + own *", "l->ways + 0 * own *"),
    ("ranks.c", "if (!own && i < middle) --l->middle;", ""),
    ("ranks.c", "else reduce_rows((int)e->dtype, e->op, to, from, n);\n  return", "return"),
    ("ranks.c", "(uint64_t)(e - m->exchanges)", "(uint64_t)(e->axis)"),
    ("cpu.c", "batch % l->open * l->stride", "0 * l->stride"),
    ("cpu.c", "batch % l->open * l->stride", "batch % 2 * l->stride"),
    ("cpu.c", "(size_t)(l->turns[i] >> 1)", "(size_t)(i / 2)"),
    ("cpu.c", "l->turns[i] & 1 ? pass(", "i & 1 ? pass("),
    ("parcels.c", "if ((*at)->top.number != number) continue;", ""),
    ("parcels.c", "memcpy(p->data, data, bytes);", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new"), MUTANTS)
@pytest.mark.deep
def test_runners_that_mix_turns_up_die(
    patched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    old: str,
    new: str,
) -> None:
    monkeypatch.setenv("LUMC_MESH_TIMEOUT", "5")
    noting(patched)
    ranks.broken(patched, name, old, new)
    with pytest.raises((AssertionError, LumcError, subprocess.TimeoutExpired)):
        in_turn(tmp_path, monkeypatch)
        worst, _ = ranks.compared(MODELS["tied"](), {"pp": 2}, tmp_path, batches=4)
        assert worst <= CLOSE


# ---- sockets that hold less than a message

NODELAY = "setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);"
FEW = """ int few = 8192;
  setsockopt(file, SOL_SOCKET, SO_SNDBUF, &few, sizeof few);
  setsockopt(file, SOL_SOCKET, SO_RCVBUF, &few, sizeof few);"""


def wide(folder: Path) -> float:
    graph = models.training(4096, (16, 64, 64, 8))
    path = ranks.bundle(graph, {"pp": 2}, folder, batches=4)
    inputs, states = ranks.drawn(graph, "main")
    want = evaluate(graph, "main", inputs, lambda n: np.zeros(0), states)
    return max(map(ranks.off, ranks.run(path, inputs, states, folder), want))


def test_sockets_that_hold_little_lock_nobody(
    patched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stages send to each other, 256 KB a time, by sockets that hold some KB."""
    monkeypatch.setenv("LUMC_MESH_TIMEOUT", "30")
    ranks.broken(patched, "tcp.c", NODELAY, NODELAY + FEW)
    assert wide(tmp_path) <= CLOSE


@pytest.mark.deep
def test_stages_that_wait_until_it_is_taken_lock(
    patched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUMC_MESH_TIMEOUT", "5")
    ranks.broken(patched, "tcp.c", NODELAY, NODELAY + FEW)
    waits = "return wait_out(o, peer, POSTED | tag, 1);\n}\n\nint parcels_move"
    ranks.broken(patched, "parcels.c", "return help(o, &moved);\n}\n\nint parcels_move", waits)
    with pytest.raises((AssertionError, LumcError), match=r"does not answer for 5 s|is lost"):
        wide(tmp_path)


# ---- when something ends


def test_a_stage_that_is_killed_ends_all(tmp_path: Path) -> None:
    path = ranks.bundle(models.training(64, SIZES), {"pp": 2}, tmp_path, batches=4)
    inputs, _ = ranks.drawn(models.training(64, SIZES), "main")
    words = list[str]()
    for name, value in inputs.items():
        np.save(tmp_path / f"{name}.npy", value)
        words += ["--input", f"{name}={tmp_path / name}.npy"]
    command = [str(path / "bin" / "lumc-run"), str(path), "--mesh", *words]
    command += ["--repeat", "100000000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        children = ranks.children_of(running.pid, 2)
        os.kill(children[1], 9)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 1
    assert said == "lumc-run: rank 1 was ended by signal 9 (Killed)\n"


# ---- the model of time


@pytest.mark.parametrize("launcher", ["tcp", "mpi"])
@pytest.mark.deep
def test_processes_take_what_the_model_expects(
    patched: Path, tmp_path: Path, launcher: str
) -> None:
    """Of computing that is slept through: 8 micro-batches in 4 stages, forward and back."""
    if launcher == "mpi" and not ranks.MPI:
        pytest.skip(ranks.NO_MPI)
    ranks.sleeping(patched)
    path = ranks.bundle(models.training(64, SIZES), {"pp": 4}, tmp_path, batches=8)
    steps = ranks.steps_of(plan_in(path))
    alone = [s._replace(back=()) for s in steps]
    expected, one_by_one = (max(t.end for t in scheduled(x, 4, 8)) for x in (steps, alone))
    inputs, _ = ranks.drawn(models.training(64, SIZES), "main")
    ratio = ranks.slept(path, inputs, tmp_path, launcher) / expected
    print(f"{launcher}: {ratio:.3f} of what is expected, {one_by_one / expected:.2f} one by one")
    assert 0.99 < ratio < 1.1 and one_by_one > 1.5 * expected
