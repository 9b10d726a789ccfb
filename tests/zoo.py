"""Small models that exercise every kind of region, written with the frontend."""

from __future__ import annotations

from collections.abc import Callable

from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.graph import Graph
from searching import weight

LOWEST = -3.4028234663852886e38
Q = (2, 3, 16, 8)  # batch, heads, positions, width


def _matmul(g: Model) -> Tensor:
    return g.input("x", (9, 12)) @ weight(g, "w", 12, 7)


def _mlp(g: Model) -> Tensor:
    x = g.input("x", (5, 12))
    h = (x @ weight(g, "w1", 12, 20) + weight(g, "b1", 20)).gelu()
    return h @ weight(g, "w2", 20, 6) + weight(g, "b2", 6)


def _gated(g: Model) -> Tensor:
    x = g.input("x", (5, 12))
    n = x * ((x * x).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight(g, "n", 12)
    return (n @ weight(g, "w1", 12, 10)).silu() * (n @ weight(g, "w3", 12, 10))


def _softmax(g: Model) -> Tensor:
    return g.input("x", (6, 11)).softmax(-1)


def layer_norm(g: Model, x: Tensor, name: str = "") -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scale = ((centred * centred).mean(-1, keepdim=True) + 1e-5).rsqrt()
    return centred * scale * weight(g, f"{name}w", x.shape[-1]) + weight(g, f"{name}b", x.shape[-1])


def _layernorm(g: Model) -> Tensor:
    return layer_norm(g, g.input("x", (6, 11)))


def _embedding(g: Model) -> Tensor:
    return weight(g, "table", 5, 8).embedding(g.input("ids", (2, 6), "i64")) * 2.0


def _gather(g: Model) -> Tensor:
    return g.input("x", (4, 5)).gather(1, g.input("ids", (4, 3), "i32"), wrap=True)


def _conv(g: Model) -> Tensor:
    x = g.input("x", (2, 3, 9, 7))
    y = x.conv(weight(g, "w", 4, 3, 3, 3), weight(g, "b", 4), padding=1).relu()
    z = y.max_pool(2).conv(weight(g, "w2", 5, 4, 3, 2), stride=2, padding=1)
    return z.flatten(1) @ weight(g, "w3", 5 * 2 * 2, 3)


def two_convolutions(g: Model) -> Tensor:
    """The middle value has 32 channels, in which the first one makes vectors."""
    x, w1, w2 = (
        g.input("x", (1, 3, 29, 17)),
        weight(g, "w1", 32, 3, 3, 3),
        weight(g, "w2", 16, 32, 3, 3),
    )
    return x.conv2d(w1, padding=1).relu().conv2d(w2, padding=1).relu()


def _rope(g: Model) -> Tensor:
    x, cos, sin = g.input("x", (6, 3 * 8)), weight(g, "cos", 6, 4), weight(g, "sin", 6, 4)
    x = x.reshape(6, 3, 8).permute(1, 0, 2)
    a, b = x[..., :4], x[..., 4:]
    low, high = a * cos - b * sin, b * cos + a * sin
    return low.pad([(0, 0), (0, 0), (0, 4)]) + high.pad([(0, 0), (0, 0), (4, 0)])


def _grouped(g: Model) -> Tensor:
    """Four heads that share two keys, with a causal mask."""
    q = g.input("q", (4, 10, 8))
    k, v = (g.input(n, (2, 10, 8)).repeat_interleave(2, 0) for n in "kv")
    place = g.arange(10)
    scores = (q @ k.transpose()) * 8**-0.5
    scores = scores.masked_fill(place[:, None] < place[None, :], -1e9)
    return scores.softmax(-1) @ v


def _square(g: Model) -> Tensor:
    """Attention whose width equals its length: all axes have one extent."""
    q, k, v = (g.input(n, (8, 8)) for n in "qkv")
    return (q @ k.transpose() * 0.3).softmax(-1) @ v


def _low_rank(g: Model) -> Tensor:
    """x @ (a @ b), which is much cheaper as (x @ a) @ b."""
    return g.input("x", (6, 32)) @ (weight(g, "a", 32, 2) @ weight(g, "b", 2, 24))


def _block(g: Model) -> Tensor:
    """A whole encoder layer with a mask of key positions."""
    b, s, heads, d = 2, 6, 3, 4
    width = heads * d
    x, mask = g.input("x", (b, s, width)), g.input("mask", (b, s), "i64")

    def linear(t: Tensor, name: str, out: int) -> Tensor:
        return t @ weight(g, name, out, t.shape[-1]).transpose() + weight(g, f"{name}b", out)

    def split(t: Tensor) -> Tensor:
        return t.reshape(b, s, heads, d).permute(0, 2, 1, 3)

    q, k, v = (split(linear(x, n, width)) for n in "qkv")
    bias = (1.0 - mask.lift(mask).to("f32").reshape(b, 1, 1, s)) * LOWEST
    mixed = ((q @ k.transpose()) * d**-0.5 + bias).softmax(-1) @ v
    y = linear(mixed.permute(0, 2, 1, 3).reshape(b, s, width), "o", width)
    y = layer_norm(g, y + x, "n1")
    return layer_norm(g, linear(linear(y, "f1", 20).gelu(), "f2", width) + y, "n2")


MODELS: dict[str, Callable[[Model], Tensor]] = {
    "matmul": _matmul,
    "mlp": _mlp,
    "gated": _gated,
    "softmax": _softmax,
    "layernorm": _layernorm,
    "embedding": _embedding,
    "gather": _gather,
    "conv": _conv,
    "rope": _rope,
    "grouped": _grouped,
    "square": _square,
    "low_rank": _low_rank,
    "block": _block,
}


def build(function: Callable[[Model], Tensor]) -> Graph:
    g = Model()
    g.output("y", function(g))
    return g.graph()


def model(name: str) -> Graph:
    return build(MODELS[name])


# ---- ways to write attention; ``e`` are the weights before they are normalised

Attention = Callable[[Model, Tensor, Tensor, Tensor], Tensor]


def _weights(scores: Tensor) -> Tensor:
    return (scores - scores.max(-1, keepdim=True)).exp()


def _normalise_late(g: Model, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = _weights(q @ k.transpose() * 8**-0.5)
    return (e @ v) * e.sum(-1, keepdim=True).reciprocal()


def _by_powers_of_two(g: Model, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.transpose() * 0.51
    e = (s - s.max(-1, keepdim=True)).exp2()
    return (e * e.sum(-1, keepdim=True).reciprocal()) @ v


def _scaled_twice(g: Model, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.transpose()
    e = (s * 0.51 - s.max(-1, keepdim=True) * 0.51).exp2()
    return (e * e.sum(-1, keepdim=True).reciprocal()) @ v


def _soft_capped(g: Model, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.transpose() * 8**-0.5
    return (((s * 0.04).sigmoid() * 2.0 - 1.0) * 50.0).softmax(-1) @ v


def _masked_after(g: Model, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = _weights(q @ k.transpose() * 8**-0.5) * g.input("m", (16, 16))
    return (e * e.sum(-1, keepdim=True).reciprocal()) @ v


def _with_sink(g: Model, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.transpose() * 8**-0.5
    m = s.max(-1, keepdim=True)
    e = (s - m).exp()
    return (e * (e.sum(-1, keepdim=True) + (-m).exp()).reciprocal()) @ v


def _causal(g: Model, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i = g.arange(16)
    s = (q @ k.transpose() * 8**-0.5).masked_fill(i[:, None] < i[None, :], LOWEST)
    return s.softmax(-1) @ v


ATTENTIONS: dict[str, Attention] = {
    "plain": lambda g, q, k, v: (q @ k.transpose()).softmax(-1) @ v,
    "scaled": lambda g, q, k, v: (q @ k.transpose() * 8**-0.5).softmax(-1) @ v,
    "scaled query": lambda g, q, k, v: ((q * 8**-0.5) @ k.transpose()).softmax(-1) @ v,
    "divided": lambda g, q, k, v: (q @ k.transpose() / 2.8).softmax(-1) @ v,
    "normalised late": _normalise_late,
    "powers of two": _by_powers_of_two,
    "scaled twice": _scaled_twice,
    "biased": lambda g, q, k, v: (
        (q @ k.transpose() * 8**-0.5 + g.input("bias", (3, 16, 16))).softmax(-1) @ v
    ),
    "soft capped": _soft_capped,
    "masked after": _masked_after,
    "with sink": _with_sink,
    "causal": _causal,
}


def attention(write: Attention) -> Graph:
    return build(lambda g: write(g, *(g.input(n, Q) for n in "qkv")))
