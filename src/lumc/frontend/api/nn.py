"""Layers of transformers, written naively: the search finds the fast forms.

A layer is a function of a ``Scope`` - where its weights come from - and its input. Names and
layouts are PyTorch's: ``linear`` reads ``weight`` [out, in] and ``bias`` [out].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.join import concat
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.dim import Extent
from lumc.graph.ops import DType

Array = np.ndarray[Any, Any]
LEAST = -DType.F32.greatest  # what masks add to a score, as in transformers
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": Tensor.gelu,
    "gelu_fast": lambda x: x.gelu("tanh"),
    "gelu_new": lambda x: x.gelu("tanh"),
    "gelu_pytorch_tanh": lambda x: x.gelu("tanh"),
    "relu": Tensor.relu,
    "sigmoid": Tensor.sigmoid,
    "silu": Tensor.silu,
    "swish": Tensor.silu,
    "tanh": Tensor.tanh,
}


class Source(Protocol):
    """Where weights come from."""

    def weight(self, model: Model, key: str, shape: tuple[int, ...]) -> Tensor: ...


@dataclass
class Random:
    """Weights drawn from a normal distribution, for samples and tests."""

    rng: np.random.Generator
    scale: float = 0.1
    made: dict[str, Tensor] = field(default_factory=dict)

    def weight(self, model: Model, key: str, shape: tuple[int, ...]) -> Tensor:
        if key not in self.made:
            values = self.rng.standard_normal(shape, np.float32) * np.float32(self.scale)
            self.made[key] = model.constant(values, key)
        return self.made[key]


@dataclass(frozen=True)
class Scope:
    """A place in the tree of weights: ``scope / "encoder" / 0`` is ``encoder.0``."""

    model: Model
    source: Source
    prefix: str = ""

    def __truediv__(self, name: str | int) -> Scope:
        return replace(self, prefix=f"{self.prefix}.{name}" if self.prefix else str(name))

    def stored(self, name: str, *shape: int) -> Tensor:
        """A weight in the dtype that it is stored in."""
        return self.source.weight(self.model, (self / name).prefix, shape)

    def tensor(self, name: str, *shape: int) -> Tensor:
        """A weight, computed with in f32."""
        return self.stored(name, *shape).to(DType.F32)


def width(x: Tensor) -> int:
    """The extent of the last axis, which has to be known."""
    last = x.shape[-1]
    if not isinstance(last, int):
        raise x.refuse("E0125", f"the last axis of {x.describe()} has to be known")
    return last


def linear(w: Scope, x: Tensor, out: int, bias: bool = True) -> Tensor:
    """[.., in] -> [.., out]."""
    y = x @ w.tensor("weight", out, width(x)).T
    return y + w.tensor("bias", out) if bias else y


def embedding(w: Scope, ids: Tensor, n: int, d: int) -> Tensor:
    """ids [..] -> rows [.., d] of a table of n."""
    return w.stored("weight", n, d).embedding(ids).to(DType.F32)


def layer_norm(w: Scope, x: Tensor, eps: float) -> Tensor:
    """Over the last axis, with ``weight`` and ``bias`` of its extent."""
    d = width(x)
    return x.layer_norm(w.tensor("weight", d), w.tensor("bias", d), eps)


def rms_norm(w: Scope, x: Tensor, eps: float) -> Tensor:
    """Over the last axis, with a ``weight`` of its extent."""
    return x.rms_norm(w.tensor("weight", width(x)), eps)


def heads(x: Tensor, n: int) -> Tensor:
    """[b, s, n * d] -> [b, n, s, d]."""
    return x.unflatten(-1, (n, -1)).transpose(-3, -2)


def merged(x: Tensor) -> Tensor:
    """[b, n, s, d] -> [b, s, n * d]."""
    return x.transpose(-3, -2).flatten(-2)


def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """softmax(q k^T * scale + bias) v over [.., s, d]; the default scale is 1 / sqrt(d)."""
    scores = q @ k.transpose() * (width(q) ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    return scores.softmax(-1) @ v


def mask_bias(mask: Tensor) -> Tensor:
    """0 where the mask is on (nonzero), else the least float: to be added to scores."""
    return where(mask.to(DType.BOOL), 0.0, LEAST)


def causal_bias(model: Model, s: Extent, window: int | None = None) -> Tensor:
    """[s, s]: query i sees the keys up to i, the last ``window`` of them if it is given."""
    i = model.arange(s)
    late = where(i[:, None] < i[None, :], LEAST, 0.0)
    return late if window is None else where(i[None, :] + window <= i[:, None], LEAST, late)


def rotary_tables(
    model: Model,
    positions: Tensor,
    frequencies: Array,
    scale: float = 1.0,
    name: str = "rotary",
) -> tuple[Tensor, Tensor]:
    """cos and sin [.., s, n] of ``position * frequency``, scaled; positions [.., s], frequencies in
    radians f64[n]. They are a weight of this name."""
    angles = positions.to(DType.F32)[..., None] * model.constant(frequencies, name, DType.F32)
    # to 1e-7 of one, which is enough here: cos() would be exact near its zeros for another sine
    cos, sin = (angles * 0.5).sin().square() * -2.0 + 1.0, angles.sin()
    return (cos, sin) if scale == 1 else (cos * scale, sin * scale)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of the first 2 n elements: x [.., s, d], tables [.., s, n]."""
    n, d = width(cos), width(x)
    low, high = x[..., :n], x[..., n : 2 * n]
    rest = [x[..., 2 * n :]] if 2 * n < d else []
    return concat([low * cos - high * sin, high * cos + low * sin, *rest], -1)


def repeat_heads(x: Tensor, groups: int) -> Tensor:
    """[b, n, s, d] -> [b, n * groups, s, d]: query heads that share keys and values."""
    return x if groups == 1 else x.repeat_interleave(groups, -3)


def activation(name: Any) -> Callable[[Tensor], Tensor] | None:
    return ACTIVATIONS.get(name) if isinstance(name, str) else None
