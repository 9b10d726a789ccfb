"""Graphs in micro-batches: their text, when nodes are computed, and what is refused."""

from __future__ import annotations

import pytest

from lumc.errors import LumcError
from lumc.graph.batches import AFTER, BEFORE, WITHIN, phases_of, runs
from lumc.graph.ranks import said
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph

TEXT = """lumc graph 1
mesh t 3 in time
mesh a 2
state w f32[4] part 0 by a
state n f32[4]

input x f32[2, 8] part 0 by t
input z f32[6, 8]
own f32[i:2, j:8] = all_slice split i by t of z[i, j]
half f32[j:8] = exp2 f32(j)
y f32[i:2, j:8] = add x[i, j], own[i, j]
h f32[i:2, j:8] = mul y[i, j], half[j]
s f32[j:8] = sum i:2 of h[i, j]
d f32[j:8] = all_reduce sum by t of s[j]
e f32[j:8] = mul d[j], half[j]
next f32[j:4] = add n[j], 1.0
g f32[i:6, j:8] = all_gather concat i by t of h[i, j]
mine f32[j:4] = all_slice split j by a of e[j]
output h = h part 0 by t
output g = g
output e = e
update w[j] = mine[j]
update n[j] = next[j]
"""


def read(text: str) -> None:
    verify_graph(parse_graph(text, "m.lg"))


def test_the_text_of_a_graph_in_micro_batches_is_canonical() -> None:
    graph = parse_graph(TEXT)
    verify_graph(graph)
    assert print_graph(graph) == TEXT
    assert graph.time == graph.entries[0].time == "t" and graph.ranks == 2
    assert said(graph) == "2 ranks (a 2), 3 micro-batches"


def test_what_is_computed_before_in_and_after_micro_batches() -> None:
    (entry,) = parse_graph(TEXT).entries
    phases = {n.name: phase for n, phase in phases_of(entry).items()}
    after = dict.fromkeys(("d", "e", "g", "mine", "next"), AFTER)
    assert phases == {"half": BEFORE, **dict.fromkeys(("x", "own", "y", "h", "s"), WITHIN), **after}
    made = {n.name: phase for n, phase in runs(entry).items()}
    assert made == {**phases, "d": WITHIN, "g": WITHIN}
    plain = parse_graph(TEXT.replace(" in time", "")).entries[0]
    assert phases_of(plain) == runs(plain) == {}


REFUSED = [
    ("axis 't' of the mesh is in time already", "mesh a 2", "mesh a 2 in time"),
    ("expected 'time'", "mesh t 3 in time", "mesh t 3 in space"),
    (
        "weights and states are there all the time",
        "state n f32[4]",
        "state n f32[4] part 0 by t",
    ),
    (
        "weights and states are there all the time",
        "state n f32[4]",
        "state n f32[4] on 1 by t",
    ),
    (
        "reads 'h' of one micro-batch and 'd', which all make",
        "e f32[j:8] = mul d[j], half[j]",
        "e f32[j:8] = mul d[j], h[0, j]",
    ),
    (
        "reduce_scatter goes on between ranks, and 't' is in time",
        "d f32[j:8] = all_reduce sum by t of s[j]",
        "d f32[j:8] = all_reduce sum by t of s[j]\n"
        "f f32[j:9] = add s[0], f32(j)\nq f32[j:3] = reduce_scatter sum split j by t of f[j]",
    ),
    (
        "all_slice of what all micro-batches make",
        "own f32[i:2, j:8] = all_slice split i by t of z[i, j]",
        "own f32[i:2, j:8] = all_slice split i by t of z[i, j]\n"
        "u f32[i:6, j:8] = all_gather concat i by t of own[i, j]\n"
        "v f32[i:2, j:8] = all_slice split i by t of u[i, j]",
    ),
    ("output 'h' differs between the ranks along 't'", "output h = h part 0 by t", "output h = h"),
    (
        "the new value of 'w' differs between the ranks along 't'",
        "all_slice split j by a of e[j]",
        "all_slice split j by a of s[j]",
    ),
]


@pytest.mark.parametrize(("said", "old", "new"), REFUSED)
def test_what_means_nothing_is_refused(said: str, old: str, new: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(LumcError) as e:
        read(TEXT.replace(old, new))
    assert said in e.value.what and e.value.code in ("E0101", "E0301", "E0303")
