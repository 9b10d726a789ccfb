"""The ONNX importer: dims, names, constants, expansion, and what it says when it cannot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import helper, parser  # noqa: E402

from lumc.disk.weights import read_weight  # noqa: E402
from lumc.errors import Exit, LumcError  # noqa: E402
from lumc.frontend.onnx import import_onnx  # noqa: E402
from lumc.graph.text import parse_graph  # noqa: E402
from lumc.graph.verify import verify_graph  # noqa: E402
from lumc.oracle.graph import evaluate  # noqa: E402

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


def saved(text: str, folder: Path, head: str = HEAD) -> Path:
    path = folder / "model.onnx"
    onnx.save(parser.parse_model(f"{head}\n{text}"), path)
    return path


def refused(path: Path, **options: Any) -> LumcError:
    with pytest.raises(LumcError) as caught:
        import_onnx(path, **options)
    return caught.value


def run(model: Any, *inputs: Any) -> list[Any]:
    graph = model.graph()
    verify_graph(graph)
    names = [i.name for i in graph.entries[0].inputs]
    feed = dict(zip(names, map(np.asarray, inputs), strict=True))
    return list(evaluate(graph, "main", feed, model.read_weight)[0].values())


# ---- dims


def test_dynamic_dims_become_symbolic(tmp_path: Path) -> None:
    path = saved(
        "g (float[b,3,s] x) => (float[b,s,3] y) { y = Transpose<perm=[0,2,1]>(x) }", tmp_path
    )
    dims = import_onnx(path).graph().dims
    assert [(d.name, d.lo, d.hi) for d in dims.values()] == [("b", 1, 65536), ("s", 1, 65536)]
    bounded = import_onnx(path, {"b": 2, "s": (4, 9)}).graph()
    assert [(d.name, d.lo, d.hi) for d in bounded.dims.values()] == [("s", 4, 9)]
    assert bounded.entries[0].inputs[0].shape[:2] == (2, 3)


def test_unknown_dim(tmp_path: Path) -> None:
    path = saved("g (float[b,3] x) => (float[b,3] y) { y = Relu(x) }", tmp_path)
    error = refused(path, dims={"batch": 2})
    assert (error.code, error.exit) == ("E0314", Exit.USAGE)
    assert "batch" in error.what and "b" in error.fix


def test_unnamed_dims_are_named_after_the_input(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    ends = [helper.make_tensor_value_info(n, 1, [None, 3]) for n in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, ir_version=8), tmp_path / "m.onnx")
    assert list(import_onnx(tmp_path / "m.onnx").graph().dims) == ["x_0"]


SHAPES = """g (float[b,s,6] x) => (float[b,s,2,3] y) {
    shape = Shape(x)
    zero = Constant<value_int=0>()
    b = Gather(shape, zero)
    axes = Constant<value_ints=[0]>()
    b1 = Unsqueeze(b, axes)
    one = Constant<value_ints=[1]>()
    two = Constant<value_ints=[2]>()
    three = Constant<value_ints=[3]>()
    rest = Slice(shape, one, two)
    doubled = Add(rest, rest)
    halved = Div(doubled, two)
    target = Concat<axis=0>(b1, halved, two, three)
    y = Reshape(x, target)
}"""


def test_shape_subgraphs_fold_with_symbolic_dims(tmp_path: Path) -> None:
    model = import_onnx(saved(SHAPES, tmp_path))
    graph = model.graph()
    assert len(graph.entries[0].nodes) == 1  # the copy of the view
    assert [str(e) for e in graph.entries[0].nodes[0].shape] == ["b", "s", "2", "3"]


def test_a_table_bounds_its_dim(tmp_path: Path) -> None:
    """``positions[:s]`` of 16 rows: the model is meant for s <= 16."""
    text = """g (float[b,s,4] x) => (float[b,s,4] y) <float[16,4] table = {%s}> {
        zero = Constant<value_ints=[0]>()
        shape = Shape<start=1, end=2>(x)
        rows = Slice(table, zero, shape, zero)
        y = Add(x, rows)
    }"""
    path = saved(text % ",".join(str(i) for i in range(64)), tmp_path)
    model = import_onnx(path)
    assert model.graph().dims["s"].hi == 16
    assert import_onnx(path, {"s": (2, 8)}).graph().dims["s"].hi == 8
    (y,) = run(import_onnx(path, {"b": 1, "s": 3}), np.zeros((1, 3, 4), np.float32))
    np.testing.assert_array_equal(y[0], np.arange(12).reshape(3, 4))


def test_a_dim_as_a_value(tmp_path: Path) -> None:
    text = """g (float[b,s] x) => (float[b,s] y) {
        shape = Shape<start=1>(x)
        size = Cast<to=1>(shape)
        y = Div(x, size)
    }"""
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    from lumc.graph.bind import bind_dims

    model = import_onnx(saved(text, tmp_path))
    graph = bind_dims(model.graph(), {"b": 2, "s": 5})
    found, _ = evaluate(graph, "main", {"x": x}, model.read_weight)
    np.testing.assert_allclose(found["y"], x / 5)


def test_merging_dims_asks_for_a_value(tmp_path: Path) -> None:
    text = """g (float[3,b,4] x) => (float[n,4] y) {
        t = Constant<value_ints=[-1,4]>()
        y = Reshape(x, t)
    }"""
    path = saved(text, tmp_path)
    error = refused(path)
    assert (error.code, error.exit) == ("E0312", Exit.UNSUPPORTED)
    assert "--dim b=" in error.fix
    assert "1 operator cannot be imported while dims are symbolic: " in error.what
    assert import_onnx(path, {"b": 5}).graph().entries[0].nodes[0].shape == (15, 4)


# ---- names, constants, values


def test_names_are_made_clean_and_stay_apart(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["a/x.1", "a:x.1"], ["1"])]
    ends = [helper.make_tensor_value_info(n, 1, [3]) for n in ("a/x.1", "a:x.1", "1")]
    graph = helper.make_graph(nodes, "g", ends[:2], ends[2:])
    onnx.save(helper.make_model(graph, ir_version=8), tmp_path / "m.onnx")
    entry = import_onnx(tmp_path / "m.onnx").graph().entries[0]
    assert [i.name for i in entry.inputs] == ["a.x.1", "a_x.1"]
    assert [name for name, _ in entry.outputs] == ["_1"]


def test_equal_weights_are_stored_once(tmp_path: Path) -> None:
    text = """g (float[2,2] x) => (float[2,2] y)
      <float[2,2] v = {1,2,3,4}, float[2,2] w = {1,2,3,4}, float[2,2] u = {1,2,3,5}> {
        a = MatMul(x, v)  b = MatMul(a, w)  y = MatMul(b, u)
    }"""
    model = import_onnx(saved(text, tmp_path))
    assert sorted(w.name for w in model.graph().weights) == ["u", "v"]


def test_saved_model_reads_back(tmp_path: Path) -> None:
    text = (
        """g (float[2,3] x) => (float[2,2] y) <float[3,2] w = {1,2,3,4,5,6}> { y = MatMul(x, w) }"""
    )
    import_onnx(saved(text, tmp_path)).save(tmp_path / "m.lg")
    graph = parse_graph((tmp_path / "m.lg").read_text())
    verify_graph(graph)
    x = np.array([[1, 0, 2], [0, 3, 1]], np.float32)
    found, _ = evaluate(graph, "main", {"x": x}, lambda n: read_weight(n, tmp_path))
    np.testing.assert_array_equal(found["y"], x @ np.arange(1, 7).reshape(3, 2))
    assert (tmp_path / "m.safetensors").exists()


def test_values_make_inputs_constant(tmp_path: Path) -> None:
    text = "g (float[6] x, int64[2] shape) => (float[a,b] y) { y = Reshape(x, shape) }"
    path = saved(text, tmp_path)
    assert "--value shape=.." in refused(path).fix
    model = import_onnx(path, values={"shape": np.array([3, -1])})
    assert model.graph().entries[0].nodes[0].shape == (3, 2)
    assert refused(path, values={"shap": np.array([3])}).exit is Exit.USAGE


def test_same_bytes_every_time(tmp_path: Path) -> None:
    path = saved(SHAPES, tmp_path)
    for name in ("a.lg", "b.lg"):
        import_onnx(path).save(tmp_path / name)
    assert (tmp_path / "a.lg").read_bytes() == (tmp_path / "b.lg").read_bytes()


# ---- functions and control flow


def test_functions_of_the_model(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
    g (float[3] x) => (float[3] y) { a = mine.twice<by=3.0>(x)  y = mine.twice(a) }
    <domain: "mine", opset_import: ["" : 17]>
    twice <by: float = 2.0> (x) => (y) {
        k = Constant<value_float: float = @by>()
        y = Mul(x, k)
    }"""
    (y,) = run(import_onnx(saved(text, tmp_path, head="")), np.ones(3, np.float32))
    np.testing.assert_array_equal(y, [6, 6, 6])


def test_a_recursive_function_ends(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
    g (float[3] x) => (float[3] y) { y = mine.f(x) }
    <domain: "mine", opset_import: ["" : 17, "mine" : 1]>
    f (x) => (y) { y = mine.f(x) }"""
    error = refused(saved(text, tmp_path, head=""))
    assert error.exit in (Exit.UNSUPPORTED, Exit.CORRUPT)


BRANCHES = """g (float[2] x{more}) => (float[2] y) {{
    {make}
    y = If (c) <
      then_branch = a () => (float[2] u) {{ u = Neg(x) }},
      else_branch = b () => (float[2] v) {{ v = Abs(x) }}
    >
}}"""


def test_branches(tmp_path: Path) -> None:
    x = np.array([-1, 2], np.float32)
    known = BRANCHES.format(
        more="", make="k = Shape(x)  t = Constant<value_ints=[2]>()  c = Equal(k, t)"
    )
    (y,) = run(import_onnx(saved(known, tmp_path)), x)
    np.testing.assert_array_equal(y, [1, -2])
    chosen = import_onnx(saved(BRANCHES.format(more=", bool c", make=""), tmp_path))
    for condition, want in ((True, [1, -2]), (False, [1, 2])):
        np.testing.assert_array_equal(run(chosen, x, condition)[0], want)


# ---- errors


def test_all_problems_at_once(tmp_path: Path) -> None:
    text = """g (float[4] x) => (float[n] y, float[4] z, float[n] w) {
        [first] y = Unique(x)
        [random] r = RandomNormalLike(x)
        [after] z = Add(r, x)
        [second] w = Unique(z)
        [third] v = Unique(x)
    }"""
    error = refused(saved(text, tmp_path))
    assert (error.code, error.exit) == ("E0312", Exit.UNSUPPORTED)
    assert error.what == (
        "import: 2 operators are not supported: RandomNormalLike (1x), Unique (2x)"
    )
    assert "'first', 'random', 'second' (opset 17)" in error.where
    assert "data-dependent shape; do it after the model" in error.fix
    assert "random" in error.fix


def test_an_unknown_operator_and_an_unknown_attribute(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1, "com.microsoft" : 1]>
    g (float[4] x) => (float[4] y, float[4] z) {
        y = mine.Foo(x)
        z = com.microsoft.Gelu<k=1>(x)
    }"""
    error = refused(saved(text, tmp_path, head=""))
    assert "com.microsoft.Gelu (1x), mine.Foo (1x)" in error.what
    assert "lumc does not know it" in error.fix and "attribute 'k'" in error.fix


@pytest.mark.parametrize("kind", ["complex64", "string"])
def test_dtypes_without_a_counterpart(kind: str, tmp_path: Path) -> None:
    error = refused(saved(f"g ({kind}[4] x) => ({kind}[4] y) {{ y = Identity(x) }}", tmp_path))
    assert f"dtype {kind} is not supported" in error.fix


def test_a_new_opset(tmp_path: Path) -> None:
    graph = parser.parse_model(f"{HEAD} g (float[4] x) => (float[4] y) {{ y = Relu(x) }}")
    graph.opset_import[0].version = 999
    onnx.save(graph, tmp_path / "m.onnx")
    assert refused(tmp_path / "m.onnx").exit in (Exit.UNSUPPORTED, Exit.CORRUPT)


def test_shapes_that_do_not_fit(tmp_path: Path) -> None:
    text = "g (float[3,4] x, float[5,2] w) => (float[3,2] y) { [mm] y = MatMul(x, w) }"
    error = refused(saved(text, tmp_path))
    assert error.exit is Exit.UNSUPPORTED
    assert "f32[3, 4]" in error.fix and "f32[5, 2]" in error.fix and "'mm'" in error.where


def test_no_such_file(tmp_path: Path) -> None:
    assert refused(tmp_path / "no.onnx").exit is Exit.USAGE


def test_without_the_onnx_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    error = refused(tmp_path / "m.onnx")
    assert (error.code, error.exit) == ("E0313", Exit.TOOLCHAIN)
    assert "pip install 'lumc[onnx]'" in error.fix
