"""Binding dims: extents become integers and index maps are simplified again."""

import numpy as np
import pytest

from lumc.errors import Exit, LumcError
from lumc.graph.bind import bind_dims, dims_of, require_static
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph
from lumc.oracle.graph import evaluate

SYMBOLIC = """lumc graph 1
dim b in 1..8
dim s in 2..64 multiple 2
dim p in 0..16
state cache f32[b, 80]

input x f32[b, s]
flat f32[b, j:2*s] = contiguous x[b, j // 2]
back f32[b, i:s] = contiguous x[b, s - i - 1]
pad f32[b, i:s + 2] = add x[b, i - 1] if 0 <= i - 1 < s, f32(i + s)
half f32[b, h:s // 2] = max r:2 of x[b, 2*h + r]
total f32[b] = sum s of x[b, s]
output flat = flat
output pad = pad
output half = half
output total = total
update cache[b, i + p] = back[b, i]
"""

BOUND = """lumc graph 1
state cache f32[3, 80]

input x f32[3, 6]
flat f32[b:3, j:12] = contiguous x[b, j // 2]
back f32[b:3, i:6] = contiguous x[b, -i + 5]
pad f32[b:3, i:8] = add x[b, i - 1] if 0 <= i - 1 < 6, f32(i + 6)
half f32[b:3, h:3] = max r:2 of x[b, 2*h + r]
total f32[b:3] = sum s:6 of x[b, s]
output flat = flat
output pad = pad
output half = half
output total = total
update cache[b, i + 7] = back[b, i]
"""


def test_binding_all_dims():
    graph = parse_graph(SYMBOLIC, "a.lg")
    verify_graph(graph)
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)
    bound = bind_dims(graph, {"s": 6, "b": 3, "p": 7})
    verify_graph(bound)
    assert print_graph(bound) == BOUND
    assert bound.entries[0].nodes[0].origin == "a.lg:8"
    x = np.random.default_rng(0).standard_normal((3, 6)).astype("f4")
    out, states = evaluate(bound, "main", {"x": x}, None, declared=True)
    np.testing.assert_array_equal(out["flat"], x.repeat(2, 1))
    np.testing.assert_array_equal(out["half"], x.reshape(3, 3, 2).max(2))
    np.testing.assert_array_equal(states["cache"][:, 7:13], x[:, ::-1])
    want = np.pad(x, ((0, 0), (1, 1))) + np.arange(6, 14, dtype="f4")
    np.testing.assert_array_equal(out["pad"], want)


def test_binding_some_dims_keeps_the_others():
    graph = bind_dims(parse_graph(SYMBOLIC), {"b": 3})
    verify_graph(graph)
    assert list(graph.dims) == ["s", "p"]
    assert print_graph(bind_dims(graph, {"p": 7, "s": 6})) == BOUND
    assert print_graph(bind_dims(graph, {})) == print_graph(graph)


def test_weights_keep_their_files():
    text = f"""lumc graph 1
dim s in 1..4
file "w" size 9 sha256 {"ab" * 32}
weight w f32[3] "w" "key"

t f32[s, i:3] = contiguous w[i]
output y = t
"""
    bound = print_graph(bind_dims(parse_graph(text), {"s": 2}))
    assert bound == text.replace("dim s in 1..4\n", "").replace("[s, i", "[s:2, i")


def test_bounds_of_values_simplify_index_maps():
    graph = parse_graph("""lumc graph 1
dim s in 1..64
input x f32[s, 4]
t f32[i:4*s] = contiguous x[i // 4, i % 4]
u f32[i:4] = contiguous t[i % (4*1)]
v f32[i:s] = contiguous t[(i % 8) // 8 + i]
output u = u
output v = v
""")
    lines = print_graph(bind_dims(graph, {"s": 8})).split("\n")
    assert lines[4:6] == ["u f32[i:4] = contiguous t[i]", "v f32[i:8] = contiguous t[i]"]
    (one,) = [n for n in bind_dims(graph, {"s": 1}).entries[0].nodes if n.name == "t"]
    assert [str(e) for e in one.operands[0].index] == ["0", "i"]


@pytest.mark.parametrize(
    ("values", "what", "fix"),
    [
        ({"q": 1}, "no dim 'q'", "dims of this graph: b, s, p"),
        ({"b": 9}, "dim b=9 is not in 1..8", ""),
        ({"b": 0}, "dim b=0 is not in 1..8", ""),
        ({"s": 7}, "dim s=7 is not in 2..64 multiple 2", ""),
    ],
)
def test_wrong_values(values, what, fix):
    with pytest.raises(LumcError) as e:
        bind_dims(parse_graph(SYMBOLIC), values)
    assert (e.value.what, e.value.fix, e.value.exit) == (what, fix, Exit.USAGE)


def test_a_pass_that_needs_numbers_says_which():
    with pytest.raises(LumcError) as e:
        require_static(parse_graph(SYMBOLIC), "search")
    assert "search needs a value for every dim; not bound: b (1..8), s (2..64), p" in e.value.what
    assert e.value.fix == "for example --dim b=8 --dim s=64 --dim p=16"
    assert e.value.exit == Exit.UNSUPPORTED
    require_static(bind_dims(parse_graph(SYMBOLIC), {"s": 6, "b": 3, "p": 7}), "search")


def test_shapes_of_inputs_tell_dims():
    graph = parse_graph("""lumc graph 1
dim s in 1..9
dim p in 0..9
dim q in 0..9
input x f32[2*s + 1, 4]
input y f32[s + p, q // 2]
t f32[i:2*s + 1] = contiguous x[i, 0]
output t = t
""")
    inputs = graph.entries[0].inputs
    assert dims_of(inputs, {"x": (7, 4), "y": (5, 2)}) == {"s": 3}
    assert dims_of(inputs, {"x": (6, 4)}) == {}  # no such s: the shape does not fit, which is said


def test_the_oracle_binds_what_shapes_tell_and_what_it_is_given():
    graph = parse_graph(SYMBOLIC, "a.lg")
    for b, s, p in ((1, 2, 0), (3, 6, 7), (8, 64, 16)):
        x = np.random.default_rng(s).standard_normal((b, s)).astype("f4")
        state = {"cache": np.full((b, 80), 5, "f4")}
        want = evaluate(bind_dims(graph, {"b": b, "s": s, "p": p}), "main", {"x": x}, None, state)
        got = evaluate(graph, "main", {"x": x}, None, state, dims={"p": p})
        for one, other in zip(got, want, strict=True):
            assert one.keys() == other.keys()
            for name in one:
                np.testing.assert_array_equal(one[name], other[name])
        np.testing.assert_array_equal(got[1]["cache"][:, p : p + s], x[:, ::-1])


@pytest.mark.parametrize(
    ("shape", "dims", "code"),
    [
        ((3, 6), {}, "E0112"),  # p is free
        ((3, 7), {"p": 1}, "E0111"),  # no multiple of 2
        ((9, 6), {"p": 1}, "E0111"),
        ((3, 6), {"p": 17}, "E0111"),
        ((3, 6), {"p": 1, "b": 2}, "E0113"),  # given otherwise than the shape has it
        ((3,), {"p": 1}, "E0112"),
    ],
)
def test_inputs_that_no_dims_fit(shape, dims, code):
    with pytest.raises(LumcError) as e:
        x = {"x": np.zeros(shape, "f4")}
        evaluate(parse_graph(SYMBOLIC), "main", x, None, dims=dims)
    assert e.value.code == code
