"""GPT-2: learned positions, causal attention and MLP, normed before each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.nn import (
    Scope,
    attention,
    embedding,
    heads,
    layer_norm,
    merged,
    width,
)
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.models.cache import Cache, Text, texts
from lumc.frontend.models.config import Config, below


@dataclass(frozen=True)
class Block:
    """The sizes of a block."""

    heads: int
    inner: int  # width inside the MLP
    eps: float
    act: Callable[[Tensor], Tensor]


def gpt2(model: Model, config: Config, w: Scope, cache: Cache | None = None) -> None:
    """input_ids i64[b, s] -> last_hidden_state f32[b, s, d] and, with a head, logits."""
    config.refuse("scale_attn_weights", True)
    config.refuse("scale_attn_by_inverse_layer_idx", False)
    config.refuse("add_cross_attention", False)
    d, positions = config.integer("n_embd"), config.integer("n_positions")
    vocabulary = config.integer("vocab_size")
    block = Block(
        heads=config.heads(d, "n_head"),
        inner=config.integer("n_inner", 4 * d),
        eps=config.number("layer_norm_epsilon", 1e-5),
        act=config.activation("gelu_new", "activation_function"),
    )
    if cache and cache.context + cache.rows - 1 > positions:  # there is no row for each of them
        what = f"a context of {cache.context} and {cache.rows - 1} more, of {positions} positions"
        raise LumcError("E0326", what, fix="take less of both", exit=Exit.USAGE)
    body = below(w, "transformer", "wte.weight")
    for text in texts(model, cache, positions, vocabulary):
        x = embedding(body / "wte", text.ids, vocabulary, d)
        x = x + text.placed((body / "wpe").tensor("weight", positions, d))
        bias = text.bias()
        for i in range(config.integer("n_layer")):
            x = gpt2_block(body / "h" / i, block, x, bias, text)
        x = layer_norm(body / "ln_f", text.asked(x), block.eps)
        if text.cache is None:
            text.result("last_hidden_state", x)
        if config.names("architectures", "LMHead") or text.cache is not None:
            text.result("logits", x @ (body / "wte").tensor("weight", vocabulary, d).T)


def gpt2_block(w: Scope, block: Block, x: Tensor, bias: Tensor, text: Text | None = None) -> Tensor:
    """x [b, s, d] -> [b, s, d]; of a ``text``, behind what it has seen."""
    w.model.origin = w.prefix
    d, a, m = width(x), w / "attn", w / "mlp"
    together = dense(a / "c_attn", layer_norm(w / "ln_1", x, block.eps), 3 * d)
    q, k, v = (heads(part, block.heads) for part in together.chunk(3, -1))
    k, v = text.seen(w.prefix, k, v) if text else (k, v)
    x = x + dense(a / "c_proj", merged(attention(q, k, v, bias)), d)
    inner = block.act(dense(m / "c_fc", layer_norm(w / "ln_2", x, block.eps), block.inner))
    return x + dense(m / "c_proj", inner, d)


def dense(w: Scope, x: Tensor, out: int) -> Tensor:
    """[.., in] -> [.., out]; ``weight`` is stored [in, out]."""
    return x @ w.tensor("weight", width(x), out) + w.tensor("bias", out)
