"""The samples of this folder, written with the Tensor API.

    lumc import graphs/samples.py:attention -o attention.lg

gives graphs/attention.lg without its header of comments (a test keeps them equal).
"""

from lumc.frontend import Model, Tensor
from lumc.frontend.api import nn


def matmul() -> Model:
    g = Model()
    a = g.input("a", (192, 256))
    b = g.input("b", (256, 160))
    g.output("c", (a @ b).named("c"))
    return g


def mlp() -> Model:
    g = Model()
    x = g.input("x", (32, 784))
    w1, b1 = g.input("w1", (784, 128)), g.input("b1", (128,))
    w2, b2 = g.input("w2", (128, 10)), g.input("b2", (10,))
    h = ((x @ w1).named("xw1") + b1).named("h")
    h = h.relu().named("relu")
    g.output("y", ((h @ w2).named("hw2") + b2).named("y"))
    return g


def softmax() -> Model:
    g = Model()
    b = g.dim("b", 1, 4096)
    x = g.input("x", (b, 1000))
    g.output("y", x.softmax(-1).named("y"))
    return g


def layernorm() -> Model:
    g = Model()
    b = g.dim("b", 1, 4096)
    x = g.input("x", (b, 384))
    y = x.layer_norm(g.input("weight", (384,)), g.input("bias", (384,)), 1e-5)
    g.output("y", y.named("y"))
    return g


def conv() -> Model:
    """Convolution, batch norm, ReLU, 2 x 2 pooling."""
    g = Model()
    x = g.input("x", (1, 8, 14, 14))
    w = g.input("w", (16, 8, 3, 3))
    mean, variance = g.input("mean", (16,)), g.input("variance", (16,))
    gamma, beta = g.input("gamma", (16,)), g.input("beta", (16,))
    y = x.conv2d(w, padding=1).named("conv")
    y = y.batch_norm(mean, variance, gamma, beta).named("norm")
    g.output("y", y.relu().named("relu").max_pool(2).named("pool"))
    return g


def _heads(g: Model) -> list[Tensor]:
    return [g.input(name, (2, 4, 64, 32)) for name in ("q", "k", "v")]


def attention() -> Model:
    """softmax(q k^T / sqrt(d)) v, written naively; padding keys are masked."""
    g = Model()
    q, k, v = _heads(g)
    mask = g.input("mask", (2, 64), "i64")
    bias = nn.mask_bias(mask).named("bias")
    g.output("out", nn.attention(q, k, v, bias[:, None, None, :]).named("out"))
    return g


def causal_attention() -> Model:
    g = Model()
    q, k, v = _heads(g)
    g.output("out", nn.attention(q, k, v, nn.causal_bias(g, 64)).named("out"))
    return g


def embedding() -> Model:
    """Rows of a table: a sum of rows, all but one of which a select turns to zero."""
    g = Model()
    ids = g.input("ids", (2, 16), "i64")
    table = g.input("table", (1000, 64))
    g.output("rows", table.embedding(ids).named("rows"))
    return g


def llama_block() -> Model:
    """One block: rotary causal attention, 4 query heads on 2 key heads, and a gated MLP."""
    g = Model()
    s, d, heads, shared, inner = 6, 16, 4, 2, 24
    x = g.input("x", (1, s, d))
    cos, sin = g.input("cos", (s, 2)), g.input("sin", (s, 2))

    def weight(name: str, *shape: int) -> Tensor:
        return g.input(name, shape)

    h = x.rms_norm(weight("norm1", d)).named("h")
    q = nn.heads((h @ weight("wq", d, d)).named("query"), heads)
    k = nn.heads((h @ weight("wk", d, d // 2)).named("key"), shared)
    v = nn.heads((h @ weight("wv", d, d // 2)).named("value"), shared)
    q, k = nn.rotary(q, cos, sin).named("query_turned"), nn.rotary(k, cos, sin).named("key_turned")
    k, v = nn.repeat_heads(k, heads // shared), nn.repeat_heads(v, heads // shared)
    mixed = nn.attention(q, k, v, nn.causal_bias(g, s)).named("mixed")
    x = (x + nn.merged(mixed) @ weight("wo", d, d)).named("x1")
    h = x.rms_norm(weight("norm2", d)).named("h2")
    gate = (h @ weight("wgate", d, inner)).named("gate").silu()
    up = (h @ weight("wup", d, inner)).named("up")
    g.output("y", (x + (gate * up) @ weight("wdown", inner, d)).named("y"))
    return g
