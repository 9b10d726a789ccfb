"""Weights that are rounded or quantised when they are read."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lumc.disk.weights import read_weight, weight_file
from lumc.errors import Exit, LumcError
from lumc.graph.graph import Node
from lumc.graph.ops import DType, from_bf16, to_bf16
from lumc.graph.text import parse_graph, print_graph

RNG = np.random.default_rng(5)
TEXT = """lumc graph 1
file "m.safetensors" size {size} sha256 {header}
weight w {leaf}
t0 {dtype}[i] = contiguous w[i, 0]
output y = t0
"""


def weight(folder: Path, values: np.ndarray, leaf: str, how: str) -> Node:
    """The weight ``leaf``, read from a file that holds these values."""
    save_file({"a": values}, folder / "m.safetensors")
    file = weight_file(folder / "m.safetensors", folder)
    text = TEXT.format(
        size=file.size,
        header=file.sha256,
        leaf=f'{leaf} "m.safetensors" "a" {how}',
        dtype=leaf.partition("[")[0],
    )
    graph = parse_graph(text)
    assert parse_graph(print_graph(graph)).weights[0].how == graph.weights[0].how
    assert how in print_graph(graph)
    return graph.weights[0]


@pytest.mark.parametrize("kind", [DType.BF16, DType.F16, DType.F32])
def test_rounding_is_that_of_a_cast(tmp_path: Path, kind: DType) -> None:
    values = RNG.standard_normal((40, 3)).astype("f8" if kind is DType.F32 else "f4") * 1e3
    values[:4, 0] = [np.inf, -np.inf, np.nan, 1e-40]
    node = weight(
        tmp_path, values, f"{kind}[40, 3]", f"from {'f64' if kind is DType.F32 else 'f32'}"
    )
    got = read_weight(node, tmp_path)
    want = to_bf16(values) if kind is DType.BF16 else values.astype(kind.numpy)
    np.testing.assert_array_equal(got, want)


def test_beyond_the_range_of_f16_is_inf(tmp_path: Path) -> None:
    values = np.array([[65504, 65519, 65520, -1e9]], "f4")
    got = read_weight(weight(tmp_path, values, "f16[1, 4]", "from f32"), tmp_path)
    np.testing.assert_array_equal(got, np.array([[65504, 65504, np.inf, -np.inf]], "f2"))


@pytest.mark.parametrize(("axis", "shape"), [(1, (5, 64)), (0, (96, 3))])
def test_blocks_have_the_error_of_their_scale(tmp_path: Path, axis: int, shape: tuple) -> None:
    values = RNG.standard_normal(shape).astype("f4")
    values[:32, :32] *= 1e-3
    small = [n // 32 if i == axis else n for i, n in enumerate(shape)]
    levels = read_weight(
        weight(tmp_path, values, f"i8{list(shape)}", f"from f32 levels {axis} by 32"), tmp_path
    )
    scales = read_weight(
        weight(tmp_path, values, f"f32{small}", f"from f32 scales {axis} by 32"), tmp_path
    )
    step = np.repeat(scales.astype("f8"), 32, axis)
    assert (np.abs(values - levels * step) <= step * (0.5 + 1e-5)).all()
    split = np.abs(levels.astype("i4")).reshape(*shape[:axis], -1, 32, *shape[axis + 1 :])
    assert (split.max(axis + 1) == 127).all()  # the whole range is used, and -128 never


def test_blocks_of_zeros_and_of_a_bf16_tensor(tmp_path: Path) -> None:
    values = np.zeros((2, 32), "f4")
    values[1, 7] = -3.0
    levels = read_weight(weight(tmp_path, values, "i8[2, 32]", "from f32 levels 1 by 32"), tmp_path)
    assert not levels[0].any() and levels[1, 7] == -127 and np.count_nonzero(levels) == 1


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_what_is_not_finite_is_not_quantised(tmp_path: Path, bad: float) -> None:
    values = np.ones((2, 32), "f4")
    values[1, 3] = bad
    node = weight(tmp_path, values, "i8[2, 32]", "from f32 levels 1 by 32")
    with pytest.raises(LumcError, match="cannot be quantised") as e:
        read_weight(node, tmp_path)
    assert e.value.exit is Exit.UNSUPPORTED


@pytest.mark.parametrize(
    ("leaf", "how", "said"),
    [
        ("f32[2, 32]", "from f32", "made from f32, declared f32"),
        ("i8[2, 32]", "from f32", "made from f32, declared i8"),
        ("bf16[2, 32]", "from i8", "which is no float"),
        ("f32[2, 32]", "from f32 levels 1 by 32", "levels are i8"),
        ("i8[2, 32]", "from f32 scales 1 by 32", "scales are f32"),
        ("i8[2, 32]", "from f32 levels 2 by 32", "along axis 2 of 2"),
        ("i8[2, 32]", "from f32 levels 1 by 0", "blocks of 0"),
        ("i8[2, 32]", "from f32 levels 1 by 24", "do not fill axis 1"),
        ("i8[2, 32]", "from f32 levels 1", "expected 'by'"),
        ("bf16[2, 32]", "from", "expected"),
        ("u8[2, 32]", "from q4_1 scales", "scales of q4_1 are f16, declared u8"),
        ("u8[2, 32]", "from q4_0 levels", "levels of q4_0 are i8, declared u8"),
        ("f16[2, 32]", "from q4_0 mins", "q4_0 has no mins, but levels, scales"),
        ("i8[2, 16]", "from q4_0 levels", "rows of 16 levels are no whole blocks"),
        ("u8[2, 4]", "from q4_k factors", "rows of 4 factors are no whole blocks"),
        ("i8[2, 32]", "from q4_0", "expected a name"),
        ("u8[2, 32]", "from f32 nibbles 1 by 8", "words are i32 by 8"),
        ("u8[2, 32]", "from i32 nibbles 1 by 4", "words are i32 by 8"),
        ("i8[2, 32]", "from i32 nibbles 1 by 8", "nibbles are u8"),
        ("u8[2, 32]", "from i32 interleaved 0 by 8", "do not fill axis 0"),
        ("i8[2, 32]", "from q4_9 levels", "expected a dtype"),
    ],
)
def test_what_means_nothing_is_refused(tmp_path: Path, leaf: str, how: str, said: str) -> None:
    with pytest.raises(LumcError, match=said):
        weight(tmp_path, np.ones((2, 32), "f4"), leaf, how)


def test_another_tensor_than_the_derived_one_is_refused(tmp_path: Path) -> None:
    node = weight(tmp_path, np.ones((2, 64), "f4"), "f32[2, 3]", "from f32 scales 1 by 32")
    with pytest.raises(LumcError, match="E0504"):
        read_weight(node, tmp_path)
    half = weight(tmp_path, np.ones((2, 3), "f2"), "bf16[2, 3]", "from f32")
    with pytest.raises(LumcError, match="E0504"):
        read_weight(half, tmp_path)


@pytest.mark.parametrize("axis", [0, 1])
def test_numbers_in_words(tmp_path: Path, axis: int) -> None:
    word = 0x76543210
    words = np.array([[word, -1], [0, word]], "i4")
    shape = [16, 2] if axis == 0 else [2, 16]
    found = {}
    for order in ("nibbles", "interleaved"):
        node = weight(tmp_path, words, f"u8{shape}", f"from i32 {order} {axis} by 8")
        values = read_weight(node, tmp_path)
        found[order] = (values if axis else values.T).reshape(2, 2, 8)
    for order, first in (("nibbles", range(8)), ("interleaved", (0, 4, 1, 5, 2, 6, 3, 7))):
        assert found[order][0, 0].tolist() == [*first] == found[order][1, 1].tolist()
        at = (0, 1) if axis else (1, 0)
        assert (found[order][at] == 15).all() and not found[order][at[::-1]].any()


def test_values_of_bf16_bits(tmp_path: Path) -> None:
    assert from_bf16(to_bf16(np.array([1.00390625], "f4")))[0] == 1.0  # a tie goes to even
