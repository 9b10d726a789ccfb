"""Llama and its relatives: rotary attention with shared keys, gated MLP, normed before each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumc.frontend.bert import MAX_BATCH, below
from lumc.frontend.model import Model
from lumc.frontend.nn import (
    Scope,
    attention,
    causal_bias,
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
from lumc.frontend.tensor import Tensor

if TYPE_CHECKING:
    from lumc.frontend.huggingface import Config


@dataclass(frozen=True)
class Block:
    """The sizes of a block."""

    heads: int
    groups: int  # query heads per key head
    head: int  # width of a head
    inner: int  # width inside the MLP
    eps: float
    act: Callable[[Tensor], Tensor]
    in_bias: bool = False  # of queries, keys and values
    out_bias: bool = False
    mlp_bias: bool = False


def llama(model: Model, config: Config, w: Scope) -> None:
    """input_ids i64[b, s] -> last_hidden_state f32[b, s, d] and, with a head, logits."""
    bias = config.flag("attention_bias", False)
    _decode(model, config, w, in_bias=bias, out_bias=bias)


def qwen2(model: Model, config: Config, w: Scope) -> None:
    """As ``llama``, with a bias on queries, keys and values."""
    _decode(model, config, w, in_bias=True, out_bias=False)


def _decode(model: Model, config: Config, w: Scope, in_bias: bool, out_bias: bool) -> None:
    config.refuse("rope_scaling")
    d, n = config.integer("hidden_size"), config.heads(config.integer("hidden_size"))
    shared = config.integer("num_key_value_heads", n)
    if n % shared:
        raise config.error(f"num_key_value_heads = {shared} does not divide {n} heads")
    longest = config.integer("max_position_embeddings")
    window = config.values.get("sliding_window")
    if isinstance(window, int) and config.flag("use_sliding_window", True):
        longest = min(longest, max(window, 1))  # shorter than the window it changes nothing
    block = Block(
        heads=n,
        groups=n // shared,
        head=config.integer("head_dim", d // n),
        inner=config.integer("intermediate_size"),
        eps=config.number("rms_norm_eps", 1e-6),
        act=config.activation(),
        in_bias=in_bias,
        out_bias=out_bias,
        mlp_bias=config.flag("mlp_bias", False),
    )
    if block.head % 2:
        raise config.error(f"head_dim = {block.head} is odd")
    b, s = model.dim("b", 1, MAX_BATCH), model.dim("s", 1, longest)
    ids = model.input("input_ids", (b, s), "i64", values=(0, config.integer("vocab_size") - 1))
    tensors = getattr(w.source, "tensors", {})
    body = below(w, "model", "embed_tokens.weight")
    vocabulary = config.integer("vocab_size")
    x = embedding(body / "embed_tokens", ids, vocabulary, d)
    cos, sin = rotary_tables(model, model.arange(s), block.head, config.number("rope_theta", 1e4))
    bias = causal_bias(model, s)
    for i in range(config.integer("num_hidden_layers")):
        x = llama_block(body / "layers" / i, block, x, cos, sin, bias)
    x = rms_norm(body / "norm", x, block.eps)
    model.output("last_hidden_state", x)
    tied = config.flag("tie_word_embeddings", False)
    if "lm_head.weight" in tensors or tied:
        table = body / "embed_tokens" if tied else w / "lm_head"
        model.output("logits", x @ table.tensor("weight", vocabulary, d).T)


def llama_block(
    w: Scope, block: Block, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor
) -> Tensor:
    """x [b, s, d] -> [b, s, d]."""
    w.model.origin = w.prefix
    d, a, shared = width(x), w / "self_attn", block.heads // block.groups
    h = rms_norm(w / "input_layernorm", x, block.eps)
    q = heads(linear(a / "q_proj", h, block.heads * block.head, block.in_bias), block.heads)
    k = heads(linear(a / "k_proj", h, shared * block.head, block.in_bias), shared)
    v = heads(linear(a / "v_proj", h, shared * block.head, block.in_bias), shared)
    q, k = rotary(q, cos, sin), rotary(k, cos, sin)
    k, v = repeat_heads(k, block.groups), repeat_heads(v, block.groups)
    mixed = merged(attention(q, k, v, bias))
    x = x + linear(a / "o_proj", mixed, d, block.out_bias)
    h, m = rms_norm(w / "post_attention_layernorm", x, block.eps), w / "mlp"
    gate = block.act(linear(m / "gate_proj", h, block.inner, block.mlp_bias))
    up = linear(m / "up_proj", h, block.inner, block.mlp_bias)
    return x + linear(m / "down_proj", gate * up, d, block.mlp_bias)
