"""Models as people shard them, with the ratios of the real ones, and what became of them."""

from __future__ import annotations

from itertools import pairwise

from lumc.frontend import Model, nn
from lumc.frontend.api.elementwise import where
from lumc.frontend.api.tensor import Tensor
from lumc.grad import gradients
from lumc.graph.collective import Collective
from lumc.graph.graph import Graph
from lumc.shard.mesh import collectives


def llama(layers: int = 1, s: int = 64, d: int = 256, heads: int = 8, shared: int = 4) -> Graph:
    """Blocks with grouped heads, rotary positions and a gated MLP; weights are states without
    values, so they are held."""
    g = Model()
    held, x = _weights(g, layers, d, shared * d // heads), g.input("x", (1, s, d))
    g.output("y", _blocks(g, held, x, heads, shared))
    return g.graph()


def llama_step(
    layers: int = 1, batch: int = 8, s: int = 8, d: int = 32, heads: int = 4, shared: int = 2
) -> Graph:
    """A step of gradient descent for such blocks, on several texts."""
    g = Model()
    held = _weights(g, layers, d, shared * d // heads)
    x, label = (g.input(n, (batch, s, d)) for n in ("x", "label"))
    wrong = _blocks(g, held, x, heads, shared) - label
    loss = (wrong * wrong).sum() * (1.0 / (batch * s * d))
    params = [w for each in held for w in each.values()]
    for w, slope in zip(params, gradients(loss, params), strict=True):
        g.update(w, w - slope * 0.1)
    g.output("loss", loss)
    return g.graph()


def _weights(g: Model, layers: int, d: int, grouped: int) -> list[dict[str, Tensor]]:
    inner = 11 * d // 4
    names = {"wq": (d, d), "wk": (d, grouped), "wv": (d, grouped), "wo": (d, d)}
    names |= {"gate": (d, inner), "up": (d, inner), "down": (inner, d), "n1": (d,), "n2": (d,)}
    return [{n: g.state(f"{n}.{i}", shape) for n, shape in names.items()} for i in range(layers)]


def _blocks(g: Model, held: list[dict[str, Tensor]], x: Tensor, heads: int, shared: int) -> Tensor:
    _, s, d = x.shape
    cos, sin = (g.input(n, (s, d // heads // 2)) for n in ("cos", "sin"))
    for w in held:
        h = x.rms_norm(w["n1"])
        counts = {"wq": heads, "wk": shared, "wv": shared}
        q, k, v = (nn.heads(h @ w[n], m) for n, m in counts.items())
        q, k = nn.rotary(q, cos, sin), nn.rotary(k, cos, sin)
        k, v = (nn.repeat_heads(t, heads // shared) for t in (k, v))
        x = x + nn.merged(nn.attention(q, k, v, nn.causal_bias(g, s))) @ w["wo"]
        h = x.rms_norm(w["n2"])
        x = x + ((h @ w["gate"]).silu() * (h @ w["up"])) @ w["down"]
    return x


def training(batch: int, sizes: tuple[int, ...] = (784, 512, 512, 16)) -> Graph:
    """A step of gradient descent, whose weights are states."""
    g = Model()
    pairs = list(pairwise(sizes))
    held = [(g.state(f"w{i}", p), g.state(f"b{i}", p[1:])) for i, p in enumerate(pairs)]
    x, label = g.input("x", (batch, sizes[0])), g.input("label", (batch, sizes[-1]))
    seen, z = [x], x
    for i, (w, b) in enumerate(held):
        z = z @ w + b
        if i < len(held) - 1:
            z = z.relu()
            seen.append(z)
    slope = (z.softmax(-1) - label) * (1.0 / batch)
    for (w, b), h in reversed([*zip(held, seen, strict=True)]):
        below = (slope @ w.transpose(0, 1)) * where(h > 0.0, 1.0, 0.0)
        g.update(w, w - (h.transpose(0, 1) @ slope) * 0.01)
        g.update(b, b - slope.sum(0) * 0.01)
        slope = below
    return g.graph()


def decoding(heads: int = 8, width: int = 32, rows: int = 256) -> Graph:
    """One token after ``rows`` others: attention over a cache, and an MLP."""
    g, d = Model(), heads * width
    keys, values = (g.state(n, (heads, rows, width)) for n in ("keys", "values"))
    shapes = {"wq": (d, d), "wk": (d, d), "wv": (d, d), "wo": (d, d)}
    w = {n: g.state(n, s) for n, s in (shapes | {"up": (d, 4 * d), "down": (4 * d, d)}).items()}
    x = g.input("x", (1, d))
    q = (x @ w["wq"]).reshape(heads, 1, width)
    k, v = ((x @ w[n]).reshape(heads, width) for n in ("wk", "wv"))
    scores = (q * keys).sum(-1) * width**-0.5
    mixed = (scores.softmax(-1).reshape(heads, rows, 1) * values).sum(1)
    y = x + mixed.reshape(1, d) @ w["wo"]
    g.output("y", y + (y @ w["up"]).relu() @ w["down"])
    g.update(keys, k, (slice(None), 5))
    g.update(values, v, (slice(None), 5))
    return g.graph()


def parts_of(graph: Graph) -> dict[str, str]:
    """What of its weights, states and inputs a rank has: dims that are cut, by name."""
    every = (*graph.weights, *graph.states, *(n for e in graph.entries for n in e.inputs))
    return {n.name: ", ".join(map(str, n.parts)) for n in every}


def exchanges(graph: Graph) -> list[tuple[str, str]]:
    """The collectives in order, and what they are of."""
    every = [(n.op, n.reads[0].source.name) for n in collectives(graph)]
    return [(op.kind.value, name) for op, name in every if isinstance(op, Collective)]


def tied(batch: int, vocab: int = 8, width: int = 16) -> Graph:
    """A step whose first weight is the last one, too: what it makes is compared with what it
    began with, so that with two stages the first one also ends the way forward."""
    g = Model()
    x = g.input("x", (batch, vocab))
    embed, inner, other = (
        g.state(n, s)
        for n, s in (("e", (vocab, width)), ("w", (width, width)), ("v", (width, width)))
    )
    h = ((x @ embed @ inner).relu() @ other).relu() @ embed.transpose(0, 1)
    loss = ((h - x) * (h - x)).sum() * (1.0 / batch)
    params = [embed, inner, other]
    for p, slope in zip(params, gradients(loss, params), strict=True):
        g.update(p, p - slope * 0.1)
    g.output("loss", loss)
    return g.graph()
