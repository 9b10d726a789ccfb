"""Features of sound, against those of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lumc.speech.features import filters, log_mel, to_hz, to_mel

Array = np.ndarray[Any, Any]
RATE = 16_000


def sounds() -> dict[str, Array]:
    draw, t = np.random.default_rng(3), np.arange(3 * RATE) / RATE
    sweep = np.sin(2 * np.pi * (100 + 1200 * t) * t) * np.linspace(0, 0.8, len(t))
    return {
        "noise": draw.standard_normal(RATE) * 0.1,
        "a sweep": sweep,
        "silence": np.zeros(5000),
        "a click": np.eye(1, 999)[0],
        "nothing": np.zeros(0),
        "much": draw.standard_normal(31 * RATE) * 0.3,
    }


@pytest.mark.parametrize("name", [n for n in sounds() if n != "nothing"])
@pytest.mark.parametrize("mels", [80, 128])
def test_features_are_those_of_transformers(name: str, mels: int) -> None:
    transformers = pytest.importorskip("transformers")
    samples = sounds()[name].astype(np.float32)
    made = transformers.WhisperFeatureExtractor(feature_size=mels)
    want = made(samples, sampling_rate=RATE, return_tensors="np")["input_features"][0]
    got = log_mel(samples, mels, 3000)
    assert got.shape == want.shape == (mels, 3000) and got.dtype == np.float32
    assert np.abs(got - want).max() < 2e-4  # torch computes in f32
    whole = np.zeros(30 * RATE)
    whole[: len(samples)] = samples[: len(whole)]
    exact = made._np_extract_fbank_features(whole[None], "cpu")[0]
    assert np.abs(got - exact).max() < 1e-6


def test_the_triangles_are_those_of_transformers() -> None:
    utils = pytest.importorskip("transformers.audio_utils")
    want = utils.mel_filter_bank(201, 80, 0.0, 8000.0, RATE, norm="slaney", mel_scale="slaney")
    assert np.abs(filters(80) - want).max() < 1e-12
    mels = np.array([0.0, 3.0, 15.0, 15.1, 40.0])
    assert to_mel(float(to_hz(mels)[-1])) == pytest.approx(40)
    assert to_hz(mels)[:3].tolist() == [0, 200, 1000]


def test_other_lengths() -> None:
    """A model with shorter parts has the first frames, and silence is the least."""
    samples = sounds()["a sweep"]
    assert log_mel(samples, 6, 20).shape == (6, 20)
    assert (log_mel(sounds()["nothing"], 80, 50) == (-10 + 4) / 4).all()
