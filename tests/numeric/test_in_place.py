"""Updates whose value lives in the state: where that is right, which copies stay, and that a
mistake in the proof is a wrong value."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import launching
from kernels import PLAIN, native
from lumc.codegen import generate as generating
from lumc.codegen import in_place
from lumc.codegen.code import Code
from lumc.codegen.generate import generate, launched, launches_of
from lumc.errors import LumcError
from lumc.graph.graph import Graph, Node
from lumc.graph.text import parse_graph
from lumc.oracle.graph import evaluate
from lumc.profile.choose import estimate
from lumc.schedule.plan import Plan
from lumc.search import search
from searching import error
from training import parameters, step

Array = np.ndarray[Any, Any]
HEAD = "lumc graph 1\nstate s f32[6, 8]\nstate r f32[6, 8]\ninput x f32[6, 8]\n"
# statements, and how many copies are left of how many updates
CASES = {
    "of itself, element by element": (
        "v f32[i:6, j:8] = add s[i, j], x[i, j]\nupdate s[i, j] = v[i, j]\n", 0),
    "which is read again, as what it is now": (
        "v f32[i:6, j:8] = add s[i, j], x[i, j]\nq f32[i:6] = max j:8 of v[i, j]\n"
        "y f32[i:6, j:8] = mul v[i, j], q[i]\noutput y = y\nupdate s[i, j] = v[i, j]\n", 0),
    "of another state": (
        "v f32[i:6, j:8] = add r[i, j], x[i, j]\nu f32[i:6, j:8] = mul v[i, j], s[i, j]\n"
        "update r[i, j] = v[i, j]\nupdate s[i, j] = u[i, j]\n", 0),
    "of itself at another place": (
        "v f32[i:6, j:8] = add s[5 - i, j], x[i, j]\nupdate s[i, j] = v[i, j]\n", 1),
    "of itself here and at another place": (
        "a f32[i:6, j:8] = add s[i, j], s[i, 7 - j]\nv f32[i:6, j:8] = add a[i, j], x[i, j]\n"
        "update s[i, j] = v[i, j]\n", 1),
    "of a sum over itself": (
        "q f32[i:6] = sum j:8 of s[i, j]\nv f32[i:6, j:8] = add q[i], x[i, j]\n"
        "update s[i, j] = v[i, j]\n", 1),
    "whose state is read when it is there": (
        "v f32[i:6, j:8] = add s[i, j], x[i, j]\nq f32[] = max p:48 of v[p // 8, p % 8]\n"
        "y f32[i:6, j:8] = mul s[i, j], q[]\noutput y = y\nupdate s[i, j] = v[i, j]\n", 1),
    "of itself in two halves": (
        "v f32[i:6, j:8] = add s[i, j] if 0 <= i < 3, x[i, j] if 3 <= i < 6\n"
        "q f32[] = max p:48 of v[p // 8, p % 8]\noutput q = q\nupdate s[i, j] = v[i, j]\n", 1),
    "that is an output too": (
        "v f32[i:6, j:8] = add s[i, j], x[i, j]\noutput v = v\nupdate s[i, j] = v[i, j]\n", 1),
    "for two states": (
        "v f32[i:6, j:8] = add s[i, j], x[i, j]\n"
        "update s[i, j] = v[i, j]\nupdate r[i, j] = v[i, j]\n", 1),
    "turned": (
        "v f32[i:6, j:8] = add s[i, j], x[i, j]\nz f32[i:6] = sum j:8 of v[i, j]\noutput z = z\n"
        "update s[5 - i, j] = v[i, j]\n", 1),
    "of a state that gets another value while it is read": (
        "v f32[i:6, j:8] = add s[i, j], x[i, j]\nnow = update s[i, j] = v[i, j]\n"
        "q f32[] = max p:48 of now[p // 8, p % 8]\nu f32[i:6, j:8] = mul x[i, j], q[]\n"
        "w f32[i:6, j:8] = add u[i, j], x[i, 7 - j]\nagain = update s[i, j] = w[i, j]\n"
        "e f32[] = max p:48 of again[p // 8, p % 8]\ny f32[i:6, j:8] = mul v[i, j], e[]\n"
        "output y = y\n", 2),
}  # fmt: skip


def planned(graph: Graph) -> Plan:
    return estimate(search(graph, replace(native(), threads=2), inside=True))


def drawn(node: Node) -> Array:
    rng = np.random.default_rng(sum(node.name.encode()))
    if node.dtype.is_int:
        return rng.integers(0, 9, node.sizes)
    return np.asarray(rng.uniform(0.5, 1.5, node.sizes), np.float32)


def wrong(folder: Path, graph: Graph, code: Code) -> list[str]:
    """What differs from the oracle after two runs of the native code, in three parts."""
    lib = ctypes.CDLL(str(launching.library(folder, [code], PLAIN)))
    (entry,) = code.entries
    m = launching.Memory(code, entry, drawn, 3)
    states = {s.name: drawn(s) for s in graph.states}
    inputs = {n.name: drawn(n) for n in graph.entries[0].inputs}
    outputs = dict[str, Array]()
    for _ in range(2):
        launching.launch(
            lib, "g0_", code, entry, lambda n: m.arrays[n].ctypes.data, m.scratch.ctypes.data, 3
        )
        outputs, states = evaluate(graph, "main", inputs, drawn, states)
    got, want = m.after(), {**outputs, **states}
    return [n for n in got if error(got[n], want[n]) > 1e-5]


def copies(plan: Plan) -> int:
    kernels = {k: plan.kernels[k].kernel for k in plan.kernels}
    entry = plan.graph.entries[0]
    copied = [in_place._copied(kernels[x.kernel], x) for x in launched(plan, entry)]
    return len([c for c in copied if c and c[1] in ("s", "r")])


@pytest.mark.parametrize("case", CASES)
def test_copies_that_are_left_and_what_they_leave(case: str, tmp_path: Path) -> None:
    text, left = CASES[case]
    graph = parse_graph(HEAD + text)
    plan = planned(graph)
    assert wrong(tmp_path, graph, generate(plan)) == []
    made = [x.kernel for x in launched(plan, graph.entries[0])]
    assert copies(plan) <= left and len(made) <= len(launches_of(plan, graph.entries[0]))


@pytest.mark.parametrize("case", ["of itself, element by element", "of another state"])
def test_no_copy_is_made(case: str) -> None:
    plan = planned(parse_graph(HEAD + CASES[case][0]))
    assert copies(plan) == 0
    text = "".join(k.source for k in generate(plan).kernels)
    assert "const float *restrict B_b1" in text  # what is read and not written
    assert "float *B_out" in text and "float *restrict B_out" not in text  # one memory, two names


def chained(seed: int) -> str:
    """Values of states, here and elsewhere, and of each other; updates of some, named or not."""
    rng = random.Random(seed)
    read = {"s": "i, j", "r": "i, j", "x": "i, j"}
    places = (*["i, j"] * 6, "5 - i, j", "i, 7 - j")
    lines, left = list[str](), {"s", "r"}
    for n in range(rng.randint(2, 6)):
        a, b = (f"{v}[{rng.choice(places)}]" for v in rng.choices([*read], k=2))
        op = rng.choice(("add", "mul", "sum", "max"))
        if op in ("add", "mul"):
            lines.append(f"v{n} f32[i:6, j:8] = {op} {a}, {b}")
        else:
            lines.append(f"q{n} f32[i:6] = {op} j:8 of {a}")
            lines.append(f"v{n} f32[i:6, j:8] = add q{n}[i], {b}")
        read[f"v{n}"] = "i, j"
        if left and rng.random() < 0.5:
            state = rng.choice(sorted(left))
            left.discard(state)
            named = f"now{n} = " * (rng.random() < 0.5)
            lines.append(f"{named}update {state}[i, j] = v{n}[i, j]")
            read |= {f"now{n}": "i, j"} if named else {}
    last = max(n for n in range(6) if f"v{n}" in read)
    return "\n".join([*lines, f"output y = v{last}"]) + "\n"


def test_chains_of_updates_at_random(tmp_path: Path) -> None:
    free = 0
    for seed in range(24):
        graph = parse_graph(HEAD + chained(seed))
        try:
            plan = planned(graph)
        except LumcError as e:  # an update has to come before what reads the state as it was
            assert e.code == "E0402"
            continue
        before, after = (f(plan, graph.entries[0]) for f in (launches_of, launched))
        free += len(before) - len(after)
        assert wrong(tmp_path / str(seed), graph, generate(plan)) == [], chained(seed)
    assert free >= 5


def everything(*_: object) -> bool:
    return True


def unread(*given: Any) -> list[in_place.Use]:
    return [replace(u, read=u.read - {"s"}) for u in USES(*given)]


def unstored(*given: Any) -> list[in_place.Use]:
    return [replace(u, stored=u.stored - {"s"}) for u in USES(*given)]


USES = in_place.uses_of
MUTANTS: list[tuple[str, Callable[..., Any], str]] = [
    ("_is_elementwise", everything, "of itself at another place"),
    ("_is_elementwise", everything, "of itself here and at another place"),
    ("uses_of", unread, "whose state is read when it is there"),
    ("uses_of", unstored, "of a state that gets another value while it is read"),
]


@pytest.mark.parametrize(("name", "mutant", "case"), MUTANTS)
def test_mistakes_are_seen(
    name: str, mutant: Callable[..., Any], case: str, tmp_path: Path, monkeypatch: Any
) -> None:
    graph = parse_graph(HEAD + CASES[case][0])
    plan = planned(graph)
    monkeypatch.setattr(in_place, name, mutant)
    assert wrong(tmp_path, graph, generating.generate(plan)) != []


def test_a_step_of_training_has_no_copies(tmp_path: Path) -> None:
    """AdamW of three layers: thirteen parameters and moments of each, and a count."""
    sizes = [12, 24, 24, 10]
    graph = step(sizes, 16).graph()
    plan = planned(graph)
    before, after = (f(plan, graph.entries[0]) for f in (launches_of, launched))
    assert len(before) - len(after) >= 12
    assert wrong(tmp_path, graph, generate(plan)) == []
    assert len(parameters(sizes)) == 6
