"""GGUF files: the family and its config from the metadata, names and rows of weights as in a folder
of transformers. Weights are referenced where they lie, in the blocks that they are stored in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lumc.disk.gguf import Gguf, read_gguf
from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.nn import Scope
from lumc.frontend.api.weights import reference
from lumc.frontend.models import gemma, llama
from lumc.frontend.models.cache import Cache
from lumc.frontend.models.config import Checkpoint, Config
from lumc.graph.ops import DType

ARCHITECTURES: dict[str, Callable[[Model, Config, Scope, Cache | None], None]] = {
    "gemma2": partial(gemma.gemma2, centre=0.0),  # their files hold norms as they are used
    "gemma3": partial(gemma.gemma3, centre=0.0),
    "llama": llama.llama,  # and Mistral, SmolLM
    "phi3": llama.phi3,
    "qwen2": llama.qwen2,
    "qwen3": llama.qwen3,
}
FIELDS = {  # what config.json calls the keys of an architecture
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope_local_base_freq": "rope.freq_base_swa",
}
LARGE = {"gemma2": 46, "gemma3": 62}  # layers of the one whose scores are scaled otherwise
TURNED, WIDE = "rope.dimension_count", "attention.value_length"
SCALING = "rope.scaling."
SCALED = {
    "type": "rope_type",
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
ZERO = ("expert_count", "expert_used_count", "leading_dense_block_count")  # or left out
SAYING_NOTHING = ("vocab_size", "tensor_data_layout", f"{SCALING}finetuned")
SLOWED = "rope_freqs.weight"
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
OTHERWISE = {
    ("phi3", "ffn_up"): "mlp.gate_up_proj",
    ("gemma2", "ffn_norm"): "pre_feedforward_layernorm",
    ("gemma3", "ffn_norm"): "pre_feedforward_layernorm",
}


def import_gguf(path: str | Path, cache: Cache | None = None) -> Model:
    """The model of a file; with a ``cache`` to be given a text in parts. E0324 .. E0326, E0340 ..
    E0342; exit 4 when it is not supported, 5 when damaged."""
    file = read_gguf(Path(path))
    kind = file.fields.get("general.architecture")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        what = f"general.architecture = {_brief(kind)!r} is not supported"
        fix = f"supported: {', '.join(ARCHITECTURES)}"
        raise LumcError("E0341", what, where=str(path), fix=fix, exit=Exit.UNSUPPORTED)
    if (parts := file.fields.get("split.count", 1)) != 1:
        fix = "make it one file: llama-gguf-split --merge"
        raise _unsupported(file, "split.count", parts, fix)
    config = _config(file, kind)
    checkpoint = _checkpoint(file, kind, config)
    model = Model()
    model.origin = file.path.name
    ARCHITECTURES[kind](model, config, Scope(model, checkpoint), cache)
    if checkpoint.problems:
        raise checkpoint.misfit()
    _all_used(file, checkpoint)
    return model


# ---- metadata


def _config(file: Gguf, kind: str) -> Config:
    """What config.json would say; keys that might mean something else are refused."""
    own = {
        k.removeprefix(f"{kind}."): v for k, v in file.fields.items() if k.startswith(f"{kind}.")
    }
    keys = {name: f"{kind}.{key}" for name, key in FIELDS.items()}
    scaling = {k: v for k, v in own.items() if k.startswith(SCALING) and k not in SAYING_NOTHING}
    known = {*FIELDS.values(), *ZERO, *SAYING_NOTHING, *scaling, TURNED, WIDE}
    for key, value in own.items():
        if key not in known or (key in ZERO and value):
            raise _unsupported(file, f"{kind}.{key}", value)
    values = {name: _brief(own[key]) for name, key in FIELDS.items() if key in own}
    head = values.get("head_dim")
    if WIDE in own and own[WIDE] != head:
        raise _unsupported(file, f"{kind}.{WIDE}", own[WIDE])
    if values.get("sliding_window") == 0:
        del values["sliding_window"]
    values["rope_scaling"] = _scaling(file, kind, scaling)
    values["vocab_size"] = _rows(file, "token_embd.weight")
    values["tie_word_embeddings"] = "output.weight" not in file.tensors
    values["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    values["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
    config = Config(values, file.path, keys, _slowed(file))
    _turned(file, kind, own, config)
    return config


def _turned(file: Gguf, kind: str, own: Mapping[str, Any], config: Config) -> None:
    """How much of a head turns: all of it, but for phi3. How scores are scaled."""
    d, n = config.integer("hidden_size"), config.integer("num_attention_heads")
    head = config.integer("head_dim", d // n or 1)
    turned = own.get(TURNED, head)
    if kind == "phi3" and type(turned) is int and 0 < turned <= head:
        config.values["partial_rotary_factor"] = turned / head
    elif turned != head:
        raise _unsupported(file, f"{kind}.{TURNED}", turned)
    config.values["head_dim"] = head
    large = config.values.get("num_hidden_layers") == LARGE.get(kind)
    config.values["query_pre_attn_scalar"] = d // n if large else head


def _scaling(file: Gguf, kind: str, scaling: Mapping[str, Any]) -> dict[str, Any]:
    found = {key.removeprefix(SCALING): _brief(value) for key, value in scaling.items()}
    if found.get("type", "none") == "none":
        return {}
    for key, value in found.items():
        if key not in SCALED and not (key == "attn_factor" and value == 1):
            raise _unsupported(file, f"{kind}.{SCALING}{key}", value)
    return {SCALED[key]: value for key, value in found.items() if key in SCALED}


def _slowed(file: Gguf) -> tuple[float, ...]:
    """Of each rotary pair, as a tensor of its own says."""
    stored = file.tensors.get(SLOWED)
    if stored is None:
        return ()
    if stored.dtype is not DType.F32 or len(stored.shape) != 1:
        raise _unsupported(file, SLOWED, str(stored))
    return tuple(np.memmap(file.path, "<f4", "r", stored.start, stored.shape).tolist())


def _rows(file: Gguf, name: str) -> int | None:
    stored = file.tensors.get(name)
    return stored.shape[0] if stored and stored.shape else None


def _brief(value: object) -> object:
    """A value as a message may show it."""
    if isinstance(value, list | np.ndarray):
        return f"an array of {len(value)}"
    return value if not isinstance(value, str) else value[:64]


def _unsupported(file: Gguf, name: str, value: object, fix: str = "") -> LumcError:
    what = f"{name} = {_brief(value)!r} is not supported"
    return LumcError("E0341", what, where=str(file.path), fix=fix, exit=Exit.UNSUPPORTED)


# ---- tensors


def _checkpoint(file: Gguf, kind: str, config: Config) -> Checkpoint:
    """The tensors under the names of transformers."""
    of_file = reference(file.path)
    named = {_name(key, kind): key for key in file.tensors if key != SLOWED}
    tensors = {name: (of_file, file.tensors[key]) for name, key in named.items()}
    paired = dict[str, int]()
    if kind == "llama":  # the others keep the halves of a head apart
        heads = config.integer("num_attention_heads")
        shared = config.integer("num_key_value_heads", heads)
        for name in named:
            if found := re.search(r"\.self_attn\.([qk])_proj\.", name):
                paired[name] = heads if found[1] == "q" else shared
    return Checkpoint(file.path, tensors, "its metadata", paired)


def _name(key: str, kind: str) -> str:
    """``blk.3.attn_q.weight`` as ``model.layers.3.self_attn.q_proj.weight``; others as they are."""
    found = re.fullmatch(r"(?:blk\.(0|[1-9][0-9]{0,5})\.)?([a-z_]+)\.(weight|bias)", key)
    if found is None or found[2] not in NAMES:
        return key
    layer, part, end = found.groups()
    name = OTHERWISE.get((kind, part), NAMES[part])
    return f"model.layers.{layer}.{name}.{end}" if layer else f"{name}.{end}"


def _all_used(file: Gguf, checkpoint: Checkpoint) -> None:
    """A tensor that the family does not know may mean another computation."""
    left = [stored.key for name, (_, stored) in checkpoint.tensors.items()
            if name not in checkpoint.made]  # fmt: skip
    if left:
        shown = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
        what = f"{len(left)} tensors are no part of this architecture as lumc knows it: {shown}"
        raise LumcError("E0342", what, where=str(file.path), exit=Exit.UNSUPPORTED)
