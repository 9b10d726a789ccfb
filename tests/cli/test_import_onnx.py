"""ONNX files on the command line: import, compile, run against onnxruntime; messages and codes."""

import json
from pathlib import Path

import numpy as np
import pytest

from commands import Lumc

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import parser  # noqa: E402

from onnx_models import feeds, onnxruntime, with_weights  # noqa: E402

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("resnet.torchscript", {"b": 2}),
        ("gpt2.dynamo", {"s23": 2, "s27": 7}),
        ("bert.dynamo", {"s23": 1, "s27": 13}),
    ],
)
def test_exports_compile_and_agree(name: str, dims: dict[str, int], lumc: Lumc) -> None:
    inputs = with_weights(name, Path("m.onnx"))
    feed = feeds(inputs, dims, 5)
    np.savez("in.npz", **feed)
    bind = [word for n, v in dims.items() for word in ("--dim", f"{n}={v}")]
    lumc("import", "m.onnx", *bind, "-o", "m.lg")
    lumc("compile", "--estimate", "m.lg", "-o", "m.lb")
    lumc("run", "m.lb", "--input", "in.npz", "-o", "out.npz")
    wanted = onnxruntime(Path("m.onnx"), feed)
    found = np.load("out.npz")
    assert len(found.files) == len(wanted)
    for got, want in zip((found[f] for f in found.files), wanted, strict=True):
        assert np.linalg.norm(got - want) < 3e-6 * np.linalg.norm(want)
    said = lumc("verify", "m.lb", "--input", "in.npz", "--source", "m.onnx", "--json")
    assert "onnxruntime" in said
    json.loads(said)


def test_a_model_that_is_not_supported(lumc: Lumc) -> None:
    text = "g (float[4] x) => (int64[1,n] y) { [it] y = NonZero(x) }"
    onnx.save(parser.parse_model(f"{HEAD} {text}"), "m.onnx")
    message = lumc.fails(4, "import", "m.onnx", "-o", "m.lg")
    assert "E0312" in message and "'it'" in message
    assert not Path("m.lg").exists()


def test_a_file_that_is_no_model(lumc: Lumc) -> None:
    Path("m.onnx").write_bytes(b"nothing of the kind" * 9)
    assert "E0310" in lumc.fails(5, "import", "m.onnx", "-o", "m.lg")


def test_a_dim_that_is_not_there(lumc: Lumc) -> None:
    text = "g (float[4] x) => (float[4] y) { y = Relu(x) }"
    onnx.save(parser.parse_model(f"{HEAD} {text}"), "m.onnx")
    assert "E0314" in lumc.fails(2, "import", "m.onnx", "--dim", "b=3", "-o", "m.lg")
