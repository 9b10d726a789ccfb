"""Damaged and malicious ONNX files: one LumcError, never another exception, never large memory."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import helper, numpy_helper, parser  # noqa: E402

from lumc.errors import Exit, LumcError  # noqa: E402
from lumc.frontend.onnx import import_onnx  # noqa: E402
from lumc.frontend.onnx.names import clean  # noqa: E402

BAD = (Exit.CORRUPT, Exit.UNSUPPORTED)
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


def model(w: Any = None) -> Any:
    built = parser.parse_model(
        f"{HEAD} g (float[b,4] x, float[4,3] w) => (float[b,3] y)"
        "{ t = MatMul(x, w)  k = Constant<value_ints=[0,3]>()  y = Reshape(t, k) }"
    )
    value = np.arange(12, dtype=np.float32).reshape(4, 3)
    built.graph.initializer.append(w or numpy_helper.from_array(value, "w"))
    del built.graph.input[1]
    return built


def outcome(path: Path) -> LumcError | None:
    try:
        import_onnx(path).graph()
    except LumcError as e:
        return e
    return None


def rejected(path: Path, code: str = "") -> LumcError:
    error = outcome(path)
    assert error is not None, "accepted"
    assert error.exit in BAD
    assert not code or error.code == code, error
    return error


@pytest.mark.parametrize("data", [b"", b"\x00" * 64, b"not a model" * 9, b"\xff" * 4096])
def test_garbage(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    assert rejected(path).exit is Exit.CORRUPT


def test_truncation_and_bit_flips(tmp_path: Path) -> None:
    """Every prefix and 400 flipped bits: accepted, or one clean error."""
    data, path = model().SerializeToString(), tmp_path / "m.onnx"
    rng = np.random.default_rng(3)
    variants = [data[:n] for n in range(0, len(data), 7)]
    for at in rng.integers(0, 8 * len(data), 400):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << (at % 8)
        variants.append(bytes(flipped))
    for variant in variants:
        path.write_bytes(variant)
        error = outcome(path)
        assert error is None or error.exit in (*BAD, Exit.USAGE), error


def test_an_input_of_a_type_that_is_none(tmp_path: Path) -> None:
    odd = model()
    odd.graph.input[0].type.tensor_type.elem_type = 41
    (tmp_path / "m.onnx").write_bytes(odd.SerializeToString())
    assert "dtype number 41" in str(rejected(tmp_path / "m.onnx"))


def test_a_shape_larger_than_its_data(tmp_path: Path) -> None:
    """A tensor that claims 4 TB does not cost memory."""
    weight = numpy_helper.from_array(np.zeros(4, np.float32), "w")
    del weight.dims[:]
    weight.dims.extend([1 << 20, 1 << 20])
    onnx.save(model(weight), tmp_path / "m.onnx")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rejected(tmp_path / "m.onnx", "E0310")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KB


@pytest.mark.parametrize(
    "text",
    [
        "y = ConstantOfShape(k)",
        "z = Constant<value_float=1.0>()  y = Expand(z, k)",
        "z = Constant<value_floats=[1.0, 2.0]>()  t = Tile(z, k)  y = Exp(t)",
    ],
)
def test_huge_results_are_never_computed(text: str, tmp_path: Path) -> None:
    size = [3 << 40] if "Tile" in text else [1 << 31, 1 << 31]
    text = f"g (float[1] x) => (float[a] y) {{ k = Constant<value_ints={size}>() {text} }}"
    onnx.save(parser.parse_model(f"{HEAD} {text}"), tmp_path / "m.onnx")
    error = outcome(tmp_path / "m.onnx")
    assert error is None or error.exit in BAD


def test_endless_loops_end(tmp_path: Path) -> None:
    text = f"""{HEAD} g (float[1] x) => (float[1] y) {{
        m = Constant<value_int={2**62}>()  c = Constant<value_int=1>()  t = Cast<to=9>(c)
        y = Loop (m, t, x) <body = b (int64 i, bool go, float[1] s) => (bool on, float[1] n)
            {{ on = Identity(go)  n = Exp(s) }}>
    }}"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    assert "iterations" in rejected(tmp_path / "m.onnx", "E0312").fix


def test_deep_nesting(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info("u", 1, [1])
    leaf = graph = helper.make_graph([helper.make_node("Neg", ["x"], ["u"])], "g", [], [value])
    for _ in range(25):  # protobuf itself stops at 100 messages inside each other
        node = helper.make_node("If", ["c"], ["u"], then_branch=graph, else_branch=leaf)
        graph = helper.make_graph([node], "g", [], [value])
    ends = [helper.make_tensor_value_info("x", 1, [1]), helper.make_tensor_value_info("c", 9, [])]
    graph.input.extend(ends)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    error = outcome(tmp_path / "m.onnx")
    assert error is None or error.exit in BAD


def test_functions_that_double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty functions that each call the one before twice: 2**40 nodes."""
    monkeypatch.setattr("lumc.frontend.onnx.lower.MAX_STEPS", 5000)
    opsets = '["" : 17, "f" : 1]'
    lines = [
        f"<ir_version: 8, opset_import: {opsets}>",
        "g (float[1] x) => (float[1] y) {y = f.f39(x)}",
    ]
    for i in range(40):
        body = f"t = f.f{i - 1}(x)  y = f.f{i - 1}(t)" if i else "y = Neg(x)"
        lines.append(f'<domain: "f", opset_import: {opsets}> f{i} (x) => (y) {{ {body} }}')
    onnx.save(parser.parse_model("\n".join(lines)), tmp_path / "m.onnx")
    rejected(tmp_path / "m.onnx", "E0312")


# ---- external data


def external(folder: Path, location: str, **fields: str) -> Path:
    """A model whose weight lies in another file."""
    built = model()
    weight = built.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **fields}.items():
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    path = folder / "m.onnx"
    path.write_bytes(built.SerializeToString())
    return path


def test_external_data_below_the_model(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(b"\0" * 16 + np.arange(12, dtype="<f4").tobytes())
    made = import_onnx(external(tmp_path, "sub/w.bin", offset="16", length="48"), {"b": 2})
    (weight,) = made.graph().weights
    assert np.array_equal(made.read_weight(weight), np.arange(12).reshape(4, 3))


@pytest.mark.parametrize("location", ["../w.bin", "sub/../../w.bin", "", "/etc/hostname", "no.bin"])
def test_external_data_elsewhere(location: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(48))
    error = rejected(external(tmp_path / "sub", location), "E0311")
    assert error.exit is Exit.CORRUPT


def test_external_data_through_links(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(48))
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "w.bin").write_bytes(bytes(48))
    (tmp_path / "link.bin").symlink_to(tmp_path / "secret")
    (tmp_path / "folder").symlink_to(tmp_path / "real")
    for location in ("link.bin", "folder/w.bin"):
        assert "symbolic link" in rejected(external(tmp_path, location), "E0311").what


@pytest.mark.timeout(20)
def test_external_data_in_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "regular file" in rejected(external(tmp_path, "pipe"), "E0311").what


@pytest.mark.parametrize(
    "fields",
    [
        {"offset": "-8"},
        {"offset": "8"},
        {"length": "4"},
        {"length": "999999"},
        {"offset": "nine"},
        {"offset": str(1 << 70)},
    ],
)
def test_external_data_of_the_wrong_size(fields: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(48))
    rejected(external(tmp_path, "w.bin", **fields))


# ---- models whose parts do not fit each other

INTEGERS = (0, -1, 1, 2, 7, -100, 1 << 31, 1 << 62)
OTHERS = ("Add", "Reshape", "Gather", "Slice", "MatMul", "Conv", "Concat", "Split", "Pad", "LSTM")


def mutated(original: Any, rng: np.random.Generator) -> Any:
    """One thing of one node, input or weight is changed."""
    changed = onnx.ModelProto()
    changed.CopyFrom(original)
    graph = changed.graph
    node = graph.node[rng.integers(len(graph.node))]
    names = [i.name for i in graph.input] + [o for n in graph.node for o in n.output]
    match rng.integers(5):
        case 0 if node.input:
            node.input[rng.integers(len(node.input))] = str(rng.choice(names))
        case 1 if node.attribute:
            attribute = node.attribute[rng.integers(len(node.attribute))]
            if attribute.ints:
                attribute.ints[rng.integers(len(attribute.ints))] = int(rng.choice(INTEGERS))
            else:
                attribute.i = int(rng.choice(INTEGERS))
        case 2:
            dims = graph.input[rng.integers(len(graph.input))].type.tensor_type.shape.dim
            if dims:
                dims[rng.integers(len(dims))].dim_value = int(rng.choice([0, 1, 3, 1000003]))
        case 3:
            node.op_type = str(rng.choice(OTHERS))
        case _:
            kind = graph.input[rng.integers(len(graph.input))].type.tensor_type
            kind.elem_type = int(rng.choice([1, 6, 7, 9, 10, 11, 2, 3]))
    return changed


def test_mutated_models() -> None:
    """The checker is passed by: the walk itself has to notice."""
    from lumc.frontend.onnx import import_source
    from lumc.frontend.onnx.load import source_of
    from onnx_models import EXPORTS, FOLDER

    models = [parser.parse_model((FOLDER / f"{n}.onnxtxt").read_text()) for n in EXPORTS]
    rng, seen = np.random.default_rng(11), {"accepted": 0, "rejected": 0}
    for i in range(110):
        variant = mutated(models[i % len(models)], rng)
        try:
            import_source(source_of(variant, Path("m.onnx")), {}, {}, {}).graph()
            seen["accepted"] += 1
        except LumcError as e:
            assert e.exit in BAD, e
            seen["rejected"] += 1
    assert min(seen.values()) > 10, seen


def test_negative_extents_are_no_dims(tmp_path: Path) -> None:
    for extent in (-2, -(1 << 60)):
        built = model()
        built.graph.input[0].type.tensor_type.shape.dim[0].dim_value = extent
        onnx.save(built, tmp_path / "m.onnx")
        assert "has an extent of -" in rejected(tmp_path / "m.onnx", "E0311").what


@pytest.mark.parametrize(
    "text",
    [
        "k = Constant<value_int=9>()  s, t = Split<num_outputs=1099511627776>(x)  y = Neg(s)",
        "p = Constant<value_ints=[1099511627776,0]>()  y = Pad<mode='edge'>(x, p)",
        "z = SplitToSequence(big)  i = Constant<value_int=0>()  y = SequenceAt(z, i)",
        "z = Constant<value_ints=[99999999]>()  e = Constant<value_floats=[1.0]>()"
        "  n = Constant<value=float[0] {}>()  y = Resize<mode='cubic'>(big, n, n, z)",
    ],
)
def test_small_files_do_not_ask_for_large_results(text: str, tmp_path: Path) -> None:
    head = '<ir_version: 8, opset_import: ["" : 18]>'
    text = f"{head} g (float[4] x, float[1000003] big) => (float[a] y) {{ {text} }}"
    onnx.save(parser.parse_model(text.replace("'", '"')), tmp_path / "m.onnx")
    rejected(tmp_path / "m.onnx")


def test_a_name_that_is_no_text_is_refused() -> None:
    """Protobuf gives bytes that are no UTF-8 as they are (found by make fuzz)."""
    with pytest.raises(LumcError, match="E0310"):
        clean(b"\xff\xfe")  # type: ignore[arg-type]
