"""Looking elements up by position, and writing them there; elements in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lumc.frontend.api.elementwise import broadcast_shapes, expand_to, where
from lumc.frontend.api.join import stack
from lumc.frontend.api.lookup import looked_up
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.view import ranges_of
from lumc.frontend.aten.axes import along, over
from lumc.frontend.aten.registry import Unsupported, aten
from lumc.graph.expr import bounds
from lumc.graph.graph import Iota
from lumc.graph.ops import DType

_MASK = "indexing by a mask has a data-dependent shape", "use torch.where"


@aten("embedding", halves=True)
def embedding(weight: Tensor, indices: Tensor, padding_idx: int = -1) -> Tensor:
    return looked_up(weight, 0, indices, wrap=False)


@aten("index_select", halves=True)
def index_select(self: Tensor, dim: int, index: Tensor) -> Tensor:
    if not self.ndim:
        return self
    flat = index if index.ndim else index.unsqueeze(0)
    return looked_up(self, along(self, dim), flat, wrap=False)


@aten("gather", halves=True)
def gather(self: Tensor, dim: int, index: Tensor) -> Tensor:
    x = self if self.ndim else self.unsqueeze(0)
    at = index if index.ndim else index.unsqueeze(0)
    found = x.gather(along(x, dim), at)
    return found if index.ndim else found.squeeze(0)


@aten("take_along_dim", halves=True)
def take_along_dim(self: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    if dim is None:
        return self.flatten().gather(0, indices.flatten())
    return self.gather(along(self, dim), indices)


def chosen(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[list[int], list[Tensor], Any]:
    """The axes that are indexed, the positions in them, and the shape that these have together.
    Negative ones are counted from the end."""
    at = [i for i, v in enumerate(indices) if v is not None]
    given = [v for v in indices if v is not None]
    if any(not v.dtype.is_int for v in given):
        raise Unsupported(*_MASK)
    shape = broadcast_shapes(x, *(v.shape for v in given))
    found = list[Tensor]()
    for axis, v in zip(at, given, strict=True):
        wide = expand_to(v.to(DType.I64), shape)
        size = x.model.size(x.shape[axis], DType.I64)
        found.append(where(wide < 0, wide + size, wide) if not _is_position(v) else wide)
    return at, found, shape


def _is_position(x: Tensor) -> bool:
    """Made of positions and constants only, none below 0."""
    o = x.operand
    return isinstance(o, Iota) and bounds(o.index, ranges_of(x.shape, x.model.dims))[0] >= 0


@aten("index.Tensor", "_unsafe_index.Tensor", halves=True)
def index(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    at, positions, shape = chosen(self, indices)
    if len(at) == 1:
        return looked_up(self, at[0], positions[0], wrap=False)
    flat = positions[0]
    for axis, p in zip(at[1:], positions[1:], strict=True):
        flat = flat * self.model.size(self.shape[axis], DType.I64) + p
    rest = [i for i in range(self.ndim) if i not in at]
    rows = self.permute(*at, *rest).flatten(0, len(at) - 1)
    found = looked_up(rows, 0, flat, wrap=False)  # [shape.., rest..]
    first = at[0] if at == list(range(at[0], at[-1] + 1)) else 0
    return _to_front(found, len(shape), first, back=True)


def _to_front(x: Tensor, count: int, first: int, back: bool) -> Tensor:
    """The ``count`` axes at ``first`` moved to the front, or back."""
    axis = list(range(x.ndim))
    moved = axis[first : first + count]
    order = moved + [a for a in axis if a not in moved]
    if back:
        order = [order.index(a) for a in axis]
    return x.permute(*order) if x.ndim else x


@aten(
    "index_put",
    "_unsafe_index_put",
    halves=True,
    note="without accumulate, positions must not repeat",
)
def index_put(
    self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    masks = [v for v in indices if v is not None and v.dtype is DType.BOOL]
    values = values.to(self.dtype)
    if len(indices) == len(masks) == 1 and not accumulate:
        mask = masks[0].unsqueeze(*range(masks[0].ndim, self.ndim))
        if values.ndim <= self.ndim - masks[0].ndim or values.shape == (1,):
            return where(mask, values if values.shape != (1,) else values.squeeze(0), self)
    at, positions, shape = chosen(self, indices)
    rest = [i for i in range(self.ndim) if i not in at]
    first = at[0] if at == list(range(at[0], at[-1] + 1)) else 0
    kept = [self.shape[i] for i in rest]
    target = (*kept[:first], *shape, *kept[first:])
    writes = _to_front(expand_to(values, target), len(shape), first, back=False)
    turned = self.permute(*at, *rest)
    out = turned.scatter_nd(stack(positions, -1), writes, "add" if accumulate else "none")
    order = [*at, *rest]
    return out.permute(*(order.index(i) for i in range(self.ndim)))


def _scattered(x: Tensor, dim: int, at: Tensor, new: Tensor, how: str) -> Tensor:
    if x.ndim:
        return x.scatter(along(x, dim), at, new, how)
    return x.unsqueeze(0).scatter(0, at.reshape(1), new.reshape(1), how).squeeze(0)


@aten("scatter.src", halves=True, note="positions must not repeat")
def scatter(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scattered(self, dim, index, src, "none")


@aten("scatter.value", halves=True)
def scatter_value(self: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    filled = self.model.full(index.shape, value, self.dtype)
    hit = _scattered(
        self.model.full(self.shape, 0, DType.I64),
        dim,
        index,
        self.model.full(index.shape, 1, DType.I64),
        "max",
    )
    return where(hit > 0, filled.lift(value, self.dtype), self)


@aten("scatter_add", halves=True)
def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scattered(self, dim, index, src, "add")


HOW = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


@aten("scatter_reduce.two", note="prod: at most 64 elements along the axis")
def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    model = self.model
    ones = model.full(index.shape, 1, self.dtype)
    count = _scattered(model.full(self.shape, 0, self.dtype), dim, index, ones, "add")
    if not include_self:
        least = 0 if reduce in ("sum", "mean") else 1 if reduce == "prod" else None
        if least is not None:
            self = where(count > 0, self.lift(least, self.dtype), self)
        else:
            ends = self.dtype.limits if self.dtype.is_int else (float("-inf"), float("inf"))
            end = ends[0] if reduce == "amax" else ends[1]
            self = where(count > 0, self.lift(end, self.dtype), self)
    if reduce != "mean":
        return _scattered(self, dim, index, src, HOW[reduce])
    total = _scattered(self, dim, index, src, "add")
    number = count + 1 if include_self else count.maximum(1)
    return total / number if self.dtype.is_float else total // number


@aten("index_add", halves=True)
def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Any = 1) -> Tensor:
    axis = along(self, dim)
    row = index.reshape(-1, *[1] * (self.ndim - axis - 1)).broadcast_to(*source.shape)
    return self.scatter(axis, row, source if alpha == 1 else source * alpha, "add")


@aten("index_fill.int_Scalar", halves=True)
def index_fill(self: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    axis = along(self, dim)
    place = self.model.arange(self.shape[axis])
    size = self.model.size(self.shape[axis], DType.I64)
    at = where(index < 0, index.to(DType.I64) + size, index.to(DType.I64))
    hit = (at.unsqueeze(-1) == place).any(0).reshape(-1, *[1] * (self.ndim - axis - 1))
    return where(hit, self.lift(value, self.dtype), self)


@aten("masked_scatter", halves=True)
def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The n-th element where the mask holds is the n-th of the source."""
    hit = mask.broadcast_to(*self.shape)
    number = hit.flatten().cumsum(0) - 1
    found = source.flatten().index_select(0, number).reshape(*self.shape)
    return where(hit, found.to(self.dtype), self)


@aten("one_hot")
def one_hot(self: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:
        raise Unsupported("the number of classes depends on values", "give num_classes")
    return (self.unsqueeze(-1) == self.model.arange(num_classes, dtype=self.dtype)).to(DType.I64)


# ---- in order


@aten("topk", halves=True, note="above 1024 elements at most 64 of them")
def topk(self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return over(lambda x, axis: x.topk(k, axis, largest) if k else _none(x, axis), self, dim)


def _none(x: Tensor, axis: int) -> Any:
    empty = x.slice(axis, 0, 0)
    return empty, x.model.full(empty.shape, 0, DType.I64)


@aten("sort", "sort.stable", halves=True, note="at most 1024 elements")
def sort(self: Tensor, dim: int = -1, descending: bool = False) -> Any:
    return over(lambda x, axis: x.sort(axis, descending), self, dim)


@aten("argsort", "argsort.stable", halves=True, note="at most 1024 elements")
def argsort(self: Tensor, dim: int = -1, descending: bool = False) -> Any:
    return sort(self, dim, descending)[1]


@aten("kthvalue", halves=True, note="at most 1024 elements")
def kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    def nth(x: Tensor, axis: int) -> Any:
        return tuple(v.slice(axis, k - 1, k) for v in x.sort(axis))

    found = over(nth, self, dim) if self.ndim else (self, self.model.full((), 0, DType.I64))
    return found if keepdim or not self.ndim else tuple(v.squeeze(along(self, dim)) for v in found)
