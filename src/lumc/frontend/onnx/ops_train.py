"""Steps of optimisers, of the domain ``ai.onnx.preview.training``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.registry import operator

DOMAIN = "ai.onnx.preview.training"
Step = Callable[..., Sequence[Tensor]]


def each(step: Step, tensors: Sequence[Tensor], kinds: int) -> tuple[Tensor, ...]:
    """The step of every parameter: its value, gradient and states stand ``kinds`` blocks apart;
    so do the results."""
    count = len(tensors) // kinds
    if count * kinds != len(tensors):
        raise ValueError(f"{len(tensors)} tensors are not {kinds} for each parameter")
    done = [step(*tensors[i::count]) for i in range(count)]
    return tuple(result for block in zip(*done, strict=True) for result in block)


def _power(base: float, exponent: Tensor) -> Tensor:
    """Of an exponent of 1 or more."""
    return exponent * 0.0 if base == 0.0 else (exponent * math.log2(base)).exp2()


@operator("Adagrad", domain=DOMAIN)
def adagrad(
    R: Tensor,
    T: Tensor,
    *inputs: Tensor,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> tuple[Tensor, ...]:
    rate = R / (T.to(R.dtype) * decay_factor + 1.0)

    def step(x: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        g = x * norm_coefficient + g
        h = h + g * g
        return x - rate * g / (h.sqrt() + epsilon), h

    return each(step, inputs, 3)


@operator("Adam", domain=DOMAIN)
def adam(
    R: Tensor,
    T: Tensor,
    *inputs: Tensor,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Tensor, ...]:
    t = T.to(R.dtype)
    corrected = R * (1.0 - _power(beta, t)).sqrt() / (1.0 - _power(alpha, t))
    rate = where(t > 0.0, corrected, R)

    def step(x: Tensor, g: Tensor, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        g = x * norm_coefficient + g
        v = v * alpha + g * (1.0 - alpha)
        h = h * beta + g * g * (1.0 - beta)
        x = x - rate * v / (h.sqrt() + epsilon)
        return x * (1.0 - norm_coefficient_post), v, h

    return each(step, inputs, 4)


@operator("Momentum", domain=DOMAIN)
def momentum(
    R: Tensor,
    T: Tensor,
    *inputs: Tensor,
    alpha: float,
    beta: float,
    mode: Any,
    norm_coefficient: float,
) -> tuple[Tensor, ...]:
    first = where(T > 0, R.lift(beta), R.lift(1.0))

    def step(x: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        g = x * norm_coefficient + g
        v = v * alpha + first * g
        return x - R * (g + v * alpha if mode == "nesterov" else v), v

    return each(step, inputs, 3)
