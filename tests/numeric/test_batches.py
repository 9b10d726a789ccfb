"""Micro-batches, taken by real processes one after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import running_ranks as ranks
import sharded_models as models
from collectives import BATCHES, agrees
from lumc.bundle.reader import decode
from lumc.errors import LumcError
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph
from lumc.graph.verify import verify_graph
from lumc.shard.schedule import scheduled

CLOSE = 1e-5


def every_batch(folder: Path) -> Path:
    """Processes leave what the oracle has of all ranks and moments; from one state to the next."""
    graph = parse_graph(BATCHES)
    verify_graph(graph)
    path, rng = ranks.linked(graph, folder), np.random.default_rng(0)
    sizes = {"w": (6,), "far": (6,), "n": (6,), "seen": (6,)}
    states = {n: rng.normal(size=s).astype("f4") for n, s in sizes.items()}
    for _ in range(2):
        inputs = {
            "x": rng.normal(size=(12, 12)).astype("f4"),
            "z": rng.normal(size=(3, 12)).astype("f4"),
            "k": rng.integers(-9, 9, (12, 6)).astype("i4"),
        }
        states = agrees(graph, path, inputs, states, folder)
    return path


def test_everything_that_micro_batches_do(tmp_path: Path) -> None:
    path = every_batch(tmp_path)
    (file,) = (path / "plan").glob("*.bin")
    plan = decode(file.read_bytes())
    turns = plan.entries[0].lists[-1].turns
    first, last = turns.first, turns.last
    assert plan.mesh and plan.mesh.time == "t"
    assert 0 < first < last < len(plan.entries[0].launches)


MODELS: dict[str, Callable[[Path], Graph]] = {
    "mlp": lambda folder: ranks.saved(ranks.mlp(), folder),
    "images": lambda folder: ranks.saved(ranks.images(), folder),
    "training": lambda _: models.training(64, (64, 32, 32, 32, 16)),
    "step": ranks.step,
}
MESHES = ({"pp": 2}, {"tp": 2}, {"pp": 2, "tp": 2})


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.deep
def test_processes_compute_what_the_oracle_does(
    name: str, mesh: dict[str, int], tmp_path: Path
) -> None:
    worst, _ = ranks.compared(MODELS[name](tmp_path), mesh, tmp_path, mpi=True, batches=4)
    print(f"{name} {mesh}: {worst:.1e}")
    assert worst <= CLOSE


# ---- the model of time


@pytest.mark.parametrize("launcher", ["tcp", "mpi"])
@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.deep
def test_processes_take_what_the_model_expects(
    patched: Path, tmp_path: Path, launcher: str, count: int
) -> None:
    """Of computing that is slept through, as a machine with few cores cannot do it."""
    if launcher == "mpi" and not ranks.MPI:
        pytest.skip(ranks.NO_MPI)
    ranks.sleeping(patched)
    path = ranks.bundle(ranks.saved(ranks.deep(), tmp_path), {"pp": 4}, tmp_path, batches=count)
    (file,) = (path / "plan").glob("*.bin")
    expected = max(t.end for t in scheduled(ranks.steps_of(decode(file.read_bytes())), 4, count))
    ratio = ranks.slept(path, {"x": np.zeros((16, 64), "f4")}, tmp_path, launcher) / expected
    print(f"{launcher}, {count} micro-batches: {ratio:.3f} of what is expected")
    assert 0.99 < ratio < 1.1


MUTANTS = [
    ("ranks.c", "{0, n, 0} : (struct seat)", "{m->rank / step % n, n, step} : (struct seat)"),
    ("ranks.c", "else if (!at) memcpy(to, from, bytes);", "else if (1) memcpy(to, from, bytes);"),
    ("ranks.c", "else if (!at) memcpy(to, from, bytes);", ""),
    ("ranks.c", "take_rows(from, outer, of, at, bytes", "take_rows(from, outer, of, 0, bytes"),
    ("ranks.c", "put_rows(from, joined, of, at, bytes", "put_rows(from, joined, of, 0, bytes"),
    ("ranks.c", "m->seats[p->time - 1].at = turn;", ""),
    ("ranks.c", "if (!own && i < first) --l->first;", ""),
    ("cpu.c", "i < turns && l->first < l->last", "i < 1 && l->first < l->last"),
    ("cpu.c", "pass(m, list, 0, l->first, times)", "LUMC_OK"),
    ("cpu.c", "pass(m, list, l->last, l->n_launches, times)", "LUMC_OK"),
]


@pytest.mark.parametrize(("name", "old", "new"), MUTANTS)
@pytest.mark.deep
def test_runners_that_mix_batches_up_die(
    patched: Path, tmp_path: Path, name: str, old: str, new: str
) -> None:
    ranks.broken(patched, name, old, new)
    with pytest.raises((AssertionError, LumcError)):
        every_batch(tmp_path)
