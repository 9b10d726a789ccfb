"""T5 from a folder with random weights: what its entries compute, against transformers."""

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
from lumc.graph.verify import verify_graph
from lumc.oracle.graph import evaluate
from unit.frontend.models.test_whisper import off

Array = np.ndarray[Any, Any]
SIZES: dict[str, Any] = {
    "d_model": 24, "d_kv": 5, "d_ff": 20, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
    "vocab_size": 31, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
    "n_positions": 40, "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
TEXT = [0, 17, 30, 4, 4, 9, 22, 11, 5, 28, 1, 13, 8, 19, 3, 7, 2, 6, 21]
GIVEN = np.random.default_rng(3).integers(0, 31, 23)


def network(folder: Path, **other: Any) -> Any:
    """The network of a folder with random weights, in f64."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    torch.manual_seed(7)
    config = transformers.T5Config(**{**SIZES, **other})
    made = transformers.T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(torch.randn_like(p) * 0.4)
        made.save_pretrained(folder)
    return made.double()


def logits_of(model: Model, given: Array, sizes: Sequence[int]) -> tuple[Array, Array]:
    """What ``encode`` gives, and the logits of runs of so many tokens. States are NaN at first."""
    graph = model.graph()
    verify_graph(graph)
    states = {s.name: np.full(s.sizes, np.nan) for s in graph.states}
    e, read = len(given), model.read_weight
    dims = {"e": e, "p": 0, "s": 1}
    seen, states = evaluate(graph, "encode", {"input_ids": given}, read, states, dims=dims)
    out, p = list[Array](), 0
    for s in sizes:
        ids, dims = {"input_ids": np.array(TEXT[p : p + s])}, {"e": e, "p": p, "s": s}
        entry = "decode" if s == 1 else "prefill"
        found, states = evaluate(graph, entry, ids, read, states, dims=dims)
        out.append(found["logits"].reshape(s, -1))
        p += s
    return seen["last_hidden_state"], np.concatenate(out)


@pytest.mark.parametrize(
    "other", [{}, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}]
)
def test_a_text_and_its_answer_in_parts(tmp_path: Path, other: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")

    made = network(tmp_path, **other)
    model = import_folder(tmp_path, Cache(19, 6, every=True))
    for n, sizes in ((23, [6, *[1] * 5, 6, 2]), (1, [1, 6, 6, 6])):
        with torch.no_grad():
            out = made(
                input_ids=torch.as_tensor(GIVEN[:n])[None],
                decoder_input_ids=torch.as_tensor([TEXT]),
            )
        hidden, got = logits_of(model, GIVEN[:n], sizes)
        assert off(hidden, out.encoder_last_hidden_state[0].numpy()) < 3e-7
        assert off(got, out.logits[0].numpy()) < 3e-7, (n, sizes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"feed_forward_proj": "gated-tanh"}, "feed_forward_proj"),
        ({"relative_attention_max_distance": 4}, "buckets"),
        ({"d_kv": 6}, "tensors do not fit"),
        ({"n_positions": -1}, "n_positions"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    network(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(LumcError, match=said):
        import_folder(tmp_path)
