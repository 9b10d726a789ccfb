"""Steps of a recurrence are one region: they read parts of values, and their results are pieces."""

from __future__ import annotations

import ctypes
import json
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from commands import Lumc
from differential import Case, check_compiled, check_emulated, check_sanitized
from kernels import CC, aligned
from lumc.artifacts.bodies import plan_from_json, plan_to_json
from lumc.disk.artifact import fields
from lumc.errors import LumcError
from lumc.frontend.api.join import concat, stack
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph
from lumc.kernel.instance import elements_of, part_of, whole_of
from lumc.kernel.machines import resolve_target
from lumc.profile.choose import estimate
from lumc.search import order, parts, pieces, search
from lumc.search.explore import find_regions
from lumc.search.parts import _place
from lumc.search.pieces import MANY, pieces_of
from searching import TARGET, weight
from steps import steps


def recurrence(count: int, size: int = 16, both: bool = False, batch: int = 1) -> Graph:
    """Steps of a gated unit, written out, and what is made of the states of all."""
    g = Model()
    x, h = g.input("real_x", (count, batch, size)), g.input("real_h", (batch, size))
    w, u = (weight(g, f"real_{name}", size, 2 * size) for name in "wu")
    added, shown = x @ w, list[Tensor]()
    for t in reversed(range(count)) if both else range(count):
        z = added[t] + h @ u
        gate = z[:, :size].sigmoid()
        h = h * gate + z[:, size:].tanh() * (1 - gate)
        shown.append(h)
    g.output("y", stack(shown, 0) * 2.0)
    g.output("last", h)
    return g.graph()


def regions(graph: Graph) -> tuple[int, int]:
    """Regions of an entry, and how many of them differ."""
    found = find_regions(graph.entries[0])
    return len(found), len({f.key for f in found})


@pytest.mark.parametrize("batch", [1, 3])
def test_any_number_of_steps_makes_as_many_regions(batch: int) -> None:
    few, many = (regions(recurrence(n, batch=batch)) for n in (MANY, 3 * MANY))
    assert many[0] > 2.5 * few[0]
    assert many[1] == few[1] < 10


def test_twice_the_steps_take_twice_the_steps_of_the_compiler() -> None:
    few, many = (recurrence(n) for n in (60, 120))
    counts = [steps(lambda g=g: find_regions(g.entries[0])) for g in (few, many)]
    assert counts[1] < 2.3 * counts[0]


@pytest.mark.parametrize("both", [False, True])
def test_a_recurrence_is_right(both: bool, tmp_path: Path) -> None:
    case = Case(recurrence(MANY, both=both, batch=2))
    case.prepare()
    case.check_plan()
    assert case.plan
    check_compiled(tmp_path, [case], [case.plan])


def joined(widths: Sequence[int], inner: int, outer: int = 1, axis: int = 0) -> Model:
    """Tensors of different makers side by side along an axis, twice as ``y``."""
    g, tensors = Model(), list[Tensor]()
    x = g.input("real_x", (8, 64))
    for i, n in enumerate(widths):
        shape = [outer, inner]
        shape.insert(axis, n)
        flat = [n * outer * inner]
        made = (x[i % 8].unsqueeze(0) * float(i + 1)).sum(1, keepdim=True).sin() + g.arange(
            *flat, dtype="f32"
        )
        tensors.append(made.reshape(shape))
    g.output("y", concat(tensors, axis) * 2.0)
    return g


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (joined([1] * MANY, 16), MANY),
        (joined([2, 1, 3] * 6, 16), 18),
        (joined([1] * MANY, 16, axis=1), MANY),  # around it only one row
        (joined([1] * (MANY - 1), 16), 0),  # too few
        (joined([1] * MANY, 12), 0),  # pieces begin where no value may
        (joined([1] * MANY, 16, outer=2, axis=1), 0),  # pieces lie apart
        (joined([1] * MANY, 16, outer=2), MANY),
    ],
)
def test_what_is_stored_in_pieces(model: Model, count: int) -> None:
    (entry,) = model.graph().entries
    assert [len(p) for p in pieces_of(entry).values()] == [count] * (count > 0)


LONG = "lumc graph 1\ninput x f32[64, 16]\ninput a f32[16]\n\n{}"


def chain(*guards: str, end: str = "") -> Graph:
    """A sum of rows of x, each where it is told to be."""
    text, last = "", f"x[0, j] if {guards[0]}"
    for n, guard in enumerate(guards[1:], 1):
        text += f"t{n} f32[i:{MANY}, j:16] = add {last}, x[{n}, j] if {guard}\n"
        last = f"t{n}[i, j]"
    return parse_graph(
        LONG.format(text + (end or f"y f32[i:{MANY}, j:16] = exp2 {last}\n") + "output y = y\n")
    )


ROWS = [f"0 <= i - {n} < 1" if n else "0 <= i < 1" for n in range(MANY)]


@pytest.mark.parametrize(
    ("graph", "count"),
    [
        (chain(*ROWS), 1),
        (chain(*reversed(ROWS)), 1),
        (chain(*ROWS[:-1], ROWS[0]), 0),  # two in one place, none in the last
        (chain(*ROWS[:-1], "0 <= i - 14 < 2"), 0),  # two overlap
        (chain(*ROWS[:-1], "0 <= i - 16 < 1"), 0),  # one is missing
        (chain(*ROWS[:-1], "0 <= j < 1"), 0),
        (
            chain(*ROWS, end=f"y f32[i:{MANY}, j:16] = add t{MANY - 1}[i, j], t{MANY - 2}[i, j]\n"),
            0,
        ),
    ],
)
def test_pieces_are_side_by_side_and_nobody_needs_a_part_of_the_sum(
    graph: Graph, count: int
) -> None:
    assert len(pieces_of(graph.entries[0])) == count


SEEDS = 4


def drawn(seed: int) -> Graph:
    """Pieces of random widths from values, parts of these and inputs, some of them shared; parts of
    what is joined; outputs, and states that are written."""
    draw, g = random.Random(seed), Model()
    x, h = g.input("real_x", (6, 4, 16)), g.input("real_h", (16,))
    cache = g.state("real_c", (MANY, 16))
    w = weight(g, "real_w", 16, 16)
    made, kept = [x.sin(), x @ w], list[Tensor]()
    for _ in range(draw.randint(1, 3)):
        parts = list[Tensor]()
        for _ in range(MANY + draw.randint(0, 3)):
            t = draw.choice([*made, x, cache.reshape((4, MANY // 4, 16))])
            n, m = draw.sample(range(t.shape[0]), 2)
            t = draw.choice([t[n, 1:3], t[n, draw.randrange(4) :], t[n], t[n] * t[m]])
            how = draw.choice(["", "", "", "sin", "sum"])
            t = t.sin() if how == "sin" else (t * h).sum(0, keepdim=True) if how == "sum" else t
            parts.append(t)
        whole = concat(parts, 0)
        rest = whole.shape[0] % 4
        made.append(whole[rest:].reshape((-1, 4, 16)) @ w)
        kept.append(whole)
    g.output("y", kept[0] if draw.random() < 0.5 else kept[0] * 0.5)
    g.output("z", (made[-1][draw.randrange(4)] @ h.unsqueeze(-1)).sin())
    if draw.random() < 0.5:
        g.update(cache, kept[-1][:MANY])
    return g.graph()


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_parts_and_pieces_at_random(tmp_path: Path, target: str) -> None:
    where = {} if target == "cpu" else {"target": resolve_target(target)}
    cases = [Case(drawn(seed), seed, **where) for seed in range(SEEDS)]
    for case in cases:
        case.prepare()
        case.check_plan()
    every = [i for c in cases if c.plan for i in c.plan.instances]
    assert any(elements_of(n) for i in every for n in i.inputs)
    assert any(elements_of(n) for i in every for n in i.outputs)
    if target == "cpu":
        check_compiled(tmp_path, cases, [c.plan for c in cases if c.plan])
        check_sanitized(tmp_path / "checked", cases)
    else:
        check_emulated(tmp_path, cases)


def test_bundles_and_plain_c_read_parts(lumc: Lumc, tmp_path: Path) -> None:
    """Of a model with a stack as its result, by the command line."""
    g = Model()
    x, w = g.input("x", (MANY, 16)), g.constant(drawn_weights(), "w")
    added, h, shown = x @ w, x[0].unsqueeze(0), list[Tensor]()
    for t in range(MANY):
        h = (added[t].unsqueeze(0) + h @ w).tanh()
        shown.append(h[0])
    g.output("y", stack(shown, 0))
    g.save("m.lg")
    lumc("compile", "m.lg", "--estimate", "--save-temps", ".", "-o", "m.lb")
    assert " 64..80" in Path("m.lp").read_text().replace('"', "")
    for threads in ("1", "2"):
        lumc("verify", "m.lb", "--threads", threads)
    lumc("verify", "m.lb", "--bisect")
    lumc("link", "m.lk", "--emit", "c", "-o", "plain")
    sources = sorted(map(str, Path("plain/src").glob("*.c")))
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-Iplain/include"]
    subprocess.run([CC, *flags, *sources, "-lm", "-o", "plain.so"], check=True)
    a = np.random.default_rng(3).standard_normal((MANY, 16)).astype("f4")
    np.save("x.npy", a)
    lumc("run", "m.lb", "--input", "x=x.npy", "-o", "y.npz")
    y, arena = np.zeros_like(a), aligned((1 << 20,), np.dtype(np.uint8))
    library = ctypes.CDLL(str(Path("plain.so").resolve()))
    given = (ctypes.c_void_p(b.ctypes.data) for b in (a, y, arena))
    assert library.plain_run(*given) == 0
    np.testing.assert_allclose(y, np.load("y.npz")["y"], rtol=1e-5, atol=1e-6)


def drawn_weights() -> np.ndarray:
    return np.random.default_rng(1).uniform(-0.5, 0.5, (16, 16)).astype("f4")


# ---- mutants


MUTANTS = {
    "a part begins a place later": (parts, "part_of", lambda n, a, b: part_of(n, a + 16, b + 16)),
    "a piece begins a place later": (
        pieces,
        "part_of",
        lambda n, a, b: part_of(n, max(a - 16, 0), max(a - 16, 0) + b - a),
    ),
    "a part has the place of the first load only": (
        parts,
        "_place",
        lambda b, loads: _place(b, loads[:1]),
    ),
    "readers do not wait for pieces": (order, "_edges", lambda e, f: [set() for _ in f]),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_die(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute, new = MUTANTS[name]
    monkeypatch.setattr(module, attribute, new)
    with pytest.raises((AssertionError, LumcError, ValueError, KeyError)):
        for seed in range(SEEDS):
            case = Case(drawn(seed), seed)
            case.prepare()
            case.check_plan()


# ---- files


def test_parts_are_read_again_and_spoiled_ones_refused() -> None:
    plan = estimate(search(recurrence(MANY), TARGET, inside=True))
    body = json.loads(json.dumps(plan_to_json(plan)))
    assert plan_from_json(body, plan.graph) == plan
    at, name = next(
        (n, i.inputs[0]) for n, i in enumerate(plan.instances) if elements_of(i.inputs[0])
    )
    whole, part = whole_of(name), elements_of(name)
    assert part
    size = next(n.size for n in plan.graph.entries[0].nodes if n.name == whole)
    bad = [
        part_of(whole, size, size + len(part)),  # behind its end
        part_of(whole, size - len(part) // 2, size + len(part) // 2),
        part_of(whole, 8, 8 + len(part)),  # where no value may begin
        part_of(whole, part.start, part.stop - 16),  # less than what is read
        part_of(whole, 0, 0),
        part_of("real_x", 16 * MANY, 16 * MANY + len(part)),
        part_of("real_w", 0, len(part)),
        part_of("nowhere", 0, len(part)),
        part_of(name, 0, len(part)),
    ]
    for spoiled in bad:
        body["instances"][at]["inputs"][0] = spoiled
        with pytest.raises(LumcError), fields("plan"):
            plan_from_json(body, plan.graph)
    body = json.loads(json.dumps(plan_to_json(plan)))
    at = next(n for n, i in enumerate(plan.instances) if elements_of(i.outputs[0]))
    found = elements_of(plan.instances[at].outputs[0])
    body["instances"][at]["outputs"][0] = part_of("real_x", 0, len(found or ""))
    with pytest.raises(LumcError, match="real_x"), fields("plan"):
        plan_from_json(body, plan.graph)
