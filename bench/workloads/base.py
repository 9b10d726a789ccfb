"""What a workload is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


def _float64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if x.dtype == F32 else x


WORKLOADS: dict[str, Callable[[], Workload]] = {}


def workload(make: Callable[[], Workload]) -> Callable[[], Workload]:
    WORKLOADS[make.__name__] = make
    return make


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return rng.standard_normal(shape, dtype=F32) * F32(scale)


def nbytes(*arrays: np.ndarray) -> int:
    return sum(a.nbytes for a in arrays)
