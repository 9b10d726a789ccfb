"""Sound as a log-mel spectrogram, the features that Whisper is given.

The definition is that of the model's paper (https://arxiv.org/abs/2212.04356, section 2.2), with
the mel scale and the areas of Slaney's Auditory Toolbox.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from lumc.speech.sound import RATE

Array = np.ndarray[Any, Any]
WINDOW, HOP = 400, 160  # samples
LEAST, SPAN = 1e-10, 8.0  # of a power; decades below the greatest one
LINEAR_HZ, LINEAR_MEL = 1000.0, 15.0  # up to here a mel is 200/3 Hz
DECADE = np.log(6.4) / 27  # above, of the logarithm


def log_mel(samples: Array, mels: int, frames: int) -> Array:
    """Samples f32[n] -> features f32[mels, frames], a frame for 160 samples; what is not there is
    silence, and what is too long is left out."""
    n = frames * HOP
    whole = np.zeros(n)
    whole[: min(n, len(samples))] = samples[:n]
    padded = np.pad(whole, WINDOW // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:frames]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = np.abs(np.fft.rfft(windows * hann)) ** 2  # f64[frames, bins]
    said = np.log10(np.maximum(power @ filters(mels), LEAST)).T
    said = np.maximum(said, said.max() - SPAN)
    return np.ascontiguousarray((said + 4) / 4, np.float32)


@cache
def filters(mels: int) -> Array:
    """Triangles f64[bins, mels] over 0..8,000 Hz, each of the area 1."""
    edges = to_hz(np.linspace(0, to_mel(RATE / 2), mels + 2))
    bins = np.arange(WINDOW // 2 + 1)[:, None] * (RATE / WINDOW)
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (bins - low) / (middle - low), (high - bins) / (high - middle)
    made: Array = np.maximum(np.minimum(rising, falling), 0) * (2 / (high - low))
    return made


def to_mel(hz: float) -> float:
    """Of a frequency above 1,000 Hz."""
    return float(LINEAR_MEL + np.log(hz / LINEAR_HZ) / DECADE)


def to_hz(mel: Array) -> Array:
    above = LINEAR_HZ * np.exp((mel - LINEAR_MEL) * DECADE)
    return np.where(mel < LINEAR_MEL, mel * (LINEAR_HZ / LINEAR_MEL), above)
