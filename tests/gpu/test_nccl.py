"""Ranks on GPUs: the real nccl.c on an NCCL and a driver that run on this machine, what ranks
compute, and what is said where they cannot."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import compiling
import fake_gpu
import fake_nccl
import running_ranks as ranks
import sharded_models as models
from collectives import EVERY, STAGES, every_stage, exchanging, no_weights
from lumc.errors import LumcError
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph
from lumc.link import runners
from lumc.oracle.ranks import evaluate_mesh
from lumc.runtime import cuda
from lumc.runtime.choose import open_bundle
from running_ranks import LIBRARY, MPIEXEC

CLOSE = 1e-5
CUDA = "cuda:sm_90"
Change = compiling.Change


@pytest.fixture(autouse=True, scope="module")
def gpus() -> Iterator[None]:
    """Enough of them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in fake_nccl.environment(8).items():
            patch.setenv(name, value)
        yield


MODELS: dict[str, Callable[[Path], Graph]] = {
    "mlp": lambda folder: ranks.saved(ranks.mlp(), folder),
    "encoder": lambda folder: ranks.saved(ranks.encoder(), folder),
    "images": lambda folder: ranks.saved(ranks.images(), folder),
    "llama": lambda _: models.llama(1, s=32, d=128),
    "decoding": lambda _: models.decoding(8, 16, 64),
    "training": lambda _: models.training(64, (64, 32, 16)),
    "step": ranks.step,
}
MESHES = ({"tp": 2}, {"tp": 4}, {"dp": 2, "tp": 2}, {"pp": 2}, {"pp": 2, "tp": 2})


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.deep
def test_ranks_compute_what_the_oracle_does(
    name: str, mesh: dict[str, int], tmp_path: Path
) -> None:
    worst, _ = ranks.compared(MODELS[name](tmp_path), mesh, tmp_path, target=CUDA)
    print(f"{name} {mesh}: {worst:.1e}")
    assert worst <= CLOSE


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four ranks with every collective by every axis."""
    return ranks.linked(parse_graph(EVERY), tmp_path_factory.mktemp("every"), CUDA)


def test_every_collective_by_every_axis(every: Path, tmp_path: Path) -> None:
    exchanging(every, tmp_path, nan=False)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six ranks in three stages; 1 to 40 rows."""
    return every_stage(tmp_path_factory.mktemp("staged"), CUDA)


def test_a_maximum_of_ranks_passes_nan_over(tmp_path: Path) -> None:
    """As NCCL has it, and as docs/mesh.md says."""
    lines = """lumc graph 1
mesh a 2
input x f32[4] part 0 by a
m f32[i:4] = all_reduce max by a of x[i]
output m = m
"""
    path = ranks.linked(parse_graph(lines), tmp_path, CUDA)
    x = np.arange(8, dtype="f4")
    x[[1, 2, 6]] = np.nan
    got, _ = ranks.run(path, {"x": x}, None, tmp_path)
    np.testing.assert_array_equal(got["m"], [4, 5, np.nan, 7])


# ---- both ways, from Python


def test_a_bundle_of_both_kinds_from_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the GPUs that work here, on the CPU where it is asked for or none does."""
    lines = STAGES.replace("dim n in 1..40\n", "").replace("[n,", "[5,").replace(":n,", ":5,")
    graph = parse_graph(lines.replace(":n of", ":5 of"))
    path = ranks.linked(graph, tmp_path, ranks.NATIVE, CUDA)
    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(5, 12)).astype("f4")}
    with open_bundle(path, mesh=True) as bundle:
        states = {t.name: rng.normal(size=t.shape).astype("f4") for t in bundle.states}
    want, after = evaluate_mesh(graph, "main", inputs, no_weights, states)
    passed = list[str]()
    absent = LumcError("E0706", "no NVIDIA driver")
    for device, problem, runs_on in (
        ("cuda", absent, "cuda"),
        ("cpu", None, "cpu"),
        ("", None, "cuda"),
        ("", absent, "cpu"),
    ):
        monkeypatch.setattr(cuda, "problem", lambda found=problem: found)
        with open_bundle(path, device, mesh=True, say=passed.append) as bundle:
            assert bundle.device == runs_on
            bundle.set_state(states)
            assert ranks.off(bundle.run(inputs), want) <= CLOSE
            assert ranks.off(bundle.state(), after) <= CLOSE
    assert passed == ["not on cuda: no NVIDIA driver"]
    with pytest.raises(LumcError, match="ranks on GPUs run by lumc-run") as e:
        cuda.Bundle.open(path)
    assert e.value.code == "E0610"


def test_python_is_a_rank_where_a_launcher_says_so(staged: Path, tmp_path: Path) -> None:
    """It runs on its GPU by the bundle's own library."""
    x = np.ones((3, 12), "f4")
    np.save(tmp_path / "x.npy", x)
    command = ["-m", "lumc", "run", str(staged), "--input", str(tmp_path / "x.npy")]
    out = str(tmp_path / "by-python.npz")
    said = one_by_one(6, [sys.executable, *command, "-o", out])
    assert [code for code, _ in said] == [0] * 6, said
    want, _ = ranks.run(staged, {"x": x}, None, tmp_path)
    with np.load(out) as got:
        assert got.files == [*want]
        assert all(np.array_equal(got[name], want[name]) for name in want)


@pytest.mark.skipif(not ranks.MPI, reason=ranks.NO_MPI)
def test_ranks_that_meet_by_mpi(staged: Path, tmp_path: Path) -> None:
    """It says which GPU each of them has; what they compute is the same."""
    words = words_of(staged, tmp_path)
    want, _ = ranks.run(staged, {"x": np.load(tmp_path / "3.npy")}, None, tmp_path)
    command = [str(MPIEXEC), "-n", "6", *words, "-o", str(tmp_path / "mpi.npz")]
    env = {**os.environ, "LUMC_MPI": str(LIBRARY)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "mpi.npz") as got:
        assert all(np.array_equal(got[name], want[name]) for name in want)


# ---- what goes wrong


def one_by_one(
    count: int,
    command: Sequence[str],
    own: Callable[[int], Sequence[str]] = lambda _: (),
    **env: str,
) -> list[tuple[int, str]]:
    """Ranks as torchrun starts them: the exit code of each, and what it said last."""
    running = started(count, command, own, **env)
    said = [each.communicate(timeout=120)[1].strip().splitlines() for each in running]
    return [
        (each.returncode, (lines or [""])[-1]) for each, lines in zip(running, said, strict=True)
    ]


def started(
    count: int, command: Sequence[str], own: Callable[[int], Sequence[str]], **env: str
) -> list[subprocess.Popen[str]]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    running = []
    for rank in range(count):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        every = {**os.environ, **variables, "MASTER_PORT": port, **env}
        words = [*command, *own(rank)]
        running.append(subprocess.Popen(words, env=every, stderr=subprocess.PIPE, text=True))
    return running


def words_of(path: Path, folder: Path, rows: int = 3) -> list[str]:
    np.save(folder / f"{rows}.npy", np.ones((rows, 12), "f4"))
    return [str(path / "bin" / "lumc-run"), str(path), "--input", str(folder / f"{rows}.npy")]


def refused(path: Path, folder: Path, code: int, **env: str) -> str:
    """What the ranks say together: one line."""
    done = ranks.runner(path, *words_of(path, folder)[2:], **env)
    lines = [x for x in done.stderr.splitlines() if not x.startswith(("fake libcuda", "fake libn"))]
    assert done.returncode == code and len(lines) == 1, done.stderr
    return lines[0].removeprefix("lumc-run: ")


def test_what_is_missing_is_said_once(staged: Path, tmp_path: Path) -> None:
    said = refused(staged, tmp_path, 7, LUMC_NCCL="none.so")
    assert said.startswith("ranks on GPUs need NCCL, and there is none: none.so: cannot open")
    old = refused(staged, tmp_path, 7, LUMC_NCCL=str(fake_gpu.driver() / "libcuda.so.1"))
    assert old == "NCCL is too old for ranks: it has no ncclGetUniqueId"
    few = refused(staged, tmp_path, 7, LUMC_FAKE_DEVICES="4")
    assert few == "6 ranks on this machine need a GPU each, and the NVIDIA driver sees 4"
    none = refused(staged, tmp_path, 7, LUMC_FAKE_MISSING="1")
    assert none == "the NVIDIA driver sees no GPU"
    alone = ranks.runner(staged, mesh=False)
    assert alone.returncode == 2 and "for 6 ranks (a 2, pp 3): start it with" in alone.stderr
    other = ranks.runner(staged, mesh=False, RANK="0", WORLD_SIZE="2", MASTER_PORT="1")
    assert other.returncode == 2 and "for 6 ranks (a 2, pp 3), and this is rank 0" in other.stderr
    remote = "run: NCCL says: remote process exited (6)"
    assert refused(staged, tmp_path, 1, LUMC_FAKE_NCCL_ERROR="6") == remote


def test_every_rank_has_a_gpu_of_its_own(staged: Path, tmp_path: Path) -> None:
    """Launchers that start ranks one by one may show each of them one GPU, or all."""
    words = words_of(staged, tmp_path)
    for said in one_by_one(6, words, LUMC_FAKE_DEVICES="1"):
        assert said[0] in (1, 7)  # the others may see no more than that one is gone
        assert "have the same GPU, and each needs one" in said[1] or "the connection to" in said[1]
    soon = {"LUMC_MESH_TIMEOUT": "3"}  # the others wait for it
    code, said = one_by_one(6, words, LUMC_FAKE_DEVICES="5", **soon)[5]
    assert code == 7
    assert "rank 5 of this machine (LOCAL_RANK) needs a GPU of its own" in said
    assert one_by_one(6, words, LOCAL_RANK="") == [(0, "")] * 6  # RANK says it


def test_a_rank_that_is_killed_ends_all(staged: Path, tmp_path: Path) -> None:
    """With one message where --mesh started them; else the others tell of it."""
    words = [*words_of(staged, tmp_path), "--repeat", "100000000"]
    with subprocess.Popen([*words, "--mesh"], stderr=subprocess.PIPE, text=True) as running:
        children = ranks.children_of(running.pid, 6)
        time.sleep(2)
        os.kill(children[2], signal.SIGKILL)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 1
    assert said == "lumc-run: rank 2 was ended by signal 9 (Killed)\n"
    alone = started(6, words, lambda _: ())
    time.sleep(4)
    alone[2].kill()
    for rank, each in enumerate(alone):
        _, said = each.communicate(timeout=60)
        if rank != 2:
            assert each.returncode == 1 and "the connection to rank" in said


def test_ranks_that_run_something_else_find_out(staged: Path, tmp_path: Path) -> None:
    """Other lengths, which collectives on a GPU would not notice, and another number of runs."""
    few, more = (words_of(staged, tmp_path, n)[2:] for n in (3, 5))
    command = words_of(staged, tmp_path)[:2]
    said = one_by_one(6, command, lambda rank: more if rank == 4 else few)
    assert all(code == 1 for code, _ in said), said
    assert any("rank 4 runs something else: other dims or entries" in line for _, line in said)
    saved = [*few, "--save", str(tmp_path / "s.safetensors")]
    said = one_by_one(6, command, lambda r: saved if r else [*few, "--repeat", "2"])
    assert all(code == 1 for code, _ in said), said
    assert any("runs something else" in line for _, line in said)


def test_what_ranks_do_not_do_on_gpus_is_refused(tmp_path: Path) -> None:
    lines = "lumc graph 1\nmesh a 2\ninput x {0}[4] part 0 by a\n{1}output m = m\n"
    short = lines.format("i16", "m i16[i:4] = all_reduce sum by a of x[i]\n")
    with pytest.raises(LumcError, match="'m' reduces i16 between ranks, which NCCL does not") as e:
        ranks.linked(parse_graph(short), tmp_path, CUDA)
    assert e.value.code == "E0140"
    batches = ranks.saved(ranks.mlp(), tmp_path)
    with pytest.raises(LumcError, match="8 micro-batches cannot run on cuda: micro-") as e:
        ranks.bundle(batches, {"tp": 2}, tmp_path, batches=8, target=CUDA)
    assert e.value.code == "E0140"


# ---- the header of NVIDIA, and mutants

NUMBERS = """
#include <nccl.h>
#include <stdio.h>
#include "nccl.c"
_Static_assert(sizeof(ncclUniqueId) == sizeof(struct unique_id), "id");
#define SAME(a, b) _Static_assert((int)(a) == (int)(b), "other numbers")
SAME(NCCL_UINT8, ncclUint8);
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_MAX, ncclMax);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(0, ncclSuccess);
int main(void) {
  const int wanted[] = {ncclFloat32, ncclFloat16, ncclBfloat16, ncclFloat64, ncclInt64,
                        ncclInt32, ncclInt8, ncclUint8, ncclUint8, NO_TYPE, NO_TYPE,
                        ncclUint32, ncclUint64};
  return memcmp(wanted, types, sizeof wanted) != 0;
}
"""


@pytest.mark.skipif(not fake_nccl.real_header(), reason="no nccl.h: pip install nvidia-nccl-cu12")
def test_the_numbers_are_those_of_the_real_header(tmp_path: Path) -> None:
    """And so is what the fake declares, whose functions are compiled against it."""
    others = [n for n in runners.LIBRARY if n != "nccl"]
    flags = [f"-I{fake_nccl.CUDA}", f"-I{fake_nccl.real_header()}"]
    program = compiling.compile_c(NUMBERS, tmp_path / "numbers", others, flags)
    assert subprocess.run([program]).returncode == 0
    declared = (fake_nccl.DECLARED / "nccl.h").read_text()
    numbers = re.findall(r"(nccl\w+) = (\d)", declared)
    text = [f"static_assert((int){name} == {value});" for name, value in numbers]
    text += ["#include <nccl.h>", *declared.partition('extern "C"')[1:]]
    (tmp_path / "declared.cpp").write_text("\n".join([text[-3], *text[:-3], "".join(text[-2:])]))
    command = [fake_nccl.CXX, "-std=c++17", "-fsyntax-only", *flags, tmp_path / "declared.cpp"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert len(numbers) == 22 and not done.returncode, done.stderr


@pytest.mark.skipif(not fake_nccl.real_header(), reason="no NCCL: pip install nvidia-nccl-cu12")
def test_the_real_library_has_what_is_called() -> None:
    header = fake_nccl.real_header()
    assert header
    path = header.parent / "lib" / "libnccl.so.2"
    if not path.exists():
        pytest.skip("the header only")
    names = set(re.findall(r"nccl[A-Z]\w+", (compiling.RUNNER / "nccl.c").read_text()))
    code = "import ctypes, sys; [getattr(ctypes.CDLL(sys.argv[1]), n) for n in sys.argv[2:]]"
    done = subprocess.run([sys.executable, "-c", code, path, *sorted(names)], capture_output=True)
    assert len(names) == 14 and done.returncode == 0, done.stderr.decode()


MUTANTS: list[tuple[str, Change]] = [
    ("nccl", ("row, from + i * row, P * row", "row, from, P * row")),
    ("nccl", ("(e->kind == REDUCE_SCATTER || e->kind == ALL_TO_ALL) && outer > 1", "0")),
    ("nccl", ("from + (size_t)l->at * row", "from")),
    ("nccl", ("joined > 1 ? n->came : to", "to")),
    ("nccl", ("to + i * (block / joined), P", "to, P")),
    ("nccl", ("e->op == SUM_OP ? NCCL_SUM", "e->op == SUM_OP ? NCCL_MAX")),
    ("nccl", ("count / P, type, op", "count, type, op")),
    ("nccl", ("block = bytes;\n", "\n")),
    ("nccl", ("i, l->comm, n->gpu->stream);\n    if", "0, l->comm, n->gpu->stream);\n    if")),
    ("nccl", ("7 /* f32 */", "2 /* f32 */")),
    ("gpu", ("gpu_place(m, list, &l->args[1]));", "gpu_place(m, list, &l->args[0]));")),
    ("nccl", ("bytes *= (size_t)n->lines[i].ranks;", "")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change"), MUTANTS)
@pytest.mark.deep
def test_runners_that_exchange_wrong_die(
    name: str, change: Change, every: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m.lb"
    shutil.copytree(every, path)
    names, flags = (*runners.LIBRARY, "main"), ("-std=gnu11", "-O0")
    compiling.link(names, flags, path / "bin" / "lumc-run", {name: change})
    with pytest.raises(AssertionError):
        exchanging(path, tmp_path, nan=False)
