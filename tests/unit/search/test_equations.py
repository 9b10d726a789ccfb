"""What other regions store, as equations: each holds for values at random, the search of regions
reads what is stored, and faults are noticed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import mutating
from lumc.frontend import Model
from lumc.grad import gradients
from lumc.graph.expr import Expr, bound_axes, subterms
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph
from lumc.kernel.bound import least_work
from lumc.kernel.machines import resolve_target
from lumc.oracle.term import evaluate_term
from lumc.profile import rematerialize
from lumc.profile.choose import estimate
from lumc.schedule.plan import Plan
from lumc.search import equations, search
from lumc.search.explore import find_regions
from lumc.search.translate import Body

Array = np.ndarray[Any, Any]
TARGET = resolve_target("cpu:x86-64-v3")
LEVEL = 256
PART = """lumc graph 1

input x f64[64, 8]
t0 f64[i:64, j:8] = mul x[i, j], x[i, j]
t1 f64[j:8] = sum i:64 of t0[i, j]
t2 f64[i:32, j:8] = mul x[i, j], x[i, j]
t3 f64[j:8] = sum i:32 of t2[i, j]
output all = t1
output half = t3
"""
PIECES = """lumc graph 1

input x f64[16, 64]
input y f64[64, 8]
input u f64[16, 8]
t0 f64[i:16, j:64] = exp2 x[i, j]
t1 f64[i:16, j:64] = contiguous t0[i, j]
t2 f64[i:16, j:64] = mul t1[i, j], t1[i, j]
t3 f64[i:16, j:64] = contiguous t2[i, j]
t4 f64[i:16, k:8, j:64] = mul t3[i, j], y[j, k]
t5 f64[i:16, k:8] = sum j:64 of t4[i, k, j]
t6 f64[i:32, k:8] = add t5[i, k] if 0 <= i < 16, u[i - 16, k] if 0 <= i - 16 < 16
t7 f64[i:32, k:8] = contiguous t6[i, k]
t8 f64[i:16, j:64] = mul t1[i, j], t1[i, j]
t9 f64[i:16, k:8, j:64] = mul t8[i, j], y[j, k]
t10 f64[i:16, k:8] = sum j:64 of t9[i, k, j]
t11 f64[i:16] = max k:8 of t10[i, k]
output a = t7
output b = t11
"""
TRACE = """lumc graph 1

input x f64[16, 16]
t0 f64[i:16, j:16, k:16] = mul x[i, k], x[k, j]
t1 f64[i:16, j:16] = sum k:16 of t0[i, j, k]
t2 f64[i:16, k:16] = mul x[i, k], x[k, k]
t3 f64[i:16] = sum k:16 of t2[i, k]
output square = t1
output trace = t3
"""
TURNED = """lumc graph 1

input x f64[16, 16]
input y f64[16, 16]
t0 f64[i:16, k:16] = mul x[i, k], y[k, i]
t1 f64[i:16] = sum k:16 of t0[i, k]
t2 f64[i:16, k:16] = mul x[i, k], y[i, k]
t3 f64[i:16] = sum k:16 of t2[i, k]
output across = t1
output along = t3
"""


def attention() -> Graph:
    """Its gradients, with scores that are made again for each of their readers."""
    m = Model()
    q, k, v, dy = (m.input(n, (2, 64, 16)) for n in ("q", "k", "v", "dy"))
    y = (q @ k.transpose()).softmax() @ v
    for name, slope in zip("qkv", gradients((y * dy).sum(), [q, k, v]), strict=True):
        m.output(f"d{name}", slope)
    m.output("y", y)
    return rematerialize.lean(m.graph(), LEVEL, 2 * 64 * 64, TARGET).graph


def in_pieces() -> Graph:
    """What a sum is made of is made of what another region reads; it is stored in two pieces."""
    return parse_graph(PIECES)


GRAPHS = {"pieces": in_pieces, "attention": attention, "part": lambda: parse_graph(PART)}
GRAPHS |= {"trace": lambda: parse_graph(TRACE), "turned": lambda: parse_graph(TURNED)}


def value(e: Expr, body: Body, given: Mapping[str, Array], axes: list[str]) -> Array:
    """That of a term over these axes."""
    names = dict(zip(body.read, body.inputs, strict=True))
    found, order = evaluate_term(e, body.extent, {b.name: given[n] for n, b in names.items()})
    assert {*order} == {*axes}
    return np.transpose(found, [order.index(a) for a in axes])


def pairs(graph: Graph) -> Iterator[tuple[Body, Array, Array]]:
    """Both sides of every equation, of values at random."""
    (entry,), rng = graph.entries, np.random.default_rng(0)
    given = {n.name: rng.standard_normal(n.sizes) for n in entry.inputs}
    for f in equations.with_equations(find_regions(entry, LEVEL)):
        given[f.output] = value(f.body.value, f.body, given, [a.attr[0] for a in f.body.index])
        for one, other in f.body.equal:
            axes = sorted(one.free | other.free)
            assert one.free == other.free
            yield f.body, value(one, f.body, given, axes), value(other, f.body, given, axes)


def loads(e: Expr) -> set[Expr]:
    return {t for t in subterms(e) if t.kind == "load"}


@pytest.mark.parametrize(
    ("name", "count"), [("pieces", 1), ("attention", 3), ("part", 0), ("trace", 0), ("turned", 0)]
)
def test_equations_hold(name: str, count: int) -> None:
    found = list(pairs(GRAPHS[name]()))
    assert len(found) >= count
    for body, one, other in found:
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
        assert all(loads(body.value) >= loads(term) for _, term in body.equal)
        bound = {a for pair in body.equal for e in subterms(*pair) for a in bound_axes(e)}
        assert not bound & {a for a in body.extent if a.startswith("o")}


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("own.extent[one] == body.extent[other]", "True", "part"),
        ("(one not in bound or other in inner)", "True", "attention"),
        ("if all(_is_kept(e, axes) for e in terms)", "", "trace"),
        ("return axes if axes[one] == other else None", "return axes", "turned"),
        ("names[e.attr[0]], e.attr[1]", "t.attr[0], e.attr[1]", "attention"),
        ("substitute(value, dict(zip(axes, kids, strict=True)))", "value", "pieces"),
        ("(names | new)[n] for n, b", "own.inputs[0].name for n, b", "pieces"),
    ],
)
def test_mutants_die(old: str, new: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutating.replace(equations, old, new, monkeypatch)
    with pytest.raises((AssertionError, ValueError, KeyError)):
        test_equations_hold(name, 0)


def planned(told: bool) -> Plan:
    graph = attention()
    space = search(graph, TARGET, inside=True, again=LEVEL, equations=told)
    return estimate(space, most=0)


def test_the_way_back_of_attention_reads_what_was_stored() -> None:
    """The sum of each row of scores times their gradients is one over a row of the result."""
    plain, told = planned(False), planned(True)
    work = [
        sum(
            least_work(p.kernels[s.kernel].kernel).flops
            for r in p.regions.values()
            for s in r.steps
        )
        for p in (plain, told)
    ]
    assert work[1] < 0.9 * work[0]


def test_what_is_not_told_is_as_before() -> None:
    (entry,) = attention().entries
    found = find_regions(entry, LEVEL)
    told = equations.with_equations(found)
    same = [a.key == b.key for a, b in zip(found, told, strict=True)]
    assert same == [not f.body.equal for f in told] and not all(same)
