"""T5: an encoder of a text, and a decoder that looks at all of it.

The entry ``encode`` leaves what the decoder's layers see of the text in states, of which the first
``e`` rows are; ``prefill`` and ``decode`` are those of any language model, and have that dim too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumc.frontend.api.model import Model
from lumc.frontend.api.nn import Scope, attention, embedding, heads, linear, merged, rms_norm, width
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.models.cache import ROWS, Cache, encoded, texts
from lumc.frontend.models.config import MAX_LAYERS, Config

Array = np.ndarray[Any, Any]
LONGEST = 512  # tokens, where config.json says nothing: those that it was trained with
FORWARD = {"relu": ("relu", False), "gated-gelu": ("gelu_new", True), "gated-silu": ("silu", True)}


@dataclass(frozen=True)
class Block:
    """The sizes of the layers of both sides."""

    heads: int
    head: int  # width of a head
    inner: int  # width inside the MLP
    eps: float
    act: Callable[[Tensor], Tensor]
    gated: bool
    buckets: int  # of distances that have a bias of their own
    far: int  # from this distance on they have one together


def t5(model: Model, config: Config, w: Scope, cache: Cache | None = None) -> None:
    """``encode``: input_ids i64[e] -> last_hidden_state f32[e, d]; then ``prefill`` and ``decode``:
    input_ids i64[s] -> logits f32[words]."""
    d, vocabulary = config.integer("d_model"), config.integer("vocab_size")
    longest, block = config.integer("n_positions", LONGEST), _block(config)
    cache = cache or Cache(longest, min(ROWS, longest))
    layers = config.integer("num_layers", most=MAX_LAYERS)
    deep = config.integer("num_decoder_layers", layers, most=MAX_LAYERS)
    e = model.dim("e", 1, longest)
    model.dim("p", 0, cache.context - 1)
    model.dim("s", 1, cache.rows)
    text_of = (f"decoder.block.{i}.text" for i in range(deep))
    seen = encoded(model, (block.heads, longest, block.head), text_of)
    model.entry("encode")
    ids = model.input("input_ids", (e,), "i64", values=(0, vocabulary - 1))
    x = embedding(w / "shared", ids[None], vocabulary, d)
    whole, at = w / "encoder" / "block", "layer.0.SelfAttention"
    bias = biases(whole / 0 / at, block, longest, both=True)[:, :e, :e]
    x = _encoder(w / "encoder", block, x, bias, layers)
    whole = w / "decoder" / "block"
    for i, states in enumerate(seen):
        named = zip(states, ("k", "v"), strict=True)
        for state, name in named:
            value = _parted(whole / i / "layer.1.EncDecAttention", name, block, x)
            model.update(state, value[0], (slice(None), slice(0, e)))
    model.output("last_hidden_state", x[0])
    tied = "lm_head.weight" not in getattr(w.source, "tensors", {})
    for text in texts(model, cache, longest, vocabulary):
        x = embedding(w / "shared", text.ids, vocabulary, d)
        rows = cache.context + cache.rows - 1
        late = text.bias()
        bias = biases(whole / 0 / at, block, rows, both=False)
        bias = bias[:, text.first : text.end, : text.end] + late
        for i, (keys, values) in enumerate(seen):
            part = whole / i / "layer"
            own = part / 0 / "SelfAttention"
            h = rms_norm(part / 0 / "layer_norm", x, block.eps)
            k, v = text.seen(part.prefix, *(_parted(own, n, block, h) for n in "kv"))
            x = x + _mixed(own, block, h, k, v, bias)
            known = keys[None, :, :e], values[None, :, :e]
            x = _attend(part / 1, "EncDecAttention", block, x, None, *known)
            x = _forward(part / 2, block, x)
        x = rms_norm(w / "decoder" / "final_layer_norm", text.asked(x), block.eps)
        if config.flag("scale_decoder_outputs", config.flag("tie_word_embeddings", True)):
            x = x * d**-0.5
        head = w / "shared" if tied else w / "lm_head"
        text.result("logits", x @ head.tensor("weight", vocabulary, d).T)


def _block(config: Config) -> Block:
    said = config.values.get("feed_forward_proj", "relu")
    if said not in FORWARD:
        raise config.error(f"feed_forward_proj = {said!r}; supported: {', '.join(FORWARD)}")
    act, gated = FORWARD[said]
    buckets = config.integer("relative_attention_num_buckets", 32, least=4)
    far = config.integer("relative_attention_max_distance", 128)
    if far <= buckets:
        raise config.error(f"relative_attention_max_distance = {far} for {buckets} buckets")
    return Block(
        heads=config.integer("num_heads"),
        head=config.integer("d_kv"),
        inner=config.integer("d_ff"),
        eps=config.number("layer_norm_epsilon", 1e-6),
        act=config.activation(act, "none of its own"),
        gated=gated,
        buckets=buckets,
        far=far,
    )


# ---- distances


def biases(w: Scope, block: Block, rows: int, both: bool) -> Tensor:
    """What a score of query i and key j gets besides: [heads, rows, rows], a view of one value for
    each distance j - i."""
    found = buckets(np.arange(1 - rows, rows), block, both)
    name = f"distances.{'both' if both else 'back'}"
    which = w.model.constant(found, name)
    table = (w / "relative_attention_bias").tensor("weight", block.buckets, block.heads)
    every = table.embedding(which).transpose(0, 1)  # [heads, 2 rows - 1]
    return every.unfold(1, rows).flip(1)  # [h, i, j] = every[h, (rows - 1 - i) + j]


def buckets(distances: Array, block: Block, both: bool) -> Array:
    """The bucket i64 of each distance from a query to a key: near ones have one each, others share
    them by the logarithm. Keys behind a query have those of the upper half, where ``both`` count;
    else that of none."""
    n = block.buckets // 2 if both else block.buckets
    away = np.abs(distances) if both else np.maximum(-distances, 0)
    near = n // 2
    with np.errstate(divide="ignore"):
        grown = np.log(away.astype(np.float32) / np.float32(near))
        grown = grown / np.float32(math.log(block.far / near))
    wide = near + np.where(away < near, 0, grown * np.float32(n - near)).astype(np.int64)
    found = np.where(away < near, away, np.minimum(wide, n - 1))
    return found + (n * (distances > 0) if both else 0)


# ---- layers


def _encoder(w: Scope, block: Block, x: Tensor, bias: Tensor, layers: int) -> Tensor:
    """x [b, e, d] -> [b, e, d]."""
    for part in (w / "block" / i / "layer" for i in range(layers)):
        x = _attend(part / 0, "SelfAttention", block, x, bias)
        x = _forward(part / 1, block, x)
    return rms_norm(w / "final_layer_norm", x, block.eps)


def _parted(w: Scope, name: str, block: Block, x: Tensor) -> Tensor:
    """x [b, s, d] -> [b, heads, s, head]."""
    return heads(linear(w / name, x, block.heads * block.head, False), block.heads)


def _mixed(w: Scope, block: Block, x: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """What the rows of x [b, s, d] see of keys and values: [b, s, d]. Scores are not scaled."""
    seen = attention(_parted(w, "q", block, x), k, v, bias, scale=1.0)
    return linear(w / "o", merged(seen), width(x), False)


def _attend(
    w: Scope,
    name: str,
    block: Block,
    x: Tensor,
    bias: Tensor | None,
    k: Tensor | None = None,
    v: Tensor | None = None,
) -> Tensor:
    """x [b, s, d] -> [b, s, d]: with attention to itself, or to keys and values."""
    w.model.origin = w.prefix
    h, own = rms_norm(w / "layer_norm", x, block.eps), w / name
    k = _parted(own, "k", block, h) if k is None else k
    v = _parted(own, "v", block, h) if v is None else v
    return x + _mixed(own, block, h, k, v, bias)


def _forward(w: Scope, block: Block, x: Tensor) -> Tensor:
    h, own = rms_norm(w / "layer_norm", x, block.eps), w / "DenseReluDense"
    if block.gated:
        inner = block.act(linear(own / "wi_0", h, block.inner, False))
        inner = inner * linear(own / "wi_1", h, block.inner, False)
    else:
        inner = block.act(linear(own / "wi", h, block.inner, False))
    return x + linear(own / "wo", inner, width(x), False)
