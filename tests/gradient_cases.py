"""Functions by name whose gradients are compared with those of torch's own operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from gradients import Array, Case
from lumc.frontend import Tensor, concat, stack, where

T: Any = import_module("torch") if find_spec("torch") else None
F: Any = import_module("torch.nn.functional") if find_spec("torch") else None
DRAW = np.random.default_rng(0)
POSITIVE = (0.5, 2.0)
CASES: dict[str, Case] = {}


def case(name: str, ours: Any, theirs: Any, *shapes: tuple[int, ...], **more: Any) -> None:
    assert name not in CASES, name
    CASES[name] = Case(ours, theirs, shapes, **more)


def same(name: str, f: Callable[..., Any], *shapes: tuple[int, ...], **more: Any) -> None:
    """A function that is written as torch's is."""
    case(name, f, f, *shapes, **more)


def ids(high: int, *shape: int) -> Array:
    return DRAW.integers(0, high, shape)


# ---- movement: index maps of every kind, most of them below a product

same("move permute", lambda x: x.permute(2, 0, 1) * 2.0, (3, 4, 5))
same("move transpose", lambda x, y: x.T * y, (3, 4), (4, 3))
same("move slice", lambda x, y: x[2:9] * y, (12, 5), (7, 5))
same("move slice step", lambda x, y: x[2:15:3] * y, (17, 5), (5, 5))
same("move slice of columns", lambda x, y: y @ x[:, 3:9], (6, 12), (5, 6), work=1.9)
same("move two slices", lambda x: x[:, :4] * x[:, 6:10], (5, 12))
same("move row", lambda x: x[3] * x[5], (7, 5))
same("move flip", lambda x, y: x.flip(0) * y, (7, 5), (7, 5))
case("move negative step", lambda x: x[::-2] * 3.0, lambda x: x.flip(0)[::2] * 3, (7, 5))
case(
    "move pad",
    lambda x: x.pad([(2, 1), (0, 3)]).exp(),
    lambda x: F.pad(x, (0, 3, 2, 1)).exp(),
    (7, 5),
)
case(
    "move pad by a value",
    lambda x: x.pad([(1, 1)], 2.0).exp(),
    lambda x: F.pad(x, (1, 1), value=2.0).exp(),
    (7,),
)
case(
    "move pad of a slice",
    lambda x, y: x[2:6].pad([(1, 2)]) * y,
    lambda x, y: F.pad(x[2:6], (1, 2)) * y,
    (9,),
    (7,),
)
same("move expand", lambda x, y: x.expand(7, 6) * y, (7, 1), (7, 6))
same("move expand, summed", lambda x: (x.unsqueeze(1).expand(7, 6) * 2.0).sum((0, 1)), (7,))
same("move sum of a copy", lambda x: x.expand(5, 4, 3).sum(1), (3,))
same("move broadcast", lambda x, y: x * y, (4, 1, 6), (5, 1))
same("move reshape split", lambda x, y: x.reshape(4, 6, 5) * y, (24, 5), (4, 6, 5))
same("move reshape merge", lambda x, y: x.reshape(24, 5) * y, (4, 6, 5), (24, 5))
same("move reshape odd", lambda x, y: x.reshape(4, 15) * y, (6, 10), (4, 15))
same("move reshape odd, three", lambda x, y: x.reshape(9, 8) * y, (4, 3, 6), (9, 8))
same("move slice, reshape odd", lambda x, y: x[1:7].reshape(4, 15) * y, (8, 10), (4, 15))
same("move slice with offset, reshape", lambda x: x[5:29].reshape(4, 6).exp(), (30,))
same(
    "move permute, reshape",
    lambda x, y: x.permute(0, 2, 1, 3).reshape(2, 4, 15) * y,
    (2, 3, 4, 5),
    (2, 4, 15),
)
same(
    "move reshape, permute, reshape",
    lambda x, y: x.reshape(4, 3, 10).permute(1, 0, 2).reshape(8, 15) * y,
    (12, 10),
    (8, 15),
)
same("move flatten, slice", lambda x: x.reshape(-1)[7:43].reshape(6, 6).exp(), (5, 10))
case("move roll", lambda x, y: x.roll(2, 0) * y, lambda x, y: x.roll(2, 0) * y, (7, 5), (7, 5))
same("move repeat", lambda x, y: x.repeat(2, 3) * y, (3, 4), (6, 12))
same("move repeat_interleave", lambda x, y: x.repeat_interleave(3, 1) * y, (3, 4), (3, 12))
same("move interleave of a slice", lambda x: x.repeat_interleave(4, 0)[3:49].exp(), (13, 3))
same("move repeat, slice", lambda x: x.repeat(3)[4:18].exp(), (7,))
same("move diagonal", lambda x: x.diagonal() * 2.0, (6, 6))
same("move diagonal of a product", lambda x, y: (x @ y).diagonal(), (5, 4), (4, 5))
same("move unfold", lambda x, y: x.unfold(0, 3, 1) * y, (20,), (18, 3))
same("move unfold step", lambda x, y: x.unfold(0, 5, 2) * y, (21,), (9, 5))
same("move unfold far", lambda x, y: x.unfold(0, 2, 3) * y, (21,), (7, 2))
case(
    "move unfold dilated",
    lambda x, y: x.unfold(0, 3, 2, 3) * y,
    lambda x, y: T.stack([x[i : i + 13 : 2] for i in (0, 3, 6)], 1) * y,
    (19,),
    (7, 3),
)
same("move windows of windows", lambda x: x.unfold(0, 4, 1).unfold(0, 3, 2).exp(), (12,))
same("move windows across rows", lambda x: x.reshape(-1).unfold(0, 5, 3).exp(), (4, 6))
case(
    "move concat",
    lambda x, y: concat([x, y], 0).exp(),
    lambda x, y: T.cat([x, y], 0).exp(),
    (3, 4),
    (5, 4),
)
case(
    "move stack",
    lambda x, y: stack([x, y, x], 1).exp(),
    lambda x, y: T.stack([x, y, x], 1).exp(),
    (3, 4),
    (3, 4),
)
same("move tril", lambda x: x.tril().exp(), (6, 6))
same("move triu", lambda x: x.triu(1).exp(), (5, 7))
same("move split", lambda x: x.split(3, 1)[1] * x.split(3, 1)[0], (4, 9))
same("move nothing", lambda x: x, (4, 5))
same("move a scalar", lambda x, y: x * y, (), (3,))
same("move one element", lambda x, y: x * y.reshape(1, 3), (1, 1), (3, 1))
same("move no element", lambda x, y: x @ y, (3, 0), (0, 4))
same("move no rows", lambda x, y: (x @ y).exp(), (0, 5), (5, 4))

# ---- elementwise

for f in ("exp", "sin", "cos", "tanh", "sigmoid", "abs", "square", "exp2", "sinh"):
    same(f"each {f}", lambda x, f=f: getattr(x, f)(), (4, 5))
for f in ("log", "log2", "sqrt", "rsqrt", "reciprocal", "log1p", "expm1"):
    same(f"each {f}", lambda x, f=f: getattr(x, f)(), (4, 5), span=POSITIVE)
for f in ("silu", "relu", "softplus", "elu", "leaky_relu", "mish"):
    case(f"each {f}", lambda x, f=f: getattr(x, f)(), lambda x, f=f: getattr(F, f)(x), (4, 5))
case("each hardswish", lambda x: x.hardswish(), lambda x: x * F.relu6(x + 3) / 6, (4, 5))
case("each gelu tanh", lambda x: x.gelu("tanh"), lambda x: F.gelu(x, approximate="tanh"), (4, 5))
same("each quotient", lambda x, y: x / y, (4, 5), (5,), span=POSITIVE)
same("each power", lambda x, y: x**y, (4, 5), (4, 5), span=POSITIVE)
same("each cube", lambda x: x**3, (4, 5))
same("each mod", lambda x: x % 0.7, (4, 5))
same("each fmod by a tensor", lambda x, y: x.fmod(y), (4, 5), (4, 5), span=POSITIVE)
case(
    "each fmod below it",
    lambda x, y: x.fmod(y * 0.3),
    lambda x, y: T.fmod(x, y * 0.3),
    (4, 5),
    (5,),
    span=POSITIVE,
)
same("each clip", lambda x: x.clip(-1.0, 1.0), (4, 5))
same("each maximum", lambda x, y: x.maximum(y), (4, 5), (5,))
case(
    "each where",
    lambda x, y: where(x < y, x * 2.0, y),
    lambda x, y: T.where(x < y, x * 2, y),
    (4, 5),
    (4, 5),
)
case("each cast", lambda x: (x.to("f32") * 2.0).to("f64"), lambda x: x * 2, (4, 5))
same("each twice", lambda x: x * x + x, (4, 5))
same("each of three", lambda x, y, z: x * y * z + (x + y) * (y + z), (4, 5), (5,), (4, 1))

# ---- reductions

same("sum", lambda x: x.sum(1), (4, 5))
same("sum of all", lambda x: x.exp().sum(), (4, 5))
same("mean", lambda x: x.mean((0, 2)), (3, 4, 5))
same("var", lambda x: x.var(1, correction=1), (6, 9))
same("std", lambda x: x.std(1, correction=0), (6, 9))
same("prod", lambda x: x.prod(1), (4, 5))
case("max", lambda x: x.max(1), lambda x: x.amax(1), (4, 5))
case("max over two axes", lambda x: x.max((1, 2)), lambda x: x.amax((1, 2)), (3, 4, 5))
case("min", lambda x: x.min(0), lambda x: x.amin(0), (4, 5))
case(
    "max, read twice",
    lambda x: x.max(2).max(1) * x.max(2).sum(1),
    lambda x: x.amax((1, 2)) * x.amax(2).sum(1),
    (3, 4, 5),
)
case(
    "ties",
    lambda x: (x > 0).to("f64").max(-1) * (x.floor() * x).max(-1),
    lambda x: (x > 0).double().amax(-1) * (x.floor() * x).amax(-1),
    (6, 9),
)
case("ties of copies", lambda x: x.repeat(1, 3).max(1), lambda x: x.repeat(1, 3).amax(1), (4, 5))
case("cumsum", lambda x: x.cumsum(0).exp(), lambda x: x.cumsum(0).exp(), (12, 4))
case("cumprod", lambda x: x.cumprod(1), lambda x: x.cumprod(1), (3, 6))
case("logsumexp", lambda x: x.logsumexp(-1), lambda x: x.logsumexp(-1), (6, 9))
case("sort", lambda x: x.sort(1)[0].exp(), lambda x: x.sort(1)[0].exp(), (3, 6))
case("topk", lambda x: x.topk(3, 1)[0].exp(), lambda x: x.topk(3, 1)[0].exp(), (3, 6))

# ---- products

same("matmul", lambda x, y: x @ y, (8, 16), (16, 12), work=2.01)
same("matmul, batched", lambda x, y: x @ y, (3, 8, 16), (16, 12), work=2.1)
same("matmul, transposed", lambda x, y: x @ y.transpose(-2, -1), (3, 8, 6), (3, 7, 6))
same("matmul of itself", lambda x: x @ x.T, (5, 4))
same("matmul by a vector", lambda x, y: x @ y, (5, 4), (4,))
same(
    "heads, grouped",
    lambda q, k: (q.reshape(2, 3, 5, 4) @ k.unsqueeze(1).transpose(-2, -1)).exp(),
    (6, 5, 4),
    (2, 7, 4),
)

# ---- windows

CONVOLUTIONS = {  # kernel, stride, padding, dilation: points of the gradient beside those of conv
    (3, 1, 1, 1): 2.1,
    (3, 2, 1, 1): 2.7,
    (2, 2, 0, 1): 2.1,
    (5, 3, 2, 1): 2.7,
    (3, 1, 2, 2): 2.1,
    (3, 2, 2, 2): None,
    (2, 2, 1, 3): None,
    (1, 2, 0, 1): 2.1,
}
for (k, s, p, d), most in CONVOLUTIONS.items():
    how = {"stride": s, "padding": p, "dilation": d}
    case(
        f"conv2d k{k} s{s} p{p} d{d}",
        lambda x, w, how=how: x.conv2d(w, **how),
        lambda x, w, how=how: F.conv2d(x, w, **how),
        *((2, 3, 11, 11), (4, 3, k, k)),
        work=most,
    )
case(
    "conv1d",
    lambda x, w, b: x.conv1d(w, b, stride=2, padding=1),
    lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=1),
    (2, 3, 9),
    (4, 3, 3),
    (4,),
)
case(
    "conv2d groups",
    lambda x, w: x.conv2d(w, padding=1, groups=2),
    lambda x, w: F.conv2d(x, w, padding=1, groups=2),
    (2, 4, 9, 9),
    (6, 2, 3, 3),
)
case(
    "conv2d depthwise",
    lambda x, w: x.conv2d(w, stride=2, padding=1, groups=4),
    lambda x, w: F.conv2d(x, w, stride=2, padding=1, groups=4),
    (2, 4, 9, 9),
    (4, 1, 3, 3),
)
case(
    "conv2d uneven",
    lambda x, w: x.conv2d(w, stride=(1, 2), padding=(0, 2)),
    lambda x, w: F.conv2d(x, w, stride=(1, 2), padding=(0, 2)),
    (1, 2, 5, 8),
    (3, 2, 2, 3),
)
case(
    "conv3d",
    lambda x, w: x.conv(w, stride=2, padding=1),
    lambda x, w: F.conv3d(x, w, stride=2, padding=1),
    (1, 2, 5, 4, 5),
    (3, 2, 3, 3, 3),
)
case(
    "conv_transpose",
    lambda x, w: x.conv_transpose(w, stride=2, padding=1),
    lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
    (2, 4, 5, 5),
    (4, 3, 3, 3),
    work=2.2,
)
case(
    "conv_transpose s3",
    lambda x, w: x.conv_transpose(w, stride=3),
    lambda x, w: F.conv_transpose1d(x, w, stride=3),
    (2, 4, 5),
    (4, 3, 5),
)
case("max_pool", lambda x: x.max_pool(2, 2), lambda x: F.max_pool2d(x, 2, 2), (2, 3, 8, 8))
case(
    "max_pool overlapping",
    lambda x: x.max_pool(3, 2, 1),
    lambda x: F.max_pool2d(x, 3, 2, 1),
    (2, 3, 9, 9),
)
case("avg_pool", lambda x: x.avg_pool(3, 2, 1), lambda x: F.avg_pool2d(x, 3, 2, 1), (2, 3, 9, 9))
case(
    "avg_pool, not counting",
    lambda x: x.avg_pool(3, 2, 1, count_include_pad=False),
    lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    (2, 3, 9, 9),
)
case(
    "adaptive_avg_pool",
    lambda x: x.adaptive_avg_pool(3),
    lambda x: F.adaptive_avg_pool2d(x, 3),
    (2, 3, 8, 7),
)

# ---- lookups

case(
    "embedding",
    lambda t, i: t.embedding(i),
    lambda t, i: F.embedding(i, t),
    (20, 6),
    ints=[ids(20, 3, 7)],
)
case(
    "gather",
    lambda t, i: t.gather(1, i).exp(),
    lambda t, i: t.gather(1, i).exp(),
    (5, 9),
    ints=[ids(9, 5, 4)],
)
case(
    "index_select",
    lambda t, i: t.index_select(1, i).exp(),
    lambda t, i: t.index_select(1, i).exp(),
    (5, 9),
    ints=[ids(9, 12)],
)
case(
    "scatter",
    lambda x, y, i: x.scatter(1, i, y).exp(),
    lambda x, y, i: x.scatter(1, i, y).exp(),
    (4, 6),
    (4, 2),
    ints=[np.array([[0, 3], [5, 1], [2, 4], [1, 0]])],
)
case(
    "grid_sample",
    lambda x, g: x.grid_sample(g),
    lambda x, g: F.grid_sample(x, g, align_corners=False),
    (1, 2, 5, 6),
    (1, 3, 4, 2),
    span=(-0.8, 0.8),
)

# ---- norms

case("softmax", lambda x: x.softmax(-1), lambda x: x.softmax(-1), (6, 9))
case("softmax over rows", lambda x: x.softmax(0), lambda x: x.softmax(0), (6, 9))
case("log_softmax", lambda x: x.log_softmax(-1), lambda x: x.log_softmax(-1), (6, 9))
case(
    "layer_norm",
    lambda x, w, b: x.layer_norm(w, b),
    lambda x, w, b: F.layer_norm(x, (9,), w, b),
    (6, 9),
    (9,),
    (9,),
)
case(
    "layer_norm over two axes",
    lambda x: x.layer_norm(axis=(1, 2)),
    lambda x: F.layer_norm(x, (3, 4)),
    (5, 3, 4),
)
case(
    "rms_norm",
    lambda x, w: x.rms_norm(w),
    lambda x, w: F.rms_norm(x, (9,), w, eps=1e-5),
    (6, 9),
    (9,),
)
case(
    "batch_norm",
    lambda x, m, v, w, b: x.batch_norm(m, v, w, b),
    lambda x, m, v, w, b: (x - m[:, None]) / (v[:, None] + 1e-5).sqrt() * w[:, None] + b[:, None],
    (2, 3, 4),
    *[(3,)] * 4,
    span=POSITIVE,
)
case(
    "group_norm",
    lambda x, w, b: x.group_norm(2, w, b),
    lambda x, w, b: F.group_norm(x, 2, w, b),
    (2, 6, 5),
    (6,),
    (6,),
)
case("instance_norm", lambda x: x.instance_norm(), lambda x: F.instance_norm(x), (2, 3, 7))
case("normalize", lambda x: x.normalize(), lambda x: F.normalize(x, dim=-1), (4, 5))
case(
    "cross entropy",
    lambda x, i: -x.log_softmax(-1).gather(1, i.unsqueeze(-1)).mean(),
    lambda x, i: F.cross_entropy(x, i),
    (6, 9),
    ints=[ids(9, 6)],
)

# ---- attention

case(
    "attention",
    lambda q, k, v: (q @ k.transpose() * 0.5).softmax(-1) @ v,
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    (2, 8, 4),
    (2, 10, 4),
    (2, 10, 4),
)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i = q.model.arange(8)
    return where(i[None, :] <= i[:, None], q @ k.transpose() * 0.5, -math.inf).softmax(-1) @ v


case(
    "attention, causal",
    causal,
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    *[(2, 8, 4)] * 3,
)


def block(x: Any, qkv: Any, out: Any) -> Any:
    """One of a transformer, its projection in one product."""
    q, k, v = (
        (x @ qkv)[..., 6 * i : 6 * i + 6].reshape(5, 2, 3).permute(1, 0, 2) for i in range(3)
    )
    heads = (q @ k.permute(0, 2, 1) * 0.5).softmax(-1) @ v
    return x + heads.permute(1, 0, 2).reshape(5, 6) @ out


same("attention, of one projection", block, (5, 6), (6, 18), (6, 6))

# ---- maxima that cancel, and those that do not


def shifted(x: Any) -> Any:
    return x - (x.max(-1, keepdim=True) if isinstance(x, Tensor) else x.amax(-1, keepdim=True))


def greatest(x: Any) -> Any:
    return x.max(-1) if isinstance(x, Tensor) else x.amax(-1)


def padded(x: Any) -> Any:
    return x.pad([(0, 0), (1, 2)]) if isinstance(x, Tensor) else F.pad(x, (1, 2))


def turned(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: f(shifted(x))


same("shifted, alone", lambda x: greatest(x) * 2.0, (4, 5))
same("shifted, summed", lambda x: shifted(x).exp().sum(-1), (4, 5))
same("shifted, padded", turned(lambda s: padded(s).exp().sum(-1) / s.exp().sum(-1)), (4, 5))
same("shifted, and back", lambda x: shifted(x).sum(-1) + greatest(x), (4, 5))
same("shifted, and back in full", lambda x: shifted(x).sum(-1) + greatest(x) * 5.0, (4, 5))
same("shifted, and back in part", lambda x: shifted(x).sum(-1) + greatest(x) * 4.0, (4, 5))
same("shifted, over rows", turned(lambda s: s.exp() / s.exp().sum(0, keepdim=True)), (4, 5))
same(
    "shifted, of the neighbour",
    turned(lambda s: s.exp()[1:] / s.exp()[:-1].sum(-1, keepdim=True)),
    (4, 5),
)
same("shifted, over both", turned(lambda s: s.exp() / s.exp().sum((1, 2), keepdim=True)), (2, 3, 4))
same("shifted, opposite", turned(lambda s: (-s).exp() / s.exp().sum(-1, keepdim=True)), (4, 5))
same(
    "shifted, squared", turned(lambda s: (s.exp() / s.exp().sum(-1, keepdim=True)).square()), (4, 5)
)
same(
    "shifted, root", turned(lambda s: s.exp().sqrt() / s.exp().sum(-1, keepdim=True).sqrt()), (4, 5)
)
same(
    "shifted, root against all",
    turned(lambda s: s.exp().sqrt() / s.exp().sum(-1, keepdim=True)),
    (4, 5),
)
same("shifted, sum with others", lambda x: shifted(x).exp() + x, (4, 5))
same("shifted, product with others", lambda x: shifted(x) * x, (4, 5))
same("shifted, product with itself", turned(lambda s: s * s), (4, 5))
same(
    "shifted, kept where positive",
    lambda x: (x > 0) * shifted(x) + greatest(x).unsqueeze(-1),
    (4, 5),
)
same(
    "shifted, compared",
    turned(lambda s: (s < s.flip(1)) * 1.0 * s.exp() / s.exp().sum(-1, keepdim=True)),
    (4, 5),
)
same(
    "shifted, another degree",
    turned(lambda s: (s * 2.0).exp() / s.exp().sum(-1, keepdim=True)),
    (4, 5),
)
same(
    "shifted, and doubled",
    turned(lambda s: (s * 2.0).exp() / s.exp().sum(-1, keepdim=True).square()),
    (4, 5),
)
same(
    "shifted, sum with others, over all",
    turned(lambda s: (s.exp() + 2.0) / s.exp().sum(-1, keepdim=True)),
    (4, 5),
)
same(
    "shifted, product with others, and back",
    lambda x, y: shifted(x) * y + greatest(x).unsqueeze(-1),
    *((4, 5), (5,)),
)
same(
    "shifted, product with itself, and back",
    lambda x: shifted(x).square() + greatest(x).unsqueeze(-1) * 2.0,
    (4, 5),
)
