"""Sampling at computed positions, by weights of the elements along each axis."""

from __future__ import annotations

from lumc.frontend.api.elementwise import eq, where
from lumc.frontend.api.refusal import refuse
from lumc.frontend.api.value import V


def grid_sample(
    x: V,
    grid: V,
    mode: str = "linear",
    padding: str = "zeros",
    align_corners: bool = False,
    moved: bool = True,
) -> V:
    """Per axis, weights of the input elements at each sample; then a sum over all axes.

    x [n, c, d..], grid [n, o.., r] of positions in -1..1, the last axis of x first. ``mode``:
    nearest, linear, cubic; ``padding``: zeros, border, reflection. ``moved``: with the
    border, samples outside lie on it before their neighbours are looked for.
    """
    if not grid.dtype.is_float or not x.dtype.is_float:
        raise refuse("E0125", "of ints")
    rank = x.ndim - 2
    outer = grid.shape[1:-1]
    product = x.unsqueeze(*range(2, 2 + len(outer)))  # [n, c, o.., d..]
    for i in range(rank):
        length = x.shape[2 + i]
        if not isinstance(length, int):
            raise refuse("E0125", "of an input with symbolic sizes", fix="bind the dims with --dim")
        share = _shares(grid[..., rank - 1 - i], length, align_corners, mode, padding, moved)
        product = product * share.reshape(
            grid.shape[0], 1, *outer, *[1] * i, length, *[1] * (rank - 1 - i)
        )
    return product.sum(tuple(range(product.ndim - rank, product.ndim)))


def _shares(g: V, length: int, align: bool, mode: str, padding: str, moved: bool) -> V:
    """[.., length]: how much of every input element a sample at g in -1..1 takes."""
    low, high = (0.0, length - 1.0) if align else (-0.5, length - 0.5)
    x = (g + 1.0) * ((length - 1) / 2.0) if align else ((g + 1.0) * float(length) - 1.0) * 0.5
    if mode == "nearest":
        x = x.round()
    if padding == "border" and moved:
        x = x.clip(0.0, length - 1.0)
    elif padding == "reflection":
        x = _reflected(x, low, high)
    if mode == "nearest":
        taps = [(x.round(), x.model.full((), 1.0, x.dtype))]
    elif mode in ("linear", "bilinear"):
        base = x.floor()
        taps = [(base, 1.0 - (x - base)), (base + 1.0, x - base)]
    elif mode in ("cubic", "bicubic"):
        base = x.floor()
        taps = [(base + float(k), _cubic((x - base - float(k)).abs(), k)) for k in (-1, 0, 1, 2)]
    else:
        raise refuse("E0125", f"mode {mode}")
    place = x.model.arange(length, dtype=x.dtype)
    total: V | None = None
    for position, weight in taps:
        if padding == "border":
            position = position.clip(0.0, length - 1.0)
        elif padding == "reflection":
            position = _reflected(position, low, high).trunc()
        part = eq(position.unsqueeze(-1), place) * weight.unsqueeze(-1)
        total = part if total is None else total + part
    assert total is not None
    return total


def _reflected(x: V, low: float, high: float) -> V:
    """Mirror at both borders until inside."""
    span = high - low
    if span <= 0.0:
        return x * 0.0 + low
    distance = (x - low).abs().fmod(2.0 * span)
    return where(distance > span, 2.0 * span - distance, distance) + low


def _cubic(distance: V, tap: int) -> V:
    """Keys' kernel with a = -0.75; the inner two taps lie at most 1 away."""
    a, d = -0.75, distance
    if tap in (0, 1):
        return ((a + 2) * d - (a + 3)) * d * d + 1.0
    return ((d * a - 5 * a) * d + 8 * a) * d - 4 * a
