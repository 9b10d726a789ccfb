"""States that are updated and read in one run, as code: a cache that grows, in any chunks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import launching
from kernels import PLAIN, native
from lumc.codegen.generate import generate
from lumc.codegen.tile.verify import verify
from lumc.frontend.api.model import Model
from lumc.graph.expr import add
from lumc.graph.graph import Entry, Node
from lumc.profile.choose import estimate
from lumc.search import explore, search
from lumc.search.order import Found, in_order
from searching import error

HEADS, ROWS, WIDE, MOST = 2, 24, 8, 5
Array = np.ndarray[Any, Any]
Order = Callable[[Entry, Sequence[Found], Sequence[Node]], tuple[list[Found], list[Found]]]


def cached() -> Model:
    """Attention of s rows to those before and themselves; what the cache held goes out too."""
    g = Model()
    p, s = g.dim("p", 0, ROWS - MOST), g.dim("s", 1, MOST)
    n = add(p, s)
    keys, values = (g.state(name, (HEADS, ROWS, WIDE)) for name in ("keys", "values"))
    x = g.input("x", (HEADS, s, WIDE))
    at = (slice(None), slice(p, n))
    k, v = g.updated(keys, x * 2.0, at)[:, :n], g.updated(values, x + 1.0, at)[:, :n]
    late = g.arange(n)[p:][:, None] < g.arange(n)[None]
    scores = x @ k.transpose() + late.to("f32") * -1e30
    g.output("y", scores.softmax(-1) @ v)
    g.output("first", keys[:, 0])  # as it was before the run
    return g


def attention(x: Array) -> Array:
    scores = np.einsum("hid,hjd->hij", x, 2 * x)
    scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,hjd->hid", e / e.sum(-1, keepdims=True), x + 1)


def chunks(folder: Path, sizes: Sequence[int]) -> Iterator[tuple[str, Array, Array]]:
    """What each run gives, and what it should; all memory is NaN at first."""
    graph = cached().graph()
    code = generate(estimate(search(graph, replace(native(), threads=2), inside=True)), verify)
    lib = ctypes.CDLL(str(launching.library(folder, [code], PLAIN)))
    (entry,) = code.entries
    m = launching.Memory(code, entry, lambda n: np.full(n.sizes, np.nan, "f4"), 3)
    x = np.random.default_rng(0).standard_normal((HEADS, sum(sizes), WIDE)).astype("f4")
    want, p, first = attention(x.astype("f8")), 0, np.full((HEADS, WIDE), np.nan)
    for s in sizes:
        m.arrays["x"][:, :s] = x[:, p : p + s]
        for name, value in (("p", p), ("s", s)):
            if name in m.arrays:
                m.arrays[name][...] = value
        address = {name: a.ctypes.data for name, a in m.arrays.items()}
        launching.launch(
            lib, "g0_", code, entry, address.__getitem__, m.scratch.ctypes.data, m.parts
        )
        out = m.after()
        yield "y", out["y"][:, :s], want[:, p : p + s]
        yield "first", out["first"], first
        p, first = p + s, 2 * x[:, 0]


def is_near(got: Array, want: Array) -> bool:
    return np.array_equal(np.isnan(got), np.isnan(want)) and (
        bool(np.isnan(want).all()) or error(got, want) < 1e-5
    )


@pytest.mark.parametrize("sizes", [[5, 1, 1, 1, 4, 2], [1, 1, 1, 5, 5]])
def test_a_cache_that_grows_in_chunks(tmp_path: Path, sizes: Sequence[int]) -> None:
    for name, got, want in chunks(tmp_path, sizes):
        assert is_near(got, want), name


def after_its_readers(
    entry: Entry, found: Sequence[Found], exchanged: Sequence[Node]
) -> tuple[list[Found], list[Found]]:
    return sorted(found, key=lambda f: f.write is not None), []


def before_all(
    entry: Entry, found: Sequence[Found], exchanged: Sequence[Node]
) -> tuple[list[Found], list[Found]]:
    made, _ = in_order(entry, found, exchanged)
    return sorted(made, key=lambda f: f.write is None), []


@pytest.mark.parametrize(("mutant", "seen"), [(after_its_readers, "y"), (before_all, "first")])
def test_updates_at_another_time_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: Order, seen: str
) -> None:
    monkeypatch.setattr(explore, "in_order", mutant)
    wrong = {name for name, got, want in chunks(tmp_path, [3, 2]) if not is_near(got, want)}
    assert seen in wrong


def test_nothing_is_copied_into_the_cache() -> None:
    space = search(cached().graph(), native(), inside=True)
    written = [i for i in space.instances if i.outputs[0] in ("keys", "values")]
    assert [i.inputs for i in written] == [("x",), ("x",)]
