"""Who runs which launches of a graph in stages, and where constants lie."""

from __future__ import annotations

import pytest

import mutating
from collectives import STAGES
from lumc.codegen import stages
from lumc.codegen.code import Code, Launch
from lumc.codegen.generate import generate
from lumc.command.spaces import make_space
from lumc.graph.text import parse_graph
from lumc.profile.choose import estimate

NODES = 2000  # of a region in the search: what is found first will do


@pytest.fixture(scope="module")
def code() -> Code:
    plan = estimate(make_space(parse_graph(STAGES), "cpu:generic", NODES), lambda _: None)
    return generate(plan)


def agrees(code: Code) -> None:
    """Each value is made by those who have it; what all ranks need is made by all."""
    entry, bucket = code.entries[-1], code.graph.entries[-1]  # for all lengths
    words = stages.words_of_launches(code.packings, entry.launches, bucket)
    found = dict[str, set[int]]()
    for launch, word in zip(entry.launches, words, strict=True):
        for name in launch.args:
            found.setdefault(name, set()).add(word)
    assert found["one"] == {1} and found["two"] <= {0, 2} and found["three"] == {3}
    assert found["same"] == {0}
    for sent, ends in (("s0", {0, 2}), ("s1", {0, 3}), ("past", {0, 3})):
        assert found[sent] == ends
    assert found["sum"] == {2}  # between the ranks of one stage
    assert found["low"] >= {0}  # an output, though stage 0 alone reads it
    assert [w for x, w in zip(entry.launches, words, strict=True) if x.args[-1] == "mask"] in (
        [],
        [0],
        [3],
    )


def test_launches_are_where_their_values_are(code: Code) -> None:
    agrees(code)


def test_what_one_stage_needs_it_makes(code: Code) -> None:
    """Of launches whose values have no stage, also of two results, and with local values."""
    graph = parse_graph("""lumc graph 1
mesh pp 2
state w f32[4] on 1 by pp
input x f32[64, 4]
s f32[j:4] = sum i:64 of x[i, j]
e f32[j:4] = exp2 s[j]
y f32[j:4] = add e[j], w[j]
b f32[j:4] = max i:64 of x[i, j]
output b = b
update w[j] = y[j]
""")
    args = [("x", "s"), ("x", "s", "b"), ("x", "b"), ("e", "w", "y")]
    args += [("x", "7.t"), ("7.t", "e"), ("x", "8.t"), ("8.t", "b")]
    launches = tuple(Launch("k", each) for each in args)
    words = stages.words_of_launches(code.packings, launches, graph.entries[0])
    assert words == [2, 0, 0, 2, 2, 2, 0, 0]


def test_constants_of_stages_share_a_place() -> None:
    given = [("a", 70, 1), ("b", 10, 0), ("c", 200, 2), ("d", 1, 1), ("e", 64, 0)]
    offsets, size = stages.overlaid(given)
    assert offsets == {"b": 0, "e": 64, "a": 128, "c": 128, "d": 256}
    assert size == 384
    assert stages.overlaid([]) == ({}, 0)


MUTANTS = [
    ("own = {n.name: 1 + at for", "own = {n.name: at for"),
    ("EVERY if x.exchanges and _leaves(", "EVERY if False and _leaves("),
    ("frozenset({EVERY}))", "frozenset())"),
    ("keys.append(next(filter(None, map(region_of, names)), i))", "keys.append(0)"),
]


@pytest.mark.parametrize(("old", "new"), MUTANTS)
def test_mutants_die(old: str, new: str, code: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    mutating.replace(stages, old, new, monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        agrees(code)
        test_what_one_stage_needs_it_makes(code)
