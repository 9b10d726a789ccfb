"""Graphs with dims known at run time through the search: kernels of the greatest extents, of which
only what there is counts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from live import ATTENTION, MOVED, NORM, SOFTMAX, Dims, case, live, part, roomy
from lumc.artifacts.bodies import plan_from_json, plan_to_json, space_from_json, space_to_json
from lumc.errors import LumcError
from lumc.graph.dim import Dim
from lumc.graph.expr import add, dim, subterms
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph
from lumc.kernel.key import canonical
from lumc.kernel.term import Buffer, Kernel
from lumc.oracle.term import evaluate_kernel
from lumc.profile.choose import estimate
from lumc.schedule.plan import Plan
from lumc.search import search
from lumc.search.cuts import spans
from lumc.search.explore import find_regions
from lumc.search.saturate import Limits, rule_files, saturate
from lumc.search.space import Space
from lumc.search.split import splits
from lumc.search.turn import turns
from lumc.search.worker import explore_all
from searching import TARGET, error, random_values

POINTS = {
    NORM: [{"s": 1}, {"s": 17}, {"s": 40}],
    SOFTMAX: [{"s": 1}, {"s": 13}, {"s": 40}],
    MOVED: [{"s": 1, "u": 12}, {"s": 12, "u": 5}, {"s": 3, "u": 3}],
    ATTENTION: [{"p": 0, "s": 1}, {"p": 3, "s": 5}, {"p": 24, "s": 16}],
}
NAMES = {NORM: "norm", SOFTMAX: "softmax", MOVED: "moved", ATTENTION: "attention"}
s, u = dim("s"), dim("u")


@cache
def found(text: str) -> Space:
    return search(parse_graph(text), TARGET, inside=True)


@cache
def planned(text: str) -> Plan:
    return estimate(found(text))


def run(plan: Plan, graph: Graph, dims: Dims) -> None:
    """Every kernel where it reads and writes a part; compare with the oracle."""
    given, want = case(graph, dims)
    (entry,) = graph.entries
    nodes = {n.name: n for n in (*graph.weights, *graph.states, *entry.inputs, *entry.nodes)}
    memory = {w.name: random_values(w) for w in graph.weights}
    memory |= {name: roomy(a, nodes[name].sizes) for name, a in given.items()}

    def held(buffer: Buffer, name: str) -> np.ndarray:
        empty = np.full(buffer.shape, np.nan if buffer.dtype.is_float else 85)
        return memory.get(name, empty).reshape(buffer.shape)

    for i, instance in enumerate(plan.instances):
        region = plan.regions[instance.region]
        names = instance.names | {b.name: f"{i}.{b.name}" for b in region.local}
        for step in region.steps:
            kernel = plan.kernels[step.kernel].kernel
            called = [(b, names[a]) for b, a in zip(kernel.buffers, step.args, strict=True)]
            here = kernel.bound(live(kernel.lengths, dims))
            after = evaluate_kernel(here, {b.name: held(b, name) for b, name in called})
            memory |= {name: after[b.name] for b, name in called if b.name in after}
    values = {n: v.name for n, v in entry.outputs} | {n.name: n.name for n in graph.states}
    for name, right in want.items():
        got = memory[values[name]].reshape(nodes[values[name]].sizes)
        assert error(got[part(right.shape)], right) < 1e-9, (name, dims)
        assert np.isnan(got).sum() == got.size - right.size, f"{name} beyond its length, {dims}"


@pytest.mark.parametrize("text", POINTS, ids=NAMES.get)
def test_plans_at_many_lengths(text: str) -> None:
    for dims in POINTS[text]:
        run(planned(text), found(text).graph, dims)


def test_flash_attention_appears_with_live_axes() -> None:
    plan = planned(ATTENTION)
    kernels = [k.kernel for k in plan.kernels.values()]
    (flash,) = [k for k in kernels if any(e.kind == "wsum" for e in k.stages)]
    assert sorted(str(e) for e in flash.lengths.of.values()) == ["p + s", "s"]


def test_files_carry_lengths() -> None:
    space, plan = found(ATTENTION), planned(ATTENTION)
    assert space_from_json(space_to_json(space), space.graph) == space
    again = plan_from_json(plan_to_json(plan), space.graph)
    assert again == plan
    wider = parse_graph(ATTENTION.replace("dim p in 0..24", "dim p in 0..23"))
    for read, made in (
        (space_from_json, space_to_json(space)),
        (plan_from_json, plan_to_json(plan)),
    ):
        with pytest.raises(ValueError, match="dim p is none of the graph"):
            read(made, wider)
    body = plan_to_json(plan)
    (one, *_) = [k for k in body["kernels"] if "live" in k["kernel"]]
    one["kernel"]["live"]["dims"][0]["hi"] = 1 << 70
    with pytest.raises(ValueError):
        plan_from_json(body, space.graph)
    del one["kernel"]["live"]
    with pytest.raises(ValueError):
        plan_from_json(body, space.graph)


def test_two_dims_of_one_greatest_value_are_two_axes() -> None:
    (xz,) = [
        r.frame
        for r in found(MOVED).regions
        if len(r.frame.axes) == 2 and r.frame.lengths.of.get("j") == u
    ]
    assert xz.lengths.of == {"i": s, "j": u}
    keys = {canonical(k.kernel)[0].lengths for k in planned(MOVED).kernels.values()}
    assert len(keys) == 5


def test_worker_processes_find_the_same() -> None:
    """What they are told of lengths is text."""
    inside = found(SOFTMAX)
    graph = parse_graph(SOFTMAX)
    assert [r.variants for r in search(graph, TARGET).regions] == [
        r.variants for r in inside.regions
    ]
    assert explore_all([], Limits()) == []


ONE_HOT = """lumc graph 1
dim s in 1..9
input ids i64[4]
input table f32[s, 3]
lo bool[b:4, v:s] = lt ids[b], i64(v)
hi bool[b:4, v:s] = lt i64(v), ids[b]
ne bool[b:4, v:s] = add lo[b, v], hi[b, v]
eq bool[b:4, v:s] = lt ne[b, v], bool(true)
row f32[b:4, c:3, v:s] = mul eq[b, v], table[v, c]
y f32[b:4, c:3] = sum v:s of row[b, c, v]
output y = y
"""


def gathers(text: str) -> bool:
    (region,) = found(text).regions
    return any(e.kind == "dyn" for v in region.variants for e in subterms(v.value))


def test_a_sum_that_selects_one_of_a_live_axis_is_no_load() -> None:
    """It would read what is not there: the extent is not the length."""
    assert gathers(
        ONE_HOT.replace("dim s in 1..9\n", "").replace("v:s", "v:9").replace("[s,", "[9,")
    )
    assert not gathers(ONE_HOT)
    graph = parse_graph(ONE_HOT)
    plan = planned(ONE_HOT)
    for n in (1, 4, 9):
        run(plan, graph, {"s": n})


def test_the_mutant_that_takes_the_extent_for_the_length_dies() -> None:
    (body,) = [f.body for f in find_regions(parse_graph(ONE_HOT).entries[0])]
    wrong = [t.replace("(= k (Axis m n))", "(= k (Live m n))") for t in rule_files().values()]
    graph, _ = saturate(body.value, body.extent, Limits(), wrong, body.lengths.texts)
    assert any(n.op == "Guard" for nodes in graph.classes.values() for n in nodes)


def test_laws_that_need_all_values_leave_live_axes_alone() -> None:
    def kernels(text: str) -> list[Kernel]:
        return [k.kernel for k in planned(text).kernels.values()]

    many = replace(TARGET, threads=4)
    for k in kernels(SOFTMAX):
        assert not list(turns(k, many))
    rows = """lumc graph 1
dim s in 1..8
input x f32[s, 4096]
y f32[s] = sum c:4096 of x[s, c]
output y = y
"""
    (k,) = kernels(rows)
    parts, whole = next(splits(k, many))
    assert parts.lengths.of == {a: s for a in parts.axes if a != "k4096_1_part"}
    assert whole.lengths.of == k.lengths.of


def test_parts_of_a_live_axis_are_as_many_as_hold_its_values() -> None:
    """Each is as long as any, whether they divide the extent or not."""
    many = replace(TARGET, threads=4)
    for n, parts, step in ((40, 4, 10), (41, 4, 11), (43, 4, 11)):
        plan = planned(SOFTMAX.replace("1..40", f"1..{n}"))
        (k,) = (p.kernel for p in plan.kernels.values())
        first, last = next(splits(k, many))
        (axis,) = (a for a in first.extent if a.endswith("_part"))
        inner = axis.replace("_part", "_in")
        assert (first.extent[axis], first.extent[inner]) == (parts, step)
        assert (
            str(first.lengths.of[axis])
            == str(last.lengths.of[axis])
            == f"(s + {step - 1}) // {step}"
        )
        assert inner not in first.lengths.of
        assert list(first.lengths.problems(first.extent)) == []


def test_several_results_have_fewer_parts_each() -> None:
    """Two parts of seven rows keep twelve threads busy; four times as many do at a quarter of the
    length, too, and come first. Then as many parts as threads, and more."""
    (k,) = (p.kernel for p in planned(SOFTMAX.replace("1..40", "1..400")).kernels.values())
    found = [first.extent for first, _ in splits(k, replace(TARGET, threads=12))]
    assert [n for e in found for a, n in e.items() if a.endswith("_part")] == [8, 2, 16, 100]


def test_cuts_of_live_axes_are_not_narrowed_by_guards() -> None:
    (region,) = found(MOVED.replace("output flip = flip\n", "")).regions[:1]
    for v in region.variants:
        for term, each in spans(v.value, region.frame.extent, region.frame.lengths.of).items():
            for a in each.keys() & region.frame.lengths.of.keys():
                assert each[a] == (0, region.frame.extent[a] - 1), term


def test_an_extent_that_may_be_nothing_is_refused() -> None:
    with pytest.raises(LumcError, match="d0:s of 'x' may be 0") as e:
        found(NORM.replace("dim s in 1..40", "dim s in 0..40"))
    assert (e.value.code, e.value.fix) == ("E0112", "let s begin with 1, or bind it: --dim s=N")
    assert Dim("s", 0, 3).values == range(0, 4)
    assert add(s, 1) is add(1, s)
