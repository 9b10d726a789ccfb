"""GPT-2: learned positions, causal attention and MLP, normed before each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lumc.frontend.api.model import Model
from lumc.frontend.api.nn import (
    Scope,
    attention,
    causal_bias,
    embedding,
    heads,
    layer_norm,
    merged,
    width,
)
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.models.config import MAX_BATCH, Config, below


@dataclass(frozen=True)
class Block:
    """The sizes of a block."""

    heads: int
    inner: int  # width inside the MLP
    eps: float
    act: Callable[[Tensor], Tensor]


def gpt2(model: Model, config: Config, w: Scope) -> None:
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
    b, s = model.dim("b", 1, MAX_BATCH), model.dim("s", 1, positions)
    ids = model.input("input_ids", (b, s), "i64", values=(0, config.integer("vocab_size") - 1))
    body = below(w, "transformer", "wte.weight")
    x = embedding(body / "wte", ids, vocabulary, d)
    x = x + (body / "wpe").tensor("weight", positions, d)[:s]
    bias = causal_bias(model, s)
    for i in range(config.integer("n_layer")):
        x = gpt2_block(body / "h" / i, block, x, bias)
    x = layer_norm(body / "ln_f", x, block.eps)
    model.output("last_hidden_state", x)
    if config.names("architectures", "LMHead"):
        model.output("logits", x @ (body / "wte").tensor("weight", vocabulary, d).T)


def gpt2_block(w: Scope, block: Block, x: Tensor, bias: Tensor) -> Tensor:
    """x [b, s, d] -> [b, s, d]."""
    w.model.origin = w.prefix
    d, a, m = width(x), w / "attn", w / "mlp"
    together = dense(a / "c_attn", layer_norm(w / "ln_1", x, block.eps), 3 * d)
    q, k, v = (heads(part, block.heads) for part in together.chunk(3, -1))
    x = x + dense(a / "c_proj", merged(attention(q, k, v, bias)), d)
    inner = block.act(dense(m / "c_fc", layer_norm(w / "ln_2", x, block.eps), block.inner))
    return x + dense(m / "c_proj", inner, d)


def dense(w: Scope, x: Tensor, out: int) -> Tensor:
    """[.., in] -> [.., out]; ``weight`` is stored [in, out]."""
    return x @ w.tensor("weight", width(x), out) + w.tensor("bias", out)
