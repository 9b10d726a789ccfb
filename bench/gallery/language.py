"""Networks over tokens and sounds: real widths, few of their equal layers, small vocabularies."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from gallery.entry import network
from zoo.case import Ids

WORDS = 8000
TEXT = Ids((1, 64), WORDS)


class Only(nn.Module):
    """A module that is called with more than its inputs; ``pick`` takes the tensor that counts."""

    def __init__(self, module: nn.Module, pick: Any = None, **more: Any) -> None:
        super().__init__()
        self.module, self.pick, self.more = module, pick, more

    def forward(self, *inputs: Tensor) -> Any:
        found = self.module(*inputs, **self.more)
        return self.pick(found) if self.pick else found


# ---- encoders of text


@network(Ids((1, 128), WORDS))
def deberta_v2() -> nn.Module:
    """Attention by relative positions, two gathered products beside the usual one."""
    sizes = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    where = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 256}
    more = {"max_relative_positions": -1, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
    depth = {"num_hidden_layers": 3, "vocab_size": WORDS}
    return hf.DebertaV2Model(hf.DebertaV2Config(**sizes, **where, **more, **depth))


@network(Ids((1, 128), WORDS))
def modern_bert() -> nn.Module:
    special = {f"{n}_token_id": i for i, n in enumerate(("pad", "bos", "eos", "cls", "sep"))}
    config = hf.ModernBertConfig(num_hidden_layers=4, vocab_size=WORDS, **special)
    config._attn_implementation = "sdpa"
    return hf.ModernBertModel(config)


@network(TEXT)
def t5_encoder() -> nn.Module:
    sizes = {"d_model": 512, "num_layers": 4, "d_ff": 2048, "num_heads": 8, "d_kv": 64}
    return hf.T5EncoderModel(hf.T5Config(**sizes, vocab_size=WORDS))


class Decoder(nn.Module):
    """Tokens and what an encoder made, into states."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, ids: Tensor, states: Tensor) -> Tensor:
        found = self.decoder(input_ids=ids, encoder_hidden_states=states, use_cache=False)
        return found.last_hidden_state


@network(Ids((1, 16), WORDS), (1, 64, 512))
def t5_decoder() -> nn.Module:
    sizes = {"d_model": 512, "num_layers": 4, "d_ff": 2048, "num_heads": 8, "d_kv": 64}
    return Decoder(hf.T5Model(hf.T5Config(**sizes, vocab_size=WORDS)).decoder)


@network(Ids((1, 77), WORDS))
def clip_text() -> nn.Module:
    config = hf.CLIPTextConfig(num_hidden_layers=4, vocab_size=WORDS, eos_token_id=WORDS - 1)
    return Only(hf.CLIPTextModel(config), lambda y: (y.last_hidden_state, y.pooler_output))


# ---- decoders of text

SMALL = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 3}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "use_cache": False}
MORE = {"vocab_size": WORDS, "pad_token_id": 0}


@network(TEXT)
def qwen2() -> nn.Module:
    return hf.Qwen2ForCausalLM(hf.Qwen2Config(**SMALL, **HEADS, **MORE))


@network(TEXT)
def qwen3() -> nn.Module:
    return hf.Qwen3ForCausalLM(hf.Qwen3Config(**SMALL, **HEADS, **MORE, head_dim=64))


@network(TEXT)
def mistral() -> nn.Module:
    return hf.MistralForCausalLM(hf.MistralConfig(**SMALL, **HEADS, **MORE, sliding_window=32))


@network(TEXT)
def phi3() -> nn.Module:
    return hf.Phi3ForCausalLM(hf.Phi3Config(**SMALL, **HEADS, **MORE))


@network(TEXT)
def gemma2() -> nn.Module:
    return hf.Gemma2ForCausalLM(hf.Gemma2Config(**SMALL, **HEADS, **MORE, head_dim=64))


@network(TEXT)
def gemma3() -> nn.Module:
    return hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**SMALL, **HEADS, **MORE, head_dim=64))


@network(TEXT)
def gpt_neox() -> nn.Module:
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 3}
    config = hf.GPTNeoXConfig(**sizes, num_attention_heads=8, vocab_size=WORDS, use_cache=False)
    return hf.GPTNeoXForCausalLM(config)


class Mixture(nn.Module):
    """Two of eight experts for every token, as Mixtral weighs them; all are computed, since which
    are needed only a run knows."""

    def __init__(self, width: int = 512, inner: int = 1024, experts: int = 8) -> None:
        super().__init__()
        self.norm, self.router = nn.RMSNorm(width), nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * inner) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, inner, width) * inner**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        logits = self.router(y)
        best, which = logits.topk(2, -1)
        shares = torch.zeros_like(logits).scatter(-1, which, best.softmax(-1))
        gate, value = torch.einsum("btd,edf->ebtf", y, self.up).chunk(2, -1)
        out = torch.einsum("ebtf,efd->ebtd", nn.functional.silu(gate) * value, self.down)
        return x + torch.einsum("ebtd,bte->btd", out, shares)


@network((1, 64, 512))
def mixture_of_experts() -> nn.Module:
    return nn.Sequential(Mixture(), Mixture())


@network(Ids((1, 32), WORDS))
def mamba() -> nn.Module:
    """A scan over the sequence, unrolled by the exporter."""
    sizes = {"hidden_size": 512, "num_hidden_layers": 2, "state_size": 16}
    config = hf.MambaConfig(**sizes, vocab_size=WORDS, use_cache=False)
    return hf.MambaForCausalLM(config)


# ---- sounds


@network((1, 16000))
def wav2vec2() -> nn.Module:
    return hf.Wav2Vec2ForCTC(hf.Wav2Vec2Config(num_hidden_layers=3, vocab_size=32))


@network(Ids((1, 4), 51865), (1, 1500, 384))
def whisper_decoder() -> nn.Module:
    """A step of the decoder, of four tokens."""
    sizes = {"d_model": 384, "decoder_layers": 4, "decoder_attention_heads": 6}
    return Decoder(hf.WhisperModel(hf.WhisperConfig(**sizes, decoder_ffn_dim=1536)).decoder)


class Frames(nn.Module):
    """Frames of a spectrum into labels: two layers of GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.labels = nn.GRU(80, 256, 2, batch_first=True), nn.Linear(256, 40)

    def forward(self, x: Tensor) -> Tensor:
        return self.labels(self.gru(x)[0]).log_softmax(-1)


@network((1, 50, 80))
def gru_tagger() -> nn.Module:
    return Frames()


# ---- small classics


@network((32, 64))
def tabular() -> nn.Module:
    """Columns of a table into classes."""
    wide = nn.Linear(64, 256), nn.LayerNorm(256), nn.SiLU()
    deep = nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()
    return nn.Sequential(*wide, *deep, nn.Linear(256, 10), nn.Softmax(-1))


@network((2, 50, 256))
def transformer_encoder() -> nn.Module:
    """torch's own layers."""
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


class Neighbours(nn.Module):
    """A layer of a graph network: every node gets the mean of what its edges bring."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(into, out), nn.Linear(into, out, bias=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        start, end = edges.unbind(0)
        ones = torch.ones_like(end, dtype=x.dtype)
        degree = torch.zeros_like(x[:, 0]).index_add(0, end, ones).clamp(min=1)
        messages = self.other(x)[start]
        total = torch.zeros_like(messages[:1]).repeat(x.shape[0], 1).index_add(0, end, messages)
        return self.own(x) + total / degree[:, None]


class GraphNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Neighbours(64, 128), Neighbours(128, 16)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second(self.first(x, edges).relu(), edges)


@network((200, 64), Ids((2, 800), 200))
def graph_network() -> nn.Module:
    return GraphNetwork()
