"""Whisper from a folder with random weights: what its entries compute, against transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumc.errors import LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.models.cache import Cache
from lumc.frontend.models.huggingface import import_folder
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph
from lumc.oracle.graph import evaluate

Array = np.ndarray[Any, Any]
SIZES: dict[str, Any] = {
    "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 20, "decoder_ffn_dim": 28, "vocab_size": 31,
    "num_mel_bins": 6, "max_source_positions": 10, "max_target_positions": 16, "bos_token_id": 0,
    "eos_token_id": 1, "pad_token_id": 1, "decoder_start_token_id": 2, "suppress_tokens": [],
    "begin_suppress_tokens": [], "attn_implementation": "eager",
}  # fmt: skip
TEXT = [2, 17, 30, 4, 4, 9, 22, 11, 5, 28, 1, 13, 8, 19, 3, 7]


def network(folder: Path, **other: Any) -> tuple[Any, Array]:
    """The network of a folder with random weights, in f64, and what it is given."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    torch.manual_seed(7)
    config = transformers.WhisperConfig(**{**SIZES, **other})
    made = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn_like(p) * 0.2)
        made.save_pretrained(folder)
    frames = 2 * config.max_source_positions
    sound = np.random.default_rng(4).standard_normal((config.num_mel_bins, frames))
    return made.double(), sound


def truth(made: Any, sound: Array, ids: Sequence[int]) -> tuple[Array, Array]:
    """The encoder's last hidden state and the logits of every position."""
    import torch

    given = torch.as_tensor(sound)[None]
    with torch.no_grad():
        out = made(input_features=given, decoder_input_ids=torch.as_tensor([ids]))
    return out.encoder_last_hidden_state[0].numpy(), out.logits[0].numpy()


def off(got: Array, want: Array) -> float:
    assert got.shape == want.shape
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def logits_of(model: Model, sound: Array, sizes: Sequence[int]) -> tuple[Array, list[Array]]:
    """What ``encode`` gives, and the logits of runs of so many tokens. States are NaN at first."""
    graph = model.graph()
    verify_graph(graph)
    states = {s.name: np.full(s.sizes, np.nan) for s in graph.states}
    heard, states = evaluate(
        graph, "encode", {"input_features": sound}, model.read_weight, states, dims={"p": 0, "s": 1}
    )
    out, p = list[Array](), 0
    for s in sizes:
        entry, dims = "decode" if s == 1 else "prefill", {"p": p, "s": s}
        given = {"input_ids": np.array(TEXT[p : p + s])}
        found, states = evaluate(graph, entry, given, model.read_weight, states, dims=dims)
        out.append(found["logits"])
        p += s
    return heard["last_hidden_state"], out


@pytest.mark.parametrize(
    "other", [{}, {"activation_function": "relu", "tie_word_embeddings": False}]
)
def test_sound_and_a_text_in_parts(tmp_path: Path, other: dict[str, Any]) -> None:
    made, sound = network(tmp_path, **other)
    hidden, want = truth(made, sound, TEXT)
    model = import_folder(tmp_path, Cache(16, 5, every=True))
    for sizes in ([4, *[1] * 12], [5, 1, 5, 5]):
        heard, got = logits_of(model, sound, sizes)
        assert off(heard, hidden) < 2e-7
        assert off(np.concatenate([x.reshape(-1, 31) for x in got]), want) < 2e-7, sizes


def test_what_is_imported_if_nobody_says_how(tmp_path: Path) -> None:
    """A context as long as there are positions, a few rows in a run, logits of the last one."""
    made, sound = network(tmp_path)
    _, want = truth(made, sound, TEXT)
    said = list[str]()
    model = import_folder(tmp_path, say=said.append)
    _, got = logits_of(model, sound, [8, 7, 1])
    assert [off(x, want[i]) < 2e-7 for x, i in zip(got, (7, 14, 15), strict=True)] == [True] * 3
    graph = model.graph()
    assert [e.name for e in graph.entries] == ["encode", "prefill", "decode"] and not said
    assert print_graph(parse_graph(print_graph_of(model, tmp_path)))


def print_graph_of(model: Model, folder: Path) -> str:
    model.save(folder / "m.lg")
    return (folder / "m.lg").read_text()


def test_a_mutant_that_forgets_the_sound_dies(tmp_path: Path) -> None:
    """Other sound, another text: and the sound of the run before is gone."""
    made, sound = network(tmp_path)
    model = import_folder(tmp_path, Cache(16, 5, every=True))
    again = sound[:, ::-1].copy()
    _, first = logits_of(model, sound, [5, 5])
    _, other = logits_of(model, again, [5, 5])
    assert off(first[0], other[0]) > 1e-3
    assert off(other[0], truth(made, again, TEXT)[1][:5]) < 2e-7


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale_embedding": True}, "scale_embedding"),
        ({"decoder_attention_heads": 5}, "does not divide"),
        ({"max_source_positions": 11}, "tensors do not fit"),
        ({"decoder_layers": 3}, "is missing"),
        ({"num_mel_bins": "many"}, "expected an integer"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    network(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(LumcError, match=said):
        import_folder(tmp_path)
