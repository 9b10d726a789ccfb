"""Sampling at computed positions, and discrete Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np

from lumc.frontend.api.halves import in_f32
from lumc.frontend.api.join import stack
from lumc.frontend.api.symbols import Array
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.ops_shape import integers, normal
from lumc.frontend.onnx.registry import Unsupported, operator
from lumc.frontend.onnx.values import constant_tensor


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
    return X.grid_sample(grid, mode, padding_mode, bool(align_corners))


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
