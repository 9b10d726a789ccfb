"""Gemma 2 and 3 with random weights, against what transformers computes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import write_folder
from lumc.errors import LumcError
from lumc.frontend.models.huggingface import import_folder
from lumc.graph.bind import bind_dims
from lumc.oracle.graph import evaluate

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
    "gemma2": ("gemma2", {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0}),
    "gemma2 without caps": (
        "gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None, "sliding_window": 99},
    ),
    "gemma3": ("gemma3_text", {"sliding_window_pattern": 2}),
    "gemma3 by layer": (
        "gemma3_text",
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


# the last logits of the first text and the length of all hidden states, by transformers 5.24
COMPUTED: dict[str, tuple[list[float], float]] = {
    "gemma2": (
        [1.9197955, -1.4250729, -0.7957294, -1.8601031, -1.6181929, 1.9930271],
        19.3247923,
    ),
    "gemma2 without caps": (
        [1.010787, -2.6886299, -0.015853535, -2.6619263, -1.4134015, 5.9065018],
        19.3933256,
    ),
    "gemma3": (
        [3.2699114, -1.9533038, 1.3602349, -1.5902247, -0.66207, 5.1630168],
        19.6392378,
    ),
    "gemma3 by layer": (
        [2.7062802, -2.9628952, 1.4763368, -2.1654184, 0.8806859, 4.2691893],
        19.6226272,
    ),
}


def folder_of(path: Path, kind: str, said: dict[str, Any]) -> Path:
    config = {**SIZES, "model_type": kind, **said}
    d, n, shared, head = 24, 4, 2, 8
    layer = {
        "self_attn.q_proj": (n * head, d),
        "self_attn.k_proj": (shared * head, d),
        "self_attn.v_proj": (shared * head, d),
        "self_attn.o_proj": (d, n * head),
        "mlp.gate_proj": (40, d),
        "mlp.up_proj": (40, d),
        "mlp.down_proj": (d, 40),
    }
    before = ("input_layernorm", "pre_feedforward_layernorm")
    after = ("post_attention_layernorm", "post_feedforward_layernorm")
    norms: dict[str, tuple[int, ...]] = dict.fromkeys((*before, *after), (d,))
    if kind == "gemma3_text":
        norms |= {"self_attn.q_norm": (head,), "self_attn.k_norm": (head,)}
    shapes = {"embed_tokens": (13, d), "norm": (d,)}
    shapes |= {f"layers.{i}.{k}": s for i in range(3) for k, s in {**layer, **norms}.items()}
    rng = np.random.default_rng(37)
    weights = {
        f"model.{k}.weight": rng.standard_normal(s, np.float32) * np.float32(0.4)
        for k, s in shapes.items()
    }
    return write_folder(path, config, weights)


def computed(folder: Path) -> dict[str, np.ndarray]:
    model = import_folder(folder)
    graph = bind_dims(model.graph(), {"b": 2, "s": IDS.shape[1]})
    return evaluate(graph, "main", {"input_ids": IDS}, model.read_weight)[0]


@pytest.mark.parametrize("case", CASES)
def test_what_transformers_computed(tmp_path: Path, case: str) -> None:
    got, (logits, length) = computed(folder_of(tmp_path / "m", *CASES[case])), COMPUTED[case]
    np.testing.assert_allclose(got["logits"][0, -1, :6], logits, rtol=1e-5, atol=1e-5)
    assert np.linalg.norm(got["last_hidden_state"]) == pytest.approx(length, rel=1e-6)


@pytest.mark.deep
@pytest.mark.parametrize("case", CASES)
def test_what_transformers_computes(tmp_path: Path, case: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = folder_of(tmp_path / "m", *CASES[case])
    kind = transformers.AutoModelForCausalLM
    network = kind.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    with torch.inference_mode():
        want = network(torch.from_numpy(IDS), output_hidden_states=True)
    got = computed(folder)
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
    folder = folder_of(tmp_path / "m", "gemma2", {})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    with pytest.raises(LumcError) as e:
        import_folder(folder)
    assert next(iter(said)) in e.value.what and e.value.code == "E0324"
