"""Graphs of ranks with whole inputs and outputs mean what they meant."""

from __future__ import annotations

import numpy as np
import pytest

import mutating
from lumc.graph import ends
from lumc.graph.ends import with_whole_ends
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph
from lumc.oracle.ranks import evaluate_mesh, run_ranks
from lumc.shard.mesh import collectives

TEXT = """lumc graph 1
mesh a 2
mesh b 3
dim n in 1..4
state kept f32[2] part 0 by b, 0 by a
input x f32[n, 2, 4] part 1 by a, 1 by b, 2 by a2
input same f32[2]
x.all_slice f32[i:2] = add kept[i], same[i]
y f32[m:n, i:2, j:4] = add x[m, i, j], x.all_slice[i]
output y = y part 1 by a, 1 by b, 2 by a2
output kept = x.all_slice part 0 by b, 0 by a
update kept[i] = x.all_slice[i]
entry other
input x f32[4] part 0 by b
z f32[i:4] = exp2 x[i]
output z = z part 0 by b
""".replace(", 2 by a2", "")


def graph() -> Graph:
    made = parse_graph(TEXT)
    verify_graph(made)
    return made


def agrees() -> None:
    """On every rank, with inputs that differ."""
    before, rng = graph(), np.random.default_rng(0)
    after = with_whole_ends(before)
    verify_graph(after)
    given = {
        "main": {"x": rng.normal(size=(3, 12, 4)), "same": rng.normal(size=2)},
        "other": {"x": rng.normal(size=12)},
    }
    states = {"kept": rng.normal(size=12)}
    for entry, inputs in given.items():
        every = entry, inputs, lambda _: None, states, False, {"n": 3}
        want, left = evaluate_mesh(before, *every)
        for outputs, _ in run_ranks(after, *every).values():
            assert outputs.keys() == want.keys()
            for name, value in want.items():
                assert np.array_equal(outputs[name], value), name
        got, held = evaluate_mesh(after, *every)
        assert np.array_equal(held["kept"], left["kept"]) and got.keys() == want.keys()


def test_ranks_take_their_parts_and_join_what_they_have() -> None:
    agrees()
    after = with_whole_ends(graph())
    main, other = after.entries
    assert [n.name for n in main.inputs] == ["x", "same"] and not main.parts
    assert [str(e) for e in main.inputs[0].shape] == ["n", "12", "4"]
    names = [n.name for n in collectives(after)]
    assert names[:2] == ["x.all_slice2", "x.all_slice2.all_slice"]
    assert [n.name for n in other.nodes] == ["x.all_slice", "z", "z.all_gather"]


def test_what_is_whole_stays_as_it_is() -> None:
    once = with_whole_ends(graph())
    assert with_whole_ends(once) is once
    assert print_graph(parse_graph(print_graph(once))) == print_graph(once)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("for p in reversed(parts):", "for p in parts:"),
        ("        for p in parts:\n", "        for p in reversed(parts):\n"),
        ("self.leaf(n.whole)", "self.leaf(n)"),
        ("concat=p.dim", "concat=0"),
        ("split=p.dim", "split=0"),
        ("while name in self.taken:", "while False:"),
        ("b.updates = self.updates(entry)", ""),
    ],
)
def test_mutants_die(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutating.replace(ends, old, new, monkeypatch)
    with pytest.raises(Exception):  # noqa: B017
        agrees()
