"""Make what the first lines of README.md name: ``bert/``, a folder as Hugging Face has them, with a
small BERT of random weights; ``ids.npy`` and ``mask.npy``, a text of 128 tokens for it.

Any folder with config.json and model.safetensors of a supported model takes its place.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
LENGTH, PADDED = 128, 28  # tokens, of which the last ones are padding


def shapes(layers: int, d: int, inner: int) -> dict[str, tuple[int, ...]]:
    """The weights of BERT by their names."""
    out = {
        "embeddings.word_embeddings.weight": (CONFIG["vocab_size"], d),
        "embeddings.position_embeddings.weight": (CONFIG["max_position_embeddings"], d),
        "embeddings.token_type_embeddings.weight": (CONFIG["type_vocab_size"], d),
    }
    dense = {f"attention.self.{n}": (d, d) for n in ("query", "key", "value")}
    dense |= {"attention.output.dense": (d, d)}
    dense |= {"intermediate.dense": (inner, d), "output.dense": (d, inner)}
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{i}." for i in range(layers)):
        for name, (rows, columns) in dense.items():
            out |= {f"{layer}{name}.weight": (rows, columns), f"{layer}{name}.bias": (rows,)}
        norms += [f"{layer}attention.output.LayerNorm", f"{layer}output.LayerNorm"]
    for name in norms:
        out |= {f"{name}.weight": (d,), f"{name}.bias": (d,)}
    return out


def main() -> None:
    rng = np.random.default_rng(0)
    folder = Path("bert")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    wanted = shapes(CONFIG["num_hidden_layers"], CONFIG["hidden_size"], CONFIG["intermediate_size"])
    weights = {k: rng.normal(0, 0.1, s).astype(np.float32) for k, s in wanted.items()}
    for name in weights:
        if name.endswith("LayerNorm.weight"):
            weights[name] += 1
    save_file(weights, folder / "model.safetensors")
    np.save("ids.npy", rng.integers(0, CONFIG["vocab_size"], (1, LENGTH)))
    np.save("mask.npy", (np.arange(LENGTH) < LENGTH - PADDED)[None].astype(np.int64))
    print("made bert/, ids.npy and mask.npy")


if __name__ == "__main__":
    main()
