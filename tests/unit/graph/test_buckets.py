"""Which parts of the values of dims have kernels of their own, and what graphs say of that."""

from dataclasses import replace

import pytest

from live import ATTENTION
from lumc.errors import LumcError
from lumc.graph.bind import bind_dims
from lumc.graph.buckets import MOST, in_buckets, points, with_points
from lumc.graph.dim import Dim
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph

TUNED = ATTENTION.replace("dim s in 1..16", "dim s in 1..16 tune 4, 1")


def ends(graph: Graph) -> list[dict[str, int]]:
    return [{n: d.values[-1] for n, d in e.dims.items()} for e in graph.entries]


def test_a_graph_says_where_it_is_tuned() -> None:
    graph = parse_graph(TUNED)
    assert graph.tuned == {"s": (1, 4, 16)}
    text = print_graph(graph)
    assert "dim s in 1..16 tune 1, 4, 16\n" in text
    assert print_graph(parse_graph(text)) == text == print_graph(in_buckets(graph))
    assert print_graph(parse_graph(ATTENTION)).count("tune") == 0


def test_buckets_go_down_to_the_least_and_fix_what_has_one_value() -> None:
    graph = in_buckets(parse_graph(TUNED))
    assert [(e.name, e.of) for e in graph.entries] == [(f"main@s{n}", "main") for n in (1, 4, 16)]
    assert ends(graph) == [{"s": 1}, {"s": 4}, {"s": 16}]
    q = [e.inputs[0] for e in graph.entries]
    assert [n.shape[1] for n in q[:1]] == [1] and str(q[1].shape[1]) == "s"
    assert [n.sizes for n in q] == [(4, 1, 8), (4, 4, 8), (4, 16, 8)]
    assert {n for e in graph.entries for n in (u.state for u in e.updates)} == {*graph.states}
    for e in graph.entries:  # each is a graph like any other
        verify_graph(Graph(e.nodes[0].dims, graph.weights, graph.states, (replace(e, name=e.of),)))


def test_entries_have_the_buckets_of_their_own_dims() -> None:
    two = TUNED.replace("dim p in 0..24", "dim p in 0..24 tune 8").replace(
        "input q", "entry long\ninput q"
    )
    two += "entry short\ninput z f32[p + 1]\nw f32[i:p + 1] = add z[i], 1.0\noutput w = w\n"
    graph = in_buckets(parse_graph(two))
    assert [e.title for e in graph.entries] == ["long"] * 6 + ["short"] * 2
    assert [e.name for e in graph.entries][-3:] == ["long@p24.s16", "short@p8", "short@p24"]
    assert ends(graph)[:3] == [{"p": 8, "s": n} for n in (1, 4, 16)]


def test_dims_that_are_bound_are_tuned_within_their_bounds() -> None:
    graph = parse_graph(TUNED)
    assert bind_dims(graph, {"s": Dim("s", 2, 9)}).tuned == {"s": (4, 9)}
    assert bind_dims(graph, {"s": 3}).tuned == {}
    one = bind_dims(graph, {"s": 3})
    assert in_buckets(one) is one


def test_by_default_what_shapes_tell_is_tuned() -> None:
    assert with_points(parse_graph(ATTENTION), {}).tuned == {"s": (1, 16)}  # p is told by name
    graph = with_points(parse_graph(ATTENTION), {"s": (2, 5)})
    assert graph.tuned == {"s": (2, 5, 16)}
    assert with_points(graph, {"s": (16,)}).tuned == {"s": (16,)}
    assert in_buckets(with_points(graph, {"s": (16,)})).whole is None
    text = "lumc graph 1\ndim b in 1..64\ndim s in 1..4096\ninput x f32[b, s]\n"
    both = with_points(parse_graph(text + "y f32[b, s] = add x[b, s], 1.0\noutput y = y\n"), {})
    assert both.tuned == {"s": (1, 16, 256, 4096)} | {"b": (64,)}
    assert len(in_buckets(both).entries) == MOST


@pytest.mark.parametrize(
    ("d", "found"),
    [
        (Dim("s", 1, 512), (1, 16, 512)),
        (Dim("s", 1, 15), (1, 15)),
        (Dim("s", 0, 2047), (0, 16, 2047)),
        (Dim("s", 8, 4096, 8), (8, 128, 4096)),
        (Dim("s", 3, 1000, 7), (7, 994)),
        (Dim("s", 5, 5), (5,)),
    ],
)
def test_points_are_values_of_the_dim(d: Dim, found: tuple[int, ...]) -> None:
    assert points(d, 9) == found
    assert points(d, 1) == found[-1:]
    assert all(n in d.values for n in found)


def test_what_cannot_be_tuned_is_refused() -> None:
    graph = parse_graph(ATTENTION)
    for wanted, said in (({"t": (1,)}, "no dim 't'"), ({"s": (17,)}, "dim s=17 is not in 1..16")):
        with pytest.raises(LumcError, match=said) as e:
            with_points(graph, wanted)  # type: ignore[arg-type]
        assert e.value.code == "E0111"
    with pytest.raises(LumcError, match="dims are tuned at 65 combinations of values") as e:
        with_points(graph, {"p": tuple(range(4)), "s": tuple(range(1, 13))})
    assert e.value.code == "E0101"
    for line in ("tune 17", "tune", "tune 1,", "tune 1 2", "tune -1"):
        with pytest.raises(LumcError) as e:
            parse_graph(ATTENTION.replace("1..16", f"1..16 {line}"))
        assert e.value.code in ("E0301", "E0303")
