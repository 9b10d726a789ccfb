"""Arithmetic, comparisons, logic, bits."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from lumc.frontend.api import elementwise, integers
from lumc.frontend.api.elementwise import pair
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.aten.registry import Unsupported, aten
from lumc.graph.expr import Expr
from lumc.graph.ops import DType


def operand(like: Tensor, value: Any) -> Any:
    """The other operand: a tensor, a number, or an extent as a tensor."""
    return like.model.size(value, DType.I64) if isinstance(value, Expr) else value


def scaled(x: Any, factor: Any) -> Any:
    return x if not isinstance(factor, bool) and factor == 1 else x * factor


# ---- arithmetic


@aten("add.Tensor", "add.Scalar", halves=True)
def add(self: Tensor, other: Any, alpha: Any = 1) -> Tensor:
    return self + scaled(operand(self, other), alpha)


@aten("sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar", halves=True)
def sub(self: Tensor, other: Any, alpha: Any = 1) -> Tensor:
    return self - scaled(operand(self, other), alpha)


@aten("rsub.Tensor", "rsub.Scalar", halves=True)
def rsub(self: Tensor, other: Any, alpha: Any = 1) -> Tensor:
    return elementwise.rsub(scaled(self, alpha), operand(self, other))


@aten("mul.Tensor", "mul.Scalar", "multiply.Tensor", "multiply.Scalar", halves=True)
def mul(self: Tensor, other: Any) -> Tensor:
    return self * operand(self, other)


@aten("div.Tensor", "div.Scalar", "divide.Tensor", "divide.Scalar")
@aten("true_divide.Tensor", "true_divide.Scalar")
def div(self: Tensor, other: Any) -> Tensor:
    return self / operand(self, other)


@aten("div.Tensor_mode", "div.Scalar_mode", "divide.Tensor_mode", "divide.Scalar_mode")
def div_mode(self: Tensor, other: Any, rounding_mode: str | None) -> Tensor:
    if rounding_mode is None:
        return div(self, other)
    if rounding_mode not in ("floor", "trunc"):
        raise ValueError(f"rounding_mode {rounding_mode!r}")
    a, b = pair(self, operand(self, other))
    if not a.dtype.is_float:
        return a // b if rounding_mode == "floor" else integers.quotient(a, b)
    rest = a.remainder(b) if rounding_mode == "floor" else a.fmod(b)
    # of a multiple of b the quotient rounds to what it is
    return elementwise.where(b == 0.0, a / b, ((a - rest) / b).round())


@aten("floor_divide", "floor_divide.Scalar")
def floor_divide(self: Tensor, other: Any) -> Tensor:
    return div_mode(self, other, "floor")


@aten("fmod.Tensor", "fmod.Scalar", halves=True)
def fmod(self: Tensor, other: Any) -> Tensor:
    return self.fmod(operand(self, other))


@aten("remainder.Tensor", "remainder.Scalar", halves=True)
def remainder(self: Tensor, other: Any) -> Tensor:
    return self.remainder(operand(self, other))


@aten("neg", halves=True)
def neg(self: Tensor) -> Tensor:
    return -self


@aten("pow.Tensor_Tensor")
def pow_tensors(self: Tensor, exponent: Tensor) -> Tensor:
    a, b = pair(self, exponent)
    return a.pow(b) if a.dtype.is_float else integers.power(a, b)


@aten("pow.Tensor_Scalar")
def pow_scalar(self: Tensor, exponent: Any) -> Tensor:
    if self.dtype.is_float or isinstance(exponent, float):
        wide = self if self.dtype.is_float else self.to(DType.F32)
        return wide.pow(float(exponent))
    return pow_tensors(self, self.lift(exponent))


@aten("pow.Scalar")
def pow_of_scalar(self: Any, exponent: Tensor) -> Tensor:
    if isinstance(self, float) or exponent.dtype.is_float:
        wide = exponent if exponent.dtype.is_float else exponent.to(DType.F32)
        return wide.lift(float(self)).pow(wide) if self <= 0 else float(self) ** wide
    return pow_tensors(exponent.lift(self), exponent)


@aten("addcmul")
def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any = 1) -> Tensor:
    return self + scaled(tensor1 * tensor2, value)


@aten("addcdiv")
def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any = 1) -> Tensor:
    return self + scaled(tensor1 / tensor2, value)


@aten("lerp.Scalar", "lerp.Tensor")
def lerp(self: Tensor, end: Tensor, weight: Any) -> Tensor:
    return self + (end - self) * weight


@aten("maximum", "max.other", halves=True)
def maximum(self: Tensor, other: Tensor) -> Tensor:
    return self.maximum(other)


@aten("minimum", "min.other", halves=True)
def minimum(self: Tensor, other: Tensor) -> Tensor:
    return self.minimum(other)


@aten("clamp", "clamp.Tensor", halves=True)
def clamp(self: Tensor, min: Any = None, max: Any = None) -> Tensor:
    return self.clip(min, max)


@aten("clamp_min", "clamp_min.Tensor", halves=True)
def clamp_min(self: Tensor, min: Any) -> Tensor:
    return self.maximum(min)


@aten("clamp_max", "clamp_max.Tensor", halves=True)
def clamp_max(self: Tensor, max: Any) -> Tensor:
    return self.minimum(max)


@aten("logaddexp")
def logaddexp(self: Tensor, other: Tensor) -> Tensor:
    top = self.maximum(other)
    wide = top + ((self - other).abs() * -1.0).exp().log1p()
    return elementwise.where(self == other, top + math.log(2.0), wide)


# ---- comparisons and logic


def _compared(name: str, holds: Callable[[Any, Any], Any]) -> None:
    @aten(f"{name}.Tensor", f"{name}.Scalar", halves=True)
    def row(self: Tensor, other: Any) -> Tensor:
        return holds(self, operand(self, other))


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": elementwise.eq,
    "ne": elementwise.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
for _name, _holds in _COMPARISONS.items():
    _compared(_name, _holds)


def _logical(name: str, holds: Callable[[Tensor, Tensor], Tensor]) -> None:
    @aten(f"logical_{name}", halves=True)
    def row(self: Tensor, other: Tensor) -> Tensor:
        return holds(self.to(DType.BOOL), other.to(DType.BOOL))

    @aten(f"bitwise_{name}.Tensor", f"bitwise_{name}.Scalar", halves=True)
    def bits(self: Tensor, other: Any) -> Tensor:
        a, b = pair(self, operand(self, other))
        return holds(a, b) if a.dtype is DType.BOOL else integers.bitwise(a, b, holds)


_logical("and", operator.and_)
_logical("or", operator.or_)
_logical("xor", operator.xor)


@aten("logical_not", halves=True)
def logical_not(self: Tensor) -> Tensor:
    return ~self.to(DType.BOOL)


@aten("bitwise_not")
def bitwise_not(self: Tensor) -> Tensor:
    return ~self if self.dtype is DType.BOOL else self * -1 - 1


@aten("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar")
def left_shift(self: Tensor, other: Any) -> Tensor:
    return integers.shift(*pair(self, other), left=True)


@aten("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar")
def right_shift(self: Tensor, other: Any) -> Tensor:
    return integers.shift(*pair(self, other), left=False)


@aten("__and__.Tensor", "__and__.Scalar")
def and_(self: Tensor, other: Any) -> Tensor:
    a, b = pair(self, operand(self, other))
    return a & b if a.dtype is DType.BOOL else integers.bitwise(a, b, operator.and_)


@aten("__or__.Tensor", "__or__.Scalar")
def or_(self: Tensor, other: Any) -> Tensor:
    a, b = pair(self, operand(self, other))
    return a | b if a.dtype is DType.BOOL else integers.bitwise(a, b, operator.or_)


@aten("isnan", halves=True)
def isnan(self: Tensor) -> Tensor:
    return self.isnan()


@aten("isinf", halves=True)
def isinf(self: Tensor) -> Tensor:
    return self.isinf()


@aten("isfinite", halves=True)
def isfinite(self: Tensor) -> Tensor:
    return ~(self.isnan() | self.isinf())


@aten("nan_to_num")
def nan_to_num(self: Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Tensor:
    if not self.dtype.is_float:
        return self
    most = self.dtype.greatest
    x = elementwise.where(self == math.inf, most if posinf is None else posinf, self)
    x = elementwise.where(x == -math.inf, -most if neginf is None else neginf, x)
    return elementwise.where(self.isnan(), 0.0 if nan is None else nan, x)


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar", halves=True)
def where(condition: Tensor, self: Any, other: Any) -> Tensor:
    return elementwise.where(condition.to(DType.BOOL), self, other)


@aten("masked_fill.Scalar", "masked_fill.Tensor", halves=True)
def masked_fill(self: Tensor, mask: Tensor, value: Any) -> Tensor:
    new = value.to(self.dtype) if isinstance(value, Tensor) else self.lift(value, self.dtype)
    return elementwise.where(mask.to(DType.BOOL), new, self)


# ---- casts


@aten("_to_copy", "to.dtype", "to.dtype_layout", "to.device", halves=True)
def to_copy(self: Tensor, dtype: DType | None = None) -> Tensor:
    return self if dtype is None else self.to(dtype)


@aten("type_as", "to.other", halves=True)
def type_as(self: Tensor, other: Tensor) -> Tensor:
    return self.to(other.dtype)


@aten(
    "clone",
    "alias",
    "detach",
    "contiguous",
    "lift_fresh_copy",
    "lift_fresh",
    "positive",
    halves=True,
)
def clone(self: Tensor) -> Tensor:
    return self


@aten("copy", halves=True)
def copy(self: Tensor, src: Tensor) -> Tensor:
    return src.to(self.dtype).broadcast_to(*self.shape)


@aten("scalar_tensor", halves=True)
def scalar_tensor(model: Model, s: Any, dtype: DType | None = None) -> Tensor:
    return filled(model, (), s, dtype)


def filled(model: Model, shape: Any, value: Any, dtype: DType | None) -> Tensor:
    """A tensor of one value, which may be an extent."""
    if isinstance(value, Expr):
        return model.size(value, dtype or DType.I64).broadcast_to(*shape)
    if dtype is None:
        whole = DType.I64 if isinstance(value, int) else DType.F32
        dtype = DType.BOOL if isinstance(value, bool) else whole
    if isinstance(value, complex):
        raise Unsupported("a complex number")
    return model.full(shape, value, dtype)
