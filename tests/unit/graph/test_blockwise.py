"""Values in blocks: the same values as before, fewer of them at a time, and faults are noticed."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import mutating
from commands import Lumc
from differential import Case, check_compiled, check_emulated, run_plan
from kernels import CC, aligned
from lumc import train
from lumc.bundle.planfile import PARTS as PARTS_VERSION
from lumc.errors import LumcError
from lumc.frontend import Model
from lumc.grad import gradients
from lumc.graph import blockwise as module
from lumc.graph.blockwise import blockwise, is_stored
from lumc.graph.graph import Entry, Graph, Node
from lumc.graph.ops import DType, Op
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph
from lumc.kernel.instance import elements_of
from lumc.kernel.machines import resolve_target
from lumc.limits import AGAIN
from lumc.oracle.graph import evaluate
from lumc.profile.choose import estimate
from lumc.profile.memory import between, room_between
from lumc.profile.rematerialize import lean
from lumc.search import parts, pieces, search
from lumc.search.explore import find_regions
from searching import TARGET

Arrays = Mapping[str, np.ndarray]
HEADS, ROWS, WIDTH = 2, 64, 16
SCORES = HEADS * ROWS * ROWS * 4  # bytes


@cache
def attention(rows: int = ROWS) -> Graph:
    m = Model()
    q, k, v, dy = (m.input(f"real_{n}", (HEADS, rows, WIDTH)) for n in ("q", "k", "v", "dy"))
    y = (q @ k.transpose() * 0.25).softmax() @ v
    m.output("y", y)
    for name, slope in zip("qkv", gradients((y * dy).sum(), [q, k, v]), strict=True):
        m.output(f"d{name}", slope)
    return m.graph()


def by_hand(given: Arrays) -> dict[str, np.ndarray]:
    """Attention and its gradients, as textbooks have them, in numpy and float64."""
    q, k, v, dy = (given[f"real_{n}"].astype("f8") for n in ("q", "k", "v", "dy"))
    s = np.einsum("hid,hjd->hij", q, k) * 0.25
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = np.einsum("hid,hjd->hij", dy, v)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * 0.25
    out = {"y": np.einsum("hij,hjd->hid", p, v), "dv": np.einsum("hij,hid->hjd", p, dy)}
    out |= {"dq": np.einsum("hij,hjd->hid", ds, k), "dk": np.einsum("hij,hid->hjd", ds, q)}
    return out


@cache
def network() -> Graph:
    """Rows that are normed by their columns too, windows, maxima of columns, a mask, a step."""
    m = Model()
    x, y = m.input("real_x", (24, 12)), m.input("real_y", (24, 12))
    w = m.state("real_w", (12, 12))
    h = (x @ w).gelu("tanh")
    h = h - h.mean(0, keepdim=True) + h.max(0, keepdim=True)
    shifted = h[1:] * h[:-1]
    masked = h.where(h < y, y * 0.5)
    gram = h @ h.transpose()
    loss = (masked * masked).mean() + shifted.tanh().sum() + (gram * gram).mean()
    (slope,) = gradients(loss, [w])
    train.sgd([w], [slope], 0.1)
    m.output("loss", loss)
    m.output("rows", masked.sum(1))
    return m.graph()


# a value that is read along one axis and along another one, and the maxima of its rows
PRODUCTS = """lumc graph 1

input real_x f64[24, 12]
input real_y f64[16, 12]
t0 f64[i:24, j:16, k:12] = mul real_x[i, k], real_y[j, k]
t1 f64[i:24, j:16, k:12] = exp2 t0[i, j, k]
t2 f64[i:24, k:12] = max j:16 of t1[i, j, k]
t3 f64[j:16, k:12] = sum i:24 of t1[i, j, k]
t4 f64[i:24, j:16] = sum k:12 of t1[i, j, k]
t5 f64[i:24, l:24, j:16] = mul t4[i, j], t4[l, j]
t6 f64[i:24, l:24] = sum j:16 of t5[i, l, j]
output a = t2
output b = t3
output c = t6
"""
GRAPHS = {"attention": lambda: attention(16), "network": network}
GRAPHS |= {"products": lambda: parse_graph(PRODUCTS)}


def given(graph: Graph) -> tuple[Arrays, Arrays]:
    rng, (entry,) = np.random.default_rng(0), graph.entries
    inputs = {n.name: rng.standard_normal(n.sizes) for n in entry.inputs}
    return inputs, {n.name: rng.standard_normal(n.sizes) for n in graph.states}


def names(entry: Entry, graph: Graph) -> set[str]:
    return {n.name for n in (*entry.nodes, *entry.inputs, *graph.states)}


def ways(graph: Graph) -> Iterator[tuple[Node, str, Entry]]:
    """Every node along every axis of it, in blocks of a half and of a quarter."""
    (entry,) = graph.entries
    for n in (n for n in entry.nodes if isinstance(n.op, Op)):
        for a, extent in zip(n.axes, n.sizes, strict=True):
            for size in (extent // 2, extent // 4):
                if size and (made := blockwise(entry, n, [(a, size)], names(entry, graph))):
                    yield n, a, made


def is_same(name: str, step: int = 1) -> int:
    """How many ways there are, each ``step``-th of which gives the same values."""
    graph, count = GRAPHS[name](), 0
    inputs, states = given(graph)
    want = evaluate(graph, "main", inputs, {}, states)
    for n, a, made in ways(graph):
        count += 1
        if count % step:
            continue
        new = replace(graph, entries=(made,))
        verify_graph(new)
        new = parse_graph(print_graph(new))
        got = evaluate(new, "main", inputs, {}, states)
        for ours, theirs in zip(got, want, strict=True):
            assert ours.keys() == theirs.keys()
            for key in theirs:
                np.testing.assert_allclose(
                    ours[key], theirs[key], rtol=1e-11, atol=1e-12, err_msg=f"{n.name} along {a}"
                )
    return count


@pytest.mark.parametrize(("name", "least"), [("attention", 60), ("network", 20), ("products", 6)])
def test_every_value_along_every_axis(name: str, least: int) -> None:
    assert is_same(name, 1 if os.environ.get("LUMC_FUZZ") else 2) >= least


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("b * self.size)}", "0)}", "attention"),  # all blocks are the first
        (
            "sums = (_plain(self.blocks[n][-1]), _plain(own))",
            "sums = (_plain(own),) * 2",
            "attention",
        ),
        ("if after or not own", "if not own", "network"),  # reads a sum before it is whole
        ("index[at] = o.index[at]", "pass", "attention"),  # a block of a block
        ("(own,) = along if len(along) == 1", "own = min(along) if along", "products"),
        ("reduced=(name, self.size)", "reduced=n.reduced", "attention"),
        ("(Bound(place, 0, self.size),)", "()", "attention"),  # of a join
        ("not reduced or (n.op is Op.SUM and", "not reduced or (True and", "products"),  # of maxima
    ],
)
def test_mutants_die(old: str, new: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    GRAPHS[name]()
    mutating.replace(module, old, new, monkeypatch)
    monkeypatch.setitem(globals(), "blockwise", module.blockwise)
    with pytest.raises((AssertionError, LumcError, KeyError, ValueError, IndexError)):
        is_same(name)


def test_partial_sums_are_not_rounded_to_sixteen_bits() -> None:
    text = """lumc graph 1

input x {kind}[64, 8]
t0 {kind}[i:64, j:8] = mul x[i, j], x[i, j]
t1 {kind}[j:8] = sum i:64 of t0[i, j]
output y = t1
"""
    for kind, made in (("f16", False), ("bf16", False), ("f32", True)):
        (entry,) = parse_graph(text.format(kind=kind)).entries
        found = blockwise(entry, entry.nodes[0], [("i", 16)], {"x", "t0", "t1"})
        assert bool(found) == made


def test_what_is_needed_whole_or_has_no_blocks_stays() -> None:
    (entry,) = network().entries
    masks = [n for n in entry.nodes if n.dtype is DType.BOOL]
    assert masks
    out = dict(entry.outputs)["rows"]
    assert blockwise(entry, out, [("i", 5)], ()) is None  # 24 rows
    assert blockwise(entry, out, [(out.axes[0], 12)], ()) is None  # it is an output


# ---- the search of what is stored


def blocked(size: int = 16) -> Graph:
    graph = attention()
    (entry,) = graph.entries
    seed = next(n for n in entry.nodes if n.op is Op.EXP2)
    axes = list(zip(seed.axes, (1, size), strict=False))
    made = blockwise(entry, seed, axes, names(entry, graph))
    assert made
    return replace(graph, entries=(made,))


def test_one_block_is_in_memory_and_all_are_the_same_regions() -> None:
    graph = blocked()
    (entry,) = graph.entries
    found = find_regions(entry)
    assert room_between(attention().entries[0], find_regions(attention().entries[0])) >= SCORES
    assert room_between(entry, found) < 0.7 * SCORES
    stored = [f.whole for f in found if f.whole and elements_of(f.output)]
    outputs = [n for _, n in entry.outputs]
    assert {*stored} == {*outputs}  # nothing is joined by a copy
    assert [stored.count(n) for n in outputs] == [8, 8, 2, 2]  # y dq dk dv
    space = search(graph, TARGET, inside=True, equations=True)
    assert len(space.regions) <= 10 and len(space.instances) == len(found) == 64
    assert all(is_stored(n) for n in outputs)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_blocks_are_compiled(target: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """They read parts of inputs, and write parts of outputs, which are right."""
    where = TARGET if target == "cpu" else resolve_target(target)
    graph, folder = blocked(), tmp_path_factory.mktemp("blocks")
    plan = estimate(search(graph, where, inside=True, equations=True))
    used = {n.partition(" ")[0] for i in plan.instances for n in i.inputs if elements_of(n)}
    assert used >= {"real_q", "real_k", "real_v", "real_dy"}
    case = Case(graph, 0, **({} if target == "cpu" else {"target": where}))
    case.evaluate()
    case.plan = plan
    case.check_plan()
    if target == "cpu":
        (code,) = check_compiled(folder, [case], [plan])
    else:
        (code,) = check_emulated(folder, [case])
    (entry,) = code.entries
    assert {v.place for v in entry.values if v.start} >= {"input", "output"}
    assert entry.arena_bytes < SCORES


INNER = """lumc graph 1

input real_x f32[4, 64, 16]
t0 f32[h:4, i:64, j:16] = exp2 real_x[h, i, j]
t1 f32[h:4, i:64, j:16] = contiguous t0[h, i, j]
t2 f32[i:32, j:16] = sin t1[2, i + 16, j]
t3 f32[i:32, j:16] = sin real_x[3, i + 32, j]
output y = t2
output z = t3
"""


def is_right(graph: Graph) -> set[str]:
    """What the regions of a plan read, if its kernels compute what the graph does."""
    case = Case(graph, 0)
    case.evaluate()
    case.plan = estimate(search(graph, TARGET, inside=True, equations=True))
    case.check_plan()
    return {n for i in case.plan.instances for n in i.inputs}


def test_a_copy_is_stored_and_rows_of_parts_are_read() -> None:
    assert is_right(parse_graph(INNER)) == {"real_x", "t1 2304..2816", "real_x 3584..4096"}


PARTS = {
    "a row later": (parts, "add(inner[0], -first)", "add(inner[0], 1 - first)"),
    "a part begins with its rows only": (
        parts,
        "start = start * extent + at\n        shape",
        "start = at\n        shape",
    ),
    "of a part": (parts, "start += own.start if own else 0", "pass"),
    "pieces of pieces begin with these": (pieces, "range(at + e.start", "range(e.start"),
}


@pytest.mark.parametrize("name", PARTS)
def test_mutants_of_parts_die(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, old, new = PARTS[name]
    mutating.replace(where, old, new, monkeypatch)
    with pytest.raises((AssertionError, LumcError, ValueError, KeyError)):
        is_right(parse_graph(INNER))
        is_right(blocked())


# ---- the choice


def test_a_bound_is_met_by_blocks_without_more_operations() -> None:
    graph = attention(128)
    scores = HEADS * 128 * 128 * 4
    found = lean(graph, AGAIN, scores // 2, TARGET)
    assert between(found.graph, found.level) == found.nbytes <= scores // 2 < found.before
    assert found.level == AGAIN and 0 <= found.more < 0.05
    plan = estimate(search(found.graph, TARGET, inside=True, equations=True))
    rng = np.random.default_rng(0)
    values = {n.name: rng.standard_normal(n.sizes, "f4") for n in graph.entries[0].inputs}
    got, stored = run_plan(plan, "main", lambda n: values[n.name]), dict(plan.outputs["main"])
    for name, value in by_hand(values).items():
        np.testing.assert_allclose(got[stored[name]], value, rtol=1e-4, atol=1e-5)


def test_bundles_and_plain_c_run_blocks(lumc: Lumc, tmp_path: Path) -> None:
    Path("m.lg").write_text(print_graph(attention(128)))
    least = ("compile", "m.lg", "--estimate", "--memory", "100000")
    lumc(*least, "--save-temps", ".", "-o", "m.lb")
    (plan,) = Path("m.lb/plan").iterdir()
    assert plan.read_bytes()[8] == PARTS_VERSION
    for words in (("--threads", "1"), ("--threads", "2"), ("--bisect",)):
        lumc("verify", "m.lb", *words)
    lumc("link", "m.lk", "--emit", "c", "-o", "plain")
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-Iplain/include"]
    sources = sorted(map(str, Path("plain/src").glob("*.c")))
    subprocess.run([CC, *flags, *sources, "-lm", "-o", "plain.so"], check=True)
    rng, shape = np.random.default_rng(0), (HEADS, 128, WIDTH)
    values = {f"real_{n}": rng.standard_normal(shape, "f4") for n in ("q", "k", "v", "dy")}
    made = {n: np.zeros(shape, "f4") for n in ("y", "dq", "dk", "dv")}
    arena = aligned((1 << 20,), np.dtype(np.uint8))
    library = ctypes.CDLL(str(Path("plain.so").resolve()))
    given = (ctypes.c_void_p(a.ctypes.data) for a in (*values.values(), *made.values(), arena))
    assert library.plain_run(*given) == 0
    for name, value in by_hand(values).items():
        np.testing.assert_allclose(made[name], value, rtol=1e-4, atol=1e-5)
