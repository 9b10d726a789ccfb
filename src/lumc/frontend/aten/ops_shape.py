"""Shapes and movement: views, slices, joins, pads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lumc.frontend.api.join import concat, stack
from lumc.frontend.api.pick import padded
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.view import place, plus, times
from lumc.frontend.aten.axes import along, axes, few, static
from lumc.frontend.aten.program import Meta
from lumc.frontend.aten.registry import Unsupported, aten
from lumc.graph.dim import Extent
from lumc.graph.expr import add, mul, num

Sizes = Sequence[Extent]

# ---- views


@aten("view", "_unsafe_view", "view_copy", halves=True)
def view(self: Tensor, size: Sizes) -> Tensor:
    if 0 in self.shape and -1 in size:
        size = [0 if e == -1 else e for e in size]
    return self.reshape(*size)


@aten("reshape", halves=True)
def reshape(self: Tensor, shape: Sizes) -> Tensor:
    return view(self, shape)


@aten("_reshape_alias", halves=True)
def reshape_alias(self: Tensor, size: Sizes, stride: Sizes) -> Tensor:
    return view(self, size)


@aten("view_as", halves=True)
def view_as(self: Tensor, other: Tensor) -> Tensor:
    return view(self, other.shape)


@aten("flatten.using_ints", halves=True)
def flatten(self: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    return self.flatten(along(self, start_dim), along(self, end_dim))


@aten("ravel", halves=True)
def ravel(self: Tensor) -> Tensor:
    return self.flatten()


@aten("unflatten.int", halves=True)
def unflatten(self: Tensor, dim: int, sizes: Sizes) -> Tensor:
    return self.unflatten(dim, sizes)


@aten("permute", halves=True)
def permute(self: Tensor, dims: Sequence[int]) -> Tensor:
    return self.permute(*dims)


@aten("transpose.int", halves=True)
def transpose(self: Tensor, dim0: int, dim1: int) -> Tensor:
    a, b = along(self, dim0), along(self, dim1)
    return self.transpose(a, b) if self.ndim else self


@aten("swapdims", halves=True)
def swapdims(self: Tensor, dim0: int, dim1: int) -> Tensor:
    return transpose(self, dim0, dim1)


@aten("swapaxes", halves=True)
def swapaxes(self: Tensor, axis0: int, axis1: int) -> Tensor:
    return transpose(self, axis0, axis1)


@aten("t", halves=True)
def t(self: Tensor) -> Tensor:
    return self.transpose(0, 1) if self.ndim == 2 else self


@aten("numpy_T", halves=True)
def numpy_t(self: Tensor) -> Tensor:
    return self.T


@aten("movedim.int", "moveaxis.int", halves=True)
def movedim(self: Tensor, source: int, destination: int) -> Tensor:
    return self.moveaxis(source, destination)


@aten("movedim.intlist", "moveaxis.intlist", halves=True)
def movedims(self: Tensor, source: Sequence[int], destination: Sequence[int]) -> Tensor:
    to = dict(
        zip((along(self, d) for d in destination), (along(self, s) for s in source), strict=True)
    )
    rest = iter(i for i in range(self.ndim) if i not in to.values())
    return self.permute(*(to[i] if i in to else next(rest) for i in range(self.ndim)))


@aten("expand", halves=True)
def expand(self: Tensor, size: Sizes) -> Tensor:
    return self.broadcast_to(*size)


@aten("expand_as", halves=True)
def expand_as(self: Tensor, other: Tensor) -> Tensor:
    return self.broadcast_to(*other.shape)


@aten("squeeze", "squeeze.dim", "squeeze.dims", halves=True)
def squeeze(self: Tensor, dim: Any = None) -> Tensor:
    chosen = range(self.ndim) if dim is None else axes(self, dim) if dim != [] else []
    return self.squeeze([d for d in chosen if self.shape[d] == 1])


@aten("unsqueeze", halves=True)
def unsqueeze(self: Tensor, dim: int) -> Tensor:
    return self.unsqueeze(dim)


@aten("select.int", halves=True)
def select(self: Tensor, dim: int, index: Extent) -> Tensor:
    return self[(slice(None),) * along(self, dim) + (index,)]


@aten("slice.Tensor", halves=True)
def slice_(self: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    return self[(slice(None),) * along(self, dim) + (slice(start, end, step),)]


@aten("narrow", halves=True)
def narrow(self: Tensor, dim: int, start: Extent, length: Extent) -> Tensor:
    if isinstance(start, int) and start < 0:
        start = plus(self.shape[along(self, dim)], start)
    return self.slice(along(self, dim), start, plus(start, length))


@aten("unfold", halves=True)
def unfold(self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    return self.unfold(along(self, dimension), size, step)


@aten("diagonal", halves=True)
def diagonal(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = along(self, dim1), along(self, dim2)
    x = self.permute(*(i for i in range(self.ndim) if i not in (a, b)), a, b)
    rows, columns = x.shape[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise Unsupported(f"a diagonal of {self.describe()}", "bind the dims with --dim")
    down, right = max(-offset, 0), max(offset, 0)
    n = max(min(rows - down, columns - right), 0)
    return x[..., down : down + n, right : right + n].diagonal()


@aten("as_strided", halves=True, note="of a tensor without gaps")
def as_strided(
    self: Tensor,
    size: Sizes,
    stride: Sizes,
    storage_offset: int | None = None,
    meta: Meta | None = None,
) -> Tensor:
    whole = math.prod(n for n in self.shape if isinstance(n, int))
    dense = meta is not None and meta.strides == _dense(meta.shape)
    known = all(isinstance(e, int) for e in (*self.shape, *size, *stride))
    if not known or (not dense and whole > 1):
        raise Unsupported(
            "the places of its elements in memory are not known", "write it with views and slices"
        )
    return strided(self, size, stride, storage_offset or 0)  # type: ignore[arg-type]


def strided(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """Elements of x, taken as one row, at ``offset + i * stride[0] + ..``."""
    flat, index = x.flatten(), num(offset)
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    whole = math.prod(n for n in flat.shape if isinstance(n, int))
    if 0 not in size and not 0 <= last < whole:
        raise ValueError(f"{list(size)} with strides {list(stride)} leaves {x.describe()}")
    for i, (n, s) in enumerate(zip(size, stride, strict=True)):
        index = index if n == 1 else add(index, mul(place(i), s))
    if 0 in size:
        return x.model.full(size, 0, x.dtype)
    return flat.view(size, [index])


def _dense(shape: Sequence[int | None]) -> tuple[int | None, ...]:
    strides, step = list[int | None](), 1
    for n in reversed(shape):
        strides.insert(0, step)
        step *= n or 1
    return tuple(strides)


# ---- parts and wholes


@aten("cat", "concat", "concatenate", halves=True)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    real = [x for x in tensors if x.shape != (0,)] or list(tensors[:1])
    return concat(real, along(real[0], dim))


@aten("stack", halves=True)
def stack_(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return stack(list(tensors), dim)


@aten("split_with_sizes", "split", halves=True)
def split_with_sizes(self: Tensor, split_sizes: Sizes, dim: int = 0) -> list[Tensor]:
    return self.split(list(split_sizes), dim)


@aten("split.Tensor", "unsafe_split.Tensor", "split.sizes", halves=True)
def split(self: Tensor, split_size: Any, dim: int = 0) -> list[Tensor]:
    if isinstance(split_size, int) and split_size > 0:
        (size,) = static([self.shape[along(self, dim)]], "a split")
        few(-(-size // split_size), "parts")
    return self.split(split_size, dim)


@aten("chunk", halves=True)
def chunk(self: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    return self.chunk(few(chunks, "parts"), dim)


@aten("unbind.int", halves=True)
def unbind(self: Tensor, dim: int = 0) -> list[Tensor]:
    (size,) = static([self.shape[along(self, dim)]], "unbind")
    few(size, "parts")
    return self.unbind(dim)


@aten("flip", halves=True)
def flip(self: Tensor, dims: Sequence[int]) -> Tensor:
    return self.flip([along(self, d) for d in dims]) if self.ndim and dims else self


@aten("roll", halves=True)
def roll(self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not len(dims):
        return self.flatten().roll(shifts[0], 0).reshape(*self.shape)
    x = self
    for shift, dim in zip(shifts, dims, strict=True):
        x = x.roll(shift, along(x, dim))
    return x


@aten("repeat", halves=True)
def repeat(self: Tensor, repeats: Sequence[int]) -> Tensor:
    if 0 in repeats:
        ones = [1] * (len(repeats) - self.ndim)
        shape = [times(e, n) for e, n in zip((*ones, *self.shape), repeats, strict=True)]
        return self.model.full(shape, 0, self.dtype)
    return self.repeat(*repeats) if len(repeats) else self


@aten("tile", halves=True)
def tile(self: Tensor, dims: Sequence[int]) -> Tensor:
    return repeat(self, [1] * (self.ndim - len(dims)) + list(dims))


@aten("repeat_interleave.self_int", halves=True)
def repeat_interleave(
    self: Tensor, repeats: int, dim: int | None = None, output_size: Any = None
) -> Tensor:
    x = self.flatten() if dim is None else self
    return x.repeat_interleave(repeats, 0 if dim is None else dim)


@aten("slice_scatter", halves=True)
def slice_scatter(
    self: Tensor, src: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    axis = along(self, dim)
    length = self.shape[axis]
    if not isinstance(length, int):
        raise Unsupported(f"of the symbolic axis {axis}", "bind the dim with --dim")
    chosen = range(*slice(start, end, step).indices(length))
    if not chosen:
        return self
    if step == 1:
        parts = [self.slice(axis, 0, chosen[0]), src, self.slice(axis, chosen[-1] + 1, length)]
        return concat([p for p in parts if p.shape[axis] != 0], axis)
    at = self.model.arange(length).reshape(-1, *[1] * (self.ndim - axis - 1))
    rest = length - chosen[0] - len(chosen) * step
    wide = src.repeat_interleave(step, axis)
    wide = padded(wide, axis, chosen[0], rest, "constant", 0)
    hit = (at >= chosen[0]) & ((at - chosen[0]).remainder(step) == 0)
    return wide.where(hit, self)


@aten("select_scatter", halves=True)
def select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    axis = along(self, dim)
    at = plus(self.shape[axis], index) if index < 0 else index
    return slice_scatter(self, src.unsqueeze(axis), axis, at, plus(at, 1))


@aten("tril", halves=True)
def tril(self: Tensor, diagonal: int = 0) -> Tensor:
    return self.tril(diagonal)


@aten("triu", halves=True)
def triu(self: Tensor, diagonal: int = 0) -> Tensor:
    return self.triu(diagonal)


# ---- pads


def around(x: Tensor, widths: Sequence[int], mode: str, value: Any = 0) -> Tensor:
    """Pad the last axes, the last one first; negative widths cut."""
    for i in range(len(widths) // 2):
        before, after = widths[2 * i], widths[2 * i + 1]
        x = padded(x, x.ndim - 1 - i, before, after, mode, value)
    return x


@aten("constant_pad_nd", halves=True)
def constant_pad_nd(self: Tensor, pad: Sequence[int], value: Any = 0) -> Tensor:
    return around(self, pad, "constant", value)


@aten("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", halves=True)
def reflection_pad(self: Tensor, padding: Sequence[int]) -> Tensor:
    return around(self, padding, "reflect")


@aten("replication_pad1d", "replication_pad2d", "replication_pad3d", halves=True)
def replication_pad(self: Tensor, padding: Sequence[int]) -> Tensor:
    return around(self, padding, "edge")


MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@aten("pad", halves=True)
def pad(
    self: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    return around(self, pad, MODES[mode], value or 0)


@aten("pixel_shuffle", halves=True)
def pixel_shuffle(self: Tensor, upscale_factor: int) -> Tensor:
    *lead, c, h, w = self.shape
    r, n = upscale_factor, len(lead)
    parts = self.unflatten(n, (-1, r, r))  # [.., c, r, r, h, w]
    return parts.permute(*range(n + 1), n + 3, n + 1, n + 4, n + 2).reshape(
        *lead, _quotient(c, r * r), times(h, r), times(w, r)
    )


@aten("pixel_unshuffle", halves=True)
def pixel_unshuffle(self: Tensor, downscale_factor: int) -> Tensor:
    *lead, c, h, w = self.shape
    r, n = downscale_factor, len(lead)
    parts = self.unflatten(-1, (-1, r)).unflatten(-3, (-1, r))  # [.., c, h, r, w, r]
    return parts.permute(*range(n + 1), n + 2, n + 4, n + 1, n + 3).reshape(
        *lead, times(c, r * r), _quotient(h, r), _quotient(w, r)
    )


def _quotient(e: Extent, n: int) -> int:
    if not isinstance(e, int) or e % n:
        raise Unsupported(f"an extent of {e} in parts of {n}", "bind the dims with --dim")
    return e // n
