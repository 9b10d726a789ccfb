"""Compositions of other operators, which exports leave as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.join import concat
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.view import minus
from lumc.frontend.aten.axes import along, few, static
from lumc.frontend.aten.registry import Unsupported, aten
from lumc.graph.dim import Extent
from lumc.graph.ops import DType


@aten("diff", halves=True)
def diff(
    self: Tensor,
    n: int = 1,
    dim: int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    axis = along(self, dim)
    x = concat([t for t in (prepend, self, append) if t is not None], axis)
    for _ in range(few(n, "differences", 64)):
        size = x.shape[axis]
        late, early = x.slice(axis, 1, size), x.slice(axis, 0, minus(size, 1))
        x = late ^ early if x.dtype is DType.BOOL else late - early
    return x


@aten("_weight_norm")
def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    rest = [i for i in range(v.ndim) if i != along(v, dim)]
    return v * (g / (v * v).sum(rest, True).sqrt())


@aten("meshgrid", "meshgrid.indexing", halves=True)
def meshgrid(tensors: Sequence[Tensor], indexing: str = "ij") -> list[Tensor]:
    if indexing == "xy" and len(tensors) > 1:
        second, first, *rest = meshgrid([tensors[1], tensors[0], *tensors[2:]])
        return [first, second, *rest]
    shape = [t.shape[0] if t.ndim else 1 for t in tensors]
    return [
        t.reshape(*(e if i == at else 1 for i, e in enumerate(shape))).broadcast_to(*shape)
        for at, t in enumerate(tensors)
    ]


@aten("broadcast_to", halves=True)
def broadcast_to(self: Tensor, size: Sequence[Extent]) -> Tensor:
    return self.broadcast_to(*size)


@aten("hstack", halves=True)
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    wide = [t if t.ndim else t.unsqueeze(0) for t in tensors]
    return concat(wide, 0 if wide[0].ndim == 1 else 1)


@aten("vstack", halves=True)
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    return concat([t if t.ndim > 1 else t.reshape(1, -1) for t in tensors], 0)


@aten("tensor_split.sections", halves=True)
def tensor_split(self: Tensor, sections: int, dim: int = 0) -> list[Tensor]:
    axis = along(self, dim)
    (size,) = static(self.shape[axis : axis + 1], "a split")
    whole, more = divmod(size, few(sections, "parts"))
    return self.split([whole + (i < more) for i in range(sections)], axis)


@aten("cosine_similarity")
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-08) -> Tensor:
    a, b = ((x * x).sum(dim).sqrt().maximum(eps) for x in (x1, x2))
    return (x1 * x2).sum(dim) / (a * b)


@aten("bucketize.Tensor", halves=True)
def bucketize(
    self: Tensor, boundaries: Tensor, out_int32: bool = False, right: bool = False
) -> Tensor:
    """How many boundaries lie below; with ``right``, at or below."""
    x = self.unsqueeze(-1)
    return (boundaries <= x if right else boundaries < x).sum(-1)


@aten("searchsorted.Tensor", halves=True)
def searchsorted(
    sorted_sequence: Tensor,
    self: Tensor,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    if sorter is not None:
        raise Unsupported("a sequence that is sorted by indices", "gather it first")
    late = right or side == "right"
    if sorted_sequence.ndim == 1:
        return bucketize(self, sorted_sequence, right=late)
    x, steps = self.unsqueeze(-1), sorted_sequence.unsqueeze(-2)
    return (steps <= x if late else steps < x).sum(-1)


@aten("channel_shuffle", "native_channel_shuffle", halves=True)
def channel_shuffle(self: Tensor, groups: int) -> Tensor:
    return self.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)


@aten("fmax", halves=True)
def fmax(self: Tensor, other: Tensor) -> Tensor:
    return where(self.isnan(), other, where(other.isnan(), self, self.maximum(other)))


@aten("fmin", halves=True)
def fmin(self: Tensor, other: Tensor) -> Tensor:
    return where(self.isnan(), other, where(other.isnan(), self, self.minimum(other)))


@aten("trace", halves=True)
def trace(self: Tensor) -> Any:
    rows, columns = static(self.shape, "a trace")
    n = min(rows, columns)
    found = self[:n, :n].diagonal()
    return (found if found.dtype.is_float else found.to(DType.I64)).sum()
