"""Graphs for a mesh, run by real processes: what they compute, and how they end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import running_ranks as ranks
import sharded_models as models
from collectives import every_collective, no_weights
from lumc.bundle.restore import graph_of
from lumc.graph.graph import Graph
from lumc.oracle.graph import evaluate
from running_ranks import children_of, runner, step

CLOSE = 1e-5
MESHES = ({"tp": 2}, {"tp": 4}, {"dp": 2, "tp": 2})


MODELS: dict[str, Callable[[Path], Graph]] = {
    "mlp": lambda folder: ranks.saved(ranks.mlp(), folder),
    "encoder": lambda folder: ranks.saved(ranks.encoder(), folder),
    "images": lambda folder: ranks.saved(ranks.images(), folder),
    "llama": lambda _: models.llama(1, s=32, d=128),
    "decoding": lambda _: models.decoding(8, 16, 64),
    "training": lambda _: models.training(64, (64, 32, 16)),
    "step": step,
}


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.deep
def test_processes_compute_what_the_oracle_does(
    name: str, mesh: dict[str, int], tmp_path: Path
) -> None:
    worst, _ = ranks.compared(MODELS[name](tmp_path), mesh, tmp_path, mpi=True)
    print(f"{name} {mesh}: {worst:.1e}")
    assert worst <= CLOSE


def test_every_collective_by_every_axis(tmp_path: Path) -> None:
    every_collective(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Graph, Path]:
    """The ranks of a step of training, whose states are in parts."""
    folder = tmp_path_factory.mktemp("step")
    graph = step(folder)
    path = ranks.bundle(graph, {"tp": 4}, folder, price=1.0)
    assert any(s.parts for s in graph_of(path).states)
    return path, graph, folder


def test_a_loop_of_steps_learns_as_one_process(
    trained: tuple[Path, Graph, Path], tmp_path: Path
) -> None:
    """And goes on from a file of whole states."""
    path, graph, folder = trained
    rng = np.random.default_rng(0)
    feed = {
        "x": rng.normal(size=(64, 32)).astype("f4"),
        "label": rng.integers(0, 8, 64),
        "lr": np.full(8, 0.01, "f4"),
    }
    np.savez(tmp_path / "feed.npz", **feed)
    words = ["--feed", str(tmp_path / "feed.npz")]
    saved, losses = str(tmp_path / "s.safetensors"), str(tmp_path / "l.csv")
    done = runner(path, "--steps", "3", *words, "--save", saved, "--losses", losses)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("step 3/3") == 1  # the first rank tells
    again = runner(
        path, "--steps", "6", *words, "--state", saved, "--save", saved, "--losses", losses
    )
    assert again.returncode == 0, again.stderr
    held = load_file(folder / "m.safetensors")
    states = {
        s.name: held[s.key] if s.file else np.zeros(s.sizes, s.dtype.numpy) for s in graph.states
    }
    want = list[float]()
    for i in range(6):
        rows = slice(i % 4 * 16, i % 4 * 16 + 16)
        inputs = {"x": feed["x"][rows], "label": feed["label"][rows], "lr": feed["lr"][i]}
        outputs, states = evaluate(graph, graph.entries[0].name, inputs, no_weights, states)
        want.append(float(outputs["loss"]))
    lines = Path(losses).read_text().split()
    assert lines[0] == "step,loss"
    np.testing.assert_allclose([float(row.split(",")[1]) for row in lines[1:]], want, rtol=1e-5)
    assert ranks.off(load_file(saved), states) <= CLOSE


def test_a_rank_that_is_killed_ends_all_with_one_message(
    trained: tuple[Path, Graph, Path], tmp_path: Path
) -> None:
    path, graph, _ = trained
    inputs, _ = ranks.drawn(graph, graph.entries[0].name)
    words = list[str]()
    for name, array in inputs.items():
        np.save(tmp_path / f"{name}.npy", array)
        words += ["--input", f"{name}={tmp_path / name}.npy"]
    command = [str(path / "bin" / "lumc-run"), str(path), "--mesh", *words, "--repeat", "100000000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        children = children_of(running.pid, 4)
        time.sleep(0.3)
        start = time.monotonic()
        os.kill(children[2], signal.SIGKILL)
        _, said = running.communicate(timeout=30)
    assert time.monotonic() - start < 5
    assert running.returncode == 1
    assert said == "lumc-run: rank 2 was ended by signal 9 (Killed)\n"
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_what_is_wrong_is_said_once(trained: tuple[Path, Graph, Path], tmp_path: Path) -> None:
    path, _, _ = trained
    missing = runner(path, "--input", "x=missing.npy")
    assert missing.returncode == 2
    assert missing.stderr == "lumc-run: cannot open missing.npy: No such file or directory\n"
    alone = runner(path, mesh=False)
    assert alone.returncode == 2 and "this bundle is for 4 ranks (tp 4): start it" in alone.stderr
    for env in ({"RANK": "4", "WORLD_SIZE": "4"}, {"RANK": "0", "WORLD_SIZE": "2"}, {"RANK": "x"}):
        said = runner(path, mesh=False, MASTER_PORT="1", **env)
        assert said.returncode == 2 and "this bundle is for 4 ranks" in said.stderr


def test_ranks_that_do_not_come_are_not_waited_for_for_ever(
    trained: tuple[Path, Graph, Path],
) -> None:
    path, _, _ = trained
    env = {"WORLD_SIZE": "4", "MASTER_PORT": "0", "LUMC_MESH_TIMEOUT": "0.5"}
    first = runner(path, "--check", mesh=False, RANK="0", **env)
    assert first.returncode == 1 and "3 of the other ranks did not come in 0.5 s" in first.stderr
    env["MASTER_PORT"] = "1"
    second = runner(path, "--check", mesh=False, RANK="1", **env)
    assert second.returncode == 1 and "rank 1: rank 0 does not answer for 0.5 s" in second.stderr


# ---- another launcher


@pytest.mark.skipif(not ranks.MPI, reason=ranks.NO_MPI)
def test_ranks_by_mpi_have_the_same_bits(trained: tuple[Path, Graph, Path], tmp_path: Path) -> None:
    path, graph, _ = trained
    inputs, _ = ranks.drawn(graph, graph.entries[0].name)
    over_tcp, _ = ranks.run(path, inputs, None, tmp_path)
    words = [w for name in inputs for w in ("--input", f"{name}={tmp_path / name}.npy")]
    done = ranks.by_mpi(path, 4, *words, "-o", str(tmp_path / "mpi.npz"))
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "mpi.npz") as made:
        assert all(np.array_equal(made[name], over_tcp[name]) for name in over_tcp)
    few = ranks.by_mpi(path, 2, *words)
    assert few.returncode == 2 and "this bundle is for 4 ranks" in few.stderr


def test_ranks_that_are_started_one_by_one_meet_over_tcp(
    trained: tuple[Path, Graph, Path], tmp_path: Path
) -> None:
    """As srun and torchrun start them; and one that has another key is left aside."""
    path, graph, _ = trained
    inputs, _ = ranks.drawn(graph, graph.entries[0].name)
    want, _ = ranks.run(path, inputs, None, tmp_path)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    words = [w for name in inputs for w in ("--input", f"{name}={tmp_path / name}.npy")]
    command = [str(path / "bin" / "lumc-run"), str(path), *words, "-o", str(tmp_path / "tcp.npz")]

    def start(rank: int, key: str, timeout: str = "30") -> subprocess.Popen[str]:
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "4", "LUMC_MESH_KEY": key}
        env |= {"MASTER_PORT": port, "LUMC_MESH_TIMEOUT": timeout}
        return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)

    running = [start(0, "a"), start(3, "a")]
    stranger = start(1, "b", "5")
    _, said = stranger.communicate(timeout=30)
    assert stranger.returncode == 1 and "rank 1: rank 0 refuses it, or is gone" in said
    running += [start(2, "a"), start(1, "a")]
    for each in running:
        _, said = each.communicate(timeout=30)
        assert each.returncode == 0, said
    with np.load(tmp_path / "tcp.npz") as made:
        assert all(np.array_equal(made[name], want[name]) for name in want)


def test_ranks_that_run_something_else_find_out(
    trained: tuple[Path, Graph, Path], tmp_path: Path
) -> None:
    """Rank 0 has whole states to write after one step, the others after another number of steps."""
    path, graph, _ = trained
    inputs, _ = ranks.drawn(graph, graph.entries[0].name)
    ranks.run(path, inputs, None, tmp_path)
    words = [w for name in inputs for w in ("--input", f"{name}={tmp_path / name}.npy")]
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    running = list[subprocess.Popen[str]]()
    for rank in range(4):
        own = ["--save", str(tmp_path / "s.safetensors")] if rank else ["--repeat", "2"]
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "4", "MASTER_PORT": port}
        command = [str(path / "bin" / "lumc-run"), str(path), *words, *own]
        running.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
    said = "".join(each.communicate(timeout=30)[1] for each in running)
    assert all(each.returncode == 1 for each in running)
    assert "runs something else: other inputs, dims or entries" in said
