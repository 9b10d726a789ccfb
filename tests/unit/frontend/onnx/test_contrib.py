"""Operators of onnxruntime's that its CPU does not run, against numpy."""

import math
from pathlib import Path

import numpy as np
import onnx

from onnx_models import one_node, oracle


def test_bias_split_gelu(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 10), (10,)))
    model = one_node("BiasSplitGelu", {"X": x, "bias": b}, domain="com.microsoft")
    model.graph.output[0].type.tensor_type.shape.dim[-1].dim_value = 5
    onnx.save(model, tmp_path / "m.onnx")
    value, gate = np.split(x.astype(np.float64) + b, 2, -1)
    wanted = value * gate * (1 + np.vectorize(math.erf)(gate / math.sqrt(2))) / 2
    (found,) = oracle(tmp_path / "m.onnx", {"X": x, "bias": b})
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)
