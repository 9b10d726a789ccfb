"""Gemma 2 and 3: as Llama, with norms before and after each part, capped scores, and windows on
most layers, whose positions turn at a speed of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lumc.frontend.api.model import Model
from lumc.frontend.api.nn import (
    Scope,
    embedding,
    heads,
    linear,
    merged,
    repeat_heads,
    rotary,
    rotary_tables,
    width,
)
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.models.cache import Cache, Text, texts
from lumc.frontend.models.config import Config, below
from lumc.frontend.models.rope import frequencies

KINDS = FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Family:
    """How one differs from the other."""

    pattern: int  # of so many layers, the last one sees all keys
    head_norms: bool  # queries and keys are normed, head by head
    caps: tuple[float | None, float | None]  # of scores and logits that config.json need not say
    window: int
    base: float  # of the turns of full layers
    own_turns: bool  # layers with a window have turns of their own


GEMMA2 = Family(2, False, (50.0, 30.0), 4096, 1e4, False)
GEMMA3 = Family(6, True, (None, None), 4096, 1e6, True)


@dataclass(frozen=True)
class Block:
    """The sizes of a block."""

    heads: int
    groups: int  # query heads per key head
    head: int  # width of a head
    inner: int
    eps: float
    centre: float  # what is added to the weights of norms
    scale: float
    cap: float | None  # of scores
    act: Callable[[Tensor], Tensor]
    head_norms: bool


def gemma2(
    model: Model, config: Config, w: Scope, cache: Cache | None = None, centre: float = 1.0
) -> None:
    """input_ids i64[b, s] -> last_hidden_state f32[b, s, d] and logits; ``centre`` is what is added
    to the weights of norms."""
    _decode(model, config, w, GEMMA2, centre, cache)


def gemma3(
    model: Model, config: Config, w: Scope, cache: Cache | None = None, centre: float = 1.0
) -> None:
    """As ``gemma2``: of texts, without images."""
    _decode(model, config, w, GEMMA3, centre, cache)


def _decode(
    model: Model, config: Config, w: Scope, family: Family, centre: float, cache: Cache | None
) -> None:
    config.refuse("attention_bias", False)
    config.refuse("use_bidirectional_attention", False)
    longest, vocabulary = config.integer("max_position_embeddings"), config.integer("vocab_size")
    for text in texts(model, cache, longest, vocabulary):
        _rows(config, w, family, _block(config, family, centre), text)


def _rows(config: Config, w: Scope, family: Family, block: Block, text: Text) -> None:
    """What is computed of the rows of a run: an entry."""
    d, vocabulary = config.integer("hidden_size"), config.integer("vocab_size")
    longest = config.integer("max_position_embeddings")
    body = below(w, "model", "embed_tokens.weight")
    x = embedding(body / "embed_tokens", text.ids, vocabulary, d) * d**0.5
    kinds = _kinds(config, family)
    window = config.integer("sliding_window", family.window)
    limits = {FULL: None, SLIDING: window if window < longest else None}
    biases = {kind: text.bias(limits[kind]) for kind in dict.fromkeys(kinds)}
    tables = _tables(config, family, block.head, kinds, text)
    for i, kind in enumerate(kinds):
        x = _layer(body / "layers" / i, block, x, *tables[kind], biases[kind], text)
    x = _norm(body / "norm", text.asked(x), block)
    if text.cache is None:
        text.result("last_hidden_state", x)
    tied = config.flag("tie_word_embeddings", True)
    table = body / "embed_tokens" if tied else w / "lm_head"
    logits = x @ table.tensor("weight", vocabulary, d).T
    text.result("logits", _capped(logits, _cap(config, "final_logit_softcapping", family.caps[1])))


def _block(config: Config, family: Family, centre: float) -> Block:
    n = config.integer("num_attention_heads")
    shared = config.integer("num_key_value_heads", n)
    if n % shared:
        raise config.error(f"num_key_value_heads = {shared} does not divide {n} heads")
    usual, name = "gelu_pytorch_tanh", "hidden_activation"
    return Block(
        heads=n,
        groups=n // shared,
        head=config.integer("head_dim", 256),
        inner=config.integer("intermediate_size"),
        eps=config.number("rms_norm_eps", 1e-6),
        centre=centre,
        scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5,
        cap=_cap(config, "attn_logit_softcapping", family.caps[0]),
        act=config.activation(usual, name),
        head_norms=family.head_norms,
    )


def _cap(config: Config, name: str, usual: float | None) -> float | None:
    """A number; none where the file says so, or says nothing and there is none usually."""
    said = config.values.get(name, usual)
    return None if said is None else config.number(name, usual)


def _kinds(config: Config, family: Family) -> list[str]:
    """Of every layer, whether it has a window."""
    layers = config.layers()
    pattern = config.integer("sliding_window_pattern", family.pattern)
    kinds = config.values.get("layer_types")
    if kinds is None:
        kinds = [SLIDING if (i + 1) % pattern else FULL for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or any(k not in KINDS for k in kinds):
        raise config.error(f"layer_types = {kinds!r}; expected {layers} of {', '.join(KINDS)}")
    return kinds


def _turns(config: Config, family: Family, kind: str) -> Config:
    """The config whose rotary fields are those of one kind of layer."""
    values: dict[str, Any] = dict(config.values)
    said = values.get("rope_parameters")
    if isinstance(said, dict) and kind in said:
        values["rope_parameters"] = said[kind]
    elif family.own_turns and kind == SLIDING:
        values["rope_theta"] = values.get("rope_local_base_freq") or 1e4
        values["rope_scaling"] = values["rope_parameters"] = None
    if values.get("rope_theta") is None:
        values["rope_theta"] = family.base
    return replace(config, values=values)


def _tables(
    config: Config, family: Family, head: int, kinds: Sequence[str], text: Text
) -> dict[str, tuple[Tensor, Tensor]]:
    """cos and sin of the kinds of layers; those that turn alike share them."""
    made = dict[str, tuple[Tensor, Tensor]]()
    known = dict[tuple[float, ...], tuple[Tensor, Tensor]]()
    for kind in dict.fromkeys(kinds):
        turns, scale = frequencies(_turns(config, family, kind), head)
        key = (scale, *turns.tolist())
        if key not in known:
            name = f"rotary.{kind.partition('_')[0]}"
            known[key] = rotary_tables(text.model, text.positions(), turns, scale, name)
        made[kind] = known[key]
    return made


def _layer(
    w: Scope, block: Block, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor, text: Text
) -> Tensor:
    """x [b, s, d] -> [b, s, d]."""
    w.model.origin = w.prefix
    d, m = width(x), w / "mlp"
    h = _norm(w / "input_layernorm", x, block)
    y = _attention(w / "self_attn", block, h, cos, sin, bias, text)
    x = x + _norm(w / "post_attention_layernorm", y, block)
    h = _norm(w / "pre_feedforward_layernorm", x, block)
    gate = block.act(linear(m / "gate_proj", h, block.inner, False))
    y = linear(m / "down_proj", gate * linear(m / "up_proj", h, block.inner, False), d, False)
    return x + _norm(w / "post_feedforward_layernorm", y, block)


def _attention(
    w: Scope, block: Block, h: Tensor, cos: Tensor, sin: Tensor, bias: Tensor, text: Text
) -> Tensor:
    n, shared = block.heads, block.heads // block.groups
    q = heads(linear(w / "q_proj", h, n * block.head, False), n)
    k, v = (
        heads(linear(w / p, h, shared * block.head, False), shared) for p in ("k_proj", "v_proj")
    )
    if block.head_norms:
        q, k = _norm(w / "q_norm", q, block), _norm(w / "k_norm", k, block)
    q, k = rotary(q, cos, sin), rotary(k, cos, sin)
    k, v = text.seen(w.prefix, k, v)
    k, v = repeat_heads(k, block.groups), repeat_heads(v, block.groups)
    scores = _capped(q @ k.transpose() * block.scale, block.cap) + bias
    return linear(w / "o_proj", merged(scores.softmax(-1) @ v), width(h), False)


def _norm(w: Scope, x: Tensor, block: Block) -> Tensor:
    weight = w.tensor("weight", width(x))
    return x.rms_norm(weight + block.centre if block.centre else weight, block.eps)


def _capped(x: Tensor, cap: float | None) -> Tensor:
    """Between -cap and cap."""
    return x if cap is None else (x * (1 / cap)).tanh() * cap
