"""Llama and its relatives: rotary attention with shared keys, gated MLP, normed before each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from lumc.frontend.api.model import Model
from lumc.frontend.api.nn import (
    Scope,
    attention,
    embedding,
    heads,
    linear,
    merged,
    repeat_heads,
    rms_norm,
    rotary,
    rotary_tables,
    width,
)
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.models.cache import Cache, Text, texts
from lumc.frontend.models.config import Config, below
from lumc.frontend.models.rope import frequencies


@dataclass(frozen=True)
class Family:
    """How a family differs from Llama."""

    in_bias: bool = False  # of queries, keys and values
    out_bias: bool = False
    head: int | None = None  # width of a head that config.json need not say
    head_norms: bool = False  # queries and keys are normed, head by head
    fused: bool = False  # queries, keys and values are one weight, gate and up another
    windowed: bool | None = False  # whether sliding_window counts; None: use_sliding_window says
    eps: float = 1e-6


@dataclass(frozen=True)
class Block:
    """The sizes of a block."""

    heads: int
    groups: int  # query heads per key head
    head: int  # width of a head
    inner: int  # width inside the MLP
    eps: float
    act: Callable[[Tensor], Tensor]
    family: Family
    mlp_bias: bool = False


def llama(model: Model, config: Config, w: Scope, cache: Cache | None = None) -> None:
    """input_ids i64[b, s] -> last_hidden_state f32[b, s, d] and, with a head, logits."""
    bias = config.flag("attention_bias", False)
    _decode(model, config, w, Family(in_bias=bias, out_bias=bias), cache)


def mistral(model: Model, config: Config, w: Scope, cache: Cache | None = None) -> None:
    """As ``llama``; a query sees the last ``sliding_window`` keys."""
    _decode(model, config, w, Family(windowed=True), cache)


def phi3(model: Model, config: Config, w: Scope, cache: Cache | None = None) -> None:
    """As ``mistral``, with fused weights; part of a head may not turn."""
    _decode(model, config, w, Family(fused=True, windowed=True, eps=1e-5), cache)


def qwen2(model: Model, config: Config, w: Scope, cache: Cache | None = None) -> None:
    """As ``llama``, with a bias on queries, keys and values; some layers may be windowed."""
    _decode(model, config, w, Family(in_bias=True, windowed=None), cache)


def qwen3(model: Model, config: Config, w: Scope, cache: Cache | None = None) -> None:
    """As ``llama``, with normed queries and keys; some layers may be windowed."""
    bias = config.flag("attention_bias", False)
    family = Family(in_bias=bias, out_bias=bias, head=128, head_norms=True, windowed=None)
    _decode(model, config, w, family, cache)


def _decode(model: Model, config: Config, w: Scope, family: Family, cache: Cache | None) -> None:
    d, n = config.integer("hidden_size"), config.integer("num_attention_heads")
    shared = config.integer("num_key_value_heads", n)
    if n % shared:
        raise config.error(f"num_key_value_heads = {shared} does not divide {n} heads")
    unsaid = config.values.get("head_dim") is None
    head = (family.head or d // config.heads(d)) if unsaid else None
    longest, vocabulary = config.integer("max_position_embeddings"), config.integer("vocab_size")
    block = Block(
        heads=n,
        groups=n // shared,
        head=config.integer("head_dim", head),
        inner=config.integer("intermediate_size"),
        eps=config.number("rms_norm_eps", family.eps),
        act=config.activation("silu"),
        family=family,
        mlp_bias=config.flag("mlp_bias", False),
    )
    turns, scale = frequencies(config, block.head, partial=family.fused)
    windows = _windows(config, config.layers(), family.windowed, longest)
    for text in texts(model, cache, longest, vocabulary):
        _rows(config, w, block, text, rotary_tables(model, text.positions(), turns, scale), windows)


def _rows(
    config: Config,
    w: Scope,
    block: Block,
    text: Text,
    tables: tuple[Tensor, Tensor],
    windows: Sequence[int | None],
) -> None:
    """What is computed of the rows of a run: an entry."""
    d, vocabulary = config.integer("hidden_size"), config.integer("vocab_size")
    stored = getattr(w.source, "tensors", {})
    body = below(w, "model", "embed_tokens.weight")
    x = embedding(body / "embed_tokens", text.ids, vocabulary, d)
    biases = {window: text.bias(window) for window in dict.fromkeys(windows)}
    for i, window in enumerate(windows):
        x = llama_block(body / "layers" / i, block, x, *tables, biases[window], text)
    x = rms_norm(body / "norm", text.asked(x), block.eps)
    if text.cache is None:
        text.result("last_hidden_state", x)
    tied = config.flag("tie_word_embeddings", False)
    if "lm_head.weight" in stored or tied or text.cache is not None:
        table = body / "embed_tokens" if tied else w / "lm_head"
        text.result("logits", x @ table.tensor("weight", vocabulary, d).T)


def _windows(config: Config, layers: int, windowed: bool | None, longest: int) -> list[int | None]:
    """Of every layer, how many keys a query sees; None where it sees all."""
    first = config.integer("max_window_layers", 28, least=0) if windowed is None else 0
    windowed = config.flag("use_sliding_window", False) if windowed is None else windowed
    window = config.integer("sliding_window", longest) if windowed else longest
    kinds = config.values.get("layer_types")
    if kinds is None or not windowed:
        kinds = [("full", "sliding")[i >= first] + "_attention" for i in range(layers)]
    known = ["full_attention", "sliding_attention"]
    if not isinstance(kinds, list) or len(kinds) != layers or any(k not in known for k in kinds):
        raise config.error(f"layer_types = {kinds!r}; expected {layers} of {', '.join(known)}")
    return [window if k == known[1] and window < longest else None for k in kinds]


def llama_block(
    w: Scope,
    block: Block,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    bias: Tensor,
    text: Text | None = None,
) -> Tensor:
    """x [b, s, d] -> [b, s, d]; of a ``text``, behind what it has seen."""
    w.model.origin = w.prefix
    d, a, m, family = width(x), w / "self_attn", w / "mlp", block.family
    n, shared = block.heads, block.heads // block.groups
    h = rms_norm(w / "input_layernorm", x, block.eps)
    whole = a / "qkv_proj" if family.fused else None
    split = {"q_proj": n * block.head, "k_proj": shared * block.head, "v_proj": shared * block.head}
    q, k, v = (
        heads(p, width(p) // block.head) for p in _together(a, whole, split, h, family.in_bias)
    )
    if family.head_norms:
        q, k = rms_norm(a / "q_norm", q, block.eps), rms_norm(a / "k_norm", k, block.eps)
    q, k = rotary(q, cos, sin), rotary(k, cos, sin)
    k, v = text.seen(w.prefix, k, v) if text else (k, v)
    k, v = repeat_heads(k, block.groups), repeat_heads(v, block.groups)
    x = x + linear(a / "o_proj", merged(attention(q, k, v, bias)), d, family.out_bias)
    h = rms_norm(w / "post_attention_layernorm", x, block.eps)
    whole = m / "gate_up_proj" if family.fused else None
    split = {"gate_proj": block.inner, "up_proj": block.inner}
    gate, up = _together(m, whole, split, h, block.mlp_bias)
    return x + linear(m / "down_proj", block.act(gate) * up, d, block.mlp_bias)


def _together(
    w: Scope, whole: Scope | None, split: Mapping[str, int], x: Tensor, bias: bool
) -> list[Tensor]:
    """x [.., d] by weights of these widths: [.., width] each; ``whole`` holds all, one on another.

    A whole one has no bias.
    """
    if whole is None:
        return [linear(w / name, x, n, bias) for name, n in split.items()]
    table = whole.tensor("weight", sum(split.values()), width(x))
    ends = accumulate(split.values())
    return [x @ table[end - n : end].T for n, end in zip(split.values(), ends, strict=True)]
