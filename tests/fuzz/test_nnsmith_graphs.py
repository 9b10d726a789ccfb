"""A hundred graphs of NNSmith through compiled C; more in make fuzz."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx

import onnx_suite
from fuzz import nnsmith_graphs, onnx_graphs
from fuzz.nnsmith_graphs import Generated, Silent, is_silent

COUNT = 100


@pytest.fixture(scope="module")
def graphs() -> list[Generated]:
    return nnsmith_graphs.kept()


def test_all_are_compiled_and_right(graphs: list[Generated]) -> None:
    found = onnx_suite.run(graphs, batch=COUNT, how=onnx_graphs.HASTY)
    assert {r.name: r.detail[:500] for r in found if r.verdict != "pass"} == {}
    assert len(found) == COUNT and sum(r.kernels for r in found) > 3 * COUNT


def test_they_are_different(graphs: list[Generated]) -> None:
    nodes = [tuple(sorted(n.op_type for n in g.model.graph.node)) for g in graphs]
    assert len(set(nodes)) == len(nodes)
    assert len({n for each in nodes for n in each}) > 50
    shapes = Counter(a.shape for g in graphs for a in g.inputs.values())
    assert len(shapes) > 100
    assert len({a.dtype for g in graphs for a in g.inputs.values()}) >= 6


def test_onnxruntime_agrees_and_results_say_something(graphs: list[Generated]) -> None:
    for case in graphs:
        assert case.second is not None, case.name
        for worlds, other in zip(case.wanted, case.second, strict=True):
            assert not is_silent(worlds[0])
            assert onnx_graphs.differs(np.asarray(other), worlds[0], worlds) == "", case.name


def test_what_says_nothing_is_refused(graphs: list[Generated]) -> None:
    case = next(g for g in graphs if g.wanted[0][0].dtype == np.float32)
    right = case.wanted[0][0]
    case.compare(right, 0)
    for nothing in (right * 0, right * np.float32(np.nan)):
        with pytest.raises(Silent):
            case.compare(nothing, 0)
    with pytest.raises(AssertionError, match="differ"):
        case.compare(right + np.float32(0.01) * np.abs(right).max(), 0)
    assert is_silent(np.zeros(0)) and is_silent(np.zeros(3, bool)) and not is_silent(np.ones(1))


EXPORTED = """<ir_version: 8, opset_import: ["" : 17]>
main (float[40, 9] i0) => (bool[40, 9] o0, float[40, 9] o1, float[9, 40] o2)
{
    "/Constant_output_0" = Constant <value = float {2.0}> ()
    a = Add (i0, "mlist.0.data")
    o0 = IsNaN (a)
    b = Mul (a, "/Constant_output_0")
    o1 = Relu (b)
    o2 = Transpose (i0)
}"""


def test_models_lose_their_weights_and_results_that_say_nothing() -> None:
    model = onnx.parser.parse_model(EXPORTED)
    weight = onnx.numpy_helper.from_array(np.ones((40, 9), "f4"), "mlist.0.data")
    model.graph.initializer.append(weight)
    bare = nnsmith_graphs.plain(model)
    assert [t.name for t in bare.graph.initializer] == ["w0", "k1"]  # by the size of each
    assert [bool(t.raw_data) for t in bare.graph.initializer] == [False, True]
    case = nnsmith_graphs.judged("a", bare)
    assert [n.op_type for n in case.model.graph.node] == ["Add", "Mul", "Relu", "Transpose"]
    again = nnsmith_graphs.judged("a", bare)
    assert again.model == case.model and nnsmith_graphs.judged("b", bare).model != case.model
    (found,) = onnx_suite.run([case])
    assert found.verdict == "pass"
