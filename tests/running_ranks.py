"""Graphs that are compiled for a mesh and run by real processes, beside the oracle."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from bundles import compiler
from gpu_bundles import Emulator
from lumc.artifacts.files import read_graph
from lumc.bundle.ranks import KINDS
from lumc.bundle.reader import Plan
from lumc.codegen.generate import generate
from lumc.command.grad import Training, differentiate
from lumc.command.spaces import make_space
from lumc.disk.weights import read_weight
from lumc.frontend import Model, nn
from lumc.graph.batches import AFTER, BEFORE, WITHIN
from lumc.graph.collective import Kind
from lumc.graph.graph import Graph
from lumc.graph.ops import DType
from lumc.graph.verify import verify_graph
from lumc.link.link import TargetCode, Tools, link
from lumc.oracle.graph import evaluate
from lumc.profile.choose import estimate
from lumc.shard.cost import Machine
from lumc.shard.mesh import shard
from lumc.shard.schedule import Step

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
ENDED_S = 60  # that a run may take
NATIVE = "cpu:native"
NODES = 2000  # of a region in the search: what is found first will do


PREFIX = Path(os.environ.get("LUMC_TEST_MPI", sys.prefix))  # where pip put the wheel of MPICH
MPIEXEC, LIBRARY = PREFIX / "bin" / "mpiexec", PREFIX / "lib" / "libmpi_abi.so.1"
MPI = MPIEXEC.exists() and LIBRARY.exists()
NO_MPI = "no MPI: pip install mpich"


def bundle(
    graph: Graph,
    mesh: Mapping[str, int],
    folder: Path,
    price: float = 1e-9,
    batches: int = 1,
    target: str = NATIVE,
) -> Path:
    """The bundle of the ranks of a graph, by estimate; ``price`` of a byte held. Weights are files
    in the folder."""
    ranks = shard(graph, mesh, lambda n: Machine(n, price=price), (), batches).graph
    verify_graph(ranks)
    return linked(ranks, folder, target)


def linked(ranks: Graph, folder: Path, *targets: str) -> Path:
    """The bundle of a graph for a mesh; CUDA is for the fake driver."""
    plans = [estimate(make_space(ranks, t, NODES), lambda _: None) for t in targets or (NATIVE,)]
    path = folder / f"{'-'.join(f'{k}{n}' for k, n in ranks.mesh.items())}.lb"
    codes = [TargetCode(generate(plan), "") for plan in plans]
    link(codes, path, folder, Tools(compiler(), Emulator()), single=False)
    return path


def saved(model: Model, folder: Path) -> Graph:
    """With the weights in the folder."""
    model.save(str(folder / "m.lg"), {})
    return read_graph(str(folder / "m.lg"), {})


def drawn(graph: Graph, entry: str, seed: int = 0) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs, and values of states that have none."""
    rng = np.random.default_rng(seed)

    def of(n: Any) -> Array:
        if n.dtype is not DType.F32:
            return rng.integers(*(n.values or (0, 1)), n.sizes, endpoint=True).astype(n.dtype.numpy)
        return rng.normal(0, 1 if n.op == "input" else 0.1, n.sizes).astype("f4")

    inputs = {n.name: of(n) for n in graph.entry(entry).inputs}
    return inputs, {n.name: of(n) for n in graph.states if not n.file}


def runner(
    path: Path, *words: str, mesh: bool = True, **env: str
) -> subprocess.CompletedProcess[str]:
    """What ``lumc-run`` says."""
    command = [str(path / "bin" / "lumc-run"), str(path), *["--mesh"][:mesh], *words]
    own = {**os.environ, **env}
    return subprocess.run(command, capture_output=True, text=True, timeout=ENDED_S, env=own)


def by_mpi(path: Path, ranks: int, *words: str) -> subprocess.CompletedProcess[str]:
    """What ranks say that ``mpiexec`` starts."""
    command = [str(MPIEXEC), "-n", str(ranks), str(path / "bin" / "lumc-run"), str(path), *words]
    own = {**os.environ, "LUMC_MPI": str(LIBRARY)}
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * ENDED_S, env=own)


def run(
    path: Path, inputs: Arrays, states: Arrays | None, folder: Path, *words: str, mpi: int = 0
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The outputs, and the states after, of ranks that meet over TCP or, if there are ``mpi``, over
    MPI."""
    given = list[str]()
    for name, array in inputs.items():
        np.save(folder / f"{name}.npy", array)
        given += ["--input", f"{name}={folder / name}.npy"]
    if states is not None:
        save_file(dict(states), folder / "before.safetensors")
        given += ["--state", str(folder / "before.safetensors")]
        given += ["--save", str(folder / "after.safetensors")]
    (folder / "out.npz").unlink(missing_ok=True)
    given += ["-o", str(folder / "out.npz"), *words]
    done = by_mpi(path, mpi, *given) if mpi else runner(path, *given)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "out.npz") as out:
        outputs = dict(out)
    return outputs, load_file(folder / "after.safetensors") if states is not None else {}


def broken(runner: Path, name: str, old: str, new: str) -> None:
    """Exchange a piece of text that stands once in a file of this copy of the runner."""
    text = (runner / name).read_text()
    assert text.count(old) == 1, old
    (runner / name).write_text(text.replace(old, new))


def children_of(pid: int, count: int) -> list[int]:
    """In the order in which they were started."""
    there = Path(f"/proc/{pid}/task/{pid}/children")
    for _ in range(200):
        if len(found := there.read_text().split()) == count:
            return [int(n) for n in found]
        time.sleep(0.05)
    raise AssertionError("the ranks do not start")


def off(got: Arrays, want: Arrays) -> float:
    """The greatest relative L2 difference of arrays by name."""
    assert got.keys() == want.keys()
    pairs = [(np.asarray(got[n], "f8"), np.asarray(want[n], "f8")) for n in want]
    each = (float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30)) for a, b in pairs)
    return max(each, default=0.0)


def compared(
    graph: Graph, mesh: Mapping[str, int], folder: Path, mpi: bool = False, **how: Any
) -> tuple[float, Path]:
    """By how much the ranks of a ``bundle`` that is made so differ from the oracle on the whole
    graph, in outputs and states. Over MPI, where it is there, they have the same bits."""
    path = bundle(graph, mesh, folder, **how)
    entry = graph.entries[0].name
    inputs, states = drawn(graph, entry)
    states |= {n.name: np.array(read_weight(n, folder)) for n in graph.states if n.file}
    want = evaluate(graph, entry, inputs, lambda n: read_weight(n, folder), states)
    got = run(path, inputs, states or None, folder)
    if mpi and MPI:
        again = run(path, inputs, states or None, folder, mpi=prod(mesh.values()))
        for one, other in zip(got, again, strict=True):
            assert one.keys() == other.keys()
            assert all(np.array_equal(one[n], other[n], equal_nan=True) for n in one)
    return max(off(got[0], want[0]), off(got[1], want[1]) if states else 0.0), path


# ---- computing that is slept through, as a machine with few cores cannot do it

SLEEP = 0.1  # seconds that a launch takes, in place of its kernel
RUN = "pool_run(m->pool, ops + i, n);"


def sleeping(runner: Path) -> None:
    """This copy of the runner sleeps in place of kernels."""
    text = (runner / "cpu.c").read_text()
    assert text.count(RUN) == 1
    nap = f"(void)0; nanosleep(&(struct timespec){{0, (long)n * {int(SLEEP * 1e9)}}}, NULL);"
    (runner / "cpu.c").write_text("#include <time.h>\n" + text.replace(RUN, nap))


def steps_of(plan: Plan) -> list[Step]:
    """What ranks do by a plan, if every launch takes as long."""
    (entry,), out = plan.entries, list[Step]()
    turns = entry.lists[-1].turns
    assert plan.mesh
    every = range(plan.mesh.axes["pp"])
    for i, launch in enumerate(entry.launches):
        inside = turns.first <= i < turns.last
        phase, at = WITHIN if inside else BEFORE if i < turns.first else AFTER, launch.kernel
        own = [launch.ranks - 1] if launch.ranks else [*every]
        back = [s for s, way in enumerate(turns.ways) if inside and i >= way.middle]
        if at < len(plan.kernels):
            out.append(Step(phase, own, SLEEP, None, back))
            continue
        e = plan.exchanges[at - len(plan.kernels)]
        kind = KINDS[e.kind]
        ends = [e.target] if kind is Kind.SEND else [*every]
        source = e.source if kind.leaves else None
        out.append(Step(phase, ends if kind.leaves else own, 0.0, source, back))
    return out


def slept(path: Path, inputs: Arrays, folder: Path, launcher: str, count: int = 4) -> float:
    """The seconds of the fastest of five runs of so many ranks, by ``tcp`` or ``mpi``."""
    words = ["--repeat", "5"]
    for name, array in inputs.items():
        np.save(folder / f"{name}.npy", array)
        words += ["--input", f"{name}={folder / name}.npy"]
    done = by_mpi(path, count, *words) if launcher == "mpi" else runner(path, *words)
    found = re.search(r"min ([0-9.]+) us", done.stdout)
    assert found, done.stderr
    return float(found[1]) * 1e-6


# ---- models that tests/sharded_models.py has not


def mlp(rows: int = 32, width: int = 64) -> Model:
    rng, m = np.random.default_rng(0), Model()
    x = m.input("x", (rows, width))
    up = m.constant(rng.normal(0, 0.1, (width, 4 * width)).astype("f4"), "up")
    down = m.constant(rng.normal(0, 0.1, (4 * width, width)).astype("f4"), "down")
    m.output("y", x + (x @ up).relu() @ down)
    return m


def deep(rows: int = 16, width: int = 64, layers: int = 4) -> Model:
    rng, m = np.random.default_rng(0), Model()
    x = m.input("x", (rows, width))
    for i in range(layers):
        w = rng.normal(0, width**-0.5, (width, width)).astype("f4")
        x = x + (x @ m.constant(w, f"w{i}")).relu()
    m.output("y", x)
    return m


def encoder(s: int = 32, d: int = 128, heads: int = 4) -> Model:
    """A block of BERT: attention to all, layer norms behind, GELU."""
    rng, m = np.random.default_rng(0), Model()

    def weight(name: str, *shape: int) -> Any:
        return m.constant(rng.normal(0, 0.1, shape).astype("f4"), name)

    x = m.input("x", (1, s, d))
    q, k, v = (nn.heads(x @ weight(n, d, d) + weight(f"{n}.b", d), heads) for n in "qkv")
    h = nn.merged(nn.attention(q, k, v)) @ weight("o", d, d) + weight("o.b", d)
    h = (x + h).layer_norm(weight("n1", d), weight("n1.b", d))
    up = (h @ weight("up", d, 4 * d) + weight("up.b", 4 * d)).gelu()
    y = h + up @ weight("down", 4 * d, d) + weight("down.b", d)
    m.output("y", y.layer_norm(weight("n2", d), weight("n2.b", d)))
    return m


def images(batch: int = 8) -> Model:
    """Two convolutions with a step of two, and a classifier."""
    rng, m = np.random.default_rng(0), Model()
    x = m.input("x", (batch, 3, 16, 16))
    for i, (a, b) in enumerate([(3, 16), (16, 32)]):
        w = m.constant(rng.normal(0, 0.2, (b, a, 3, 3)).astype("f4"), f"w{i}")
        x = x.conv2d(w, stride=2, padding=1).relu()
    w = m.constant(rng.normal(0, 0.1, (512, 8)).astype("f4"), "w")
    m.output("y", (x.reshape(batch, 512) @ w).softmax(-1))
    return m


def classifier(batch: int = 16) -> Model:
    """What ``lumc grad --train`` makes a step of."""
    rng, m = np.random.default_rng(0), Model()
    x, label = m.input("x", (batch, 32)), m.input("label", (batch,), "i64", values=(0, 7))
    for i, (a, b) in enumerate([(32, 64), (64, 8)]):
        w = m.constant(rng.normal(0, 0.2, (a, b)).astype("f4"), f"w{i}")
        bias = m.constant(rng.normal(0, 0.1, b).astype("f4"), f"b{i}")
        x = x @ w + bias
        x = x.relu() if i == 0 else x
    m.output("loss", x.cross_entropy(label))
    return m


def words_of(folder: Path, steps: int, feed: Arrays) -> Sequence[str]:
    """The words of a loop of steps."""
    np.savez(folder / "feed.npz", **feed)
    return ["--steps", str(steps), "--feed", str(folder / "feed.npz"), "--seed", "1"]


def step(folder: Path) -> Graph:
    """A step of training with AdamW, of states that begin with values."""
    saved(classifier(), folder)
    training = Training("adamw")
    there = str(folder / "step.lg")
    differentiate(str(folder / "m.lg"), there, "loss", ["*"], [], "", [], training, 0)
    return read_graph(there, {})
