"""The checks: what the builder refuses, and what the verifier finds in a graph made by hand."""

from dataclasses import replace

import numpy as np
import pytest

from graph_reference import RandomGraph
from lumc.errors import Exit, LumcError
from lumc.graph.builder import Builder
from lumc.graph.dim import Dim
from lumc.graph.expr import add, axis, dim, num
from lumc.graph.graph import Bound, Iota, Read, Scalar, Update
from lumc.graph.ops import BINARY, DType, Op
from lumc.graph.verify import verify_graph

F32, BOOL, I64 = DType.F32, DType.BOOL, DType.I64


def read(node, *index):
    return Read(node, tuple(axis(i) if isinstance(i, str) else i for i in index))


@pytest.fixture
def b():
    b = Builder()
    b.leaf("input", "x", F32, (3, 4))
    b.leaf("input", "m", BOOL, (3,))
    b.leaf("input", "n", I64, (3,))
    b.leaf("state", "st", F32, (3,))
    return b


I3 = [("i", 3)]
REFUSED = [
    (Op.ADD, "xm", I3, {}, "add of different dtypes: f32 and bool"),
    (Op.MUL, "xm", I3, {}, "mul selects by its first operand, got f32 and bool"),
    (Op.LT, "nx", I3, {}, "lt of different dtypes: i64 and f32"),
    (Op.MOD, "mm", I3, {}, "mod of bool"),
    (Op.SUM, "m", [], {"reduced": ("i", 3)}, "sum of bool"),
    (Op.SIN, "n", I3, {}, "sin needs a float operand, got i64"),
    (Op.ADD, "x", I3, {}, "add takes 2 operand(s), got 1"),
    (Op.SQRT, "", I3, {}, "sqrt takes 1 operand(s), got 0"),
    (Op.SUM, "x", I3, {}, "sum needs a reduced axis"),
    (Op.SIN, "x", I3, {"reduced": ("r", 2)}, "sin has no reduced axis"),
    (Op.SIN, "x", I3, {"dtype": DType.F16}, "result is f32, declared f16"),
    (Op.LT, "xx", I3, {"dtype": F32}, "result is bool, declared f32"),
    (Op.SUM, "x", I3, {"reduced": ("i", 3)}, "axis names repeat: i, i"),
    (Op.SIN, "x", [("i", -1)], {}, "negative extent in [-1]"),
    (Op.SIN, "x", [("i", 4)], {}, "reads 'x' [3, 4] out of bounds: index i spans 0..3, extent 3"),
    (Op.SIN, "x", [("k", 3)], {}, "'i' uses axis 'i'; known here: k"),
    (Op.SIN, "x", [(f"a{i}", 1) for i in range(17)], {}, "rank 17 is larger than 16"),
    (Op.SIN, "x", [*I3, ("k", 1 << 40), ("l", 1 << 40)], {}, "has too many elements"),
    (Op.SIN, "x", [("3i", 3)], {}, "'3i' is not a name"),
    (Op.SIN, "x", [*I3, ("true", 3)], {}, "'true' is a word of the text form"),
    (Op.SIN, "x", I3, {"name": "output"}, "'output' is a word of the text form"),
    (Op.SIN, "x", I3, {"name": "x"}, "the name 'x' is used twice"),
    (Op.SIN, "x", I3, {"name": "a b"}, "'a b' is not a name"),
    (Op.SIN, "x", I3, {"name": "a" * 1025}, "is not a name"),
    (Op.SIN, "x", [("i", dim("q"))], {}, "'q' uses dim 'q'; known here: nothing"),
]


@pytest.mark.parametrize(("op", "operands", "axes", "options", "what"), REFUSED)
def test_the_builder_refuses(b, op, operands, axes, options, what):
    x, m, n = b.inputs
    reads = {"x": read(x, "i", num(0)), "m": read(m, "i"), "n": read(n, "i")}
    b.origin = "model.py:7"
    with pytest.raises(LumcError) as e:
        b.node(op, [reads[o] for o in operands], axes, **options)
    assert what in e.value.what and e.value.exit == Exit.UNSUPPORTED
    assert "model.py:7" in e.value.where


@pytest.mark.parametrize(
    ("operand", "what"),
    [
        (Scalar(DType.I8, 128), "128 is not a value of i8"),
        (Scalar(DType.U8, -1), "-1 is not a value of u8"),
        (Scalar(I64, 0.5), "0.5 is not a value of i64"),
        (Scalar(BOOL, 1), "1 is not a value of bool"),
        (Scalar(F32, True), "True is not a value of f32"),
        (Iota(BOOL, axis("i")), "an index is a number, not a bool"),
        (Iota(I64, axis("j")), "'j' uses axis 'j'; known here: i"),
        (Iota(I64, dim("q")), "'q' uses dim 'q'"),
        (Iota(I64, axis("i"), (Bound(axis("j"), 0, 1),)), "'j' uses axis 'j'"),
        (Iota(I64, axis("i"), (Bound(axis("i"), 0, dim("q")),)), "uses dim 'q'"),
        (Iota(I64, axis("i"), (Bound(axis("i"), 0, 1),) * 17), "17 bounds"),
        (Iota(I64, add(axis("i"), 1 << 63)), "a number in"),
    ],
)
def test_the_builder_refuses_operands(b, operand, what):
    with pytest.raises(LumcError) as e:
        b.node(Op.CONTIGUOUS, [operand], I3)
    assert what in e.value.what


def test_names_of_leaves_and_dims(b):
    for name in ("", "a-b", "é", "a" * 1025, "x"):
        with pytest.raises(LumcError):
            b.leaf("input", name, F32, ())
    with pytest.raises(LumcError, match="contradicts"):
        b.dim("x", 1, 2)
    with pytest.raises(LumcError, match="impossible bounds"):
        b.dim("s", 3, 2)
    assert b.dim("s", 1, 4) == b.dim("s", 1, 4)
    with pytest.raises(LumcError, match="contradicts"):
        b.dim("s", 1, 5)
    with pytest.raises(LumcError, match="negative extent"):
        b.leaf("input", "y", F32, (add(dim("s"), -2),))


def test_an_axis_hides_the_dim_of_its_name(b):
    s = b.dim("s", 1, 8) and dim("s")
    b.node(Op.CONTIGUOUS, [Iota(I64, add(s, axis("i")))], [("i", s)])
    with pytest.raises(LumcError, match="uses dim 's', which an axis of that name hides"):
        b.node(Op.CONTIGUOUS, [Iota(I64, add(s, axis("s")))], [("s", s)])


def test_fresh_names_do_not_meet():
    b = Builder()
    b.leaf("input", "t0", F32, ())
    names = [b.node(Op.SIN, [read(b.inputs[0])], []).name for _ in range(3)]
    assert len({*names, "t0"}) == 4


def test_zero_extents_read_nothing(b):
    x = b.inputs[0]
    empty = b.node(Op.SIN, [read(x, "i", "j")], [("i", 3), ("j", 0)])
    b.node(Op.SUM, [read(empty, "i", "j")], I3, ("j", 0))
    b.node(Op.SIN, [Read(x, (num(9), num(9)))], [("i", 0)])


# ---- the verifier


def good():
    b = Builder({"s": Dim("s", 1, 8)})
    x = b.leaf("input", "x", F32, (dim("s"), 4))
    st = b.leaf("state", "st", F32, (4,))
    t0 = b.node(Op.SIN, [read(x, "i", "j")], [("i", dim("s")), ("j", 4)])
    t1 = b.node(Op.MUL, [read(t0, "i", "j"), read(st, "j")], [("i", dim("s")), ("j", 4)])
    t2 = b.node(Op.CONTIGUOUS, [read(t1, num(0), "j")], [("j", 4)])
    b.outputs.append(("y", t1))
    b.updates.append(Update(st, (axis("j"),), t2))
    b.finish()
    return b.graph()


def changed(graph, **fields):
    return replace(graph, entries=(replace(graph.entries[0], **fields),))


def broken_graphs():
    g = good()
    e, (x,), (t0, t1, t2) = g.entries[0], g.entries[0].inputs, g.entries[0].nodes
    st = g.states[0]
    yield "has no entry", replace(g, entries=())
    yield "used twice: main", replace(g, entries=(e, e))
    yield "'a b' is not a name", changed(g, name="a b")
    yield "not before it", changed(g, nodes=(t1, t0, t2))
    yield "not before it", changed(g, nodes=(t1, t2))
    yield "not before it", changed(g, inputs=())
    yield "used twice: t0", changed(g, nodes=(t0, t1, t2, replace(t0)))
    yield "used twice: st", changed(g, inputs=(x, replace(x, name="st")))
    yield "used twice: s", changed(g, inputs=(x, replace(x, name="s")))
    yield "used twice: y", changed(g, outputs=(("y", t1), ("y", t0)))
    yield "no output and no update", changed(g, outputs=(), updates=())
    yield "from a node of another entry", changed(g, outputs=(("y", replace(t1)),))
    yield (
        "from a node of another entry",
        changed(g, updates=(Update(st, (axis("j"),), replace(t2)),)),
    )
    yield "'y z' is not a name", changed(g, outputs=(("y z", t1),))
    yield "state of another graph", changed(g, updates=(Update(replace(st), (axis("j"),), t2),))
    yield "out of bounds", changed(g, updates=(Update(st, (add("j", 1),), t2),))
    yield "may write an element twice", changed(g, updates=(Update(st, (num(0),), t2),))
    yield "result is f32", changed(g, nodes=(t0, t1, t2, replace(t0, name="q", dtype=I64)))
    yield "out of bounds", changed(g, nodes=(t0, t1, t2, replace(t0, name="q", shape=(9, 4))))
    yield "impossible bounds", replace(g, dims={"s": Dim("s", 5, 1)})
    yield (
        "impossible bounds",
        replace(g, dims={"s": Dim("s", 5, 7, 4)}),
    )  # of which none is a multiple
    yield "known here: nothing", replace(g, dims={})
    yield "rank 17", changed(g, inputs=(x, replace(x, name="q", shape=(1,) * 17, axes=("a",) * 17)))


@pytest.mark.parametrize(("what", "graph"), list(broken_graphs()))
def test_the_verifier_finds(what, graph):
    with pytest.raises(LumcError) as e:
        verify_graph(graph)
    assert what in str(e.value)


def test_the_verifier_accepts():
    verify_graph(good())
    for seed in range(50):
        verify_graph(RandomGraph(np.random.default_rng(seed)).graph)


@pytest.mark.parametrize("seed", range(40))
def test_the_verifier_finds_a_swapped_operand(seed):
    """Replace an operand's source by one of another dtype: the declared dtypes no longer fit."""
    graph = RandomGraph(np.random.default_rng(seed)).graph
    entry = graph.entries[0]
    for i, node in enumerate(entry.nodes):
        if node.op not in BINARY or node.operands[0].dtype is not node.operands[1].dtype:
            continue
        other = DType.I32 if node.operands[0].dtype is not DType.I32 else DType.F64
        bad = replace(node, operands=(node.operands[0], Scalar(other, 1)))
        nodes = (*entry.nodes[:i], bad)
        with pytest.raises(LumcError, match=r"different dtypes|selects|result is"):
            verify_graph(
                replace(graph, entries=(replace(entry, nodes=nodes, outputs=(), updates=()),))
            )
