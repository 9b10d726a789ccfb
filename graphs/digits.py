"""Steps of training on the digits of scikit-learn, 8 x 8 pixels: a network of dense layers, and a
convolutional one. AdamW at the rate ``lr``.

    lumc import graphs/digits.py:mlp -o mlp.lg
    lumc compile mlp.lg --estimate -o mlp.lb
    mlp.lb/bin/lumc-run mlp.lb --steps 1000 --feed train.npz --feed lr=lr.npy --seed 1 \
        --losses losses.csv --save trained.safetensors

docs/training.md has a script that writes train.npz and lr.npy.
"""

from collections.abc import Callable

import numpy as np

from lumc import Model, Tensor, gradients, train

BATCH, CLASSES = 128, 10
MLP = {"w0": (64, 256), "b0": (256,), "w1": (256, 256), "b1": (256,), "w2": (256, 10), "b2": (10,)}
CNN = {"w0": (16, 1, 3, 3), "b0": (16,), "w1": (32, 16, 3, 3), "b1": (32,)}
CNN |= {"w2": (128, 64), "b2": (64,), "w3": (64, 10), "b3": (10,)}
Array = np.ndarray


def begin(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Array]:
    """As torch begins: uniform within 1 / sqrt of how many numbers an output is a sum of."""
    rng, out, read = np.random.default_rng(seed), {}, 1
    for name, shape in shapes.items():
        if name[0] == "w":
            read = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
        out[name] = (rng.uniform(-1, 1, shape) * read**-0.5).astype(np.float32)
    return out


def dense(x: Tensor, p: dict[str, Tensor]) -> Tensor:
    """x [n, 64] -> logits [n, 10]."""
    h = (x @ p["w0"] + p["b0"]).relu()
    h = (h @ p["w1"] + p["b1"]).relu()
    return h @ p["w2"] + p["b2"]


def convolutional(x: Tensor, p: dict[str, Tensor]) -> Tensor:
    """x [n, 64] -> logits [n, 10]."""
    h = x.reshape(x.shape[0], 1, 8, 8).conv2d(p["w0"], p["b0"], padding=1).relu().max_pool(2)
    h = h.conv2d(p["w1"], p["b1"], padding=1).relu().max_pool(2).flatten(1)
    return (h @ p["w2"] + p["b2"]).relu() @ p["w3"] + p["b3"]


def step(
    network: Callable[[Tensor, dict[str, Tensor]], Tensor],
    shapes: dict[str, tuple[int, ...]],
    batch: int = BATCH,
    dtype: str = "f32",
) -> Model:
    """A step of AdamW; with a dtype of 16 bits the network computes with values that are rounded to
    it, on weights that stay f32."""
    m = Model()
    x, label = m.input("x", (batch, 64)), m.input("label", (batch,), "i64", values=(0, CLASSES - 1))
    lr = m.input("lr", ())
    first = begin(shapes)
    params = {name: m.state(name, shape, value=first[name]) for name, shape in shapes.items()}
    logits = network(x.to(dtype), {name: p.to(dtype) for name, p in params.items()})
    loss = logits.to("f32").cross_entropy(label)
    weights, when = list(params.values()), None
    if dtype == "f16":
        grads, when = train.scaled_gradients(loss, weights)
    else:
        grads = gradients(loss, weights)
    train.adamw(weights, grads, lr, when=when)
    m.output("loss", loss)
    return m


def mlp() -> Model:
    return step(dense, MLP)


def cnn() -> Model:
    return step(convolutional, CNN)
