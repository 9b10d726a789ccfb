"""Functions of one tensor, element by element, and activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.aten.axes import over
from lumc.frontend.aten.registry import Unsupported, aten
from lumc.graph.ops import DType

SELU = 1.0507009873554805, 1.6732632423543772  # of Klambauer et al. 2017: scale, alpha


def _unary(name: str, function: Callable[[Any], Any], halves: bool = False) -> None:
    @aten(name, halves=halves)
    def row(self: Tensor) -> Tensor:
        return function(self)


_EXACT: dict[str, Callable[[Any], Any]] = {
    "abs": Tensor.abs,
    "ceil": Tensor.ceil,
    "floor": Tensor.floor,
    "relu": Tensor.relu,
    "round": Tensor.round,
    "sign": Tensor.sign,
    "sgn": Tensor.sign,
    "trunc": Tensor.trunc,
}
for _name, _function in _EXACT.items():
    _unary(_name, _function, halves=True)

_ROUNDED: dict[str, Callable[[Any], Any]] = {
    "acos": Tensor.acos,
    "acosh": Tensor.acosh,
    "asin": Tensor.asin,
    "asinh": Tensor.asinh,
    "atan": Tensor.atan,
    "atanh": Tensor.atanh,
    "cos": Tensor.cos,
    "cosh": Tensor.cosh,
    "erf": Tensor.erf,
    "erfc": lambda x: 1.0 - x.erf(),
    "exp": Tensor.exp,
    "exp2": Tensor.exp2,
    "expm1": Tensor.expm1,
    "frac": lambda x: x - x.trunc(),
    "hardsigmoid": Tensor.hardsigmoid,
    "hardswish": Tensor.hardswish,
    "log": Tensor.log,
    "log10": lambda x: x.log2() * math.log10(2.0),
    "log1p": Tensor.log1p,
    "log2": Tensor.log2,
    "log_sigmoid": lambda x: -(-x).softplus(),
    "mish": Tensor.mish,
    "reciprocal": Tensor.reciprocal,
    "relu6": lambda x: x.clip(0.0, 6.0),
    "rsqrt": Tensor.rsqrt,
    "selu": lambda x: x.elu(SELU[1]) * SELU[0],
    "sigmoid": Tensor.sigmoid,
    "silu": Tensor.silu,
    "sin": Tensor.sin,
    "sinh": Tensor.sinh,
    "sqrt": Tensor.sqrt,
    "square": Tensor.square,
    "tan": Tensor.tan,
    "tanh": Tensor.tanh,
}
for _name, _function in _ROUNDED.items():
    _unary(_name, _function)


@aten("atan2")
def atan2(self: Tensor, other: Tensor) -> Tensor:
    return self.atan2(other)


@aten("logit")
def logit(self: Tensor, eps: float | None = None) -> Tensor:
    x = self if eps is None else self.clip(eps, 1.0 - eps)
    return (x / (1.0 - x)).log()


# ---- activations


@aten("gelu")
def gelu(self: Tensor, approximate: str = "none") -> Tensor:
    return self.gelu(approximate)


@aten("elu")
def elu(self: Tensor, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Tensor:
    below = (self * float(input_scale)).expm1() * float(alpha)
    return where(self < 0, below, self) * float(scale)


@aten("celu")
def celu(self: Tensor, alpha: Any = 1.0) -> Tensor:
    return where(self < 0.0, (self * (1.0 / alpha)).expm1() * float(alpha), self)


@aten("leaky_relu")
def leaky_relu(self: Tensor, negative_slope: Any = 0.01) -> Tensor:
    return self.leaky_relu(float(negative_slope))


@aten("prelu", "_prelu_kernel")
def prelu(self: Tensor, weight: Tensor) -> Tensor:
    if weight.ndim == 1 and self.ndim > 1 and weight.shape[0] != 1:
        weight = weight.reshape(-1, *[1] * (self.ndim - 2))
    return where(self < 0, self * weight, self)


@aten("hardtanh", halves=True)
def hardtanh(self: Tensor, min_val: Any = -1, max_val: Any = 1) -> Tensor:
    return self.clip(min_val, max_val)


@aten("softplus")
def softplus(self: Tensor, beta: Any = 1, threshold: Any = 20) -> Tensor:
    wide = self * float(beta)
    return where(wide > float(threshold), self, wide.softplus() * (1.0 / beta))


@aten("softshrink")
def softshrink(self: Tensor, lambd: Any = 0.5) -> Tensor:
    far = float(lambd)
    return where(self > far, self - far, where(self < -far, self + far, 0.0))


@aten("hardshrink")
def hardshrink(self: Tensor, lambd: Any = 0.5) -> Tensor:
    far = float(lambd)
    return where((self >= -far) & (self <= far), 0.0, self)


@aten("threshold")
def threshold(self: Tensor, threshold: Any, value: Any) -> Tensor:
    return where(self <= threshold, self.lift(value, self.dtype), self)


@aten("glu")
def glu(self: Tensor, dim: int = -1) -> Tensor:
    a, b = self.chunk(2, dim)
    return a * b.sigmoid()


# ---- what is random while training


@aten("dropout", "feature_dropout", "alpha_dropout", halves=True)
def dropout(input: Tensor, p: float, train: bool) -> Tensor:
    if train and p:
        raise Unsupported("dropout while training is random", "export the model after .eval()")
    return input


@aten("native_dropout", halves=True)
def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    kept = dropout(input, p, train is not False)
    return kept, input.model.full(input.shape, True, DType.BOOL)


# ---- over an axis


@aten("_softmax", "softmax.int", "_safe_softmax")
def softmax(self: Tensor, dim: int, half_to_float: bool = False, dtype: Any = None) -> Tensor:
    return over(Tensor.softmax, self if dtype is None else self.to(dtype), dim)


@aten("_log_softmax", "log_softmax.int")
def log_softmax(self: Tensor, dim: int, half_to_float: bool = False, dtype: Any = None) -> Tensor:
    return over(Tensor.log_softmax, self if dtype is None else self.to(dtype), dim)
