"""Models that are broken or not supported: every error names the node, the cause and the way out.

``pytest -s -k read_aloud`` prints them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")

from onnx import parser  # noqa: E402

from commands import Lumc  # noqa: E402
from lumc.errors import Exit, LumcError  # noqa: E402
from lumc.frontend.onnx import import_onnx  # noqa: E402


@dataclass(frozen=True)
class Broken:
    """A model, the name of the node at fault, and words of the cause and of the way out."""

    text: str
    node: str
    cause: str
    way_out: str
    exit: int = 4
    opsets: str = '"" : 21'

    def save(self, path: Path) -> None:
        head = f"<ir_version: 10, opset_import: [{self.opsets}]>"
        onnx.save(parser.parse_model(f"{head} g {self.text}"), path)


LOOP = """(float[1] x, int64 n) => (float[1] y) {
    t = Constant<value_int=1>()  c = Cast<to=9>(t)
    [again] y = Loop (n, c, x) <body = b (int64 i, bool go, float[1] s) => (bool on, float[1] m)
        { on = Identity(go)  m = Exp(s) }>
}"""
EITHER = """(float[4] x, bool loud) => (float[n] y) {
    [either] y = If (loud) <
        then_branch = g1 () => (float[4] p) { p = Exp(x) },
        else_branch = g2 () => (float[8] q) { q = Concat<axis=0>(x, x) } >
}"""
LONG = """(float[600,1,2] x) => (float[600,1,1,3] y) {
    ws = Constant<value_ints=[1,12,2]>()  rs = Constant<value_ints=[1,12,3]>()
    w = ConstantOfShape(ws)  r = ConstantOfShape(rs)
    [tagger] y = LSTM<hidden_size=3>(x, w, r)
}"""
MODELS = {
    "positions of what is not zero": Broken(
        "(float[4] x) => (int64[1,n] y) { m = Relu(x) [found] y = NonZero(m) }",
        "found", "its result has a data-dependent shape", "rewrite with TopK or a mask",
    ),
    "boxes that a run decides": Broken(
        "(float[1,9,4] b, float[1,2,9] s) => (int64[n,3] y) { [nms] y = NonMaxSuppression(b, s) }",
        "nms", "data-dependent shape", "do it after the model",
    ),
    "texts": Broken(
        "(string[4] x) => (string[4] y)"
        ' { [low] y = StringNormalizer<case_change_action="LOWER">(x) }',
        "low", "works on strings", "before the model",
    ),
    "an operator of somebody's own": Broken(
        "(float[4] x) => (float[4] y) { [fancy] y = acme.FancyActivation(x) }",
        "fancy", "lumc does not know it", "as a function of the model",
        opsets='"" : 21, "acme" : 1',
    ),
    "a shape that is an input": Broken(
        "(float[3,4] x, int64[2] s) => (float[a,b] y) { t = Mul(s, s) [flat] y = Reshape(x, t) }",
        "flat", "'shape' depends on run-time values", "--value s=..",
    ),
    "a loop as long as an input says": Broken(
        LOOP, "again", "'the trip count' depends on run-time values", "--value n=..",
    ),
    "branches of two shapes": Broken(
        EITHER, "either", "f32[4] and f32[8]", "--value loud=..",
    ),
    "a dim that is merged": Broken(
        "(float[10,b,4] x) => (float[n,4] y)"
        " { k = Constant<value_ints=[-1,4]>() [join] y = Reshape(x, k) }",
        "join", "a symbolic extent cannot be merged behind another", "--dim b=..",
    ),
    "an edge that is mirrored": Broken(
        '(float[2,b] x) => (float[2,c] y)'
        ' { p = Constant<value_ints=[0,3,0,3]>() [edge] y = Pad<mode="reflect">(x, p) }',
        "edge", "padding by reflect along a symbolic dim", "bind dims: --dim b=..",
    ),
    "weights of another layer": Broken(
        "(float[1,3,8,8] x, float[4,5,3,3] w) => (float[1,4,6,6] y) { [stem] y = Conv(x, w) }",
        "stem", "3 channels, the weight reads 5", "export it again",
    ),
    "a product that does not fit": Broken(
        "(float[3,4] x, float[5,2] w) => (float[3,2] y) { [scores] y = MatMul(x, w) }",
        "scores", "f32[3, 4] and f32[5, 2]: 4 and 5 differ", "export it again",
    ),
    "noise": Broken(
        "(float[4] x) => (float[4] y) { [noise] r = RandomNormalLike(x) y = Add(x, r) }",
        "noise", "its result is random", "an input of the model",
    ),
    "complex numbers": Broken(
        "(complex64[4] wave) => (complex64[4] y) { y = Identity(wave) }",
        "wave", "dtype complex64 is not supported", "real and imaginary parts",
    ),
    "four bits that are computed with": Broken(
        "(int4[4] x, int4[4] w) => (int4[4] y) { [total] y = Add(x, w) }",
        "total", "dtype int4 is not supported", "cast it to f32",
    ),
    "a sequence that is too long": Broken(
        LONG, "tagger", "a recurrence over 600 steps", "at most 512",
    ),
    "an axis that is not there": Broken(
        "(float[3,4] x) => (float[3,4] y) { [soft] y = Softmax<axis=5>(x) }",
        "soft", "axis 5 of a tensor of rank 2", "export the model again", exit=5,
    ),
    "a value that nobody makes": Broken(
        "(float[4] x) => (float[4] y) { [total] y = Add(x, ghost) }",
        "total", "'ghost' of node: name: total OpType: Add is not output of any", "check-model",
        exit=5,
    ),
    "an attribute that an operator does not have": Broken(
        "(float[4] x) => (float[4] y) { [wide] y = Exp<foo=3>(x) }",
        "wide", "Unrecognized attribute: foo for operator Exp", "export the model again", exit=5,
    ),
    "a value that two nodes make": Broken(
        "(float[4] x) => (float[4] y) { [one] y = Exp(x) [two] y = Relu(x) }",
        "two", "'y' has been used as output names multiple times", "export the model again", exit=5,
    ),
    "a sum over letters that nothing has": Broken(
        "(float[3,4] a, float[4,5] b) => (float[3,5] y)"
        ' { [pairs] y = Einsum<equation="ij,jk->iz">(a, b) }',
        "pairs", "'z' is of no operand", "export the model again", exit=5,
    ),
    "a picture of no size": Broken(
        "(float[1,1,4,4] x) => (float[1,1,n,m] y) { [grow] y = Resize(x, , ) }",
        "grow", "neither scales nor sizes are given", "export the model again", exit=5,
    ),
    "a function that is given too much": Broken(
        "(float[4] x) => (float[4] y) { [call] y = f.F(x, x, x) }"
        ' <domain: "f", opset_import: ["" : 21]> F (a) => (b) { b = Exp(a) }',
        "call", "3 inputs for the 1 of its function", "export the model again", exit=5,
        opsets='"" : 21, "f" : 1',
    ),
    "a recurrence with a function of its own": Broken(
        "(float[2,1,3] x, float[1,12,3] w, float[1,12,4] r) => (float[2,1,1,4] y)"
        ' { [rnn] y = GRU<hidden_size=4, activations=["Swizzle","Tanh"]>(x, w, r) }',
        "rnn", "activation Swizzle is not known", "use one of affine, elu",
    ),
    "an input that may be none": Broken(
        "(optional(float[4]) x) => (float[4] y) { [got] y = OptionalGetElement(x) }",
        "x", "an input of type optional, not a tensor", "run it by lumc.onnx_backend",
    ),
    "an attribute of a later version": Broken(
        "(float[4] x) => (float[4] y) { [mm] y = com.microsoft.Gelu<k=1>(x) }",
        "mm", "attribute 'k' is not handled", "leave it out", opsets='"" : 21, "com.microsoft" : 1',
    ),
}  # fmt: skip


def refusal(model: Broken, path: Path) -> LumcError:
    model.save(path)
    with pytest.raises(LumcError) as caught:
        import_onnx(path).graph()
    return caught.value


@pytest.mark.parametrize("name", MODELS)
def test_an_error_says_where_why_and_what_to_do(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    error = refusal(model, tmp_path / "m.onnx")
    assert int(error.exit) == model.exit and error.code in ("E0310", "E0312")
    assert f"'{model.node}'" in error.where and "m.onnx" in error.where
    said = f"{error.what}\n{error.fix}"
    assert model.cause in said and model.way_out in said
    for word in ("Error:", "Traceback", "None", "object at"):
        assert word not in said


def test_read_aloud(tmp_path: Path) -> None:
    """All of them at a stretch, for a reader."""
    said = [str(refusal(m, tmp_path / "m.onnx")) for m in MODELS.values()]
    print("\n\n".join(said))
    assert len(set(said)) == len(said) >= 10


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({}, "has 40 bytes; float32[4, 4] needs 64, the model says 0 to 64"),
        ({"length": "32"}, "needs 64, the model says 0 to 32"),
        ({"offset": "some"}, "its offset or its length is no number"),
    ],
)
def test_a_file_of_weights_is_named(place: dict[str, str], said: str, tmp_path: Path) -> None:
    """It is what was cut off, or belongs to another export."""
    text = "(float[4,4] x) => (float[4,4] y) { y = Add(x, w) }"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {text}')
    w = onnx.TensorProto(name="w", data_type=1, dims=[4, 4], data_location=1)
    for key, value in {"location": "weights.bin", **place}.items():
        w.external_data.add(key=key, value=value)
    model.graph.initializer.append(w)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "weights.bin").write_bytes(bytes(40))
    with pytest.raises(LumcError) as e:
        import_onnx(tmp_path / "m.onnx").graph()
    assert "external data 'weights.bin'" in e.value.what and said in e.value.what
    assert e.value.exit is Exit.CORRUPT and "'w'" in e.value.where and "again" in e.value.fix


def test_a_model_that_gives_nothing(tmp_path: Path) -> None:
    model = parser.parse_model('<ir_version: 10, opset_import: ["" : 21]> g () => () {}')
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(LumcError, match="E0310 the model has no output"):
        import_onnx(tmp_path / "m.onnx").graph()


def test_the_command_line_says_the_same(lumc: Lumc) -> None:
    """No traceback, no file, the exit code of what is not supported."""
    MODELS["a shape that is an input"].save(Path("m.onnx"))
    message = lumc.fails(4, "import", "m.onnx", "-o", "m.lg")
    assert "'flat'" in message and "--value s=.." in message and not Path("m.lg").exists()
    MODELS["a dim that is merged"].save(Path("m.onnx"))
    lumc("import", "m.onnx", "--dim", "b=3", "-o", "m.lg")
    assert Path("m.lg").exists()
