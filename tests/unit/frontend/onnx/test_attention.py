"""Attention of com.microsoft against onnxruntime; texts of several lengths, all kinds of masks."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import lumc
from lumc.errors import Exit, LumcError
from lumc.frontend.onnx import import_onnx, ops_attention, ops_grouped
from onnx_models import of_microsoft, one_node, oracle, saved_node

RNG = np.random.default_rng(3)
B, S, N = 2, 5, 3
ENDS, SPANS = np.array([3, 5], "i4"), np.array([4, 5, 1, 0], "i4")


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("f4")


def ones(*shape: int) -> np.ndarray:
    """Zeros and ones, the first of each row one."""
    mask = (RNG.random(shape) > 0.4).astype("i4")
    mask[..., 0] = 1
    return mask


def equal(found: list, wanted: list, atol: float = 2e-6) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=atol)


def refused(folder: Path, op: str, inputs: dict, **attributes: Any) -> str:
    """Why a node is refused."""
    onnx.save(one_node(op, inputs, 1, 21, "com.microsoft", (), **attributes), folder / "r.onnx")
    with pytest.raises(LumcError) as e:
        import_onnx(folder / "r.onnx")
    assert e.value.exit is Exit.UNSUPPORTED and "'it'" in e.value.where
    return e.value.fix


# ---- rotary positions


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("part", [{}, {"num_heads": N, "rotary_embedding_dim": 4}])
@pytest.mark.parametrize("apart", [True, False])
def test_rotary_embedding(
    interleaved: int, first: bool, part: dict, apart: bool, tmp_path: Path
) -> None:
    inputs = {
        "x": normal(B, N, S, 8) if apart else normal(B, S, N * 8),
        "at": np.array([3]) if first else RNG.integers(0, 11, (B, S)),
        "cos": normal(16, 2 if part else 4),
        "sin": normal(16, 2 if part else 4),
    }
    equal(*of_microsoft(tmp_path, "RotaryEmbedding", inputs, interleaved=interleaved, **part))


# ---- Attention


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", ["none", "rows", "ends", "spans", "square"])
@pytest.mark.parametrize("bias", [(), (B, N), (1, 1)])
def test_attention(causal: int, mask: str, bias: tuple, tmp_path: Path) -> None:
    masks = {
        "none": None,
        "rows": ones(B, S),
        "ends": ENDS,
        "spans": SPANS,
        "square": ones(B, S, S),
    }
    inputs = {
        "x": normal(B, S, 7),
        "w": normal(7, 36),
        "b": normal(36),
        "mask": masks[mask],
        "past": None,
        "bias": normal(*bias, S, S) if bias else None,
    }
    equal(*of_microsoft(tmp_path, "Attention", inputs, num_heads=N, unidirectional=causal), 2e-5)


@pytest.mark.parametrize("s", [1, S])
def test_attention_with_a_past(s: int, tmp_path: Path) -> None:
    inputs = {
        "x": normal(B, s, 7),
        "w": normal(7, 36),
        "b": None,
        "mask": ones(B, s + 4),
        "past": normal(2, B, N, 4, 4),
    }
    said = {"num_heads": N, "unidirectional": 1, "scale": 0.3, "mask_filter_value": -50.0}
    equal(*of_microsoft(tmp_path, "Attention", inputs, 2, **said))


def test_attention_of_another_width_of_values(tmp_path: Path) -> None:
    inputs = {"x": normal(B, S, 7), "w": normal(7, 39), "b": normal(39)}
    equal(*of_microsoft(tmp_path, "Attention", inputs, num_heads=N, qkv_hidden_sizes=[12, 12, 15]))


# ---- MultiHeadAttention


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", ["none", "ends", "rows", "square"])
@pytest.mark.parametrize("bias", [(), (B, N), (1, N), (B, 1)])
def test_multi_head_attention(causal: int, mask: str, bias: tuple, tmp_path: Path) -> None:
    length = S if causal else 6
    masks = {"none": None, "ends": ENDS, "rows": ones(B, length), "square": ones(B, S, length)}
    inputs = {
        "q": normal(B, S, 12),
        "k": normal(B, length, 12),
        "v": normal(B, length, 15),
        "b": normal(39) if causal else None,
        "mask": masks[mask],
        "bias": normal(*bias, S, length) if bias else None,
    }
    said = {"num_heads": N, "unidirectional": causal}
    equal(*of_microsoft(tmp_path, "MultiHeadAttention", inputs, **said), 2e-5)


@pytest.mark.parametrize("s", [1, S])
@pytest.mark.parametrize("causal", [0, 1])
def test_multi_head_attention_with_a_past(s: int, causal: int, tmp_path: Path) -> None:
    inputs = {name: normal(B, s, 12) for name in "qkv"}
    inputs |= {"b": normal(36), "mask": ones(B, s + 3), "bias": normal(1, 1, s, s + 3)}
    inputs |= {name: normal(B, N, 3, 4) for name in ("past_k", "past_v")}
    said = {"num_heads": N, "unidirectional": causal, "scale": 0.4}
    equal(*of_microsoft(tmp_path, "MultiHeadAttention", inputs, 3, **said), 2e-5)


def test_keys_and_values_that_have_heads_already(tmp_path: Path) -> None:
    inputs = {"q": normal(B, S, 12), "k": normal(B, N, 6, 4), "v": normal(B, N, 6, 4)}
    equal(*of_microsoft(tmp_path, "MultiHeadAttention", inputs, num_heads=N))


def test_packed_forms_are_the_plain_one(tmp_path: Path) -> None:
    """onnxruntime runs these on GPUs only."""
    q, k, v, bias = normal(B, S, 12), normal(B, S, 12), normal(B, S, 12), normal(36)
    split = [x.reshape(B, S, N, 4) for x in (q, k, v)]
    plain = {"q": q, "k": k, "v": v, "b": bias}
    _, wanted = of_microsoft(tmp_path, "MultiHeadAttention", plain, num_heads=N)
    packed = [
        {"q": np.stack(split, 3), "k": None, "v": None, "b": bias},
        {"q": np.concatenate([q, k, v], -1), "k": None, "v": None, "b": bias},
        {"q": q, "k": np.stack(split[1:], 3), "v": None, "b": bias},
    ]
    for inputs in packed:
        model = one_node("MultiHeadAttention", inputs, 1, 21, "com.microsoft", (), num_heads=N)
        model.graph.output[0].type.CopyFrom(onnx.helper.make_tensor_type_proto(1, (B, S, 12)))
        onnx.save(model, tmp_path / "p.onnx")
        feed = {n: x for n, x in inputs.items() if x is not None}
        equal(oracle(tmp_path / "p.onnx", feed, declared=True), wanted)


# ---- GroupQueryAttention


def grouped(
    folder: Path,
    s: int,
    past: int | None,
    ends: list[int],
    d: int = 16,
    packed: bool = False,
    turned: int = 0,
    at: bool = False,
    bias: tuple = (),
    sink: bool = False,
    **said: Any,
) -> tuple[list, list, Path, dict]:
    """4 heads of queries, 2 of keys; texts that end at ``ends``. Rows beyond them are 0."""
    b, total = len(ends), max(ends)
    inputs: dict[str, Any] = {
        "q": normal(b, s, (8 if packed else 4) * d),
        "k": None if packed else normal(b, s, 2 * d),
        "v": None if packed else normal(b, s, 2 * d),
        "past_k": None if past is None else normal(b, 2, past, d),
        "past_v": None if past is None else normal(b, 2, past, d),
        "last": np.array(ends, "i4") - 1,
        "total": np.array(total, "i4"),
        "cos": normal(32, turned // 2) if turned else None,
        "sin": normal(32, turned // 2) if turned else None,
    }
    first = np.array([0 if s == total else end - s for end in ends])
    inputs["at"] = first[:, None] + np.arange(2, s + 2) if at else None
    inputs["bias"] = normal(*bias) if bias else None
    inputs["sink"] = normal(4) if sink else None
    said |= {"num_heads": 4, "kv_num_heads": 2, "do_rotary": int(turned > 0)}
    path, wanted = saved_node(folder, "GroupQueryAttention", inputs, 3, ["total"], **said)
    feed = {n: x for n, x in inputs.items() if x is not None and n != "total"}
    found = oracle(path, feed, declared=True)
    return without_rest(found, ends, s == total), without_rest(wanted, ends, s == total), path, feed


def without_rest(arrays: list, ends: list[int], prompt: bool) -> list:
    """The results with what means nothing as 0: rows beyond a text."""
    out = [a.copy() for a in arrays]
    for i, end in enumerate(ends):
        for cache in out[1:]:
            cache[i, :, end:] = 0
        if prompt:
            out[0][i, end:] = 0
    return out


PLACES = [  # rows of the run, rows of the past, where texts end
    (5, None, [5, 3]), (5, 0, [5, 3]), (5, 9, [5, 3]),
    (1, 6, [7, 4]), (1, 9, [7, 4]), (3, 4, [7]), (3, 9, [7]),
]  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("s", "past", "ends"), PLACES)
@pytest.mark.parametrize("rotary", [{}, {"turned": 16}, {"turned": 16, "rotary_interleaved": 1}])
def test_grouped(
    packed: bool, s: int, past: int | None, ends: list, rotary: dict, tmp_path: Path
) -> None:
    equal(*grouped(tmp_path, s, past, ends, packed=packed, **rotary)[:2])


SAID: list[dict] = [
    *({"local_window_size": n} for n in (1, 2, 5)),
    {"softcap": 0.5}, {"scale": 0.1}, {"smooth_softmax": 1}, {"causal": 0},
    {"sink": True}, {"sink": True, "local_window_size": 2}, {"turned": 16, "d": 32},
    {"turned": 16, "at": True},
]  # fmt: skip


@pytest.mark.parametrize(("s", "past", "ends"), [(6, 0, [6, 4]), (1, 9, [7, 4]), (3, 4, [7])])
@pytest.mark.parametrize("said", SAID, ids=lambda said: " ".join(said))
def test_grouped_with_attributes(s: int, past: int, ends: list, said: dict, tmp_path: Path) -> None:
    equal(*grouped(tmp_path, s, past, ends, **said)[:2])


@pytest.mark.parametrize("past", [6, 9])
@pytest.mark.parametrize("heads", [1, 4])
def test_grouped_with_a_bias(past: int, heads: int, tmp_path: Path) -> None:
    equal(*grouped(tmp_path, 1, past, [7, 4], bias=(2, heads, 1, 7), softcap=2.0)[:2])


def test_grouped_as_c(tmp_path: Path) -> None:
    _, wanted, path, feed = grouped(tmp_path, 1, 9, [7, 4], turned=16)
    bundle = lumc.compile(import_onnx(path), estimate=True)
    equal(without_rest(list(bundle.run(feed).values()), [7, 4], False), wanted)


@pytest.mark.parametrize("late", [False, True])
def test_grouped_where_dims_are_symbols(late: bool, tmp_path: Path) -> None:
    """Whether a run is a prompt is then known when it runs."""
    for s, ends in ((6, [6, 4]), (1, [7, 4])):
        _, wanted, path, feed = grouped(tmp_path, s, 9, ends, turned=16)
        model = onnx.load(path)
        for value in (*model.graph.input, *model.graph.output):
            if value.name in ("q", "k", "v", "y0"):
                value.type.tensor_type.shape.dim[1].dim_param = "s"
        mask = onnx.helper.make_tensor_value_info("mask", 6, (2, "total_length"))
        model.graph.input.append(mask)
        (node,) = model.graph.node
        del model.graph.initializer[:], model.graph.node[:]
        shape = onnx.helper.make_node("Shape", ["mask"], ["all"], start=1)
        one = onnx.helper.make_node("Squeeze", ["all"], ["total64"])
        cast = onnx.helper.make_node("Cast", ["total64"], ["total"], to=6)
        model.graph.node.extend([shape, one, cast, node])
        onnx.save(model, path)
        dims = {"s": s, "total_length": max(ends)}
        feed["mask"] = np.ones((2, max(ends)), "i4")
        if late:
            imported = import_onnx(path, {"s": (1, 9), "total_length": (1, 9)})
            bundle = lumc.compile(imported, estimate=True, dims=dims)
            found = list(bundle.run(feed).values())
        else:
            found = oracle(path, feed, dims, declared=True)
        equal(without_rest(found, ends, s == max(ends)), wanted)


# ---- what is refused, what tests see


def test_refusals_say_why(tmp_path: Path) -> None:
    x = {"x": normal(B, S, 8), "at": np.array([3]), "cos": normal(16, 4), "sin": normal(16, 4)}
    assert "scale the tables" in refused(tmp_path, "RotaryEmbedding", x, scale=2.0)
    assert "pad them" in refused(tmp_path, "RotaryEmbedding", x, is_packed_batching=1)
    qkv = {"q": normal(B, S, 12), "k": normal(B, 6, 12), "v": normal(B, 6, 12)}
    said = refused(tmp_path, "MultiHeadAttention", qkv, num_heads=N, unidirectional=1)
    assert "keys of another length" in said and "attention_bias" in said
    grouped_ = {"q": normal(B, S, 64), "k": normal(B, S, 32), "v": normal(B, S, 32)}
    grouped_ |= {"past_k": None, "past_v": None, "last": ENDS, "total": np.array(5, "i4")}
    heads = {"num_heads": 4, "kv_num_heads": 2}
    assert "--value total=" in refused(tmp_path, "GroupQueryAttention", grouped_, **heads)
    for more in ({"sliding_window_cache": 1}, {"k_quant_type": "PER_TENSOR"}, {"qk_output": 1}):
        assert refused(tmp_path, "GroupQueryAttention", grouped_, **heads, **more)


MUTANTS = {
    "pairs": (ops_grouped, "turned", lambda x, c, s, i: ops_attention.turned(x, c, s, not i)),
    "scale": (ops_grouped, "scaled", lambda q, k, scale: ops_attention.scaled(q, k, 1.0)),
    "heads": (ops_grouped, "repeat_heads", lambda x, n: x.repeat_interleave(n, -3).flip(-3)),
    "sink": (ops_grouped, "attended", lambda s, v, seen, sink: ops_attention.attended(s, v, seen)),
    "sees": (ops_grouped, "attended", lambda s, v, _, k: ops_attention.attended(s, v, None, k)),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    found, wanted, *_ = grouped(tmp_path, 3, 4, [7], turned=16, sink=True, local_window_size=3)
    assert np.abs(found[0] - wanted[0]).max() > 1e-3
