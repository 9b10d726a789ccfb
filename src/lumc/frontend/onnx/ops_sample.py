"""Sampling at computed positions, and discrete Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.join import stack
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.ops_math import in_f32
from lumc.frontend.onnx.ops_shape import integers, normal
from lumc.frontend.onnx.registry import Unsupported, operator
from lumc.frontend.onnx.symbols import Array
from lumc.frontend.onnx.values import constant_tensor

# ---- grid sample


@operator("GridSample", since=16)
@in_f32
def grid_sample(
    X: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Tensor:
    """Per axis, weights of the input elements at each sample; then a sum over all axes.

    X [n, c, d..], grid [n, o.., r] of positions in -1..1, the last axis of X first.
    """
    if not grid.dtype.is_float or not X.dtype.is_float:
        raise Unsupported("of ints")
    rank = X.ndim - 2
    outer = grid.shape[1:-1]
    product = X.unsqueeze(*range(2, 2 + len(outer)))  # [n, c, o.., d..]
    for i in range(rank):
        length = X.shape[2 + i]
        if not isinstance(length, int):
            raise Unsupported("of an input with symbolic sizes", "bind the dims with --dim")
        share = _shares(grid[..., rank - 1 - i], length, bool(align_corners), mode, padding_mode)
        product = product * share.reshape(
            grid.shape[0], 1, *outer, *[1] * i, length, *[1] * (rank - 1 - i)
        )
    return product.sum(tuple(range(product.ndim - rank, product.ndim)))


def _shares(g: Tensor, length: int, align: bool, mode: str, padding: str) -> Tensor:
    """[.., length]: how much of every input element a sample at g in -1..1 takes."""
    low, high = (0.0, length - 1.0) if align else (-0.5, length - 0.5)
    x = (g + 1.0) * ((length - 1) / 2.0) if align else ((g + 1.0) * float(length) - 1.0) * 0.5
    if mode == "nearest":
        x = x.round()
    if padding == "border":
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
        raise Unsupported(f"mode {mode}")
    place = x.model.arange(length, dtype=x.dtype)
    total = None
    for position, weight in taps:
        if padding == "border":
            position = position.clip(0.0, length - 1.0)
        elif padding == "reflection":
            position = _reflected(position, low, high).trunc()
        part = (position.unsqueeze(-1) == place) * weight.unsqueeze(-1)
        total = part if total is None else total + part
    assert total is not None
    return total


def _reflected(x: Tensor, low: float, high: float) -> Tensor:
    """Mirror at both borders until inside."""
    span = high - low
    if span <= 0.0:
        return x * 0.0 + low
    distance = (x - low).abs().fmod(2.0 * span)
    return where(distance > span, 2.0 * span - distance, distance) + low


def _cubic(distance: Tensor, tap: int) -> Tensor:
    """Keys' kernel with a = -0.75; the inner two taps lie at most 1 away."""
    a, d = -0.75, distance
    if tap in (0, 1):
        return ((a + 2) * d - (a + 3)) * d * d + 1.0
    return ((d * a - 5 * a) * d + 8 * a) * d - 4 * a


# ---- Fourier transforms

MAX_WAVES = 1 << 24  # elements of a transform's matrix


def _waves(rows: int, columns: int, length: int, sign: float) -> tuple[Array, Array]:
    """cos and sin of ``sign * 2 pi row column / length``, [rows, columns]."""
    angle = sign * 2.0 * np.pi / length * (np.outer(np.arange(rows), np.arange(columns)) % length)
    return np.cos(angle), np.sin(angle)


def fourier(x: Tensor, axis: int, length: int | None, inverse: bool, onesided: bool) -> Tensor:
    """The transform along an axis of x [.., 1 or 2], whose last axis is (real, imaginary)."""
    axis = normal(axis, x.ndim)
    size, parts = x.shape[axis], x.shape[-1]
    if not isinstance(size, int):
        raise Unsupported("a transform along a symbolic dim", "bind the dim with --dim")
    half = inverse and onesided
    n = length if length is not None else 2 * (size - 1) if half else size
    used = min(size, n // 2 + 1 if half else n)
    out = n // 2 + 1 if onesided and not inverse else n
    if used * out > MAX_WAVES:
        raise Unsupported(f"a transform of {used} to {out} elements")
    lines = x.slice(axis, 0, used).moveaxis(axis, -2)  # [.., used, parts]
    cos, sin = _waves(used, out, n, 1.0 if inverse else -1.0)
    if inverse:
        cos, sin = cos / n, sin / n
    if half:  # the other half is the mirror image: every wave counts twice, but for the ends
        twice = np.full((used, 1), 2.0)
        twice[0] = 1.0
        if n % 2 == 0 and used == n // 2 + 1:
            twice[-1] = 1.0
        cos, sin = cos * twice, sin * twice
    c = constant_tensor(x.model, cos.astype(x.dtype.numpy))
    s = constant_tensor(x.model, sin.astype(x.dtype.numpy))
    real = lines[..., 0]
    imaginary = lines[..., 1] if parts == 2 else None
    first, second = real @ c, real @ s
    if imaginary is not None:
        first, second = first - imaginary @ s, second + imaginary @ c
    whole = first.unsqueeze(-1) if half else stack([first, second], -1)
    return whole.moveaxis(-2, axis)


@operator("DFT", since=20, known=["dft_length", "axis"])
@in_f32
def dft(
    input: Tensor, dft_length: Any = None, axis: Any = None, *, inverse: int = 0, onesided: int = 0
) -> Tensor:
    length = None if dft_length is None else integers(dft_length, "dft_length")[0]
    at = -2 if axis is None else integers(axis, "axis")[0]
    return fourier(input, at, length, bool(inverse), bool(onesided))


@operator("DFT", since=17, known=["dft_length"])
@in_f32
def dft_17(
    input: Tensor, dft_length: Any = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Tensor:
    length = None if dft_length is None else integers(dft_length, "dft_length")[0]
    return fourier(input, axis, length, bool(inverse), bool(onesided))


@operator("STFT", since=17, known=["frame_step", "frame_length"])
@in_f32
def stft(
    signal: Tensor,
    frame_step: Any,
    window: Tensor | None = None,
    frame_length: Any = None,
    *,
    onesided: int = 1,
) -> Tensor:
    """signal [b, n, 1 or 2] -> [b, frames, bins, 2]."""
    (step,) = integers(frame_step, "frame_step")
    if frame_length is not None:
        (size,) = integers(frame_length, "frame_length")
    else:
        size = signal.shape[1] if window is None else window.shape[0]  # type: ignore[assignment]
    frames = signal.unfold(1, size, step).transpose(2, 3)  # [b, frames, size, parts]
    if window is not None:
        frames = frames * window.unsqueeze(-1)
    return fourier(frames, -2, None, False, bool(onesided))
