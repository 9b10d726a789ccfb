"""Every command once, on a graph of two nodes: the first thing to run after a change."""

import json
from pathlib import Path

import numpy as np

from commands import Lumc

SCRIPT = """
from lumc.frontend import Model

def build():
    g = Model()
    x, w = g.input("x", (3, 5)), g.input("w", (5, 7))
    g.output("y", (x @ w).relu())
    return g
"""


def test_every_command(lumc: Lumc) -> None:
    Path("tiny.py").write_text(SCRIPT)
    lumc("import", "tiny.py:build", "-o", "tiny.lg")
    lumc("search", "tiny.lg", "-o", "tiny.ls")
    lumc("profile", "--estimate", "tiny.ls", "-o", "tiny.lp")
    lumc("codegen", "tiny.lp", "-o", "tiny.lk")
    lumc("link", "tiny.lk", "-o", "tiny.lb")
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype("f4") for shape in ((3, 5), (5, 7)))
    np.savez("in.npz", x=x, w=w)
    lumc("run", "tiny.lb", "--input", "in.npz", "-o", "y.npy")
    np.testing.assert_allclose(np.load("y.npy"), np.maximum(x @ w, 0), atol=1e-5)
    assert "ok" in lumc("verify", "tiny.lb", "--input", "in.npz")
    assert json.loads(lumc("bench", "tiny.lb", "--seconds", "0.01", "--json"))["min_us"] > 0
    for kind in ("lg", "ls", "lp", "lk", "lb"):
        assert lumc("show", f"tiny.{kind}")
    assert "cpu:native" in lumc("targets")
    assert "compiler" in lumc("doctor")
