"""`lumc transcribe`: a small Whisper from its folder to a text, as transformers has it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Lumc
from lumc.command.sources import graph_from_anything
from lumc.speech.features import log_mel
from lumc.speech.sound import read_wav
from schemas import check
from unit.frontend.models.test_whisper import SIZES, network
from unit.speech.test_sound import written

pytest.importorskip("tokenizers")

NAMES = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>",
         "<|translate|>", "<|notimestamps|>"]  # fmt: skip
MELS, ROWS, WORDS = 6, 50, 31


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with hf/, a bundle of it, and s.wav."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from tokenizers import pre_tokenizers as pre

    folder = tmp_path_factory.mktemp("transcribe")
    letters = [*"abcdefghijklmnopqrstuvw", "\u0120"]
    words = Tokenizer(models.BPE({t: i for i, t in enumerate(letters)}, []))
    words.pre_tokenizer, words.decoder = pre.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    words.add_special_tokens([AddedToken(n, special=True) for n in NAMES])
    ids = {n: words.token_to_id(n) for n in NAMES}
    end = ids["<|endoftext|>"]
    network(
        folder / "hf", vocab_size=WORDS, max_source_positions=ROWS, max_target_positions=24,
        bos_token_id=end, eos_token_id=end, pad_token_id=end,
        decoder_start_token_id=ids["<|startoftranscript|>"],
    )  # fmt: skip
    words.save(str(folder / "hf" / "tokenizer.json"))
    config = {"eos_token": "<|endoftext|>"}
    (folder / "hf" / "tokenizer_config.json").write_text(json.dumps(config))
    said = {
        "eos_token_id": end, "suppress_tokens": [3, 30], "begin_suppress_tokens": [end],
        "is_multilingual": True,
    }  # fmt: skip
    (folder / "hf" / "generation_config.json").write_text(json.dumps(said))
    lumc = Lumc(folder)
    lumc("import", folder / "hf", "-o", folder / "w.lg")
    lumc("compile", folder / "w.lg", "--estimate", "-o", folder / "w.lb")
    t = np.arange(2 * 14_000) / 14_000
    values = np.sin(2 * np.pi * (300 + 900 * t) * t)[:, None] * 0.7
    written(folder / "s.wav", values, rate=14_000)
    return folder


def greedy(folder: Path, samples: np.ndarray[Any, Any], prompt: list[int]) -> list[int]:
    """The ids that follow, by transformers' network, as long as there are positions."""
    import torch
    from transformers import WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration.from_pretrained(folder / "hf").eval()
    sound, ids = torch.as_tensor(log_mel(samples, MELS, 2 * ROWS))[None], list(prompt)
    with torch.no_grad():
        while len(ids) < 24:
            given = torch.as_tensor([ids])
            logits = model(input_features=sound, decoder_input_ids=given).logits[0, -1]
            logits[[3, 30, *([24] if len(ids) == len(prompt) else [])]] = -torch.inf
            chosen = int(logits.argmax())
            if chosen == 24:
                break
            ids.append(chosen)
    return ids[len(prompt) :]


def text_of(ids: list[int]) -> str:
    return "".join([*"abcdefghijklmnopqrstuvw", " ", *[""] * 7][i] for i in ids).strip()


def test_what_is_heard_is_what_transformers_hears(lumc: Lumc, made: Path) -> None:
    run = partial(lumc, "transcribe", made / "w.lb", made / "s.wav")
    said = json.loads(run("--json", "--language", "de"))
    check("transcribe", said)
    samples = read_wav(made / "s.wav")
    assert len(samples) == 32_000 and said["seconds"] == 2
    text = ""
    for part in said["parts"]:
        a, b = round(part["start"] * 16_000), round(part["end"] * 16_000)
        assert part["text"] == text_of(greedy(made, samples[a:b], [25, 27, 28, 30]))
        assert part["language"] == "de"
        text += f"{part['text']}\n"
    assert len(said["parts"]) > 1 and run("--language", "de") == text
    assert said["text"].split() == text.split()
    heard = json.loads(run("--json"))["parts"]
    assert {p["language"] for p in heard} <= {"en", "de"}
    english = json.loads(run("--json", "--language", "en", "--task", "translate"))["parts"][0]
    end = round(english["end"] * 16_000)
    assert english["text"] == text_of(greedy(made, samples[:end], [25, 26, 29, 30]))


def test_what_is_refused(lumc: Lumc, made: Path) -> None:
    refused = partial(lumc.fails, 2, "transcribe")
    wrong = refused(made / "w.lb", made / "s.wav", "--language", "fr")
    assert "E0622 the model has no language 'fr'" in wrong and "de, en" in wrong
    assert "E0201" in refused(made / "w.lb", made / "none.wav")
    assert "E0620" in lumc.fails(4, "transcribe", made / "w.lb", made / "w.lg")
    text = "lumc graph 1\ninput x f32[2]\ny f32[i:2] = exp2 x[i]\noutput y = y\n"
    (made / "p.lg").write_text(text)
    lumc("compile", made / "p.lg", "--estimate", "-o", made / "p.lb")
    assert "E0619" in refused(made / "p.lb", made / "s.wav")
    assert "E0621" in refused(made / "p.lb", made / "s.wav", "--tokenizer", made / "hf")
    said = json.loads((made / "hf" / "generation_config.json").read_text())
    other = made / "hf" / "generation_config.json"
    other.write_text(json.dumps({**said, "is_multilingual": False}))
    one = (made / "w.lb", made / "s.wav", "--tokenizer", made / "hf")
    assert "English" in refused(*one, "--language", "en")
    assert "E0622" in refused(*one, "--task", "translate")
    other.write_text(json.dumps(said))
    assert SIZES["num_mel_bins"] == MELS


def test_a_folder_that_is_compiled_at_once_has_its_tokenizer_too(made: Path, lumc: Lumc) -> None:
    graph = graph_from_anything(str(made / "hf"), lumc.folder / "m.lg", (), ())
    assert graph.tokenizer is not None
    text = Path(graph.tokenizer.path).read_text()
    assert text == (made / "w.lb" / "tokenizer.json").read_text()
