"""What a workload is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Function = Callable[..., list[Any]]  # (ops, weights, *inputs) -> outputs
F32 = np.float32


@dataclass(frozen=True)
class Workload:
    inputs: Arrays  # in order
    weights: Arrays
    function: Function
    flops: float
    reads: float
    writes: float

    def reference(self) -> list[np.ndarray]:
        """Every output in float64."""
        from ops import reference

        weights = {k: _float64(v) for k, v in self.weights.items()}
        return self.function(reference, weights, *map(_float64, self.inputs.values()))

    def save_graph(self, path: Path) -> None:
        from lumc.frontend import Model
        from ops import lumc_ops

        g = Model()
        inputs = [g.input(k, v.shape, v.dtype) for k, v in self.inputs.items()]
        weights = {k: g.constant(v, k) for k, v in self.weights.items()}
        for i, y in enumerate(self.function(lumc_ops, weights, *inputs)):
            g.output(f"y{i}", y)
        g.save(path)

    def save_onnx(self, path: Path) -> None:
        from ops import onnx_ops

        g = onnx_ops.Graph()
        inputs = [g.input(k, v) for k, v in self.inputs.items()]
        weights = {k: g.constant(v) for k, v in self.weights.items()}
        g.save(self.function(onnx_ops, weights, *inputs), path)

    def torch_function(self) -> Callable[..., list[Any]]:
        """The function of its inputs, tensors, in torch."""
        import torch

        from ops import torch_ops

        module = torch.nn.Module()
        for name, value in self.weights.items():
            module.register_buffer(name.replace(".", "_"), torch.from_numpy(value))
        weights = {k: getattr(module, k.replace(".", "_")) for k in self.weights}
        return lambda *inputs: self.function(torch_ops, weights, *inputs)


def _float64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if x.dtype == F32 else x


WORKLOADS: dict[str, Callable[[], Any]] = {}  # and steps of training, in training.py


def workload(make: Callable[[], Workload]) -> Callable[[], Workload]:
    WORKLOADS[make.__name__] = make
    return make


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return rng.standard_normal(shape, dtype=F32) * F32(scale)


def nbytes(*arrays: np.ndarray) -> int:
    return sum(a.nbytes for a in arrays)
