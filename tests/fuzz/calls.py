"""Random chains of calls of the Tensor API beside the same calls of numpy, in float64: what a call
means is checked here, how it is compiled elsewhere."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumc.frontend import Model, Tensor, concat, stack, where
from lumc.graph.graph import Graph
from random_graphs import leaf_values

Array = np.ndarray[Any, Any]
LARGEST = 1e4  # of values: beyond it functions overflow
MOST = 4_000  # elements
CLOSE = 2e-6  # of the greatest value: some functions are polynomials that were made for f32


@dataclass(frozen=True)
class Both:
    """A value in both worlds; ``exact`` where it was only chosen and moved, so that a step of a
    function is the same in both."""

    t: Tensor
    a: Array
    exact: bool = False


Call = Callable[[Both, random.Random], tuple[Any, Any]]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def erf(x: Array) -> Array:
    """By numpy alone: the integral of the bell, 200 points of Gauss."""
    points, weights = np.polynomial.legendre.leggauss(200)
    at = np.clip(np.asarray(x)[..., None], -6, 6) * (points + 1) / 2
    inner = np.exp(-(at**2)) @ weights
    return np.asarray(np.clip(x, -6, 6) * inner / np.sqrt(np.pi))


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


SMOOTH: dict[str, tuple[Callable[[Tensor], Any], Callable[[Array], Any]]] = {
    "exp": (lambda t: t.clip(-8, 8).exp(), lambda a: np.exp(np.clip(a, -8, 8))),
    "log": (lambda t: (t.abs() + 0.5).log(), lambda a: np.log(np.abs(a) + 0.5)),
    "log2": (lambda t: (t.square() + 1).log2(), lambda a: np.log2(a * a + 1)),
    "sqrt": (lambda t: t.abs().sqrt(), lambda a: np.sqrt(np.abs(a))),
    "rsqrt": (lambda t: (t.abs() + 1).rsqrt(), lambda a: 1 / np.sqrt(np.abs(a) + 1)),
    "sin": (lambda t: t.clip(-9, 9).sin(), lambda a: np.sin(np.clip(a, -9, 9))),
    "cos": (lambda t: t.clip(-9, 9).cos(), lambda a: np.cos(np.clip(a, -9, 9))),
    "tanh": (Tensor.tanh, np.tanh),
    "sigmoid": (Tensor.sigmoid, sigmoid),
    "silu": (Tensor.silu, lambda a: a * sigmoid(a)),
    "softplus": (Tensor.softplus, lambda a: np.logaddexp(a, 0)),
    "erf": (Tensor.erf, erf),
    "gelu": (Tensor.gelu, lambda a: a * (1 + erf(a / np.sqrt(2))) / 2),
    "relu": (Tensor.relu, lambda a: np.maximum(a, 0)),
    "elu": (lambda t: t.clip(-9, 9).elu(), lambda a: _elu(np.clip(a, -9, 9))),
    "leaky": (lambda t: t.leaky_relu(0.1), lambda a: np.where(a < 0, 0.1 * a, a)),
    "hardswish": (Tensor.hardswish, lambda a: a * np.clip(a / 6 + 0.5, 0, 1)),
    "abs": (abs, np.abs),
    "neg": (lambda t: -t, np.negative),
    "square": (Tensor.square, np.square),
    "cube": (lambda t: t**3, lambda a: a**3),
    "power": (lambda t: (t.abs() + 0.5) ** 1.7, lambda a: (np.abs(a) + 0.5) ** 1.7),
    "reciprocal": (lambda t: 2 / (t.square() + 1), lambda a: 2 / (a * a + 1)),
    "clip": (lambda t: t.clip(-1, 0.75), lambda a: np.clip(a, -1, 0.75)),
    "affine": (lambda t: 3 - t * 0.5, lambda a: 3 - a * 0.5),
}
STEPS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Array], Any]]] = {
    "floor": (Tensor.floor, np.floor),
    "ceil": (Tensor.ceil, np.ceil),
    "round": (Tensor.round, np.rint),
    "trunc": (Tensor.trunc, np.trunc),
    "sign": (Tensor.sign, np.sign),
    "remainder": (lambda t: t % 0.75, lambda a: np.mod(a, 0.75)),
    "fmod": (lambda t: t.fmod(0.75), lambda a: np.fmod(a, 0.75)),
    "chosen": (lambda t: where(t > 0.5, t, -2.0), lambda a: np.where(a > 0.5, a, -2.0)),
}


def _elu(a: Array) -> Array:
    return np.where(a < 0, np.exp(a) - 1, a)


def smooth(x: Both, draw: random.Random) -> Both:
    f, g = SMOOTH[draw.choice([*SMOOTH])]
    return Both(f(x.t), g(x.a))


def stepped(x: Both, draw: random.Random) -> Both:
    if not x.exact:
        return smooth(x, draw)
    f, g = STEPS[draw.choice([*STEPS])]
    return Both(f(x.t), g(x.a))


def reduced(x: Both, draw: random.Random) -> Both:
    if not x.a.size or not x.a.ndim:
        return Both(x.t.sum(), x.a.sum())
    axis, keep = draw.randrange(x.a.ndim), draw.random() < 0.4
    name = draw.choice(("sum", "mean", "max", "min", "var", "std", "prod"))
    if name == "prod" and x.a.shape[axis] > 6:
        name = "sum"
    spread = {"std": lambda: np.sqrt(x.a.var(axis, keepdims=keep))}
    made = getattr(x.t, name)(axis, keep) if name != "std" else x.t.var(axis, keep).sqrt()
    if name == "std" and x.a.shape[axis] == 1:
        return Both(x.t.sum(axis, keep), x.a.sum(axis, keepdims=keep))
    want = spread[name]() if name in spread else getattr(x.a, name)(axis, keepdims=keep)
    return Both(made, want, x.exact and name in ("max", "min"))


def along(x: Both, draw: random.Random) -> Both:
    """What keeps the shape but looks along an axis."""
    if not x.a.size or not x.a.ndim:
        return x
    axis = draw.randrange(x.a.ndim)
    n = x.a.shape[axis]
    name = draw.choice(("softmax", "log_softmax", "cumsum", "flip", "roll", "norm", "layer"))
    if name == "softmax":
        return Both(x.t.softmax(axis), softmax(x.a, axis))
    if name == "log_softmax":
        return Both(
            x.t.clip(-20, 20).log_softmax(axis), np.log(softmax(np.clip(x.a, -20, 20), axis))
        )
    if name == "cumsum":
        back = draw.random() < 0.5
        a = np.flip(np.flip(x.a, axis).cumsum(axis), axis) if back else x.a.cumsum(axis)
        return Both(x.t.cumsum(axis, reverse=back), a)
    if name == "flip":
        return Both(x.t.flip(axis), np.flip(x.a, axis), x.exact)
    if name == "roll":
        k = draw.randint(-n, n)
        return Both(x.t.roll(k, axis), np.roll(x.a, k, axis), x.exact)
    if name == "norm":
        square = (x.a**2).mean(axis, keepdims=True)
        return Both(x.t.rms_norm(axis=axis, eps=0.1), x.a / np.sqrt(square + 0.1))
    off = x.a - x.a.mean(axis, keepdims=True)
    scale = np.sqrt((off**2).mean(axis, keepdims=True) + 0.1)
    return Both(x.t.layer_norm(axis=axis, eps=0.1), off / scale)


def moved(x: Both, draw: random.Random) -> Both:
    a, rank = x.a, x.a.ndim
    name = draw.choice(
        ("permute", "slice", "pad", "tile", "every", "tri", "flatten", "new", "index")
    )
    if name == "permute" and rank:
        order = draw.sample(range(rank), rank)
        return Both(x.t.permute(order), a.transpose(order), x.exact)
    if name == "slice" and rank:
        at = tuple(_slice(n, draw) for n in a.shape)
        return Both(x.t[at], a[at], x.exact)
    if name == "pad" and rank:
        widths = [(draw.randint(0, 2), draw.randint(0, 2)) for _ in a.shape]
        value = draw.choice((0.0, 1.5))
        return Both(x.t.pad(widths, value), np.pad(a, widths, constant_values=value), x.exact)
    if name == "tile" and rank and a.size < MOST // 4:
        times = [draw.randint(1, 2) for _ in a.shape]
        return Both(x.t.tile(times), np.tile(a, times), x.exact)
    if name == "every" and rank and a.size < MOST // 4:
        axis = draw.randrange(rank)
        return Both(x.t.repeat_interleave(2, axis), np.repeat(a, 2, axis), x.exact)
    if name == "tri" and rank >= 2:
        k = draw.randint(-1, 2)
        f, g = draw.choice(((Tensor.tril, np.tril), (Tensor.triu, np.triu)))
        return Both(f(x.t, k), g(a, k), x.exact)
    if name == "new":
        axis = draw.randint(0, rank)
        return Both(x.t.unsqueeze(axis), np.expand_dims(a, axis), x.exact)
    if name == "index" and rank and a.shape[0]:
        i = draw.randint(-a.shape[0], a.shape[0] - 1)
        return Both(x.t[i], a[i], x.exact)
    return Both(x.t.reshape(-1), a.reshape(-1), x.exact)


def _slice(n: int, draw: random.Random) -> slice:
    if not n or draw.random() < 0.4:
        return slice(None)
    if draw.random() < 0.3:
        return slice(None, None, -draw.randint(1, 3))
    start = draw.randint(0, n - 1)
    return slice(start, draw.randint(start + 1, n), draw.choice((1, 1, 2, 3)))


def joined(x: Both, other: Both, draw: random.Random) -> Both:
    """Two values, broadcast, side by side, or multiplied."""
    a, b = x.a, other.a
    exact = x.exact and other.exact
    if a.ndim >= 1 and b.ndim == 2 and a.shape[-1] == b.shape[0]:
        return Both(x.t @ other.t, a @ b)
    if a.shape == b.shape and a.ndim and draw.random() < 0.4:
        axis = draw.randrange(a.ndim)
        if draw.random() < 0.5:
            return Both(concat([x.t, other.t], axis), np.concatenate([a, b], axis), exact)
        return Both(stack([x.t, other.t], axis), np.stack([a, b], axis), exact)
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return smooth(x, draw)
    name = draw.choice(("add", "sub", "mul", "div", "maximum", "minimum", "where"))
    if name == "div":
        return Both(x.t / (other.t.abs() + 1), a / (np.abs(b) + 1))
    if name == "where" and exact:
        return Both(where(x.t < other.t, x.t, other.t), np.where(a < b, a, b), True)
    pairs = {
        "add": (lambda: x.t + other.t, lambda: a + b),
        "sub": (lambda: x.t - other.t, lambda: a - b),
        "maximum": (lambda: x.t.maximum(other.t), lambda: np.maximum(a, b)),
        "minimum": (lambda: x.t.minimum(other.t), lambda: np.minimum(a, b)),
    }
    f, g = pairs.get(name, (lambda: x.t * other.t, lambda: a * b))
    return Both(f(), g(), exact and name in ("maximum", "minimum"))


def graph(name: str, seed: int) -> tuple[Graph, dict[str, Array]]:
    """A graph whose leaves have the values of the seed, and what numpy makes of the same calls."""
    draw, model = random.Random(name), Model()
    shape = [draw.choice((1, 2, 3, 4, 5, 7, 8)) for _ in range(draw.randint(1, 3))]
    pool = list[Both]()
    for i in range(draw.randint(1, 3)):
        mine = shape if i % 2 == 0 else [n if draw.random() < 0.6 else 1 for n in shape]
        t = model.input(f"real_{i}", mine, "f32")
        values = leaf_values(t.operand.source, seed)  # type: ignore[union-attr]
        pool.append(Both(t, values.astype("f8"), True))
    for _ in range(draw.randint(2, 6)):
        x = draw.choice(pool[-3:])
        step = draw.choice((smooth, smooth, stepped, reduced, along, moved, moved, joined))
        made = joined(x, draw.choice(pool), draw) if step is joined else step(x, draw)  # type: ignore[operator]
        if made.a.size <= MOST and np.abs(made.a).max(initial=0.0) < LARGEST:
            pool.append(made)
    wanted = {}
    for i, x in enumerate(pool[-2:]):
        model.output(f"y{i}", x.t)
        wanted[f"y{i}"] = x.a
    return model.graph(), wanted


def wrong(got: Array, want: Array, sure: Array) -> str:
    """What is wrong with the meaning of a graph, or nothing."""
    if got.shape != want.shape:
        return f"shape {got.shape}, numpy has {want.shape}"
    scale = max(1.0, float(np.abs(want).max(initial=0.0)))
    bad = ~(np.abs(got - want) <= CLOSE * scale) & sure
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{got[at]!r} at {list(at)}, numpy has {want[at]!r}"
