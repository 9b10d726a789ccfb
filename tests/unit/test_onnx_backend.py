"""lumc.onnx_backend: what onnx.backend.base asks of a backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import ml_dtypes  # noqa: E402  comes with onnx

import lumc  # noqa: E402
from lumc import onnx_backend as backend  # noqa: E402
from lumc.errors import Exit  # noqa: E402
from lumc.oracle.graph import evaluate  # noqa: E402

TEXT = '<ir_version: 10, opset_import: ["": 21]> g '


def parsed(text: str) -> Any:
    return onnx.parser.parse_model(TEXT + text)


ADD = parsed("(float[n, 3] x, float[3] y) => (float[n, 3] z) { z = Add (x, y) }")
RESHAPE = parsed("(float[n] x, int64[k] s) => (float[a, b] z) { z = Reshape (x, s) }")


def by_oracle(made: list[lumc.Model]) -> Any:
    """What ``compile=`` may be: counts the models, runs them without a compiler."""

    def compile(model: lumc.Model) -> Any:
        made.append(model)

        def run(feed: Mapping[str, Any]) -> Mapping[str, Any]:
            return evaluate(model.graph(), "main", feed, model.read_weight, declared=True)[0]

        return run

    return compile


def test_compiled_by_lumc() -> None:
    x, y = np.arange(6, dtype="f4").reshape(2, 3), np.full(3, 2, "f4")
    prepared = backend.prepare(ADD, "CPU", threads=2)
    (z,) = prepared.run([x, y])
    assert np.array_equal(z, x + y) and z.dtype == np.float32
    assert isinstance(prepared, onnx.backend.base.BackendRep)
    assert issubclass(backend.Backend, onnx.backend.base.Backend)
    assert np.array_equal(backend.run_model(ADD, {"y": y, "x": x}, "CPU:0")["z"], x + y)


def test_a_model_is_made_once_for_shapes_and_known_values() -> None:
    made: list[lumc.Model] = []
    prepared = backend.prepare(RESHAPE, compile=by_oracle(made))
    x = np.arange(12, dtype="f4")
    for shape in ([3, 4], [3, 4], [4, 3], [3, 4], [-1, 6]):
        (z,) = prepared.run([x, np.array(shape)])
        assert np.array_equal(z, x.reshape(shape))
    assert len(made) == 3 and prepared.known == ("s",)
    assert [n.name for n in made[0].graph().entries[0].inputs] == ["x"]
    for n in range(1, 21):
        prepared.run([np.zeros(2 * n, "f4"), np.array([2, n])])
    assert len(prepared._made) == backend.KEPT


def test_what_a_run_need_not_know_stays_an_input() -> None:
    made: list[lumc.Model] = []
    model = parsed("(int64[2] x, int64[2] y) => (int64[2] z) { z = Add (x, y) }")
    prepared = backend.prepare(model, compile=by_oracle(made))
    for y in ([1, 2], [3, 4]):
        prepared.run([np.array([1, 1]), np.array(y)])
    assert len(made) == 1 and prepared.known == ()


def test_values_that_depend_on_large_inputs_are_not_taken() -> None:
    model = parsed("(float[n] x, float[m] y) => (float[k] z) { s = Cast<to=7>(y)  "
                   "z = Expand (x, s) }")  # fmt: skip
    prepared = backend.prepare(model, compile=by_oracle([]))
    (z,) = prepared.run([np.ones(1, "f4"), np.full(1, 3, "f4")])  # one number may be known
    assert z.tolist() == [1, 1, 1]
    with pytest.raises(lumc.Error) as e:
        prepared.run([np.ones(1, "f4"), np.ones(9, "f4")])
    assert e.value.exit is Exit.UNSUPPORTED and "run-time values" in e.value.fix


def test_bfloat16_is_that_of_ml_dtypes() -> None:
    x = np.array([1.5, -2.25], ml_dtypes.bfloat16)
    node = onnx.helper.make_node("Neg", ["x"], ["y"])
    (y,) = backend.run_node(node, [x], compile=by_oracle([]))
    assert y.dtype == x.dtype and y.tolist() == [-1.5, 2.25]


def test_nodes_of_older_opsets() -> None:
    node = onnx.helper.make_node("Clip", ["x"], ["y"], min=0.0, max=1.0)
    x = np.array([-1, 0.5, 2], "f4")
    (y,) = backend.run_node(node, [x], opset_version=6, compile=by_oracle([]))
    assert y.tolist() == [0, 0.5, 1]


def test_an_initializer_among_the_inputs_is_none() -> None:
    model = parsed("(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }")
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [2]))
    model.graph.initializer.append(onnx.helper.make_tensor("unread", 1, [1], [0]))
    model.graph.input.append(onnx.helper.make_tensor_value_info("unread", 1, [1]))
    prepared = backend.prepare(model, compile=by_oracle([]))
    assert prepared.run(np.ones(2, "f4"))[0].tolist() == [2, 3]


@pytest.mark.parametrize("given", [[np.ones(3)], {"x": np.ones(3)}, {"x": 1, "y": 2, "w": 3}])
def test_inputs_that_do_not_fit(given: Any) -> None:
    with pytest.raises(lumc.Error) as e:
        backend.prepare(ADD, compile=by_oracle([])).run(given)
    assert e.value.code == "E0610" and "x, y" in e.value.fix


def test_errors() -> None:
    strings = parsed("(string[2] x) => (string[2] y) { y = Identity (x) }")
    with pytest.raises(lumc.Error) as e:
        backend.prepare(strings).run([np.array(["a", "b"])])
    assert e.value.exit is Exit.UNSUPPORTED and "dtype string" in e.value.fix
    assert not backend.is_compatible(strings) and backend.is_compatible(ADD)
    broken = parsed("(float[2] x) => (float[2] y) { y = Add (x, missing) }")
    with pytest.raises(lumc.Error) as e:
        backend.prepare(broken)
    assert e.value.code == "E0310"
    for device in ("TPU", "CPU:1", "CUDA:7"):
        assert not backend.supports_device(device)
        with pytest.raises(lumc.Error) as e:
            backend.prepare(ADD, device)
        assert e.value.code == "E0708"
    assert backend.supports_device("CPU")
    with pytest.raises(lumc.Error) as e:
        backend.run_node(onnx.helper.make_node("Add", ["x", "y"], ["z"]), [np.ones(2)])
    assert e.value.code == "E0610"


def test_sequences_are_as_long_as_those_of_the_run() -> None:
    text = (
        "(seq(float[n]) x, float[m] y) => (seq(float[n]) z, float[k] w) {"
        " z = SequenceInsert (x, y)  w = ConcatFromSequence<axis=0>(z) }"
    )
    made: list[lumc.Model] = []
    prepared = backend.prepare(parsed(text), compile=by_oracle(made))
    parts = [np.full(k, k, "f4") for k in (1, 2, 3)]
    for count in (1, 2, 2, 0):
        z, w = prepared.run([parts[:count], parts[2]])
        assert [a.tolist() for a in z] == [a.tolist() for a in [*parts[:count], parts[2]]]
        assert w.tolist() == np.concatenate([*parts[:count], parts[2]]).tolist()
    assert len(made) == 3
    graph = made[1].graph().entries[0]
    assert [n.name for n in graph.inputs] == ["x_0", "x_1", "y"]
    assert [name for name, _ in graph.outputs] == ["z_0", "z_1", "z_2", "w"]


def test_optionals_may_be_none() -> None:
    text = "(optional(float[2]) x, float[2] y) => (optional(float[2]) z, bool has) {" \
           " z = Identity (x)  has = OptionalHasElement (x) }"  # fmt: skip
    prepared = backend.prepare(parsed(text), compile=by_oracle([]))
    y = np.ones(2, "f4")
    assert [*prepared.run([None, y])] == [None, False]
    z, has = prepared.run([y * 3, y])
    assert z.tolist() == [3, 3] and has


@pytest.mark.parametrize("given", [np.ones((2, 2), "f4"), [[np.ones(2, "f4")]], 5, None])
def test_what_is_no_sequence(given: Any) -> None:
    model = parsed("(seq(float[n]) x) => (float[k] y) { y = ConcatFromSequence<axis=0>(x) }")
    with pytest.raises(lumc.Error) as e:
        backend.prepare(model, compile=by_oracle([])).run({"x": given})
    assert e.value.exit is Exit.UNSUPPORTED and "of what is none" in e.value.fix


def test_another_number_of_axes() -> None:
    with pytest.raises(lumc.Error) as e:
        backend.prepare(ADD, compile=by_oracle([])).run([np.ones(3, "f4"), np.ones(3, "f4")])
    assert e.value.code == "E0314" and "'x' has 2 axes" in e.value.what


def test_sequences_of_files(tmp_path: Any) -> None:
    """Where no run says how long they are they are refused; those that come out have names."""
    from lumc.frontend.onnx import import_onnx

    text = "(seq(float[2]) x) => (float[k] y) { y = ConcatFromSequence<axis=0>(x) }"
    onnx.save(parsed(text), tmp_path / "m.onnx")
    with pytest.raises(lumc.Error) as e:
        import_onnx(tmp_path / "m.onnx")
    assert "an input of type sequence, not a tensor; run it by lumc.onnx_backend" in e.value.fix
    text = "(float[4] x) => (seq(float[2]) y) { s = Constant<value_int=2>() "
    onnx.save(parsed(text + " y = SplitToSequence (x, s) }"), tmp_path / "m.onnx")
    outputs = import_onnx(tmp_path / "m.onnx").graph().entries[0].outputs
    assert [name for name, _ in outputs] == ["y_0", "y_1"]
