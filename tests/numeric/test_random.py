"""Random numbers that count: bits, against Squares in numpy's integers, on every target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gpu_launching
import launching
import lumc
from lumc import random
from lumc.codegen.generate import generate
from lumc.errors import LumcError
from lumc.frontend.api.random import key_of
from lumc.graph.text import parse_graph, print_graph
from lumc.kernel.codec import from_plain, to_plain
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Kernel
from lumc.oracle.graph import evaluate
from lumc.profile.choose import estimate
from lumc.search import search

N, SEED = 1000, 7
BASES = (0, 123456789, -5, 2**62)


def squares(counter: np.ndarray, key: int) -> np.ndarray:
    """squares32 of the paper, with shifts."""
    with np.errstate(over="ignore"):
        y = counter.astype("u8") * np.uint64(key)
        z = y + np.uint64(key)
        x = y * y + y
        for more in (z, y):
            x = (x >> np.uint64(32)) | (x << np.uint64(32))
            x = x * x + more
        x = (x >> np.uint64(32)) | (x << np.uint64(32))
        return ((x * x + z) >> np.uint64(32)).astype("u4")


def counting(*made: Callable[[lumc.Tensor, int], lumc.Tensor]) -> lumc.Model:
    m = lumc.Model()
    counter = m.input("base", (), "i64") + m.arange(N)
    for f in made:
        m.output(f.__name__, f(counter, SEED))
    return m


def test_bits_and_floats_are_those_of_squares(tmp_path: Path) -> None:
    graph = counting(random.bits, random.uniform).graph()
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)
    path = lumc.compile(counting(random.bits, random.uniform), tmp_path / "r.lb", estimate=True)
    with lumc.load(path) as bundle:
        for base in BASES:
            want = squares(base + np.arange(N), key_of(SEED))
            unit = (want >> np.uint32(8)).astype("f4") * np.float32(2**-24)
            told = evaluate(graph, "main", {"base": np.array(base)}, None, declared=True)[0]
            for got in (told, bundle(base=np.array(base))):
                assert got["bits"].dtype == np.uint32 and (got["bits"] == want).all()
                assert (got["uniform"] == unit).all() and unit.max() < 1


@pytest.mark.parametrize("name", ["cuda:sm_90", "metal:apple7"])
def test_on_gpus_the_bits_are_the_same(name: str, tmp_path: Path) -> None:
    graph = counting(random.bits).graph()
    code = generate(estimate(search(graph, resolve_target(name), inside=True)))
    kernels = gpu_launching.module(tmp_path, [code], checked=True)
    m = launching.Memory(code, code.entries[0], lambda _: np.array(-5), 1)
    got = gpu_launching.launched(kernels, "g0_", code, code.entries[0], m, "random")
    assert (got["bits"] == squares(np.arange(N) - 5, key_of(SEED))).all()


def test_distributions() -> None:
    m, n = lumc.Model(), 1 << 16
    c = m.input("base", (), "i64") + m.arange(n)
    m.output("u", random.uniform(c, 1, -1.0, 3.0))
    m.output("n", random.normal(c, 2, 1.0, 2.0))
    m.output("d", random.dropout(m.ones(256, 256), 0.25, m.input("base2", (), "i64")))
    got = evaluate(m.graph(), "main", {"base": np.array(3), "base2": np.array(1)}, None)[0]
    assert abs(got["u"].mean() - 1) < 0.01 and abs(got["u"].var() - 16 / 12) < 0.02
    z = (got["n"] - 1) / 2
    moments = [z.mean(), z.var(), (z**3).mean(), (z**4).mean()]
    assert np.allclose(moments, [0, 1, 0, 3], atol=0.15)
    assert set(np.unique(got["d"].round(6))) == {0.0, 1.333333}
    assert abs((got["d"] == 0).mean() - 0.25) < 0.01
    assert not np.array_equal(got["d"][0], got["d"][1]) and abs(got["d"].mean() - 1) < 0.01


def test_seeds_have_numbers_of_their_own() -> None:
    keys = [key_of(seed) for seed in range(1000)]
    assert len({*keys}) == 1000 and all(k % 2 and k < 2**64 for k in keys)
    drawn = np.array([squares(np.arange(64), k) for k in keys[:50]]) / 2.0**32 - 0.5
    assert abs(np.corrcoef(drawn) - np.eye(50)).max() < 0.6


def test_what_does_not_count_is_refused() -> None:
    m = lumc.Model()
    x = m.input("x", (3,))
    with pytest.raises(LumcError, match="counted by integers, not f32"):
        random.bits(x)
    with pytest.raises(LumcError, match=r"a rate of 1\.0"):
        random.dropout(x, 1.0, m.input("n", (), "i64"))


def test_constants_of_u64_are_read_again() -> None:
    code = estimate(search(counting(random.bits).graph(), resolve_target("cpu:x86-64-v3")))
    for planned in code.kernels.values():
        kernel = planned.kernel
        data = to_plain(kernel)
        assert from_plain(Kernel, data) == kernel
        large = [n for n in data["terms"] if n[0] == "const" and n[1][1] > 2**63]
        for node in large:
            node[1][1] += 2**64
            with pytest.raises(ValueError, match="is not a constant of u64"):
                from_plain(Kernel, data)
            node[1][1] -= 2**64
        assert large
