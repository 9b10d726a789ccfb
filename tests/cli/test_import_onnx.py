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


# ---- what the command line knows of inputs: as Silero's rate and Paddle's dims

RATE = """g (float[b,n] x, int64 sr) => (float[b,m] y) {
    want = Constant<value_int=16000>()
    known = Equal(sr, want)
    y = If (known) <
        then_branch = g1 () => (float[b,m] p) { p = Exp(x) },
        else_branch = g2 () => (float[b,k] q) { q = Concat<axis=1>(x, x) }
    >
}"""


def test_the_value_of_an_input_is_known(lumc: Lumc) -> None:
    """It chooses a branch; the other one, of another shape, is not read."""
    onnx.save(parser.parse_model(f"{HEAD} {RATE}"), "m.onnx")
    assert "run-time values" in lumc.fails(4, "import", "m.onnx", "--shape", "x=2,3")
    lumc("import", "m.onnx", "--value", "sr=16000", "--shape", "x=2,3", "-o", "m.lg")
    x = np.arange(6, dtype="f4").reshape(2, 3)
    np.save("x.npy", x)
    lumc("compile", "--estimate", "m.lg", "-o", "m.lb")
    lumc("run", "m.lb", "--input", "x=x.npy", "-o", "y.npz")
    np.testing.assert_allclose(np.load("y.npz")["y"], np.exp(x), rtol=1e-6)


def anonymous(*shape: int | str) -> None:
    """A model whose input has such dims: "?" and -1 as Paddle writes them."""
    text = "g (float[4] x) => (float[n] y) { k = Constant<value_ints=[-1]>()  y = Reshape(x, k) }"
    model = parser.parse_model(f"{HEAD} {text}")
    dims = model.graph.input[0].type.tensor_type.shape.dim
    del dims[:]
    for extent in shape:
        d = dims.add()
        if isinstance(extent, str):
            d.dim_param = extent
        else:
            d.dim_value = extent
    onnx.save(model, "m.onnx")


def test_dims_without_a_name_are_bound_one_by_one(lumc: Lumc) -> None:
    anonymous(-1, 3, "?", "?")
    lumc("import", "m.onnx", "--shape", "x=1,3,48,192", "-o", "m.lg")
    assert "input x f32[1, 3, 48, 192]" in Path("m.lg").read_text()
    lumc("import", "m.onnx", "--dim", "x_0=1", "--dim", "x_2=8", "--dim", "x_3=9", "-o", "m.lg")
    assert "input x f32[1, 3, 8, 9]" in Path("m.lg").read_text()


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ("--shape x=1,3,48", "E0314", "give 4 extents"),
        ("--shape x=1,4,48,192", "E0314", "axis 1 is 3"),
        ("--shape y=1", "E0314", "no input is named y"),
        ("--shape x=1,b", "E0203", "NAME=N,N"),
        ("--value x=1", "E0314", "in Python"),
        ("--value x", "E0203", "NAME=NUMBERS"),
    ],
)
def test_what_is_known_must_fit(asked: str, code: str, said: str, lumc: Lumc) -> None:
    anonymous(-1, 3, "?", "?")
    message = lumc.fails(2, "import", "m.onnx", *asked.split(), "-o", "m.lg")
    assert code in message and said in message


@pytest.mark.parametrize("value", ["half", "1,2", "1.5", "", "9" * 30])
def test_a_value_that_is_none(value: str, lumc: Lumc) -> None:
    onnx.save(parser.parse_model(f"{HEAD} {RATE}"), "m.onnx")
    message = lumc.fails(2, "import", "m.onnx", "--value", f"sr={value}", "-o", "m.lg")
    assert "E0203" in message if not value else "give one number" in message


def test_one_dim_has_one_extent(lumc: Lumc) -> None:
    text = "g (float[n] x, float[n] w) => (float[n] y) { y = Add(x, w) }"
    onnx.save(parser.parse_model(f"{HEAD} {text}"), "m.onnx")
    message = lumc.fails(2, "import", "m.onnx", "--shape", "x=3", "--shape", "w=4")
    assert "dim 'n' both 3 and 4" in message


def test_only_onnx_models_take_them(lumc: Lumc) -> None:
    Path("m.py").write_text("")
    assert "--dim NAME=N" in lumc.fails(2, "import", "m.py:f", "--value", "x=1")
