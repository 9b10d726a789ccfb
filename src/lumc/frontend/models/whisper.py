"""Whisper: an encoder of half a minute of sound, and a decoder that looks at all of it.

The entry ``encode`` leaves what the decoder's layers see of the sound in states, so that the
entries ``prefill`` and ``decode`` are those of any language model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lumc.frontend.api.model import Model
from lumc.frontend.api.nn import (
    Scope,
    attention,
    embedding,
    heads,
    layer_norm,
    linear,
    merged,
    width,
)
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.models.cache import Cache, Encoded, Text, encoded, texts
from lumc.frontend.models.config import MAX_LAYERS, Config, below

ROWS = 8  # of one run, if nobody says: a prompt has four tokens
EPS = 1e-5


@dataclass(frozen=True)
class Block:
    """The sizes of the layers of one side."""

    heads: int
    inner: int  # width inside the MLP
    layers: int
    act: Callable[[Tensor], Tensor]


def whisper(model: Model, config: Config, w: Scope, cache: Cache | None = None) -> None:
    """``encode``: input_features f32[mels, frames] -> last_hidden_state f32[frames / 2, d]; then
    ``prefill`` and ``decode``: input_ids i64[s] -> logits f32[words]."""
    config.refuse("scale_embedding", False)
    d, vocabulary = config.integer("d_model"), config.integer("vocab_size")
    rows, longest = config.integer("max_source_positions"), config.integer("max_target_positions")
    cache = cache or Cache(longest, min(ROWS, longest))
    bare = below(w, "model", "encoder.conv1.weight")
    table, block = bare / "decoder" / "embed_tokens", _block(config, "decoder", d)
    sound = (f"decoder.layers.{i}.sound" for i in range(block.layers))
    seen = encoded(model, (block.heads, rows, d // block.heads), sound)
    model.dim("p", 0, cache.context - 1)
    model.dim("s", 1, cache.rows)
    model.entry("encode")
    _encode(model, config, bare, seen)
    body = bare / "decoder"
    for text in texts(model, cache, longest, vocabulary):
        place = (body / "embed_positions").tensor("weight", longest, d)
        place = place.pad([(0, cache.rows - 1), (0, 0)])  # the last run may reach beyond
        x = embedding(table, text.ids, vocabulary, d) + place[text.first : text.end]
        bias = text.bias()
        for i in range(block.layers):
            x = decoder_layer(body / "layers" / i, block, x, bias, text, *seen[i])
        x = layer_norm(body / "layer_norm", text.asked(x), EPS)
        stored = "proj_out.weight" in getattr(w.source, "tensors", {})
        head = w / "proj_out" if stored else table
        text.result("logits", x @ head.tensor("weight", vocabulary, d).T)


def _block(config: Config, side: str, d: int) -> Block:
    return Block(
        heads=config.heads(d, f"{side}_attention_heads"),
        inner=config.integer(f"{side}_ffn_dim"),
        layers=config.integer(f"{side}_layers", most=MAX_LAYERS),
        act=config.activation("gelu", "activation_function"),
    )


def _encode(model: Model, config: Config, w: Scope, seen: Encoded) -> None:
    """The entry that is given sound: f32[mels, frames]."""
    d, mels = config.integer("d_model"), config.integer("num_mel_bins")
    rows, body = config.integer("max_source_positions"), w / "encoder"
    block, their = _block(config, "encoder", d), _block(config, "decoder", d)
    x = model.input("input_features", (mels, 2 * rows))[None]
    for name, n, stride in (("conv1", mels, 1), ("conv2", d, 2)):
        kernel, bias = (body / name).tensor("weight", d, n, 3), (body / name).tensor("bias", d)
        x = x.conv1d(kernel, bias, stride=stride, padding=1).gelu()
    x = x.transpose(1, 2) + (body / "embed_positions").tensor("weight", rows, d)
    for i in range(block.layers):
        x = encoder_layer(body / "layers" / i, block, x)
    x = layer_norm(body / "layer_norm", x, EPS)
    for i, states in enumerate(seen):
        attended = w / "decoder" / "layers" / i / "encoder_attn"
        values = _keys_values(attended, x, their.heads)
        for state, value in zip(states, values, strict=True):
            model.update(state, value[0])
    model.output("last_hidden_state", x[0])


def _keys_values(w: Scope, x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """x [b, s, d] -> [b, n, s, d / n] twice; keys have no bias."""
    d = width(x)
    return heads(linear(w / "k_proj", x, d, False), n), heads(linear(w / "v_proj", x, d), n)


def _attended(
    w: Scope, x: Tensor, n: int, k: Tensor, v: Tensor, bias: Tensor | None = None
) -> Tensor:
    """What the rows of x [b, s, d] see of keys and values: [b, s, d]."""
    q = heads(linear(w / "q_proj", x, width(x)), n)
    return linear(w / "out_proj", merged(attention(q, k, v, bias)), width(x))


def _inner(w: Scope, block: Block, x: Tensor) -> Tensor:
    h = layer_norm(w / "final_layer_norm", x, EPS)
    return x + linear(w / "fc2", block.act(linear(w / "fc1", h, block.inner)), width(x))


def encoder_layer(w: Scope, block: Block, x: Tensor) -> Tensor:
    """x [b, s, d] -> [b, s, d]: attention and MLP, normed before each."""
    w.model.origin = w.prefix
    h, own = layer_norm(w / "self_attn_layer_norm", x, EPS), w / "self_attn"
    x = x + _attended(own, h, block.heads, *_keys_values(own, h, block.heads))
    return _inner(w, block, x)


def decoder_layer(
    w: Scope, block: Block, x: Tensor, bias: Tensor, text: Text, keys: Tensor, values: Tensor
) -> Tensor:
    """x [b, s, d] -> [b, s, d]: attention to the text, to the sound, and MLP."""
    w.model.origin = w.prefix
    h, own = layer_norm(w / "self_attn_layer_norm", x, EPS), w / "self_attn"
    k, v = text.seen(w.prefix, *_keys_values(own, h, block.heads))
    x = x + _attended(own, h, block.heads, k, v, bias)
    h = layer_norm(w / "encoder_attn_layer_norm", x, EPS)
    x = x + _attended(w / "encoder_attn", h, block.heads, keys[None], values[None])
    return _inner(w, block, x)
