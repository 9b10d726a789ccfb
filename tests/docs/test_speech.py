"""docs/speech.md on a real model: its commands, on sentences that a synthesiser speaks, and that
the text is what transformers makes of the same folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lumc.speech.sound import read_wav
from speech_models import real, spoken

PAGE = Path(__file__).parents[2] / "docs" / "speech.md"
SAID = "Good morning. This is a test of the compiler. It turns a model into machine code."

pytestmark = [pytest.mark.deep, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's commands have run; what they print is in ``said``."""
    pytest.importorskip("tokenizers")
    here = tmp_path_factory.mktemp("speech")
    real(here / "whisper-tiny.en")
    spoken(SAID, here / "spoken.wav")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    said = ""
    for kind, text in blocks:
        calls = [["-c", f"import lumc\n{text}"]] if kind else map(shlex.split, text.splitlines())
        for call in calls:
            whole = [sys.executable, *(call if kind else ["-m", *call])]
            done = subprocess.run(whole, cwd=here, env=env, capture_output=True)
            assert done.returncode == 0, done.stderr.decode()
            said += done.stdout.decode()
    (here / "said").write_text(said)
    return here


def test_a_spoken_sentence_is_written_as_by_transformers(folder: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    here = folder / "whisper-tiny.en"
    model = transformers.WhisperForConditionalGeneration.from_pretrained(here, dtype=torch.float32)
    made = transformers.WhisperFeatureExtractor(feature_size=80)
    samples = read_wav(folder / "spoken.wav")
    features = made(samples, sampling_rate=16_000, return_tensors="pt")["input_features"]
    words = transformers.PreTrainedTokenizerFast.from_pretrained(here)
    with torch.inference_mode():
        ids = model.eval().generate(features, do_sample=False, num_beams=1)[0]
        given = torch.tensor([[50257, 50362]])
        logits = model(input_features=features, decoder_input_ids=given).logits[0, -1]
    want = words.decode(ids, skip_special_tokens=True).strip()
    text, first = (folder / "said").read_text().splitlines()
    assert text == want and text.startswith("Good morning") and text.endswith("machine code.")
    assert int(first) == int(np.argmax(logits))
