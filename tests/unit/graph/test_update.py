"""States that are read after an update: their text, what they read, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lumc.errors import LumcError
from lumc.frontend.api.model import Model
from lumc.graph.bind import bind_dims
from lumc.graph.expr import add
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph
from lumc.oracle.graph import evaluate

CACHE = """lumc graph 1
dim p in 0..3
dim s in 1..2
state c f32[2, 5]

input new f32[s, 2]
now = update c[d1, d0 + p] = new[d0, d1]
part f32[i:s] = contiguous new[i, 0]
again = update c[1, i + 2] = part[i]
seen f32[h:2, j:5] = add now[h, j], again[h, j]
old f32[h:2, j:5] = contiguous c[h, j]
output seen = seen
output old = old
update c[0, 4] = last[]
"""
LAST = "last f32[] = contiguous again[0, 0]\nnow2 f32[] = add last[], 1.0\n"


def text() -> str:
    return CACHE.replace("old f32", f"{LAST}old f32")


def test_the_text_says_in_which_order_states_are_updated() -> None:
    graph = parse_graph(text())
    assert print_graph(graph) == text()
    verify_graph(graph)
    (entry,) = graph.entries
    assert [u.state.name for u in entry.writes] == ["c"] * 3
    again = next(n for n in entry.nodes if n.name == "again")
    assert again.home is graph.states[0] and again.is_leaf
    assert [r.source.name for r in again.reads] == ["now", "part"]


def test_a_read_after_an_update_sees_it_and_one_of_the_state_does_not() -> None:
    before = np.arange(10, dtype="f4").reshape(2, 5)
    new = np.array([[20, 30], [21, 31]], "f4")
    out, after = evaluate(
        parse_graph(text()), "main", {"new": new}, None, {"c": before}, dims={"p": 1}
    )
    now = before.copy()
    now[:, 1:3] = new.T
    again = now.copy()
    again[1, 2:4] = new[:, 0]
    np.testing.assert_array_equal(out["old"], before)
    np.testing.assert_array_equal(out["seen"], now + again)
    again[0, 4] = again[0, 0]
    np.testing.assert_array_equal(after["c"], again)


def test_dims_are_bound_in_updates_too() -> None:
    graph = bind_dims(parse_graph(text()), {"p": 3, "s": 2})
    said = print_graph(graph)
    assert "now = update c[d1, d0 + 3] = new[d0, d1]" in said
    assert print_graph(parse_graph(said)) == said


INDICES = {
    "i": lambda x, v: x.__setitem__(slice(0, 3), v),
    "i + 4": lambda x, v: x.__setitem__(slice(4, 7), v),
    "6 - i": lambda x, v: x.__setitem__(slice(6, 3, -1), v),
    "2*i + 1": lambda x, v: x.__setitem__(slice(1, 7, 2), v),
    "6 - 3*i": lambda x, v: x.__setitem__(slice(6, None, -3), v),
}


@pytest.mark.parametrize("index", INDICES)
def test_where_an_element_comes_from(index: str) -> None:
    graph = parse_graph(
        "lumc graph 1\nstate s f32[7]\n\ninput x f32[3]\n"
        f"u = update s[{index}] = x[i]\ny f32[j:7] = contiguous u[j]\noutput y = y\n"
    )
    given, x = np.arange(7, dtype="f4"), np.array([50, 51, 52], "f4")
    out, after = evaluate(graph, "main", {"x": x}, None, {"s": given})
    INDICES[index](given, x)
    np.testing.assert_array_equal(out["y"], given)
    np.testing.assert_array_equal(after["s"], given)


WRONG = [
    ("output y = u", "is in the memory of its state"),
    ("update x[i] = s[i]", "update of input 'x'"),
    ("u2 = update u[i] = x[i]", "update of update 'u'"),
    ("u = update s[i] = x[i]", "'u' is used twice"),
    ("u2 = update s[i + 1] = x[i]", "out of bounds"),
    ("s2 f32[i:2, j:2] = contiguous x[i + j]\nu2 = update s[2*i + j] = s2[i, j]", "or one axis"),
    ("u2 = add s[i], x[i]", "expected 'update'"),
    ("update s[i] = x[i]\nu2 = update s[i] = x[i]", "happens after the run"),
]


@pytest.mark.parametrize(("line", "said"), WRONG)
def test_what_is_refused(line: str, said: str) -> None:
    head = "lumc graph 1\nstate s f32[4]\n\ninput x f32[4]\nu = update s[i] = x[i]\n"
    with pytest.raises(LumcError) as e:
        verify_graph(parse_graph(f"{head}{line}\ny f32[i:4] = contiguous u[i]\noutput y2 = y\n"))
    assert said in str(e.value)


def test_an_updated_state_that_reads_something_else_is_no_graph() -> None:
    graph = parse_graph(text())
    (entry,) = graph.entries
    now = entry.nodes[0]
    for other in (
        replace(now, at=(now.at[0], now.at[1].kids[0])),
        replace(now, operands=now.operands[::-1]),
        replace(now, shape=(2, 6)),
    ):
        nodes = (other, *entry.nodes[1:])
        with pytest.raises(LumcError):
            verify_graph(replace(graph, entries=(replace(entry, nodes=nodes),)))


def written() -> Graph:
    g = Model()
    p, s = g.dim("p", 0, 6), g.dim("s", 1, 2)
    n = add(p, s)
    cache = g.state("cache", (8, 3))
    x = g.input("x", (s, 3))
    now = g.updated(cache, x * 2.0, (slice(p, n),))
    g.output("y", now[:n].sum(0))
    g.output("before", cache[:n].sum(0))
    return g.graph()


def test_the_state_after_an_update_is_a_tensor() -> None:
    graph = written()
    verify_graph(graph)
    given, x = np.random.default_rng(0).random((8, 3)), np.ones((2, 3))
    out, after = evaluate(graph, "main", {"x": x}, None, {"cache": given}, dims={"p": 3})
    np.testing.assert_allclose(out["before"], given[:5].sum(0))
    given[3:5] = 2
    np.testing.assert_allclose(out["y"], given[:5].sum(0))
    np.testing.assert_allclose(after["cache"], given)
