"""`lumc generate` with a model that encodes the prompt: T5, as transformers has it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from commands import Lumc
from unit.frontend.models.test_t5 import network

pytest.importorskip("tokenizers")

LETTERS = ["<pad>", "</s>", "<unk>", "\u2581", *"abcdefghijklmnopqrstuvwxyz", "<mask>"]
COUNT = 6


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with hf/ and a bundle of it."""
    from tokenizers import Tokenizer, decoders, models, processors
    from tokenizers import pre_tokenizers as pre

    folder = tmp_path_factory.mktemp("answers")
    network(folder / "hf", num_layers=1, num_decoder_layers=1)
    words = Tokenizer(models.Unigram([(t, -float(i)) for i, t in enumerate(LETTERS)], unk_id=2))
    words.pre_tokenizer, words.decoder = pre.Metaspace(), decoders.Metaspace()
    words.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    words.add_special_tokens(["<pad>", "</s>", "<unk>"])
    words.save(str(folder / "hf" / "tokenizer.json"))
    config = {"eos_token": "</s>", "pad_token": "<pad>"}
    (folder / "hf" / "tokenizer_config.json").write_text(json.dumps(config))
    lumc = Lumc(folder)
    lumc("import", folder / "hf", "--context", 12, "--rows", 2, "-o", folder / "m.lg")
    lumc("compile", folder / "m.lg", "--estimate", "-o", folder / "m.lb")
    return folder


def test_answers_are_those_of_transformers(lumc: Lumc, made: Path) -> None:
    import torch
    from transformers import PreTrainedTokenizerFast, T5ForConditionalGeneration

    model = T5ForConditionalGeneration.from_pretrained(made / "hf").eval()
    words = PreTrainedTokenizerFast.from_pretrained(made / "hf")
    run = partial(lumc, "generate", made / "m.lb", "--temperature", 0, "-n", COUNT)
    answers = list[str]()
    for text in ("abc de", "hello", "q"):
        ids = torch.tensor([words.encode(text)])
        with torch.no_grad():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=COUNT, do_sample=False
            )[0]
        answers.append(words.decode(out, skip_special_tokens=True))
        assert run("--prompt", text) == f"{answers[-1]}\n"
    assert len(set(answers)) > 1
    said = json.loads(run("--prompt", "abc de", "--json"))
    assert said["text"] == answers[0] and said["prompt"]["tokens"] == 1


def test_what_is_refused(lumc: Lumc, made: Path) -> None:
    how = ("generate", made / "m.lb", "--prompt")
    assert "E0615 a text of" in lumc.fails(2, *how, "a" * 60)
    assert "E0345" in lumc.fails(4, *how, "a", "--chat")
    (made / "other").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (made / "other" / name).write_bytes((made / "hf" / name).read_bytes())
    assert "how an answer starts" in lumc.fails(2, *how, "a", "--tokenizer", made / "other")
