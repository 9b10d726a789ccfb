"""Random numbers: bit for bit those of the paper's C, computed here by numpy; their distribution;
the same ones in every bundle that goes on."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from differential import Case, check_compiled, check_emulated
from lumc import Model, random
from lumc.errors import LumcError
from lumc.graph.graph import Graph
from lumc.kernel.machines import resolve_target
from lumc.oracle.graph import evaluate

Array = np.ndarray[Any, Any]
COUNTERS = np.array([0, 1, 2, 2**31, 2**32 - 1, 2**32, 2**62 + 12345, 2**63 - 1, -1, -(2**63)])


def squares(counter: Array, key: int) -> Array:
    """squares32 as the paper prints it."""
    with np.errstate(over="ignore"):
        c, k = counter.astype(np.uint64), np.uint64(key)
        half = np.uint64(32)
        y = c * k
        z = y + k
        x = y * y + y
        x = x >> half | x << half
        x = x * x + z
        x = x >> half | x << half
        x = x * x + y
        x = x >> half | x << half
        return (x * x + z) >> half


def run(graph: Graph, runs: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """A run behind so many others: outputs and states."""
    feed = {"at": COUNTERS} if graph.entries[0].inputs else {}
    return evaluate(graph, "main", feed, Model().read_weight, {"random": np.array(runs)})


def graph(shape: tuple[int, ...] = (3, 7)) -> Graph:
    m = Model()
    at, g = m.input("at", COUNTERS.shape, "i64", values=(-(2**62), 2**62)), random.Generator(m, 9)
    m.output("bits", random.bits(at, 9))
    m.output("uniform", random.uniform(at, 9))
    m.output("drawn", g.bits(*shape))
    m.output("more", g.uniform(5))
    m.output("kept", g.dropout(m.full(shape, 1.0), 0.5))
    return m.graph()


def wanted(runs: int) -> dict[str, Array]:
    key, base = random.key(9), np.uint64(runs << 32)
    number = squares(np.arange(47, dtype=np.uint64) + base, key)
    every = squares(COUNTERS, key)
    return {
        "bits": every.astype(np.int64),
        "uniform": (every >> np.uint64(8)) * 2.0**-24,
        "drawn": number[:21].astype(np.int64).reshape(3, 7),
        "more": (number[21:26] >> np.uint64(8)) * 2.0**-24,
        "kept": np.where(number[26:] >= 2**31, 2.0, 0.0).reshape(3, 7),
    }


def test_bits_are_those_of_the_paper() -> None:
    g = graph()
    for runs in (0, 1, 2, 10**6):
        found, states = run(g, runs)
        assert states["random"] == runs + 1
        for name, want in wanted(runs).items():
            assert np.array_equal(found[name], want), name


def test_keys() -> None:
    """Eight different digits in each half, none of them 0, and odd."""
    keys = [f"{random.key(seed):016x}" for seed in range(500)]
    assert len(set(keys)) == 500
    for key in keys:
        assert len(set(key[:8])) == len(set(key[8:])) == 8 and "0" not in key and int(key, 16) % 2
        assert int(key, 16) < 2**63


def test_distributions() -> None:
    """Means, variances, neighbours and the numbers of the same place in neighbouring runs; each
    bound is five standard deviations."""
    m = Model()
    g = random.Generator(m, 4)
    n = 1 << 14
    m.output("u", g.uniform(n))
    m.output("v", g.normal(n))
    m.output("b", g.bits(n))
    graph = m.graph()
    runs = [run(graph, i)[0] for i in range(3)]
    bound = 5 * n**-0.5
    for found in runs:
        u, v = found["u"] * 12**0.5 - 3**0.5, found["v"]
        bit = found["b"][:, None] >> np.arange(32) & 1
        assert np.abs(bit.mean(0) - 0.5).max() < bound
        for x in (u, v):
            assert abs(x.mean()) < bound and abs((x * x).mean() - 1) < 2 * bound
            for lag in (1, 2, 64):
                assert abs((x[lag:] * x[:-lag]).mean()) < bound
        assert abs((v**3).mean()) < 4 * bound and abs((v**4).mean() - 3) < 10 * bound
        inside = [(np.abs(v) < z).mean() for z in (1.0, 2.0, 3.0)]
        assert np.abs(np.array(inside) - [0.6827, 0.9545, 0.9973]).max() < bound
    for a, b in pairwise(runs):
        for name in ("u", "v"):
            assert abs(np.corrcoef(a[name], b[name])[0, 1]) < bound


def test_compiled(tmp_path: Path) -> None:
    """Bit for bit, as the cases compare integers."""
    case = Case(graph(), 0)
    case.prepare()
    case.check_plan()
    check_compiled(tmp_path, [case], [case.plan] if case.plan else [])


@pytest.mark.deep
@pytest.mark.parametrize("target", ["cuda:sm_90", "metal:apple7"])
def test_on_emulated_gpus(target: str, tmp_path: Path) -> None:
    case = Case(graph(), 0, target=resolve_target(target))
    case.prepare()
    check_emulated(tmp_path, [case], checked=True)


def test_refusals() -> None:
    m = Model()
    n = m.dim("n", 1, 8)
    g, x = random.Generator(m), m.input("x", (n,))
    for call in (lambda: g.uniform(n), lambda: g.dropout(x, 0.5)):
        with pytest.raises(LumcError, match="random numbers of the shape"):
            call()
    with pytest.raises(LumcError, match="dropout with the probability"):
        g.dropout(x, 1.0)
    assert g.dropout(x, 0.0) is x
    m.output("x", x)
    m.entry("other")
    with pytest.raises(LumcError, match="belongs to another entry"):
        g.uniform(3)
