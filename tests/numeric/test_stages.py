"""Stages of a pipeline, run by real processes: what they compute, have and do, and how they end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import running_ranks as ranks
import sharded_models as models
from collectives import every_stage, no_weights
from lumc.bundle.reader import decode
from lumc.bundle.restore import graph_of
from lumc.disk.weights import read_weight
from lumc.errors import LumcError
from lumc.frontend import Model
from lumc.frontend.api.contract import embedding
from lumc.graph.graph import Graph
from lumc.oracle.graph import evaluate
from running_ranks import LIBRARY, MPIEXEC, children_of, step

CLOSE = 1e-5


def tied() -> Model:
    """A table that is read first and last, as rows and as a product, and weights between."""
    rng, m = np.random.default_rng(0), Model()
    ids = m.input("ids", (16,), "i64", values=(0, 199))
    table = m.constant(rng.normal(0, 0.3, (200, 64)).astype("f4"), "table")
    x = embedding(table, ids)
    for i in range(2):
        w = m.constant(rng.normal(0, 0.1, (64, 64)).astype("f4"), f"w{i}")
        x = x + (x @ w).relu()
    m.output("y", x @ table.transpose(0, 1))
    return m


MODELS: dict[str, Callable[[Path], Graph]] = {
    "mlp": lambda folder: ranks.saved(ranks.deep(), folder),
    "encoder": lambda folder: ranks.saved(ranks.encoder(), folder),
    "llama": lambda _: models.llama(1, s=32, d=128),
    "decoding": lambda _: models.decoding(8, 16, 64),
    "training": lambda _: models.training(64, (64, 32, 32, 32, 16)),
    "tied": lambda folder: ranks.saved(tied(), folder),
    "step": step,
}
MESHES = ({"pp": 2}, {"pp": 4}, {"pp": 2, "tp": 2}, {"tp": 2, "pp": 2}, {"dp": 2, "pp": 2})


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.deep
def test_processes_compute_what_the_oracle_does(
    name: str, mesh: dict[str, int], tmp_path: Path
) -> None:
    if mesh == {"pp": 4} and name in ("tied", "step"):
        mesh = {"pp": 3} if name == "tied" else {"pp": 2}  # that have fewer weights
    worst, _ = ranks.compared(MODELS[name](tmp_path), mesh, tmp_path, mpi=True)
    print(f"{name} {mesh}: {worst:.1e}")
    assert worst <= CLOSE


def first_values(folder: Path) -> None:
    """States of all stages begin as the files say."""
    graph = step(folder)
    path = ranks.bundle(graph, {"pp": 2}, folder)
    assert {s.stage.at for s in graph_of(path).states if s.stage and s.file} == {0, 1}
    inputs, states = ranks.drawn(graph, graph.entries[0].name)
    first = {s.name: np.zeros_like(states[s.name]) for s in graph.states if not s.file}
    first |= {s.name: np.array(read_weight(s, folder)) for s in graph.states if s.file}
    want, _ = evaluate(graph, graph.entries[0].name, inputs, no_weights, first)
    got, _ = ranks.run(path, inputs, None, folder)
    assert ranks.off(got, want) <= CLOSE


def test_states_of_stages_begin_with_values(tmp_path: Path) -> None:
    first_values(tmp_path)


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return every_stage(tmp_path_factory.mktemp("every"))


def test_everything_that_stages_do(every: Path) -> None:
    assert graph_of(every).mesh == {"a": 2, "pp": 3}


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """Four stages of one weight each, and an input."""
    folder = tmp_path_factory.mktemp("four")
    worst, path = ranks.compared(ranks.saved(ranks.deep(), folder), {"pp": 4}, folder)
    assert worst <= CLOSE
    return path, {"x": np.random.default_rng(1).normal(size=(16, 64)).astype("f4")}


def test_a_rank_has_the_weights_of_its_stage(four: tuple[Path, dict[str, np.ndarray]]) -> None:
    (file,) = (four[0] / "plan").glob("*.bin")
    plan = decode(file.read_bytes())
    assert plan.mesh and [s.stage for s in plan.mesh.segments] == [1, 2, 3, 4]
    assert {s.to for s in plan.mesh.segments} == {0}
    assert len({s.nbytes for s in plan.mesh.segments}) == 1
    assert plan.weights_bytes == plan.mesh.segments[0].nbytes


COUNT = """import sys
from lumc.runtime.cpu import Bundle
with Bundle.open(sys.argv[1]) as b:
    print(b._library.lumc_launches(b._handle, 0))
"""


def test_a_rank_has_the_launches_of_its_stage(four: tuple[Path, dict[str, np.ndarray]]) -> None:
    path, _ = four
    (file,) = (path / "plan").glob("*.bin")
    (entry,) = decode(file.read_bytes()).entries
    each = [sum(x.ranks in (0, s + 1) for x in entry.launches) for s in range(4)]
    assert sum(each) < 4 * len(entry.launches)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    running = list[subprocess.Popen[str]]()
    for rank in range(4):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "4", "MASTER_PORT": port}
        command = [sys.executable, "-c", COUNT, str(path)]
        running.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    assert [int(each.communicate(timeout=60)[0]) for each in running] == each


@pytest.mark.parametrize("rank", [0, 2])
def test_a_stage_that_is_killed_ends_all_with_one_message(
    four: tuple[Path, dict[str, np.ndarray]], rank: int, tmp_path: Path
) -> None:
    path, inputs = four
    np.save(tmp_path / "x.npy", inputs["x"])
    words = ["--mesh", "--input", str(tmp_path / "x.npy"), "--repeat", "100000000"]
    command = [str(path / "bin" / "lumc-run"), str(path), *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        children = children_of(running.pid, 4)
        time.sleep(0.3)
        start = time.monotonic()
        os.kill(children[rank], signal.SIGKILL)
        _, said = running.communicate(timeout=30)
    assert time.monotonic() - start < 5
    assert running.returncode == 1
    assert said == f"lumc-run: rank {rank} was ended by signal 9 (Killed)\n"
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


@pytest.mark.skipif(not ranks.MPI, reason=ranks.NO_MPI)
def test_stages_by_mpi_have_the_same_bits(
    four: tuple[Path, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    path, inputs = four
    over_tcp, _ = ranks.run(path, inputs, None, tmp_path)
    command = [str(MPIEXEC), "-n", "4", str(path / "bin" / "lumc-run"), str(path)]
    command += ["--input", str(tmp_path / "x.npy"), "-o", str(tmp_path / "mpi.npz")]
    env = {**os.environ, "LUMC_MPI": str(LIBRARY)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "mpi.npz") as made:
        assert np.array_equal(made["y"], over_tcp["y"])


# ---- mutants of the runner

MUTANTS = [
    ("ranks.c", "m->seats[p->stages - 1].at == (int)who - 1", "m->seats[p->stages - 1].at == 0"),
    ("ranks.c", "e->kind == SEND && i != (int)e->target", "e->kind == SEND && i == (int)e->target"),
    ("ranks.c", "if (s->at == source && e->kind == BROADCAST) memcpy(to, from, bytes);", ""),
    ("ranks.c", "if (p->parts[state].who && !code) {", "if (0) {"),
    ("memory.c", "mesh_has(mesh, plan, s->who) ?", "1 ?"),
    ("memory.c", ".bytes && mesh_has_state(mesh, plan, i)) {", ".bytes) {"),
    ("tcp.c", "p->out ? ++k->out : 0", "++k->out"),
    ("states.c", " || !mesh_has_state(m->mesh, &m->plan, i)) continue;", ") continue;"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new"), MUTANTS)
@pytest.mark.deep
def test_runners_that_mix_stages_up_die(
    patched: Path, tmp_path: Path, name: str, old: str, new: str
) -> None:
    ranks.broken(patched, name, old, new)
    with pytest.raises((AssertionError, LumcError, subprocess.TimeoutExpired)):
        every_stage(tmp_path)
        first_values(tmp_path)
        worst, _ = ranks.compared(ranks.saved(ranks.deep(), tmp_path), {"pp": 4}, tmp_path)
        assert worst <= CLOSE
