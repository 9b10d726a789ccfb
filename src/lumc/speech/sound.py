"""Files of sound as samples: 16,000 in a second, of one channel."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lumc.errors import Exit, LumcError

Array = np.ndarray[Any, Any]
RATE = 16_000  # samples in a second
MAX_BYTES = 1 << 31  # of a file: 9 hours of two channels
RATES = range(1_000, 400_000)
MAX_CHANNELS = 32
FIX = "ffmpeg -i FILE -ar 16000 -ac 1 -c:a pcm_s16le sound.wav makes a .wav of any sound"


def read_wav(path: str | Path) -> Array:
    """Samples f32[n] in -1..1 of a .wav with integers (PCM): its channels together, and at 16,000
    in a second, whatever the file has. Raises E0620, and E0201 where there is none."""
    try:
        if Path(path).is_file() and Path(path).stat().st_size > MAX_BYTES:
            raise wave.Error(f"more than {MAX_BYTES} bytes")
        with Path(path).open("rb") as f:
            samples, rate = _samples(f)
    except OSError as e:
        what = f"cannot read {path}: {e.strerror or e}"
        raise LumcError("E0201", what, exit=Exit.USAGE) from None
    except (wave.Error, EOFError, ValueError, RuntimeError) as e:  # the last one: of its chunks
        what = f"no .wav of integers: {str(e) or 'it ends too early'}"
        raise LumcError("E0620", what, where=str(path), fix=FIX, exit=Exit.UNSUPPORTED) from None
    return resampled(samples, rate)


def _samples(f: BinaryIO) -> tuple[Array, int]:
    """f32[n], and how many are a second."""
    with wave.open(f) as w:
        channels, nbytes, rate = w.getnchannels(), w.getsampwidth(), w.getframerate()
        if not 1 <= channels <= MAX_CHANNELS or nbytes not in (1, 2, 3, 4) or rate not in RATES:
            raise wave.Error(f"{channels} channels of {8 * nbytes} bits, {rate} Hz")
        raw = w.readframes(MAX_BYTES // (channels * nbytes))  # as many as there are
    raw = raw[: len(raw) // (channels * nbytes) * channels * nbytes]
    if nbytes == 3:  # as the upper bytes of 32 bits
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        values = wide.reshape(-1).view("<i4").astype(np.float32) / (1 << 31)
    else:
        values = np.frombuffer(raw, f"<{'u' if nbytes == 1 else 'i'}{nbytes}").astype(np.float32)
        values = values / (1 << 8 * nbytes - 1) - (nbytes == 1)
    return values.reshape(-1, channels).mean(1, dtype=np.float32), rate


def resampled(samples: Array, rate: int) -> Array:
    """At 16,000 in a second, f32: the same spectrum below the half of the lower rate."""
    n = round(len(samples) * RATE / rate)
    if rate == RATE or not n:
        return samples.astype(np.float32)[:n]
    spectrum = np.fft.rfft(samples)
    kept = np.zeros(n // 2 + 1, np.complex128)
    both = min(len(kept), len(spectrum))
    kept[:both] = spectrum[:both]
    return (np.fft.irfft(kept, n) * (n / len(samples))).astype(np.float32)
