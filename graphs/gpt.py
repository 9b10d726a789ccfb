"""A step of training of a small transformer that reads a text letter by letter, here a scene of
Hamlet (Shakespeare: in the public domain), and guesses the next letter. AdamW at the rate ``lr``.

    lumc import graphs/gpt.py:gpt -o gpt.lg
"""

from pathlib import Path

import numpy as np

from lumc import Model, Tensor, gradients, nn, train

TEXT = Path(__file__).with_name("hamlet.txt").read_text()
LETTERS = sorted(set(TEXT))
BATCH, LENGTH, WIDTH, HEADS, LAYERS = 8, 32, 64, 4, 2
Array = np.ndarray


def ids() -> Array:
    """The text as places in ``LETTERS``: i64."""
    return np.array([LETTERS.index(c) for c in TEXT])


def shapes() -> dict[str, tuple[int, ...]]:
    d, out = WIDTH, {"letters": (len(LETTERS), WIDTH), "places": (LENGTH, WIDTH)}
    for i in range(LAYERS):
        sizes = {"n1.w": (d,), "n1.b": (d,), "qkv.w": (d, 3 * d), "qkv.b": (3 * d,)}
        sizes |= {"o.w": (d, d), "o.b": (d,), "n2.w": (d,), "n2.b": (d,), "up.w": (d, 4 * d)}
        sizes |= {"up.b": (4 * d,), "down.w": (4 * d, d), "down.b": (d,)}
        out |= {f"l{i}.{name}": shape for name, shape in sizes.items()}
    return out | {"n.w": (d,), "n.b": (d,), "head": (d, len(LETTERS))}


def begin(seed: int = 0) -> dict[str, Array]:
    """Norms begin with one, biases with zero, all else is drawn."""
    rng, out = np.random.default_rng(seed), {}
    for name, shape in shapes().items():
        if len(shape) == 1:
            value = np.full(shape, float(name.endswith("w")))
        else:
            value = rng.standard_normal(shape) * (shape[0] ** -0.5 if "." in name else 0.02)
        out[name] = value.astype(np.float32)
    return out


def forward(m: Model, x: Tensor, p: dict[str, Tensor]) -> Tensor:
    """Places of letters [b, s] -> logits [b, s, letters]."""
    h = p["letters"].embedding(x) + p["places"]
    bias = nn.causal_bias(m, LENGTH)
    for i in range(LAYERS):
        a = h.layer_norm(p[f"l{i}.n1.w"], p[f"l{i}.n1.b"])
        q, k, v = (a @ p[f"l{i}.qkv.w"] + p[f"l{i}.qkv.b"]).chunk(3, -1)
        a = nn.attention(*(nn.heads(t, HEADS) for t in (q, k, v)), bias)
        h = h + nn.merged(a) @ p[f"l{i}.o.w"] + p[f"l{i}.o.b"]
        a = h.layer_norm(p[f"l{i}.n2.w"], p[f"l{i}.n2.b"])
        a = (a @ p[f"l{i}.up.w"] + p[f"l{i}.up.b"]).gelu("tanh")
        h = h + a @ p[f"l{i}.down.w"] + p[f"l{i}.down.b"]
    return h.layer_norm(p["n.w"], p["n.b"]) @ p["head"]


def gpt() -> Model:
    """Inputs x and y i64[b, s], the letters and those that follow; lr f32[]."""
    m, last = Model(), len(LETTERS) - 1
    x = m.input("x", (BATCH, LENGTH), "i64", values=(0, last))
    y = m.input("y", (BATCH, LENGTH), "i64", values=(0, last))
    lr, first = m.input("lr", ()), begin()
    p = {name: m.state(name, shape, value=first[name]) for name, shape in shapes().items()}
    loss = forward(m, x, p).cross_entropy(y)
    weights = list(p.values())
    train.adamw(weights, gradients(loss, weights), lr)
    m.output("loss", loss)
    return m
