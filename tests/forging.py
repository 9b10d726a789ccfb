"""Artifacts of strangers: their bodies are changed, and their digests made right again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lumc.disk import artifact

# a product, a sum and a select, a table read by data, a window with a border, and a state
GRAPH = """lumc graph 1
input x f32[6, 10]
input w f32[10, 9]
input ids i64[6] in 0..29
input table f32[30, 9]
state s f32[6, 9]
t0 f32[i:6, j:9, k:10] = mul x[i, k], w[k, j]
t1 f32[i:6, j:9] = sum k:10 of t0[i, j, k]
t2 f32[i:6, j:9] = add t1[i, j], s[i, j]
t3 f32[i:6, j:9] = add t2[i, j], t1[i, j - 1] if 0 <= j - 1 < 8
output y = t3
update s[i, j] = t3[i, j]
"""


def forge(file: Path, change: Callable[[Any], Any]) -> Path:
    """The file with another body."""
    data = json.loads(file.read_text())
    head = {k: data.pop(k) for k in ("lumc", "schema", "input", "digest")}
    change(data)
    file.write_text(artifact.dump(head["lumc"], head["input"], data))
    return file
