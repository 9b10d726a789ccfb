"""Weights of com.microsoft in blocks: against onnxruntime, in memory, in files, as C."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

import lumc
from lumc.errors import Exit, LumcError
from lumc.frontend.onnx import import_onnx, ops_blocks
from lumc.graph.text import parse_graph
from onnx_models import of_microsoft, oracle, saved_node

RNG = np.random.default_rng(7)


def quantised(k: int, n: int, bits: int, block: int, zeros: str = "") -> dict:
    blocks = -(-k // block)
    packed = RNG.integers(0, 256, (n, blocks, block * bits // 8)).astype("u1")
    inputs = {
        "x": RNG.standard_normal((2, 3, k)).astype("f4"),
        "w": packed,
        "scales": RNG.uniform(0.01, 0.1, (n, blocks)).astype("f4"),
        "zeros": None,
    }
    if zeros == "packed":
        inputs["zeros"] = RNG.integers(0, 256, (n, -(-blocks * bits // 8))).astype("u1")
    elif zeros == "floats":
        inputs["zeros"] = RNG.uniform(0, 1 << bits, (n, blocks)).astype("f4")
    return inputs


def matmul(folder: Path, inputs: dict, **attributes: int) -> tuple:
    constants = [n for n in inputs if n != "x"]
    n, k = inputs["w"].shape[0], inputs["x"].shape[-1]
    return of_microsoft(folder, "MatMulNBits", inputs, 1, constants, N=n, K=k, **attributes)


@pytest.mark.parametrize("zeros", ["", "packed", "floats"])
@pytest.mark.parametrize(("bits", "block"), [(2, 16), (4, 16), (4, 32), (4, 256), (8, 64)])
@pytest.mark.parametrize("k", [40, 256])
def test_matmul_of_few_bits(bits: int, block: int, zeros: str, k: int, tmp_path: Path) -> None:
    if bits == 8 and zeros == "floats":
        pytest.skip("onnxruntime has no float zero points for 8 bits")
    inputs = quantised(k, 7, bits, block, zeros)
    inputs |= {"order": None, "bias": RNG.standard_normal(7).astype("f4")}
    (found,), (wanted,) = matmul(tmp_path, inputs, bits=bits, block_size=block)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("zeros", ["", "floats"])  # onnxruntime 1.32 mixes up packed ones here
def test_an_order_says_which_block_an_element_has(zeros: str, tmp_path: Path) -> None:
    inputs = quantised(64, 5, 4, 16, zeros)
    inputs["order"] = RNG.permutation(np.arange(64) // 16).astype("i4")
    path, wanted = saved_node(
        tmp_path,
        "MatMulNBits",
        inputs,
        1,
        ["w", "scales", "zeros", "order"],
        N=5,
        K=64,
        block_size=16,
    )
    (found,) = oracle(path, {"x": inputs["x"]})
    np.testing.assert_allclose(found, wanted[0], rtol=1e-4, atol=2e-5)


def test_halves(tmp_path: Path) -> None:
    inputs = quantised(64, 5, 4, 32)
    inputs |= {name: inputs[name].astype("f2") for name in ("x", "scales")}
    (found,), (wanted,) = matmul(tmp_path, inputs, bits=4, block_size=32)
    assert found.dtype == wanted.dtype == np.float16
    np.testing.assert_allclose(found, wanted, rtol=5e-3, atol=5e-3)


def test_four_bits_take_four_bits_in_files_and_give_the_same_as_c(tmp_path: Path) -> None:
    inputs = quantised(256, 64, 4, 32, "packed")
    path, wanted = saved_node(
        tmp_path, "MatMulNBits", inputs, 1, ["w", "scales", "zeros"], N=64, K=256, block_size=32
    )
    import_onnx(path).save(tmp_path / "m.lg")
    graph = parse_graph((tmp_path / "m.lg").read_text())
    assert {w.name: w.how.part for w in graph.weights if w.how} == dict.fromkeys(
        ("w", "zeros"), "nibbles"
    )
    words, scales = 64 * 256 // 2 + 64 * 8 // 2, 64 * 8 * 4
    assert words + scales <= (tmp_path / "m.safetensors").stat().st_size <= words + scales + 600
    bundle = lumc.compile(tmp_path / "m.lg", estimate=True)
    (found,) = bundle.run({"x": inputs["x"]}).values()
    np.testing.assert_allclose(found, wanted[0], rtol=1e-4, atol=2e-4)


def test_a_table_that_is_multiplied_with_too_is_one_weight(tmp_path: Path) -> None:
    """As files of language models have it: rows are looked up, and multiplied with at the end."""
    table = RNG.integers(0, 256, (24, 32)).astype("u1")  # of 64 numbers each
    inputs = {"data": table, "ids": RNG.integers(0, 24, (2, 3)), "scales": np.ones((24, 2), "f4")}
    path, _ = saved_node(
        tmp_path, "GatherBlockQuantized", inputs, 1, ["data", "scales"], block_size=32
    )
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(table.reshape(24, 2, 16), "w"))
    names = ["y0", "w", "scales"]
    said = {"K": 64, "N": 24, "block_size": 32}
    node = onnx.helper.make_node("MatMulNBits", names, ["z"], domain="com.microsoft", **said)
    model.graph.node.append(node)
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("z", 1, (2, 3, 24)))
    onnx.save(model, path)
    graph = import_onnx(path).graph()
    assert [list(w.shape) for w in graph.weights] == [[24, 64]]
    numbers = np.stack([table & 15, table >> 4], -1).reshape(24, 64) - 8.0
    (found,) = oracle(path, {"ids": inputs["ids"]})
    np.testing.assert_allclose(found, numbers[inputs["ids"]] @ numbers.T, rtol=1e-6)


@pytest.mark.parametrize("what", ["the first bits", "the zero point"])
def test_a_mistake_is_seen(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = quantised(64, 5, 4, 16, "packed")
    if what == "the first bits":
        exact = ops_blocks.unpacked
        swapped = lambda packed, bits: exact(packed >> 4 | packed << 4, bits)  # noqa: E731
        monkeypatch.setattr(ops_blocks, "unpacked", swapped)
    else:
        value = ops_blocks.value_of
        monkeypatch.setattr(ops_blocks, "value_of", lambda q, z, *more: value(q, z + 1, *more))
    (found,), (wanted,) = matmul(tmp_path, inputs, bits=4, block_size=16)
    assert np.abs(found - wanted).max() > 0.1


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_gather_of_bytes(bits: int, zeros: bool, tmp_path: Path) -> None:
    packed = RNG.integers(0, 256, (11, 64 * bits // 8)).astype("u1")
    inputs = {
        "data": packed,
        "ids": RNG.integers(-11, 11, (2, 3)),
        "scales": RNG.uniform(0.01, 0.1, (11, 4)).astype("f4"),
        "zeros": RNG.integers(0, 256, (11, 4 * bits // 8)).astype("u1") if zeros else None,
    }
    (found,), (wanted,) = of_microsoft(
        tmp_path,
        "GatherBlockQuantized",
        inputs,
        constants=["data", "scales", "zeros"],
        bits=bits,
        block_size=16,
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize(("gathered", "along"), [(0, 1), (0, 2), (1, 0), (-1, -1)])
@pytest.mark.parametrize("zeros", [False, True])
def test_gather_of_integers_of_four_bits(
    kind: str, gathered: int, along: int, zeros: bool, tmp_path: Path
) -> None:
    low, high = (-8, 8) if kind == "int4" else (0, 16)
    shape, blocks = (7, 32, 40), [7, 32, 40]
    blocks[along] = -(-shape[along] // 16)

    def numbers(*of: int) -> np.ndarray:
        return RNG.integers(low, high, of).astype(getattr(ml_dtypes, kind))

    inputs = {
        "data": numbers(*shape),
        "ids": RNG.integers(0, 7, (2, 3)),
        "scales": RNG.uniform(0.01, 0.1, blocks).astype("f4"),
        "zeros": numbers(*blocks) if zeros else None,
    }
    (found,), (wanted,) = of_microsoft(
        tmp_path,
        "GatherBlockQuantized",
        inputs,
        constants=["data", "scales", "zeros"],
        block_size=16,
        gather_axis=gathered,
        quantize_axis=along,
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("attributes", "reason", "fix"),
    [
        ({"bits": 3}, "numbers of 3 bits", "2, 4 or 8"),
        ({"bits": 4, "weight_prepacked": 1}, "the order of a GPU", "weight_prepacked = 0"),
    ],
)
def test_what_is_refused(attributes: dict, reason: str, fix: str, tmp_path: Path) -> None:
    inputs = quantised(64, 5, 4, 32)
    path, _ = saved_node(
        tmp_path, "MatMulNBits", inputs, 1, ["w", "scales"], N=5, K=64, block_size=32
    )
    model = onnx.load(path)
    (node,) = model.graph.node
    node.attribute.extend(onnx.helper.make_attribute(n, v) for n, v in attributes.items())
    onnx.save(model, path)
    with pytest.raises(LumcError) as e:
        import_onnx(path)
    assert e.value.exit is Exit.UNSUPPORTED and "'it'" in e.value.where
    assert reason in e.value.fix and fix in e.value.fix
