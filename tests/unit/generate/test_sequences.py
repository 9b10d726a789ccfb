"""Several texts of their own lengths in one cache: which rows are theirs, and that what follows is
what follows each of them alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lumc
from lumc.errors import LumcError
from lumc.frontend.models.cache import Cache
from lumc.frontend.models.huggingface import import_folder
from lumc.generate.language import Kept
from lumc.generate.sequences import Sequences
from lumc.graph.dim import Dim
from lumc.runtime.choose import open_bundle
from lumc.runtime.opened import move

Array = np.ndarray[Any, Any]
CONTEXT, ROWS, MANY = 12, 4, 3


class Remembering:
    """A bundle whose cache has the tokens themselves, and whose logits are all that a text sees."""

    def __init__(self) -> None:
        sizes = {"p": (0, CONTEXT - 1), "s": (1, ROWS), "n": (1, MANY)}
        sizes |= {"sequence": (0, MANY - 1), "start": (0, CONTEXT)}
        self.dims = {name: Dim(name, *ends) for name, ends in sizes.items()}
        self.cache = np.full((MANY, 1, 2 * CONTEXT + ROWS - 1, 1), 99.0)

    def run(
        self, inputs: Mapping[str, Array], entry: str = "", *, dims: Mapping[str, int] | None = None
    ) -> dict[str, Array]:
        given, dims = inputs, dims or {}
        for name, value in dims.items():
            assert self.dims[name].lo <= value <= self.dims[name].hi, (name, value)
        ids, start, p = given["input_ids"], dims["start"], dims["p"]
        if entry == "prefill":
            rows = self.cache[dims["sequence"], 0, :, 0]
            rows[start + p : start + p + len(ids)] = ids
            return {"logits": rows[start : start + p + len(ids)].copy()}
        rows = self.cache[: len(ids), 0, :, 0]
        rows[:, start + p] = ids
        seen = [
            r[start + p - n : start + p + 1] for r, n in zip(rows, given["lengths"], strict=True)
        ]
        out = np.zeros((len(ids), CONTEXT))
        for row, text in zip(out, seen, strict=True):
            row[: len(text)] = text
        return {"logits": out}

    def copy_state(self, source: Any, target: Any) -> None:
        move([self.cache], source, target)


def remembering() -> Sequences:
    return Sequences(Remembering())


def test_every_text_sees_its_own_tokens_in_any_order_of_calls() -> None:
    for seed in range(200):
        rng, texts = np.random.default_rng(seed), remembering()
        want: list[list[int]] = [[] for _ in range(MANY)]
        for _ in range(12):
            one, other = rng.integers(0, MANY, 2)
            what = rng.choice(["read", "step", "copy", "clear"], p=[0.4, 0.35, 0.15, 0.1])
            if what == "read" and (room := CONTEXT - len(want[one])):
                new = rng.integers(0, 50, rng.integers(1, room + 1)).tolist()
                want[one] += new
                assert texts.read(one, new).tolist() == want[one], seed
            elif what == "step" and max(map(len, want)) < CONTEXT:
                new = rng.integers(0, 50, MANY).tolist()
                seen = texts.step(new)
                for text, token, row in zip(want, new, seen, strict=True):
                    assert row[: len(text) + 1].tolist() == [*text, token], seed
                    text += [token] * (len(text) > 0)
            elif what == "copy":
                count = int(rng.integers(0, len(want[one]) + 1))
                texts.copy(one, other, count)
                want[other] = want[one][:count]
            elif what == "clear":
                texts.clear(one)
                want[one] = []
            assert texts.lengths == [*map(len, want)]


def test_what_does_not_fit_is_refused() -> None:
    texts = remembering()
    texts.read(1, [1, 2, 3])
    for call, said in (
        (lambda: texts.read(0, []), "0 of them new"),
        (lambda: texts.read(1, [0] * CONTEXT), "15 tokens"),
        (lambda: texts.read(3, [1]), "no text 3"),
        (lambda: texts.step([1]), "1 tokens, for 3 texts"),
        (lambda: texts.step([1] * 4), "4 tokens"),
        (lambda: texts.copy(1, 0, 4), "4 tokens of a text that has 3"),
        (lambda: texts.copy(1, -1), "no text -1"),
    ):
        with pytest.raises(LumcError, match=said) as caught:
            call()
        assert caught.value.code == "E0610"
    texts.read(1, [0] * (CONTEXT - 3))
    with pytest.raises(LumcError, match="12 tokens already"):
        texts.step([0, 0])


def test_another_model_is_refused() -> None:
    bundle = Remembering()
    del bundle.dims["sequence"]
    with pytest.raises(LumcError, match="E0618"):
        Sequences(bundle)


# ---- a network, beside transformers

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 61, "max_position_embeddings": 64,
    "attn_implementation": "eager", "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A bundle of three texts, and the network of transformers."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("sequences")
    torch.manual_seed(5)
    network = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    with torch.no_grad():
        for p in network.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    network.save_pretrained(folder / "llama")
    model = import_folder(folder / "llama", Cache(24, 6, sequences=MANY))
    lumc.compile(model, folder / "m.lb", estimate=True)
    return folder / "m.lb", network


def logits_of(network: Any, text: Sequence[int]) -> Array:
    import torch

    with torch.no_grad():
        found = network.double()(torch.as_tensor([list(text)])).logits[0, -1]
    return np.asarray(found.numpy())


def check(logits: Array, network: Any, text: Sequence[int]) -> int:
    """The most probable token, which is that of transformers for this text alone."""
    want = logits_of(network, text)
    assert np.linalg.norm(logits - want) <= 1e-5 * np.linalg.norm(want), text
    assert logits.argmax() == want.argmax()
    return int(logits.argmax())


PROMPTS = [[3, 17, 30, 4, 4, 9, 22], [11, 5], [28, 1, 13, 8, 19, 2, 60, 7, 7, 7, 12]]


def test_greedy_tokens_of_several_texts_are_those_of_each_alone(made: tuple[Path, Any]) -> None:
    path, network = made
    with lumc.load(path) as bundle:
        bundle.set_state({t.name: np.full(t.shape, 1e3, np.float32) for t in bundle.states})
        texts, whole = Sequences(bundle), [list(p) for p in PROMPTS]
        last = [check(texts.read(i, p), network, p) for i, p in enumerate(PROMPTS)]
        for _ in range(6):
            for text, token in zip(whole, last, strict=True):
                text.append(token)
            rows = texts.step(last)
            last = [check(row, network, text) for row, text in zip(rows, whole, strict=True)]
        # one ends, another one that is longer than all begins in its place
        texts.clear(0)
        whole[0] = list(range(2, 22))
        last[0] = check(texts.read(0, whole[0]), network, whole[0])
        for text, token in zip(whole, last, strict=True):
            text.append(token)
        for row, text in zip(texts.step(last), whole, strict=True):
            check(row, network, text)


def test_a_beginning_is_read_once(made: tuple[Path, Any]) -> None:
    path, network = made
    with lumc.load(path) as bundle:
        texts = Sequences(bundle)
        texts.read(0, PROMPTS[2])
        texts.read(1, [5, 6])
        texts.copy(0, 2, 8)
        own = [*PROMPTS[2][:8], 40, 41]
        token = check(texts.read(2, own[8:]), network, own)
        whole = [[*PROMPTS[2], 1], [5, 6, 2], [*own, token]]
        for row, text in zip(texts.step([1, 2, token]), whole, strict=True):
            check(row, network, text)
        kept, lengths = bundle.state(), list(texts.lengths)
        texts.step([9, 9, 9])
        bundle.reset()
        assert not any(v.any() for v in bundle.state().values())
        bundle.set_state(kept)
        texts.lengths, texts.end = lengths, texts.end - 1
        for row, text, token in zip(texts.step([4, 5, 6]), whole, (4, 5, 6), strict=True):
            check(row, network, [*text, token])


def test_one_text_of_several_is_a_text(made: tuple[Path, Any]) -> None:
    """As ``lumc generate`` asks for it."""
    path, network = made
    with open_bundle(path) as bundle:
        model = Kept(bundle)
        check(model.step(PROMPTS[0][:5], 0), network, PROMPTS[0][:5])
        check(model.step(PROMPTS[0][5:6], 5), network, PROMPTS[0][:6])
