"""Sums that select by an index: added to where the index says, instead of asking every place. Equal
to numpy whatever the index is, and only where the law holds."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import launching
import lumc
from kernels import PLAIN, native
from lumc.codegen.code import Code
from lumc.codegen.cpu import scatter
from lumc.codegen.generate import generate
from lumc.codegen.tile import program as ir
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.verify import verify
from lumc.errors import LumcError
from lumc.frontend import Model, Tensor, where
from lumc.graph.graph import Graph, Node
from lumc.oracle.graph import evaluate
from lumc.profile.choose import estimate
from lumc.schedule.plan import Plan
from lumc.search import search
from searching import error

V, D, N = 70, 20, 33
ODD = [-1, V, V + 3, 2**40, -(2**63), 2**63 - 1, 0, 0, V - 1]  # what no index may do harm with


def table(x: Tensor, index: Tensor) -> Tensor:
    """f32[v, d]: the gradient of a lookup."""
    m = x.model
    return where(index[None, :, None] == m.arange(V)[:, None, None], x[None], 0.0).sum(1)


def embedding(m: Model) -> Tensor:
    """So many are selected that every place is, those where a part ends too."""
    t, x = m.input("t", (V, D)), m.input("x", (3, N), "i64")
    (slope,) = lumc.gradients((t.embedding(x) * m.input("g", (3, N, D))).sum(), [t])
    return slope


def counts(m: Model) -> Tensor:
    """The selected axis is the last one."""
    x, n = m.input("x", (N,), "i64"), m.arange(V)
    return where(x[None, :] == n[:, None], m.ones(V, N, dtype="i32"), 0).sum(1)


def shifted(m: Model) -> Tensor:
    x = m.input("x", (N,), "i64")
    chosen = (m.arange(V)[:, None, None] + 5) == x[None, :, None]
    return where(chosen, m.input("g", (N, D))[None], 0.0).sum(1)


def narrow(m: Model) -> Tensor:
    return table(m.input("g", (N, D)), m.input("x", (N,), "i32"))


def learned(m: Model) -> Tensor:
    """What is made of the sum, element by element."""
    t, g = m.input("t", (V, D)), m.input("g", (N, D))
    return t * 0.9 - table(g.square(), m.input("x", (N,), "i64")) * 0.1


def in_batches(m: Model) -> Tensor:
    """Another kept axis before the one that is selected."""
    x, g = m.input("x", (4, N), "i64"), m.input("g", (4, N, D))
    chosen = x[:, None, :, None] == m.arange(V)[None, :, None, None]
    return where(chosen, g[:, None], 0.0).sum(2)


def unsigned(m: Model) -> Tensor:
    return table(m.input("g", (N, D)), m.input("x", (N,), "u64"))


def rounded(m: Model) -> Tensor:
    """Halves are added up in f32: in f16, 2048 and one more are 2048."""
    x = m.input("x", (6000,), "i64") // 64
    chosen = m.arange(2)[:, None, None] == x[None, :, None]
    return where(chosen, m.input("g", (6000, D), "f16").square() * 0 + 1, 0.0).sum(1)


SCATTERED = [embedding, counts, shifted, narrow, learned, in_batches, unsigned, rounded]


def wrapping(m: Model) -> Tensor:
    """Places that are equal in eight bits: 4 and 260."""
    x, n = m.input("x", (N,), "u8"), m.arange(300, dtype="u8")
    return where(x[None, :] == n[:, None], m.ones(300, N, dtype="i32"), 0).sum(1)


def own(m: Model) -> Tensor:
    """What is added depends on the place itself, through the index of another table."""
    x, g = m.input("x", (V, N), "i64"), m.input("g", (N, D))
    chosen = x[:, :, None] == m.arange(V)[:, None, None]
    return where(chosen, g[None], 0.0).sum(1)


def greatest(m: Model) -> Tensor:
    """No sum."""
    x, g = m.input("x", (N,), "i64"), m.input("g", (N, D))
    return where(x[None, :, None] == m.arange(V)[:, None, None], g[None], 0.0).max(1)


def apart(m: Model) -> Tensor:
    """Lanes of one step that go to places of their own."""
    x = m.input("x", (N, D), "i64")
    chosen = m.arange(V)[:, None, None] == x[None]
    return where(chosen, m.input("g", (N, D))[None], 0.0).sum(1)


OTHERS = [wrapping, own, greatest, apart]


def graph_of(made: Callable[[Model], Tensor]) -> Graph:
    m = Model()
    m.output("y", made(m))
    return m.graph()


def planned(graph: Graph) -> Plan:
    return estimate(search(graph, replace(native(), threads=2), inside=True))


def forms(plan: Plan) -> list[str]:
    """The lanes of all reductions."""
    return [
        op.lanes
        for k in plan.kernels.values()
        for op in ir.leaves(lower(k.kernel, k.schedule, plan.target).body)
        if isinstance(op, ir.Reduce)
    ]


def drawn(node: Node) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(sum(node.name.encode()))
    if not node.dtype.is_int:
        return rng.standard_normal(node.sizes).astype("f4")
    lo, hi = node.dtype.limits
    odd = [min(max(v, lo), hi) for v in ODD]
    values = rng.integers(0, V, node.sizes).ravel()
    values[: len(odd)] = odd
    if len(values) >= len(odd) + V:
        values[-V:] = rng.permutation(V)
    return values.reshape(node.sizes).astype(node.dtype.numpy)


def wrong(folder: Path, made: Callable[[Model], Tensor], code: Code, threads: int = 1) -> bool:
    """The parts run in both orders: one that writes into the next is seen once that has begun."""
    graph = graph_of(made)
    lib = ctypes.CDLL(str(launching.library(folder, [code], PLAIN)))
    inputs = {n.name: drawn(n) for n in graph.entries[0].inputs}
    want = evaluate(graph, "main", inputs, drawn)[0]["y"]
    orders = (False, True) if threads > 1 else (False,)
    every = [launching.run(lib, "g0_", code, "main", drawn, threads, turned) for turned in orders]
    limit = 1e-3 if every[0]["y"].dtype == np.float16 else 1e-5
    return any(error(got["y"], want) > limit for got in every)


@pytest.mark.parametrize("made", [*SCATTERED, *OTHERS])
def test_results_are_those_of_numpy(made: Callable[[Model], Tensor], tmp_path: Path) -> None:
    plan = planned(graph_of(made))
    assert ("scattered" in forms(plan)) == (made in SCATTERED)
    code = generate(plan, verify)
    for threads in (1, 2):
        folder = tmp_path / str(threads)
        folder.mkdir()
        assert not wrong(folder, made, code, threads)


def dies(folder: Path, made: Callable[[Model], Tensor], threads: int = 1) -> bool:
    """In a process of its own, as a mutant may write anywhere. It only runs there: what a search
    has in this process waits for threads that a copy does not have."""
    code = generate(planned(graph_of(made)))
    gc.collect()
    child = os.fork()
    if not child:
        gc.disable()
        faulthandler.disable()
        status = 1
        with suppress(BaseException):
            status = int(wrong(folder, made, code, threads))
        os._exit(status)
    return os.waitpid(child, 0)[1] != 0


def test_what_is_right_lives(tmp_path: Path) -> None:
    assert not dies(tmp_path, embedding, 3)


def test_the_same_bits_in_every_run_and_number_of_parts(tmp_path: Path) -> None:
    code = generate(planned(graph_of(embedding)))
    lib = ctypes.CDLL(str(launching.library(tmp_path, [code], PLAIN)))
    runs = [launching.run(lib, "g0_", code, "main", drawn, n)["y"] for n in (1, 2, 3, 1)]
    assert len({r.tobytes() for r in runs}) == 1


def test_what_selects_nothing_is_no_scatter() -> None:
    """The verifier of tile programs says so."""
    plan = planned(graph_of(greatest))
    (k,) = plan.kernels.values()
    p = lower(k.kernel, k.schedule, plan.target)

    def spoiled(op: ir.Op) -> ir.Op:
        return replace(op, lanes="scattered") if isinstance(op, ir.Reduce) else op

    body = ir.rewrite(p.body, lambda ops, _: [spoiled(op) for op in ops])
    with pytest.raises(LumcError, match="adds to nothing that it selects"):
        verify("spoiled", replace(p, body=body))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (">= {lo} &&", ">= {lo} + 1 &&"),
        ("< {hi})", "<= {hi})"),
        ("{at}{shift}", "{at}"),
    ],
)
def test_mutants_of_the_printer(
    old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Path(scatter.__file__).read_text()
    assert text.count(old) == 1
    space: dict[str, Any] = {}
    exec(compile(text.replace(old, new), scatter.__file__, "exec"), space)  # noqa: S102
    monkeypatch.setattr("lumc.codegen.cpu.reduce.print_scatter", space["print_scatter"])
    made = shifted if "shift" in old else embedding
    assert dies(tmp_path, made, 3)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("least <= lo and hi <= most", "True"),
        ("a not in index.free | value.free", "True"),
    ],
)
def test_mutants_of_the_law(
    old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lumc.kernel.selected as law

    text = Path(law.__file__).read_text()
    assert text.count(old) == 1
    space: dict[str, Any] = {"__name__": "mutant"}
    exec(compile(text.replace(old, new), law.__file__, "exec"), space)  # noqa: S102
    monkeypatch.setattr("lumc.codegen.tile.program.selected", space["selected"])
    monkeypatch.setattr("lumc.schedule.first_stages.selection", space["selection"])
    made = wrapping if "least" in old else own
    assert dies(tmp_path, made)
