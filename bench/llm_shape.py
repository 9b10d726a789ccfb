"""A GGUF file of a language model's shape with random weights, to see what a size of models costs.

    python bench/llm_shape.py llama-1b q4_0 llama-1b.gguf

Scales are such that values neither vanish nor overflow on their way through the layers; what the
model says means nothing. Needs the package gguf. Tensors are written one after the other: memory is
that of the largest.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Shape:
    """Of a model of Llama's architecture."""

    layers: int
    width: int
    heads: int
    shared: int  # heads of keys and values
    head: int
    inner: int
    words: int
    tied: bool
    context: int = 8192

    def matrices(self) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of each."""
        yield "token_embd.weight", self.words, self.width
        if not self.tied:
            yield "output.weight", self.words, self.width
        q, k, d = self.heads * self.head, self.shared * self.head, self.width
        parts = [("attn_q", q, d), ("attn_k", k, d), ("attn_v", k, d), ("attn_output", d, q)]
        parts += [
            ("ffn_gate", self.inner, d),
            ("ffn_up", self.inner, d),
            ("ffn_down", d, self.inner),
        ]
        for i in range(self.layers):
            for name, rows, columns in parts:
                yield f"blk.{i}.{name}.weight", rows, columns

    def norms(self) -> Iterator[str]:
        yield "output_norm.weight"
        for i in range(self.layers):
            yield f"blk.{i}.attn_norm.weight"
            yield f"blk.{i}.ffn_norm.weight"


SHAPES = {
    "llama-tiny": Shape(2, 64, 4, 2, 16, 128, 320, True, 512),
    "llama-1b": Shape(16, 2048, 32, 8, 64, 8192, 128256, True),
    "llama-8b": Shape(32, 4096, 32, 8, 128, 14336, 128256, False),
}
BLOCK = 32  # numbers that share a scale
BYTES = {"q4_0": 16, "q8_0": 32}  # of a block, behind its scale in f16
SPREAD = {"q4_0": 4.6, "q8_0": 73.9}  # standard deviation of levels whose bytes are all as likely


def blocks(rng: np.random.Generator, kind: str, rows: int, columns: int) -> Any:
    """u8[rows, bytes]: levels of all values, and scales so that products keep the size of what is
    multiplied."""
    each = columns // BLOCK
    out = rng.integers(0, 256, (rows, each, 2 + BYTES[kind]), np.uint8)
    scale = rng.uniform(0.7, 1.3, (rows, each, 1)) / SPREAD[kind] / columns**0.5
    out[..., :2] = scale.astype("<f2").view(np.uint8)
    return out.reshape(rows, -1)


def write(shape: Shape, kind: str, path: Path, seed: int = 0) -> None:
    """The file; equal arguments give equal bytes."""
    import gguf

    rng, file = np.random.default_rng(seed), gguf.GGUFWriter(path, "llama")
    file.add_context_length(shape.context)
    file.add_embedding_length(shape.width)
    file.add_block_count(shape.layers)
    file.add_feed_forward_length(shape.inner)
    file.add_head_count(shape.heads)
    file.add_head_count_kv(shape.shared)
    file.add_key_length(shape.head)
    file.add_value_length(shape.head)
    file.add_rope_dimension_count(shape.head)
    file.add_rope_freq_base(500000.0)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_vocab_size(shape.words)
    quantised = gguf.GGMLQuantizationType[kind.upper()]
    size = 2 + BYTES[kind]
    for name in shape.norms():
        file.add_tensor_info(name, [shape.width], np.dtype(np.float32), shape.width * 4)
    for name, rows, columns in shape.matrices():
        shown = [rows, columns // BLOCK * size]
        file.add_tensor_info(name, shown, np.dtype(np.uint8), rows * shown[1], quantised)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_ti_data_to_file()
    for _ in shape.norms():
        file.write_tensor_data(rng.uniform(0.9, 1.1, shape.width).astype(np.float32))
    for _, rows, columns in shape.matrices():
        file.write_tensor_data(blocks(rng, kind, rows, columns))
    file.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("kind", choices=BYTES)
    parser.add_argument("path", type=Path)
    asked = parser.parse_args()
    write(SHAPES[asked.shape], asked.kind, asked.path)


if __name__ == "__main__":
    main()
