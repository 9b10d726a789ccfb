"""Random nodes with a seed: moments, streams that differ, the same ones from the beginning."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from lumc.errors import Exit, LumcError
from lumc.frontend.onnx import import_onnx
from lumc.oracle.graph import evaluate

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'


def imported(folder: Path, text: str) -> object:
    onnx.save(onnx.parser.parse_model(f"{HEAD}\n{text}"), folder / "m.onnx")
    return import_onnx(folder / "m.onnx")


def test_moments_streams_and_runs(tmp_path: Path) -> None:
    model = imported(tmp_path, """g (float16[99, 101] x)
        => (float[99, 101] a, float[99, 101] b, float[99, 101] c, float16[99, 101] d) {
        a = RandomNormal <seed = 3.0, mean = 2.0, scale = 0.5, shape = [99, 101]> ()
        b = RandomUniform <seed = 4.0, low = -1.0, high = 3.0, shape = [99, 101]> ()
        c = RandomNormalLike <seed = 4.0, dtype = 1> (x)
        d = RandomUniformLike <seed = 3.5> (x)
    }""")  # fmt: skip
    graph, state, feed = model.graph(), None, {"x": np.zeros((99, 101), "f2")}
    runs = []
    for _ in range(2):
        found, state = evaluate(graph, "main", feed, model.read_weight, state, declared=True)
        runs.append(list(found.values()))
    a, b, c, d = runs[0]
    assert a.dtype == b.dtype == c.dtype == np.float32 and d.dtype == np.float16
    for x, mean, spread in ((a, 2, 0.5), (b, 1, 4 / 12**0.5), (c, 0, 1), (d, 0.5, 12**-0.5)):
        assert abs(x.astype("f8").mean() - mean) < 0.04 * spread
        assert abs(x.astype("f8").std() - spread) < 0.03 * spread
    assert b.min() >= -1 and b.max() < 3
    assert all((one != two).mean() > 0.9 for one, two in zip(*runs, strict=True))
    again, _ = evaluate(graph, "main", feed, model.read_weight, declared=True)
    np.testing.assert_array_equal(list(again.values())[1], b)


def test_a_node_in_a_loop_goes_on(tmp_path: Path) -> None:
    model = imported(tmp_path, """g () => (float[3, 50] y) {
        n = Constant <value_int = 3> ()
        yes = Constant <value = bool {1}> ()
        y = Loop <body = b (int64 i, bool go) => (bool on, float[50] r) {
            on = Identity(go)
            r = RandomUniform <seed = 1.0, shape = [50]> ()
        }> (n, yes)
    }""")  # fmt: skip
    found, _ = evaluate(model.graph(), "main", {}, model.read_weight, declared=True)
    (y,) = found.values()
    assert len(np.unique(y)) > 140


@pytest.mark.parametrize(("node", "fix"), [
    ("RandomNormal <shape = [4]> ()", "give it a seed, or make the random values an input"),
    ("RandomNormal <dtype = 99, seed = 1.0, shape = [4]> ()", "cast it to"),
])  # fmt: skip
def test_what_is_refused(node: str, fix: str, tmp_path: Path) -> None:
    with pytest.raises(LumcError) as e:
        imported(tmp_path, f"g () => (float[4] y) {{ [noise] y = {node} }}")
    assert e.value.exit is Exit.UNSUPPORTED and fix in e.value.fix
