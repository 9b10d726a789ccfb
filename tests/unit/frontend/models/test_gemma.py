"""Gemma 2 and 3 with random weights, against transformers in f64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from lumc.errors import LumcError  # noqa: E402
from lumc.frontend.models.huggingface import import_folder  # noqa: E402
from lumc.graph.bind import bind_dims  # noqa: E402
from lumc.oracle.graph import evaluate  # noqa: E402

IDS = np.array([[3, 7, 1, 9, 2, 5], [4, 2, 11, 1, 1, 8]])
SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 3,
    "intermediate_size": 40,
    "vocab_size": 13,
    "max_position_embeddings": 32,
    "query_pre_attn_scalar": 12,
    "sliding_window": 3,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": ("Gemma2", {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0}),
    "gemma2 without caps": (
        "Gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None, "sliding_window": 99},
    ),
    "gemma3": ("Gemma3", {"sliding_window_pattern": 2}),
    "gemma3 by layer": (
        "Gemma3",
        {
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "final_logit_softcapping": 5.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e3},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
}


def folder_of(path: Path, name: str, said: dict[str, Any]) -> Any:
    """A network of transformers whose folder is written, in f64."""
    kind = "Gemma3Text" if name == "Gemma3" else name
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **said})
    config._attn_implementation = "eager"
    torch.manual_seed(5)
    network = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn_like(p) * 0.4)
    network.save_pretrained(path, safe_serialization=True)
    return network.double()


@pytest.mark.parametrize("case", CASES)
def test_what_transformers_computes(tmp_path: Path, case: str) -> None:
    network = folder_of(tmp_path, *CASES[case])
    with torch.inference_mode():
        want = network(torch.from_numpy(IDS), output_hidden_states=True)
    model = import_folder(tmp_path)
    graph = bind_dims(model.graph(), {"b": 2, "s": IDS.shape[1]})
    got = evaluate(graph, "main", {"input_ids": IDS}, model.read_weight)[0]
    for ours, theirs in (("logits", want.logits), ("last_hidden_state", want.hidden_states[-1])):
        expected = theirs.numpy()
        assert np.linalg.norm(got[ours] - expected) < 1e-5 * np.linalg.norm(expected), ours


@pytest.mark.parametrize(
    "said",
    [
        {"layer_types": ["full_attention"]},
        {"layer_types": "full_attention"},
        {"layer_types": [["full_attention"]] * 3},
        {"num_key_value_heads": 3},
        {"attention_bias": True},
        {"attn_logit_softcapping": -1.0},
        {"final_logit_softcapping": "much"},
        {"sliding_window": 0},
    ],
)
def test_what_is_not_supported_is_refused(tmp_path: Path, said: dict[str, Any]) -> None:
    import json

    folder_of(tmp_path, "Gemma2", {})
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    with pytest.raises(LumcError) as e:
        import_folder(tmp_path)
    assert next(iter(said)) in e.value.what and e.value.code == "E0324"
