"""Graphs for a mesh by real processes: lengths, other launchers, mutants, random graphs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import running_ranks as ranks
from collectives import every_collective, no_weights
from lumc.errors import LumcError
from lumc.graph.ops import DType
from lumc.graph.text import parse_graph
from lumc.oracle.graph import evaluate
from lumc.oracle.ranks import evaluate_mesh
from random_graphs import Profile, leaf_values, random_graph
from sharding import sharded_at_random

CLOSE = 1e-5
LENGTHS = """lumc graph 1
mesh a 2
dim b in 1..40
input x f32[b, 3, 4] part 1 by a
y f32[i:b, j:3, k:4] = exp2 x[i, j, k]
sum f32[i:b, j:3, k:4] = all_reduce sum by a of y[i, j, k]
turned f32[i:b, j:6, k:2] = all_to_all split k concat j by a of y[i, j, k]
output sum = sum
output turned = turned part 2 by a
output own = y part 1 by a
"""


@pytest.mark.deep
def test_lengths_that_runs_choose(tmp_path: Path) -> None:
    """Kernels for several, and memory for the greatest."""
    graph = parse_graph(LENGTHS)
    path = ranks.linked(graph, tmp_path)
    for n in (1, 3, 17, 40):
        inputs = {"x": np.random.default_rng(n).normal(size=(n, 6, 4)).astype("f4")}
        outputs, _ = evaluate_mesh(graph, "main", inputs, no_weights)
        got, _ = ranks.run(path, inputs, None, tmp_path)
        assert ranks.off(got, outputs) < 1e-6


@pytest.mark.deep
def test_python_is_a_rank_where_a_launcher_says_so(tmp_path: Path) -> None:
    """``lumc run`` without --mesh; the first rank writes the outputs."""
    lines = LENGTHS.replace("dim b in 1..40\n", "").replace("[b,", "[5,").replace(":b,", ":5,")
    graph = parse_graph(lines)
    path = ranks.linked(graph, tmp_path)
    x = np.random.default_rng(0).normal(size=(5, 6, 4)).astype("f4")
    np.save(tmp_path / "x.npy", x)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    running = list[subprocess.Popen[str]]()
    for rank in range(2):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": port}
        out = str(tmp_path / f"out{rank}.npz")
        words = ["run", str(path), "--input", str(tmp_path / "x.npy"), "-o", out]
        command = [sys.executable, "-m", "lumc", *words]
        running.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
    for each in running:
        _, said = each.communicate(timeout=60)
        assert each.returncode == 0, said
    assert not (tmp_path / "out1.npz").exists()
    want, _ = evaluate_mesh(graph, "main", {"x": x}, no_weights)
    with np.load(tmp_path / "out0.npz") as got:
        assert ranks.off(dict(got), want) < 1e-6


# ---- mutants of the runner


MUTANTS = [
    ("ranks.c", "(at - s->at) * s->step", "(at - s->at)"),
    ("ranks.c", "m->rank / step % n", "m->rank % n"),
    ("ranks.c", "s->steps[i] * (uint64_t)m->seats[i].at", "0 * s->steps[i]"),
    ("ranks.c", "  if (even && outer > 1) {", "  if (0) {"),
    ("ranks.c", "(int)P, s->at, row, to)", "(int)P, 0, row, to)"),
    ("ranks.c", "ends, element, joined > 1 ? parts : to)", "ends, element, to)"),
    ("ranks.c", "joined, (int)P, (int)i, block / joined, to)", "1, (int)P, (int)i, block, to)"),
    ("ranks.c", "i = 1; !code && i < P; ++i)", "i = 2; !code && i < P; ++i)"),
    ("ranks.c", "e->dtype, e->op, parts,", "e->dtype, SUM_OP, parts,"),
    ("ranks.c", "code = swap_all(m, s, parts, ends", "code = swap_all(m, s, from, ends"),
    ("ranks.c", "k = p->parts[state].n; k-- > 0 && !code;", "k = 0; k < p->parts[state].n; ++k"),
    ("ranks.c", "outside(shape, cut->dim), 1, 0, 0}", "1, 1, 0, 0}"),
    ("rows.c", "(other[i] & 0x7fff) > infinite || ", ""),
    ("memory.c", "part == own ?", "part == 0 ?"),
    ("mpi.c", "in ? p->n_in : p->n_out;", "(in ? p->n_in : p->n_out) / 2;"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new"), MUTANTS)
@pytest.mark.deep
def test_runners_that_exchange_wrong_die(
    patched: Path, tmp_path: Path, name: str, old: str, new: str
) -> None:
    if name == "mpi.c" and not ranks.MPI:
        pytest.skip(ranks.NO_MPI)
    ranks.broken(patched, name, old, new)
    with pytest.raises((AssertionError, LumcError)):
        every_collective(tmp_path)
        graph = ranks.saved(ranks.mlp(), tmp_path)
        worst, _ = ranks.compared(graph, {"dp": 2, "tp": 2}, tmp_path, mpi=True)
        assert worst <= CLOSE


# ---- anything


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.deep
def test_random_shardings_of_random_graphs(seed: int, tmp_path: Path) -> None:
    """Compiled, and run by processes."""
    profile = Profile()
    graph = random_graph(seed, profile)
    every = [n for e in graph.entries for n in e.inputs]
    nodes = [n for e in graph.entries for n in (*e.inputs, *e.nodes)]
    if graph.weights or any(n.dtype in (DType.F16, DType.BF16) for n in [*nodes, *graph.states]):
        pytest.skip("weights in no file, or halves, whose rounding differs")
    made = sharded_at_random(graph, seed)
    given = {n.name: leaf_values(n, seed) for n in [*graph.states, *every]}
    states = {n.name: given[n.name] for n in graph.states}
    try:
        path = ranks.linked(made, tmp_path)
    except LumcError as e:
        assert e.code in ("E0140", "E0112", "E0402")
        return
    for entry in graph.entries[:1]:
        inputs = {n.name: given[n.name] for n in entry.inputs}
        outputs, after = evaluate(graph, entry.name, inputs, no_weights, states)
        got, left = ranks.run(path, inputs, states or None, tmp_path)
        for name, value in (outputs | (after if states else {})).items():
            made_of = (got | left)[name]
            fine = np.isfinite(np.asarray(value, "f8"))
            assert np.allclose(made_of[fine], value[fine], rtol=1e-4, atol=1e-4), name
