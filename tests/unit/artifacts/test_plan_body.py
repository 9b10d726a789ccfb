"""The .lp body: round trip, and damaged or hostile bodies give one clear error."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from typing import Any

import pytest

from lumc.artifacts.bodies import plan_from_json, plan_to_json
from lumc.disk.artifact import fields
from lumc.errors import LumcError
from lumc.graph.expr import axis
from lumc.graph.ops import DType
from lumc.graph.text import parse_graph
from lumc.kernel.instance import Instance
from lumc.kernel.term import Buffer, Kernel, Root, binary, load, reduce
from lumc.profile.choose import estimate
from lumc.schedule.first import first_schedules
from lumc.schedule.plan import KernelPlan, Plan, RegionPlan, Step
from lumc.search import search
from lumc.search.layout import origin
from searching import TARGET
from spoiling import spoil
from zoo import build, model, two_convolutions


@pytest.fixture(scope="module")
def plan() -> Plan:
    return estimate(search(model("block"), TARGET, inside=True))


def plain(plan: Plan) -> dict[str, Any]:
    return json.loads(json.dumps(plan_to_json(plan), allow_nan=False))


def test_round_trip(plan: Plan) -> None:
    again = plan_from_json(plain(plan), plan.graph)
    assert again == plan
    assert plain(again) == plain(plan)


def planned() -> Plan:
    return estimate(search(build(two_convolutions), TARGET, inside=True))


def test_values_in_another_layout_are_read_again() -> None:
    laid_out = planned()
    assert all(origin(i.region) != i.region for i in laid_out.instances)
    assert plan_from_json(plain(laid_out), laid_out.graph) == laid_out


def test_numbers_between_regions_are_read_again() -> None:
    """They have no dims, and one layout."""
    graph = parse_graph(
        "lumc graph 1\ninput x f32[9]\n\n"
        "t f32[] = sum i of x[i]\ny f32[i:9] = mul t[], x[i]\noutput y = y\n"
    )
    x, nine = load("b0", DType.F32, "i"), (9,)
    total = Root("out", (), reduce("sum", "i", x))
    scaled = Root(
        "out", (axis("i"),), binary("mul", load("b0", DType.F32), load("b1", DType.F32, "i"))
    )
    given, scalar = Buffer("b0", DType.F32, nine), Buffer("b0", DType.F32, ())
    kernels = (
        Kernel("total", (), {"i": 9}, (total,), (given, replace(scalar, name="out"))),
        Kernel("scaled", ("i",), {"i": 9}, (scaled,), (scalar, *named(given, "b1", "out"))),
    )
    names = (("b0", "out"), ("b0", "b1", "out"))
    plans = {k.name: KernelPlan(k.name, k, next(first_schedules(k, TARGET)), 1.0) for k in kernels}
    regions = {
        k.name: RegionPlan(k.name, (Step(k.name, args),), ())
        for k, args in zip(kernels, names, strict=True)
    }
    instances = (Instance("main", "total", ("x",), ("t",)),
                 Instance("main", "scaled", ("t", "x"), ("y",)))  # fmt: skip
    made = Plan(graph, TARGET, plans, regions, instances, {"main": (("y", "y"),)})
    assert plan_from_json(plain(made), graph).instances == instances


def named(b: Buffer, *names: str) -> list[Buffer]:
    return [replace(b, name=name) for name in names]


def test_readers_must_have_the_layout_of_the_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    body = plain(planned())
    monkeypatch.setattr("lumc.profile.choose.layouts", lambda space, *_: [space])
    other = planned()
    assert all(origin(i.region) == i.region for i in other.instances)
    for part in ("kernels", "regions"):
        body[part] += plain(other)[part]
    body["instances"][1] = plain(other)["instances"][1]
    with pytest.raises(LumcError, match="does not fit"), fields("plan"):
        plan_from_json(body, other.graph)


def test_spoiled_bodies_are_refused_or_valid(plan: Plan) -> None:
    body, draw, refused = plain(plan), random.Random(0), 0
    for _ in range(400):
        try:
            with fields("plan"):
                plan_to_json(plan_from_json(spoil(copy.deepcopy(body), draw), plan.graph))
        except LumcError:
            refused += 1
    assert refused > 200


def kernel(body: dict[str, Any]) -> dict[str, Any]:
    return body["kernels"][0]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("kernels", 0, "kernel", "buffers", 0, "name"), "b0; system()"),
        (("kernels", 0, "kernel", "buffers", 0, "shape"), [10**9]),
        (("kernels", 0, "kernel", "roots", 0, "index"), []),
        (("kernels", 0, "kernel", "axes"), ["nowhere"]),
        (("kernels", 0, "kernel", "extent"), {}),
        (("kernels", 0, "bound_us"), "soon"),
        (("kernels", 0, "schedule", "order"), ["nowhere"]),
        (("regions", 0, "steps", 0, "kernel"), "no such kernel"),
        (("regions", 0, "steps", 0, "args", 0), "b7"),
        (("instances", 0, "entry"), "no such entry"),
        (("instances", 0, "inputs", 0), "no such value"),
        (("instances", 0, "output"), "no such value"),
        (("outputs", "main", 0, 1), "no such value"),
        (("outputs", "main", 0, 0), "another name"),
        (("target", "arch"), "pdp-11"),
        (("target", "lanes"), "16"),
    ],
)
def test_hostile_parts_are_refused(plan: Plan, path: tuple[Any, ...], value: Any) -> None:
    body = plain(plan)
    part: Any = body
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    with pytest.raises(LumcError), fields("plan"):
        plan_from_json(body, plan.graph)
