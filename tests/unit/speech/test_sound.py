"""Files of sound: what is in them, at the rate of the model, or one clear error."""

from __future__ import annotations

import random
import struct
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzz.damage import damaged
from lumc.errors import Exit, LumcError
from lumc.speech import sound
from lumc.speech.sound import read_wav, resampled

Array = np.ndarray[Any, Any]


def written(path: Path, values: Array, nbytes: int = 2, rate: int = 16_000) -> Path:
    """Values f64[n, channels] in -1..1 as integers."""
    whole = np.round(values * ((1 << 8 * nbytes - 1) - 1)).astype(np.int64)
    if nbytes == 1:
        whole = whole + 128
    raw = b"".join(int(v).to_bytes(nbytes, "little", signed=nbytes > 1) for v in whole.reshape(-1))
    with wave.open(str(path), "wb") as w:
        w.setnchannels(values.shape[1])
        w.setsampwidth(nbytes)
        w.setframerate(rate)
        w.writeframes(raw)
    return path


@pytest.mark.parametrize("nbytes", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_integers_of_every_width(tmp_path: Path, nbytes: int, channels: int) -> None:
    values = np.random.default_rng(2).uniform(-1, 1, (300, channels))
    got = read_wav(written(tmp_path / "s.wav", values, nbytes))
    assert got.dtype == np.float32 and got.shape == (300,)
    assert np.abs(got - values.mean(1)).max() < max(2.1 / (1 << 8 * nbytes - 1), 1e-6)


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 44_100, 48_000])
def test_any_rate(rate: int) -> None:
    """A tone has its frequency; what the lower rate cannot have is gone."""
    t, want = np.arange(rate) / rate, np.arange(16_000) / 16_000
    got = resampled(
        np.sin(2 * np.pi * 440 * t) + 0.5 * (rate > 20_000) * np.sin(2 * np.pi * 9e3 * t), rate
    )
    assert got.shape == (16_000,) and got.dtype == np.float32
    assert np.abs(got - np.sin(2 * np.pi * 440 * want)).max() < 1e-5
    assert resampled(np.zeros(0), rate).shape == (0,)


def refused(path: Path, said: str = "") -> None:
    with pytest.raises(LumcError) as e:
        read_wav(path)
    assert (e.value.code, e.value.exit) == ("E0620", Exit.UNSUPPORTED)
    assert said in e.value.what and "ffmpeg" in e.value.fix


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = written(tmp_path / "s.wav", np.zeros((50, 1)))
    data, path = good.read_bytes(), tmp_path / "t.wav"
    for raw in (b"", b"RIFF", data[:20], b"OggS" + data[4:], data.replace(b"fmt ", b"fmx ")):
        path.write_bytes(raw)
        refused(path)
    path.write_bytes(data.replace(struct.pack("<HH", 1, 1), struct.pack("<HH", 3, 1)))
    refused(path, "unknown format: 3")
    path.write_bytes(data.replace(struct.pack("<HHI", 1, 1, 16_000), struct.pack("<HHI", 1, 1, 3)))
    refused(path, "3 Hz")
    path.write_bytes(data[:-30])  # a file that ends early has what it has
    assert len(read_wav(path)) == 35
    with pytest.raises(LumcError) as e:
        read_wav(tmp_path / "none.wav")
    assert e.value.code == "E0201"
    monkeypatch.setattr(sound, "MAX_BYTES", 60)
    refused(good, "more than 60 bytes")


def test_damaged_files_end_in_one_error(tmp_path: Path) -> None:
    path, draw = tmp_path / "s.wav", random.Random(5)
    data = written(path, np.random.default_rng(2).uniform(-1, 1, (40, 2))).read_bytes()
    for _ in range(1500):
        path.write_bytes(damaged(data, draw))
        try:
            assert np.isfinite(read_wav(path)).all()
        except LumcError as e:
            assert e.code == "E0620"
