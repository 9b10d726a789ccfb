"""Hugging Face folders with random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lumc.disk.safetensors import write_safetensors
from lumc.graph.ops import DType, to_bf16

Array = np.ndarray[Any, Any]
Weights = Mapping[str, Array]
RNG = np.random.default_rng(26)
BERT_NAMES = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "n1": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "n2": "output.LayerNorm",
}
BERT = {
    "model_type": "bert",
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "vocab_size": 13,
    "max_position_embeddings": 9,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}


def bert_shapes(config: Mapping[str, Any] = BERT) -> dict[str, tuple[int, ...]]:
    d, inner = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], d),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], d),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], d),
    }
    norm = {"weight": (d,), "bias": (d,)}
    parts = dict.fromkeys(("embeddings.LayerNorm",), norm)
    for i in range(config["num_hidden_layers"]):
        for key, name in BERT_NAMES.items():
            out, into = {"up": (inner, d), "down": (d, inner)}.get(key, (d, d))
            dense = {"weight": (out, into), "bias": (out,)}
            parts[f"encoder.layer.{i}.{name}"] = norm if key in ("n1", "n2") else dense
    return shapes | {f"{p}.{k}": s for p, e in parts.items() for k, s in e.items()}


def random_weights(shapes: Mapping[str, tuple[int, ...]], scale: float = 0.4) -> dict[str, Array]:
    return {
        k: RNG.standard_normal(s).astype(np.float32) * np.float32(scale) for k, s in shapes.items()
    }


def write_folder(
    folder: Path, config: Mapping[str, Any], weights: Weights, dtype: DType = DType.F32
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save(folder / "model.safetensors", weights, dtype)
    return folder


def save(path: Path, weights: Weights, dtype: DType = DType.F32) -> None:
    stored = {
        k: to_bf16(v) if dtype is DType.BF16 else v.astype(dtype.numpy) for k, v in weights.items()
    }
    write_safetensors(path, [(k, dtype, v) for k, v in stored.items()])
