"""Folders of GPTQ and AWQ, against the same folders with the values of their matrices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import Array, random_weights, write_folder
from lumc.disk.safetensors import write_safetensors
from lumc.errors import LumcError
from lumc.frontend.models.huggingface import import_folder
from lumc.graph.bind import bind_dims
from lumc.graph.ops import DType
from lumc.graph.text import parse_graph, print_graph
from lumc.oracle.graph import evaluate

IDS = np.array([[3, 7, 1, 9, 2], [4, 2, 11, 1, 1]])
RNG = np.random.default_rng(31)
D, WORDS = 32, 13
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": D,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 1,
    "intermediate_size": 48,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
MATRICES = {
    "self_attn.q_proj": (32, 32),
    "self_attn.k_proj": (16, 32),
    "self_attn.v_proj": (16, 32),
    "self_attn.o_proj": (32, 32),
    "mlp.gate_proj": (48, 32),
    "mlp.up_proj": (48, 32),
    "mlp.down_proj": (32, 48),
}
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight columns each 4 bits of a word are, lowest first
GPTQ = tuple(range(8))


def packed(numbers: Array, axis: int, order: tuple[int, ...]) -> Array:
    """Words of eight numbers along an axis, one by one."""
    rows = np.moveaxis(numbers, axis, -1)
    words = np.zeros((*rows.shape[:-1], rows.shape[-1] // 8), np.uint32)
    for i in range(rows.shape[-1] // 8):
        for place, column in enumerate(order):
            words[..., i] |= rows[..., 8 * i + column].astype(np.uint32) << np.uint32(4 * place)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32)


def written(
    folder: Path, method: str, group: int, said: dict[str, Any] | None = None, less: int = 1
) -> tuple[Path, Path]:
    """A folder of packed matrices, and one of their values."""
    outer = {"model.embed_tokens.weight": (WORDS, D), "model.norm.weight": (D,)}
    norms = ("input_layernorm", "post_attention_layernorm")
    outer |= {f"model.layers.0.{n}.weight": (D,) for n in norms}
    values: dict[str, Array] = random_weights(outer)
    stored = [(k, DType.F32, v) for k, v in values.items()]
    order = AWQ if method == "awq" else GPTQ
    for name, (out, rows) in MATRICES.items():
        at, groups = f"model.layers.0.{name}", -(-rows // (group if group > 0 else rows))
        numbers = RNG.integers(0, 16, (rows, out))
        zeros = RNG.integers(1, 16, (groups, out))
        scales = RNG.uniform(0.02, 0.05, (groups, out)).astype("f2")
        own = np.arange(rows) // (group if group > 0 else rows)
        opened = (numbers - zeros[own]) * scales[own].astype("f4")
        values[f"{at}.weight"] = np.ascontiguousarray(opened.T.astype("f4"))
        low = zeros if method == "awq" else zeros - less
        stored += [
            (f"{at}.qweight", DType.I32, packed(numbers, 1 if method == "awq" else 0, order)),
            (f"{at}.qzeros", DType.I32, packed(low, 1, order)),
            (f"{at}.scales", DType.F16, scales),
        ]
        if method == "gptq":
            stored.append((f"{at}.g_idx", DType.I32, own.astype("i4")))
    quantised = folder / "q"
    quantised.mkdir()
    config = {"quant_method": method, "bits": 4, "group_size": group, **(said or {})}
    text = json.dumps({**CONFIG, "quantization_config": config})
    (quantised / "config.json").write_text(text)
    write_safetensors(quantised / "model.safetensors", stored)
    return quantised, write_folder(folder / "f", CONFIG, values)


def outputs(folder: Path) -> dict[str, Array]:
    model = import_folder(folder)
    graph = bind_dims(model.graph(), {"b": 2, "s": 5})
    return evaluate(graph, "main", {"input_ids": IDS}, model.read_weight)[0]


def same(a: dict[str, Array], b: dict[str, Array]) -> bool:
    return all(np.linalg.norm(a[k] - b[k]) <= 1e-6 * np.linalg.norm(b[k]) for k in b)


@pytest.mark.parametrize(
    ("method", "group", "said", "less"),
    [
        ("gptq", 16, {"desc_act": False}, 1),
        ("gptq", 32, {"checkpoint_format": "gptq_v2"}, 0),
        ("gptq", -1, {"checkpoint_format": "gptq"}, 1),
        ("awq", 16, {"version": "gemm", "zero_point": True}, 0),
    ],
)
def test_matrices_are_their_values(
    tmp_path: Path, method: str, group: int, said: dict[str, Any], less: int
) -> None:
    quantised, plain = written(tmp_path, method, group, said, less)
    assert same(outputs(quantised), outputs(plain))
    import_folder(quantised).save(tmp_path / "m.lg")
    text = (tmp_path / "m.lg").read_text()
    assert print_graph(parse_graph(text)) == text
    word = "interleaved 1 by 8" if method == "awq" else "nibbles 0 by 8"
    assert f"from i32 {word}" in text


@pytest.mark.parametrize(
    ("said", "code", "what"),
    [
        ({"quant_method": "fp8"}, "E0324", "quant_method = 'fp8'"),
        ({"bits": 8}, "E0324", "bits = 8"),
        ({"group_size": 0}, "E0324", "group_size = 0"),
        ({"group_size": 8}, "E0324", "g_idx: rows in another order"),
        ({"checkpoint_format": "marlin"}, "E0324", "checkpoint_format = 'marlin'"),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, said: dict[str, Any], code: str, what: str
) -> None:
    quantised, _ = written(tmp_path, "gptq", 16)
    path = quantised / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] |= said
    path.write_text(json.dumps(config))
    with pytest.raises(LumcError) as e:
        import_folder(quantised)
    assert e.value.code == code and what in e.value.what, e.value.what


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    quantised, _ = written(tmp_path, "awq", 16)
    path = quantised / "config.json"
    path.write_text(path.read_text().replace('"group_size": 16', '"group_size": 8'))
    with pytest.raises(LumcError, match=r"qzeros is i32\[2, 4\], expected i32\[4, 4\]") as e:
        import_folder(quantised)
    assert e.value.code == "E0325"
    path.write_text(json.dumps({**CONFIG, "quantization_config": "gptq"}))
    with pytest.raises(LumcError, match="is no object"):
        import_folder(quantised)
