"""Operators at the shapes that networks have, in the ways they write them, for tests that count."""

from __future__ import annotations

from collections.abc import Callable

from lumc.frontend.api.join import concat
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from searching import weight

Build = Callable[[Model], Tensor]


def normalized(x: Tensor, groups: int, name: str = "n") -> Tensor:
    """Group normalisation as exporters write it: by a reshape and back."""
    batch, channels = x.shape[:2]
    flat = x.reshape(batch, groups, -1)
    centred = flat - flat.mean(-1, keepdim=True)
    scale = ((centred * centred).mean(-1, keepdim=True) + 1e-5).rsqrt()
    out = (centred * scale).reshape(*x.shape)
    return out * x_weight(x, f"{name}w", channels) + x_weight(x, f"{name}b", channels)


def x_weight(x: Tensor, name: str, channels: object) -> Tensor:
    assert isinstance(channels, int)
    return weight(x.model, name, channels).reshape(1, channels, *[1] * (x.ndim - 2))


def conv(
    out: int, channels: int, size: int, k: int, stride: int = 1, groups: int = 1, relu: bool = True
) -> Build:
    def write(g: Model) -> Tensor:
        x, w = (
            g.input("x", (1, channels, size, size)),
            weight(g, "w", out, channels // groups, k, k),
        )
        y = x.conv(w, weight(g, "b", out), stride=stride, padding=k // 2, groups=groups)
        return y.relu() if relu else y

    return write


def linear(*shape: int, out: int) -> Build:
    return lambda g: g.input("x", shape) @ weight(g, "w", shape[-1], out) + weight(g, "b", out)


def transposed(out: int, channels: int, size: int, k: int) -> Build:
    def write(g: Model) -> Tensor:
        x = g.input("x", (1, channels, size, size))
        return x.conv_transpose(weight(g, "w", channels, out, k, k), stride=2, padding=k // 2 - 1)

    return write


def heads(g: Model, x: Tensor, name: str, count: int, width: int) -> Tensor:
    s, d = x.shape[-2:]
    assert isinstance(d, int)
    y = x @ weight(g, name, d, count * width)
    return y.reshape(s, count, width).transpose(0, 1)


def attention(queries: int, keys: int, s: int, width: int, causal: bool = False) -> Build:
    """Projections, heads that share keys, a softmax, and the product that joins the heads."""

    def write(g: Model) -> Tensor:
        d = queries * width
        x = g.input("x", (s, d))
        q = heads(g, x, "q", queries, width)
        k, v = (heads(g, x, name, keys, width) for name in "kv")
        k, v = (t.repeat_interleave(queries // keys, 0) for t in (k, v))
        scores = (q @ k.transpose(-1, -2)) * width**-0.5
        if causal:
            place = g.arange(s)
            scores = scores.where(place.unsqueeze(0) <= place.unsqueeze(1), -1e9)
        return (scores.softmax(-1) @ v).transpose(0, 1).reshape(s, d) @ weight(g, "o", d, d)

    return write


def pooled(channels: int, size: int, k: int, stride: int, relu: bool = False) -> Build:
    def write(g: Model) -> Tensor:
        x = g.input("x", (1, channels, size, size))
        return (x.relu() if relu else x).max_pool(k, stride=stride, padding=k // 2)

    return write


def averaged(channels: int, size: int, k: int, stride: int) -> Build:
    def write(g: Model) -> Tensor:
        x = g.input("x", (1, channels, size, size))
        return x.avg_pool(k, stride=stride, padding=k // 2)

    return write


def pyramid(channels: int, size: int) -> Build:
    """Pools of pools beside each other, then a product over all their channels."""

    def write(g: Model) -> Tensor:
        every = [g.input("x", (1, channels, size, size))]
        for _ in range(3):
            every.append(every[-1].max_pool(5, stride=1, padding=2))
        return concat(every, 1).conv(weight(g, "w", 2 * channels, 4 * channels, 1, 1))

    return write


def focused(size: int, out: int) -> Build:
    """Every second pixel of every second row, four times, then a convolution."""

    def write(g: Model) -> Tensor:
        x = g.input("x", (1, 3, size, size))
        parts = [x.slice(2, a, size, 2).slice(3, b, size, 2) for b in (0, 1) for a in (0, 1)]
        return concat(parts, 1).conv(weight(g, "w", out, 12, 3, 3), padding=1)

    return write


def windows(size: int, window: int, channels: int) -> Build:
    """A linear layer over the windows of a map."""

    def write(g: Model) -> Tensor:
        n = size // window
        x = g.input("x", (n, window, n, window, channels)).permute(0, 2, 1, 3, 4)
        rows = x.reshape(n * n, window * window, channels)
        return rows @ weight(g, "w", channels, 3 * channels)

    return write


def recurrent(steps: int, width: int) -> Build:
    """An unrolled cell with a gate."""

    def write(g: Model) -> Tensor:
        x, h = g.input("x", (steps, width)), g.input("h", (1, width))
        w, u = weight(g, "w", width, 2 * width), weight(g, "u", width, 2 * width)
        for t in range(steps):
            y = x.slice(0, t, t + 1) @ w + h @ u
            gate = y.slice(1, 0, width).sigmoid()
            h = gate * h + (1.0 - gate) * y.slice(1, width, 2 * width).tanh()
        return h

    return write


def silu_of_norm(g: Model) -> Tensor:
    y = normalized(g.input("x", (1, 320, 32, 32)), 32).silu()
    return y.conv(weight(g, "w", 64, 320, 3, 3), padding=1)


def read_twice(g: Model) -> Tensor:
    """A convolution that two others read, through other windows."""
    y = g.input("x", (1, 16, 28, 28)).conv(weight(g, "w", 32, 16, 3, 3), padding=1).relu()
    near = y.conv(weight(g, "w1", 16, 32, 3, 3), padding=1)
    return near + y.conv(weight(g, "w2", 16, 32, 5, 5), padding=2)


SHAPES: dict[str, Build] = {
    "linear 1x768": linear(1, 768, out=3072),
    "linear 7x7": linear(1, 7, 7, 768, out=3072),
    "linear 197": linear(197, 384, out=1536),
    "conv 3x3 7": conv(512, 512, 7, 3),
    "conv 3x3 56": conv(64, 64, 56, 3),
    "conv 7x7 s2": conv(64, 3, 224, 7, stride=2),
    "conv 1x1 s2": conv(512, 256, 28, 1, stride=2),
    "grouped": conv(128, 128, 28, 3, groups=4),
    "depthwise 56": conv(96, 96, 56, 3, groups=96),
    "depthwise s2": conv(144, 144, 56, 3, stride=2, groups=144),
    "depthwise 7x7": conv(96, 96, 28, 7, groups=96, relu=False),
    "transposed 4": transposed(64, 128, 16, 4),
    "transposed 2": transposed(64, 128, 16, 2),
    "maximum 3 s2": pooled(64, 112, 3, 2),
    "maximum of relu": pooled(64, 112, 3, 2, relu=True),
    "average 3 s2": averaged(64, 56, 3, 2),
    "pools of pools": pyramid(128, 20),
    "focus": focused(160, 32),
    "windows": windows(28, 7, 192),
    "group norm": lambda g: normalized(g.input("x", (2, 320, 32, 32)), 32),
    "group norm, conv": silu_of_norm,
    "instance norm": lambda g: normalized(g.input("x", (1, 64, 56, 56)), 64),
    "softmax of channels": lambda g: g.input("x", (1, 512, 28, 28)).softmax(1),
    "softmax": lambda g: g.input("x", (512, 1000)).softmax(-1),
    "cumulative sum": lambda g: g.input("x", (64, 128)).cumsum(-1),
    "attention": attention(6, 6, 197, 64),
    "attention causal": attention(12, 12, 128, 64, causal=True),
    "attention shared keys": attention(32, 8, 64, 64),
    "recurrent": recurrent(6, 128),
    "read twice": read_twice,
    "mean": lambda g: g.input("x", (1, 2048, 7, 7)).mean(3).mean(2),
    "columns": lambda g: g.input("x", (512, 768)).sum(0),
    "transpose": lambda g: g.input("x", (8, 197, 64)).permute(1, 0, 2).reshape(197, 512),
}
