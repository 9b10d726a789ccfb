"""What a tensor in memory is, whoever holds it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lumc.graph.ops import DType


@dataclass(frozen=True)
class Tensor:
    """Elements of one dtype under a name, row-major: ``name``, ``dtype``, ``shape``. What numpy has
    for a dtype is ``dtype.numpy``: bf16 travels as its uint16 bits."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all its elements."""
        return prod(self.shape) * self.dtype.nbytes

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(map(str, self.shape))}]"
