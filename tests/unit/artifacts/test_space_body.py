"""The .ls body: round trip, and damaged or hostile bodies give one clear error."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from typing import Any

import pytest

from lumc.artifacts import files
from lumc.artifacts.bodies import space_from_json, space_to_json
from lumc.disk.artifact import fields
from lumc.errors import LumcError
from lumc.frontend.api.model import Model
from lumc.search import search
from lumc.search.space import Space
from searching import TARGET
from spoiling import spoil
from zoo import ATTENTIONS, attention, model


@pytest.fixture(scope="module")
def space() -> Space:
    return search(attention(ATTENTIONS["causal"]), TARGET, inside=True)


def plain(space: Space) -> dict[str, Any]:
    return json.loads(json.dumps(space_to_json(space), allow_nan=False))


def test_round_trip(space: Space) -> None:
    again = space_from_json(plain(space), space.graph)
    assert again == space
    assert plain(again) == plain(space)


def test_round_trip_of_several_regions() -> None:
    space = search(model("block"), TARGET, inside=True)
    assert space_from_json(plain(space), space.graph) == space


def test_a_scalar_between_two_regions() -> None:
    g = Model()
    total = g.input("x", (3, 4)).sum((0, 1))
    g.output("mean", total / 12.0)
    g.output("y", g.input("z", (5,)) * total.exp2())
    space = search(g.graph(), TARGET, inside=True)
    assert () in [r.frame.output.shape for r in space.regions]
    assert space_from_json(plain(space), space.graph) == space


def test_what_saturation_counts_is_not_in_the_digest(space: Space) -> None:
    """Versions of egglog count matches in other ways, and find the same terms."""
    first, *rest = space.regions
    stats = replace(first.stats, fired={**first.stats.fired, "factor": 1})
    other = replace(space, regions=(replace(first, stats=stats), *rest))
    assert plain(other) != plain(space) and files.digest(other) == files.digest(space)
    more = replace(space, regions=(replace(first, count=first.count + 1), *rest))
    assert files.digest(more) != files.digest(space)


@pytest.mark.parametrize("wrong", [[], [{}], [{"region": "x"}], None, {}])
def test_statistics_are_those_of_the_regions(space: Space, wrong: object) -> None:
    with pytest.raises(LumcError, match="malformed search space"), fields("search space"):
        space_from_json({**plain(space), "statistics": wrong}, space.graph)


def test_spoiled_bodies_are_refused_or_valid(space: Space) -> None:
    body, draw, refused = plain(space), random.Random(0), 0
    for _ in range(400):
        try:
            with fields("search space"):
                space_to_json(space_from_json(spoil(copy.deepcopy(body), draw), space.graph))
        except LumcError as e:
            assert e.code == "E0501"
            refused += 1
    assert refused > 200


def term(body: dict[str, Any], kind: str) -> list[Any]:
    return next(t for t in body["regions"][0]["terms"] if t[0] == kind)


@pytest.mark.parametrize(
    ("kind", "new"),
    [
        ("load", ["load", ["b9", "f32"], []]),
        ("load", ["load", ["b0", "f64"], []]),
        ("load", ["load", ['b0"); system("', "f32"], []]),
        ("axis", ["axis", ["elsewhere"], []]),
        ("axis", ["dim", ["n"], []]),
        ("const", ["const", ["f32", "1e999"], []]),
        ("const", ["const", ["f32", True], []]),
        ("red", ["red", ["prod", ["k8_1"]], [0]]),
        ("un", ["un", ["exec"], [0]]),
        ("bin", ["bin", ["add"], [0, 10**9]]),
        ("bin", ["bin", ["add"], [-1, -1]]),
        ("bin", ["bin", ["add"], []]),
    ],
)
def test_hostile_terms_are_refused(space: Space, kind: str, new: list[Any]) -> None:
    body = plain(space)
    term(body, kind)[:] = new
    with pytest.raises(LumcError, match="malformed"), fields("search space"):
        space_from_json(body, space.graph)


def test_compiler_flags_come_from_lumc(space: Space) -> None:
    body = plain(space)
    body["target"]["flags"] = ["-fplugin=evil.so"]
    with pytest.raises(LumcError, match="flags"), fields("search space"):
        space_from_json(body, space.graph)
