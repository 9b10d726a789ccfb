"""What a tensor in memory is, whoever holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from lumc.graph.dim import Extent, bind
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

    def may_have(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape may be one."""
        return shape == self.shape

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class LiveTensor(Tensor):
    """A tensor with extents that are known when a model runs only: ``shape`` has the greatest,
    ``extents`` what they are made of."""

    extents: tuple[Extent, ...]

    def at(self, dims: Mapping[str, int]) -> Tensor:
        """The tensor that there is for these dims."""
        return Tensor(self.name, self.dtype, tuple(int(str(bind(e, dims))) for e in self.extents))

    def may_have(self, shape: tuple[int, ...]) -> bool:
        """Whether its extents are within bounds; what dims make of them is not looked at."""
        known = zip(shape, self.shape, self.extents, strict=False)
        fits = (n == most if isinstance(e, int) else n <= most for n, most, e in known)
        return len(shape) == len(self.shape) and all(fits)

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(map(str, self.extents))}]"
