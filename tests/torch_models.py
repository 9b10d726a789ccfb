"""Architectures of transformers, small and with random weights: a module and arguments of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as t

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {"vocab_size": 99, "intermediate_size": 64, "max_position_embeddings": 40, **SMALL}
GROUPED = {**TEXT, "num_key_value_heads": 2, "use_cache": False, "pad_token_id": 0}
IMAGE = {"image_size": 32, "patch_size": 8, "intermediate_size": 64, **SMALL}
STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
Made = tuple[Any, tuple[Any, ...]]


def ids(rows: int = 2) -> tuple[Any, ...]:
    return (torch.randint(1, 99, (rows, 7)),)


def image(size: int = 32) -> tuple[Any, ...]:
    return (torch.randn(1, 3, size, size),)


def text(model: str, config: str, **more: Any) -> Callable[[], Made]:
    """A model that is given ids."""
    return lambda: (getattr(t, model)(getattr(t, config)(**{**TEXT, **more})), ids())


def seen(model: str, config: str, size: int = 32, **more: Any) -> Callable[[], Made]:
    """A model that is given an image."""
    return lambda: (getattr(t, model)(getattr(t, config)(**more)), image(size))


def gpt2() -> Made:
    config = t.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=40,
                          use_cache=False, bos_token_id=1, eos_token_id=2)  # fmt: skip
    return t.GPT2LMHeadModel(config), ids()


def t5() -> Made:
    config = t.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return t.T5EncoderModel(config), ids()


def whisper() -> Made:
    config = t.WhisperConfig(d_model=32, encoder_layers=1, encoder_attention_heads=4,
                             encoder_ffn_dim=64, max_source_positions=50)  # fmt: skip
    model = t.models.whisper.modeling_whisper.WhisperEncoder(config)
    return model, (torch.randn(1, 80, 100),)


def wav2vec2() -> Made:
    config = t.Wav2Vec2Config(**SMALL, intermediate_size=64, conv_dim=[16] * 7)
    return t.Wav2Vec2Model(config), (torch.randn(1, 4000),)


def segformer() -> Made:
    config = t.SegformerConfig(num_encoder_blocks=2, depths=[1, 1], sr_ratios=[4, 2],
                               hidden_sizes=[8, 16], patch_sizes=[7, 3], strides=[4, 2],
                               num_attention_heads=[1, 2], mlp_ratios=[2, 2])  # fmt: skip
    return t.SegformerModel(config), image(64)


def swin() -> Made:
    config = t.SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2],
                          num_heads=[2, 4], window_size=4)  # fmt: skip
    return t.SwinModel(config), image()


def mamba() -> Made:
    config = t.MambaConfig(vocab_size=99, hidden_size=32, num_hidden_layers=1, use_cache=False)
    return t.MambaModel(config), ids(1)


def deberta() -> Made:
    config = t.DebertaV2Config(**TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"])
    return t.DebertaV2Model(config), ids(1)


MODELS: dict[str, Callable[[], Made]] = {
    "bert": text("BertModel", "BertConfig"),
    "albert": text("AlbertModel", "AlbertConfig", embedding_size=16),
    "electra": text("ElectraModel", "ElectraConfig", embedding_size=16),
    "roberta": text("RobertaModel", "RobertaConfig"),
    "distilbert": text(
        "DistilBertModel", "DistilBertConfig", dim=32, n_layers=2, n_heads=4, hidden_dim=64
    ),
    "deberta": deberta,
    "gpt2": gpt2,
    "llama": text("LlamaForCausalLM", "LlamaConfig", **GROUPED),
    "mistral": text("MistralForCausalLM", "MistralConfig", **GROUPED),
    "qwen2": text("Qwen2ForCausalLM", "Qwen2Config", **GROUPED),
    "phi3": text("Phi3ForCausalLM", "Phi3Config", **GROUPED, bos_token_id=1, eos_token_id=2),
    "gemma": text("GemmaForCausalLM", "GemmaConfig", **GROUPED, head_dim=8),
    "t5": t5,
    "clip": text("CLIPTextModel", "CLIPTextConfig"),
    "whisper": whisper,
    "wav2vec2": wav2vec2,
    "mamba": mamba,
    "vit": seen("ViTModel", "ViTConfig", **IMAGE),
    "dinov2": seen("Dinov2Model", "Dinov2Config", **IMAGE),
    "siglip": seen("SiglipVisionModel", "SiglipVisionConfig", **IMAGE),
    "swin": swin,
    "segformer": segformer,
    "convnext": seen("ConvNextModel", "ConvNextConfig", 64, **STAGES),
    "resnet": seen("ResNetModel", "ResNetConfig", 64, embedding_size=8, **STAGES),
}


def made(name: str) -> Made:
    """In evaluation mode; the same weights and arguments every time."""
    torch.manual_seed(5)
    module, args = MODELS[name]()
    return module.eval(), args


def tensors(result: Any) -> list[Any]:
    """The tensors that a model returned."""
    found = result.to_tuple() if hasattr(result, "to_tuple") else result
    leaves = torch.utils._pytree.tree_leaves(found)
    return [x for x in leaves if isinstance(x, torch.Tensor)]
