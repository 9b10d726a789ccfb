"""Pooling, and windows as columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lumc.frontend.api.contract import windows
from lumc.frontend.api.join import stack
from lumc.frontend.api.pool import fold, greatest_at
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.aten.axes import few
from lumc.frontend.aten.ops_contract import batched, each
from lumc.frontend.aten.registry import Unsupported, aten

Sizes = Sequence[int]


def pads_of(x: Tensor, kernel: Sizes, steps: Sizes, pads: Sizes, gaps: Sizes) -> list[Any]:
    """(before, after) that make room for the last, partial windows; these start inside."""
    out = []
    for i, p in enumerate(pads):
        length, span = x.shape[2 + i], (kernel[i] - 1) * gaps[i] + 1
        if not isinstance(length, int):
            raise Unsupported("ceil_mode along a symbolic dim", "bind the dim with --dim")
        count = -(-(length + 2 * p - span) // steps[i]) + 1
        count -= (count - 1) * steps[i] >= length + p
        out.append((p, max((count - 1) * steps[i] + span - length - p, p)))
    return out


@aten("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d_with_indices", halves=True)
def max_pool_with_indices(
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    rank = self.ndim - 2 if len(kernel_size) == 1 else len(kernel_size)
    kernel, gaps = each(kernel_size, rank), each(dilation, rank)
    steps, pads = each(stride, rank) if len(stride) else kernel, each(padding, rank)

    def pooled(x: Tensor) -> Any:
        around = pads_of(x, kernel, steps, pads, gaps) if ceil_mode else [(p, p) for p in pads]
        inner = math.prod(e for e in x.shape[2:] if isinstance(e, int))
        place = x.model.arange(inner).reshape(1, 1, *x.shape[2:]).expand(*x.shape)
        values = x.max_pool(kernel, steps, around, gaps)
        return values, greatest_at(x, place, kernel, steps, around, gaps)

    return batched(self, rank, pooled)


@aten("max_pool1d", "max_pool2d", "max_pool3d", halves=True)
def max_pool(
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Tensor:
    rank = len(kernel_size)
    steps = list(stride) or None
    return batched(
        self,
        rank,
        lambda x: x.max_pool(
            kernel_size, steps, each(padding, rank), each(dilation, rank), ceil_mode
        ),
    )


@aten("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    rank = len(kernel_size)
    kernel = each(kernel_size, rank)
    steps, pads = each(stride, rank) if len(stride) else kernel, each(padding, rank)

    def pooled(x: Tensor) -> Tensor:
        if divisor_override is None:
            return x.avg_pool(kernel, steps, pads, ceil_mode, count_include_pad)
        ones = [1] * rank
        around = pads_of(x, kernel, steps, pads, ones) if ceil_mode else [(p, p) for p in pads]
        seen = windows(x.pad([(0, 0), (0, 0), *around]), kernel, steps, ones)
        return seen.sum(tuple(range(-rank, 0))) * (1.0 / divisor_override)

    return batched(self, rank, pooled)


@aten(
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
)
def adaptive_avg_pool(self: Tensor, output_size: Sizes) -> Tensor:
    return batched(self, len(output_size), lambda x: x.adaptive_avg_pool(output_size))


@aten("adaptive_max_pool2d", halves=True, note="without the positions")
def adaptive_max_pool(self: Tensor, output_size: Sizes) -> Any:
    def pooled(x: Tensor) -> Tensor:
        for i, m in enumerate(output_size):
            few(m, "windows")
            n = x.shape[2 + i]
            if not isinstance(n, int):
                raise Unsupported("adaptive pooling of symbolic dims", "bind them with --dim")
            spans = [(j * n // m, -(-(j + 1) * n // m)) for j in range(m)]
            x = stack([x.slice(2 + i, a, b).max(2 + i) for a, b in spans], 2 + i)
        return x

    return batched(self, len(output_size), pooled), None


@aten("im2col")
def im2col(
    self: Tensor, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Tensor:
    kernel, pads = each(kernel_size, 2), each(padding, 2)

    def columns(x: Tensor) -> Tensor:
        wide = x.pad([(0, 0), (0, 0), *((p, p) for p in pads)])
        seen = windows(wide, kernel, each(stride, 2), each(dilation, 2))  # [n, c, h, w, kh, kw]
        return seen.permute(0, 1, 4, 5, 2, 3).flatten(4, 5).flatten(1, 3)

    return batched(self, 2, columns)


@aten("col2im")
def col2im(
    self: Tensor,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes,
    padding: Sizes,
    stride: Sizes,
) -> Tensor:
    pads = [(p, p) for p in each(padding, 2)]
    kernel, steps, gaps = each(kernel_size, 2), each(stride, 2), each(dilation, 2)
    x = self if self.ndim == 3 else self.unsqueeze(0)
    whole = fold(x, list(output_size), kernel, steps, pads, gaps)
    return whole if self.ndim == 3 else whole.squeeze(0)
