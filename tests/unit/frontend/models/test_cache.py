"""Language models that are given a text in parts, against what transformers gives for the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Lumc
from lumc.errors import LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.models.cache import Cache, Text
from lumc.frontend.models.huggingface import import_folder
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph
from lumc.oracle.graph import evaluate

Array = np.ndarray[Any, Any]
SIZES = {
    "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 31, "max_position_embeddings": 40,
    "attn_implementation": "eager", "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
GPT2 = {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 40, "vocab_size": 31,
        "attn_implementation": "eager"}  # fmt: skip
WINDOWED = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**SIZES, "rope_theta": 500.0}),
    "mistral": ("Mistral", {**SIZES, "sliding_window": 5}),
    "qwen2": ("Qwen2", {**SIZES, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {**SIZES, **WINDOWED}),
    "phi3": ("Phi3", {**SIZES, "sliding_window": 7}),
    "gemma2": ("Gemma2", {**SIZES, "sliding_window": 4, "query_pre_attn_scalar": 8}),
    "gemma3_text": ("Gemma3", {**SIZES, "sliding_window": 4, "query_pre_attn_scalar": 8}),
    "gpt2": ("GPT2", GPT2),
}
NAMES = {
    "Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "GPT2": ("GPT2Config", "GPT2LMHeadModel"),
}
TEXT = np.array([3, 17, 30, 4, 4, 9, 22, 11, 5, 28, 1, 13, 8, 19])
CACHE = Cache(24, 6, every=True)


def network(folder: Path, family: str) -> Array:
    """A folder with random weights, and the logits [s, words] of transformers."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    name, sizes = FAMILIES[family]
    config, kind = NAMES.get(name, (f"{name}Config", f"{name}ForCausalLM"))
    torch.manual_seed(7)
    made = getattr(transformers, kind)(getattr(transformers, config)(**sizes)).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn_like(p) * 0.2)
        made.save_pretrained(folder)
        found = made.double()(torch.as_tensor(TEXT)[None]).logits[0]
    return np.asarray(found.numpy())


def parts(model: Model, sizes: Sequence[int]) -> list[Array]:
    """The logits of every run, one after the other; the cache is NaN at first."""
    graph = model.graph()
    verify_graph(graph)
    states = {s.name: np.full(s.sizes, np.nan) for s in graph.states}
    out, p = list[Array](), 0
    for s in sizes:
        entry = "decode" if s == 1 else "prefill"
        given = {"input_ids": TEXT[p : p + s]}
        dims = {"p": p, "s": s}
        found, states = evaluate(graph, entry, given, model.read_weight, states, dims=dims)
        out.append(found["logits"])
        p += s
    return out


def off(got: Array, want: Array) -> float:
    assert got.shape == want.shape
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_in_parts_is_the_text(tmp_path: Path, family: str) -> None:
    want = network(tmp_path, family)
    model = import_folder(tmp_path, CACHE)
    for sizes in ([6, 1, 1, 3, 1, 2], [1, 1, 5, 6, 1]):
        got = np.concatenate([x.reshape(-1, want.shape[-1]) for x in parts(model, sizes)])
        assert off(got, want) < 2e-6, sizes  # frequencies and positions are rounded to f32


def test_only_the_last_row_has_logits_if_nobody_asks_for_more(tmp_path: Path) -> None:
    want = network(tmp_path, "llama")
    model = import_folder(tmp_path, Cache(24, 6))
    got = parts(model, [6, 1, 4])
    for logits, end in zip(got, (6, 7, 11), strict=True):
        assert off(logits, want[end - 1]) < 2e-6


def test_entries_share_weights_and_what_they_have_seen(tmp_path: Path) -> None:
    network(tmp_path, "llama")
    import_folder(tmp_path, CACHE).save(tmp_path / "m.lg")
    text = (tmp_path / "m.lg").read_text()
    graph = parse_graph(text)
    assert print_graph(graph) == text
    assert [e.name for e in graph.entries] == ["prefill", "decode"]
    assert [(s.name, s.sizes) for s in graph.states[:2]] == [
        ("model.layers.0.keys", (2, 29, 8)),
        ("model.layers.0.values", (2, 29, 8)),
    ]
    assert len(graph.weights) == len({w.name for w in graph.weights})


def test_a_context_that_no_model_has(tmp_path: Path, lumc: Lumc) -> None:
    network(tmp_path, "gpt2")
    for cache in (Cache(41, 1), Cache(8, 9), Cache(40, 2)):
        with pytest.raises(LumcError, match="E0326"):
            import_folder(tmp_path, cache)
    assert "--context" in lumc.fails(2, "import", tmp_path, "-o", "m.lg", "--rows", "4")
    (tmp_path / "m.onnx").write_bytes(b"")
    assert "E0326" in lumc.fails(2, "import", tmp_path / "m.onnx", "-o", "m.lg", "--context", "4")


def test_models_without_a_cache_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(LumcError, match="E0320 model_type 'bert' is not supported with a context"):
        import_folder(tmp_path, CACHE)


# ---- several texts at once


def together(model: Model, lengths: Sequence[int], steps: int, seed: int = 0) -> list[list[Array]]:
    """The logits of each text after its first so many tokens, and after every one of ``steps``
    more, which all get at once. Rows that no text has hold anything."""
    graph, rng = model.graph(), np.random.default_rng(seed)
    verify_graph(graph)
    states = {s.name: rng.standard_normal(s.sizes) * 50 for s in graph.states}
    end, out = max(lengths) + 2, list[list[Array]]()
    for sequence, length in enumerate(lengths):
        start, p = end - length, 0
        while p < length:
            s = min(graph.dims["s"].hi, length - p)
            dims = {"p": p, "s": s, "sequence": sequence, "start": start, "n": 1}
            given = {"input_ids": TEXT[p : p + s]}
            found, states = evaluate(graph, "prefill", given, model.read_weight, states, dims=dims)
            p += s
        out.append([found["logits"].reshape(-1, 31)[-1]])
    for step in range(steps):
        now = np.array(lengths) + step
        given = {"input_ids": TEXT[now], "lengths": now}
        dims = {"p": int(now.max()), "start": end - max(lengths), "n": len(lengths)}
        dims |= {"s": 1, "sequence": 0}
        found, states = evaluate(graph, "decode", given, model.read_weight, states, dims=dims)
        for logits, own in zip(found["logits"], out, strict=True):
            own.append(logits)
    return out


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_of_other_lengths_go_on_together(tmp_path: Path, family: str) -> None:
    want = network(tmp_path, family)
    model = import_folder(tmp_path, Cache(18, 5, sequences=3))
    lengths = (3, 11, 6)
    for length, got in zip(lengths, together(model, lengths, 3), strict=True):
        for i, logits in enumerate(got):
            assert off(logits, want[length - 1 + i]) < 2e-6, (length, i)


def test_fewer_texts_than_there_is_room_for(tmp_path: Path) -> None:
    want = network(tmp_path, "llama")
    model = import_folder(tmp_path, Cache(18, 5, every=True, sequences=4))
    assert model.graph().states[0].sizes == (4, 2, 18 + 5 - 1 + 18, 8)
    ((first, second), (other, last)) = together(model, (2, 5), 1)
    for got, at in ((first, 1), (second, 2), (other, 4), (last, 5)):
        assert off(got, want[at]) < 2e-6


def test_a_mask_that_lets_a_foreign_row_in_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: texts are taken to be as long as the longest."""
    want = network(tmp_path, "llama")
    real = Text.bias

    def wrong(self: Text, window: int | None = None) -> Any:
        return real(replace(self, lengths=None), window)

    monkeypatch.setattr(Text, "bias", wrong)
    got = together(import_folder(tmp_path, Cache(18, 5, sequences=2)), (3, 6), 1)
    assert off(got[0][1], want[3]) > 1e-2 and off(got[1][1], want[6]) < 2e-6
