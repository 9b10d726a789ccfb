"""Windows: where their greatest elements lie, and what they add up to where they overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lumc.frontend.api.contract import windows
from lumc.frontend.api.elementwise import eq
from lumc.frontend.api.join import pad
from lumc.frontend.api.value import V
from lumc.frontend.api.view import times
from lumc.graph.ops import DType

Pads = Sequence[tuple[int, int]]


def greatest_at(
    x: V,
    positions: V,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Pads,
    dilations: Sequence[int],
) -> V:
    """Of the first of the greatest elements of every window what ``positions``, i64 of the shape of
    x, say. x [n, c, in..] -> [n, c, out..], as in ``max_pool``."""
    rank, model = len(kernel), x.model
    widths, axes = [(0, 0), (0, 0), *pads], tuple(range(2 + rank, 2 + 2 * rank))
    least = float("-inf") if x.dtype.is_float else x.dtype.limits[0]
    seen = windows(pad(x, widths, least), kernel, strides, dilations)
    places = windows(pad(positions, widths), kernel, strides, dilations)
    inside = pad(model.full(x.shape, True, DType.BOOL), widths)
    count = model.size(1, DType.I64)
    for e in x.shape:
        count = count * model.size(e, DType.I64)
    best = eq(seen, seen.max(axes).unsqueeze(*axes)) & windows(inside, kernel, strides, dilations)
    return count - (best * (count - places)).max(axes)


def fold(
    x: V,
    image: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Pads,
    dilations: Sequence[int],
) -> V:
    """Overlapping blocks are added: x [n, c * prod(kernel), blocks] -> [n, c, image..], by a
    transposed convolution with one-hot windows."""
    rank, count, channels = len(kernel), math.prod(kernel), x.shape[1]
    if not isinstance(channels, int):
        raise x.refuse("E0125", "a symbolic number of channels", "bind the dim with --dim")
    spans = [dilations[i] * (kernel[i] - 1) + 1 for i in range(rank)]
    blocks = [(image[i] + sum(pads[i]) - spans[i]) // strides[i] + 1 for i in range(rank)]
    n, c = x.shape[0], channels // count
    patches = x.reshape(n, c, count, *blocks).reshape(times(n, c), count, *blocks)
    eye = x.model.eye(count, dtype=x.dtype).reshape(count, 1, *kernel)
    extra = [
        image[i] + sum(pads[i]) - ((blocks[i] - 1) * strides[i] + spans[i]) for i in range(rank)
    ]
    return patches.conv_transpose(eye, None, strides, pads, extra, dilations).reshape(n, c, *image)
