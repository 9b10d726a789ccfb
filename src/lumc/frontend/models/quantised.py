"""What config.json says of quantised weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from lumc.disk.stored import Stored
from lumc.disk.weights import read_tensor
from lumc.frontend.models.config import Config
from lumc.frontend.models.words import Words
from lumc.graph.graph import Node, WeightFile
from lumc.graph.ops import DType

Tensors = Mapping[str, tuple[WeightFile, Stored]]


def words_of(config: Config, tensors: Tensors) -> Words | None:
    """How matrices of GPTQ and AWQ are stored; None where nothing is said. E0324."""
    values = config.values.get("quantization_config")
    if values is None:
        return None
    if not isinstance(values, dict):
        raise config.error("quantization_config is no object")
    said = replace(config, values=values)
    said.refuse("quant_method", "gptq", "awq")
    said.refuse("bits", 4)
    size = values.get("group_size")
    group = 0 if size == -1 else said.integer("group_size", 128)
    if values.get("quant_method") == "awq":
        said.refuse("version", "gemm", "GEMM")
        said.refuse("zero_point", True)
        return Words("interleaved", 1, group, 0)
    said.refuse("checkpoint_format", "gptq", "gptq_v2")
    old = values.get("checkpoint_format") != "gptq_v2"  # which keeps zeros less one
    for key, (file, stored) in tensors.items():
        if key.endswith(".g_idx") and not _in_order(file, stored, group):
            raise config.error(f"{key}: rows in another order (desc_act) are not supported")
    return Words("nibbles", 0, group, int(old))


def _in_order(file: WeightFile, stored: Stored, group: int) -> bool:
    """Whether the group of every row is the one that it lies in."""
    if stored.dtype is not DType.I32 or len(stored.shape) != 1:
        return False
    node = Node("g_idx", "weight", DType.I32, ("d0",), stored.shape, key=stored.key)
    rows = read_tensor(node, Path(file.path))
    return np.array_equal(rows, np.arange(len(rows)) // (group or max(len(rows), 1)))
