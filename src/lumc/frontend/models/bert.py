"""BERT and its relatives: an embedding, then layers of attention and MLP, normed after each."""

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
    mask_bias,
    merged,
    width,
)
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.models.config import MAX_BATCH, Config, below
from lumc.frontend.models.heads import Encoded, head_of, stored_names


@dataclass(frozen=True)
class Layer:
    """The sizes of a layer and the names of its weights."""

    heads: int
    inner: int  # width inside the MLP
    eps: float
    act: Callable[[Tensor], Tensor]
    query: str
    key: str
    value: str
    out: str
    attention_norm: str
    up: str
    down: str
    out_norm: str


def bert(model: Model, config: Config, w: Scope) -> Encoded:
    """input_ids, attention_mask i64[b, s] -> hidden f32[b, s, d]. With a head, which may compare
    two texts, token_type_ids i64[b, s] too; else all are of the first type."""
    positions = config.integer("max_position_embeddings")
    ids, mask = _inputs(model, config, positions)
    types, kinds = config.integer("type_vocab_size", 2), None
    if types > 1 and head_of(config, stored_names(w)):
        kinds = model.input("token_type_ids", ids.shape, "i64", values=(0, types - 1))
    w = below(w, "bert", "embeddings.word_embeddings.weight")
    table = (w / "embeddings" / "position_embeddings").tensor("weight", positions, _hidden(config))
    return _encode(config, w, ids, mask, table[: ids.shape[1]], kinds)


def roberta(model: Model, config: Config, w: Scope) -> Encoded:
    """As ``bert``; positions count the tokens that are not padding, from ``pad_token_id + 1``."""
    positions = config.integer("max_position_embeddings")
    pad = config.integer("pad_token_id", 1, least=0)
    if positions <= pad + 1:
        raise config.error(f"max_position_embeddings = {positions} with pad_token_id = {pad}")
    ids, mask = _inputs(model, config, positions - pad - 1)
    w = below(w, "roberta", "embeddings.word_embeddings.weight")
    real = (ids != pad).to("i64")
    counted = real.cumsum(1) * real + pad
    place = w / "embeddings" / "position_embeddings"
    return _encode(config, w, ids, mask, embedding(place, counted, positions, _hidden(config)))


def _inputs(model: Model, config: Config, longest: int) -> tuple[Tensor, Tensor]:
    b, s = model.dim("b", 1, MAX_BATCH), model.dim("s", 1, longest)
    last = config.integer("vocab_size") - 1
    ids = model.input("input_ids", (b, s), "i64", values=(0, last))
    return ids, model.input("attention_mask", (b, s), "i64", values=(0, 1))


def _hidden(config: Config) -> int:
    return config.integer("hidden_size")


def _encode(
    config: Config, w: Scope, ids: Tensor, mask: Tensor, place: Tensor, kinds: Tensor | None = None
) -> Encoded:
    config.refuse("position_embedding_type", "absolute")
    config.refuse("is_decoder", False)
    config.refuse("add_cross_attention", False)
    d = _hidden(config)
    eps = config.number("layer_norm_eps", 1e-12)
    words = embedding(w / "embeddings" / "word_embeddings", ids, config.integer("vocab_size"), d)
    types, table = config.integer("type_vocab_size", 2), w / "embeddings" / "token_type_embeddings"
    first = table.tensor("weight", types, d)[0]
    kind = first if kinds is None else embedding(table, kinds, types, d)
    x = layer_norm(w / "embeddings" / "LayerNorm", words + kind + place, eps)
    layer = Layer(
        heads=config.heads(d),
        inner=config.integer("intermediate_size"),
        eps=eps,
        act=config.activation("gelu"),
        query="attention.self.query",
        key="attention.self.key",
        value="attention.self.value",
        out="attention.output.dense",
        attention_norm="attention.output.LayerNorm",
        up="intermediate.dense",
        down="output.dense",
        out_norm="output.LayerNorm",
    )
    x = _layers(w / "encoder" / "layer", layer, config.integer("num_hidden_layers"), x, mask)
    return Encoded(x, mask, w)


def distilbert(model: Model, config: Config, w: Scope) -> Encoded:
    """As ``bert``, with half its layers, other names and no token types."""
    config.refuse("sinusoidal_pos_embds", False, True)  # both are stored as a table
    d, positions = config.integer("dim"), config.integer("max_position_embeddings")
    ids, mask = _inputs(model, config, positions)
    w = below(w, "distilbert", "embeddings.word_embeddings.weight")
    words = embedding(w / "embeddings" / "word_embeddings", ids, config.integer("vocab_size"), d)
    table = (w / "embeddings" / "position_embeddings").tensor("weight", positions, d)
    x = layer_norm(w / "embeddings" / "LayerNorm", words + table[: ids.shape[1]], 1e-12)
    layer = Layer(
        heads=config.heads(d, "n_heads"),
        inner=config.integer("hidden_dim"),
        eps=1e-12,
        act=config.activation("gelu", "activation"),
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        out="attention.out_lin",
        attention_norm="sa_layer_norm",
        up="ffn.lin1",
        down="ffn.lin2",
        out_norm="output_layer_norm",
    )
    x = _layers(w / "transformer" / "layer", layer, config.integer("n_layers"), x, mask)
    return Encoded(x, mask, w)


def _layers(w: Scope, layer: Layer, n: int, x: Tensor, mask: Tensor) -> Tensor:
    bias = mask_bias(mask)[:, None, None, :]  # [b, 1, 1, s]
    for i in range(n):
        x = encoder_layer(w / i, layer, x, bias)
    return x


def encoder_layer(w: Scope, layer: Layer, x: Tensor, bias: Tensor) -> Tensor:
    """x [b, s, d] -> [b, s, d]: attention, then the MLP, each added and normed."""
    w.model.origin = w.prefix
    d = width(x)
    q, k, v = (
        heads(linear(w / n, x, d), layer.heads) for n in (layer.query, layer.key, layer.value)
    )
    mixed = linear(w / layer.out, merged(attention(q, k, v, bias)), d)
    x = layer_norm(w / layer.attention_norm, mixed + x, layer.eps)
    inner = layer.act(linear(w / layer.up, x, layer.inner))
    return layer_norm(w / layer.out_norm, linear(w / layer.down, inner, d) + x, layer.eps)
