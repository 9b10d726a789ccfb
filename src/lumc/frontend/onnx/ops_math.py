"""Arithmetic and elementwise functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce, wraps
from typing import Any

from lumc.frontend.api.elementwise import broadcast_shapes, where
from lumc.frontend.api.functions import LOG2E
from lumc.frontend.api.minimax import polynomial
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.registry import Function, operator
from lumc.graph.graph import Scalar
from lumc.graph.ops import DType

LARGEST = {DType.I64: 2.0**63 - 2.0**10, DType.U64: 2.0**64 - 2.0**11}  # f64 below the end
HALVES = (DType.F16, DType.BF16)


def in_f32(function: Function) -> Function:
    """Compute on f32 where inputs are f16 or bf16, and round the results once."""

    @wraps(function)
    def widened(*inputs: Any, **attributes: Any) -> Any:
        halves: list[DType] = [x.dtype for x in inputs if _is_half(x)]
        if not halves:
            return function(*inputs, **attributes)

        def narrow(x: Any) -> Any:
            return x.to(halves[0]) if isinstance(x, Tensor) and x.dtype is DType.F32 else x

        wide = [x.to(DType.F32) if _is_half(x) else x for x in inputs]
        attributes = {n: x.to(DType.F32) if _is_half(x) else x for n, x in attributes.items()}
        result = function(*wide, **attributes)
        return tuple(map(narrow, result)) if isinstance(result, tuple) else narrow(result)

    return widened


def _is_half(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in HALVES


def constant(x: Tensor) -> float | int | bool | None:
    """The value of a tensor that is one number everywhere."""
    return x.operand.value if isinstance(x.operand, Scalar) and not x.operand.bounds else None


def aligned(a: Tensor, b: Tensor, broadcast: int, axis: int | None) -> Tensor:
    """``b`` for the broadcasting of opsets below 7: its axes start at ``axis`` of a."""
    if not broadcast or axis is None:
        return b
    trailing = a.ndim - axis % a.ndim - b.ndim
    return b.unsqueeze(*range(b.ndim, b.ndim + trailing)) if trailing > 0 else b


def binary(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Register a binary operator, also with the attributes that it had before opset 7."""

    def row(A: Tensor, B: Tensor) -> Tensor:
        return function(A, B)

    def old(
        A: Tensor,
        B: Tensor,
        *,
        broadcast: int = 0,
        axis: int | None = None,
        consumed_inputs: Any = None,
    ) -> Tensor:
        return function(A, aligned(A, B, broadcast, axis))

    row.__module__ = old.__module__ = function.__module__  # whose table they stand in
    operator(name, since=7)(row)
    operator(name, since=1)(old)


def unary(name: str, function: Callable[[Tensor], Tensor], halves: bool = False) -> None:
    """Register a function of one input; ``halves``: it is exact enough on f16."""

    def row(X: Tensor) -> Tensor:
        return function(X)

    def old(X: Tensor, *, consumed_inputs: Any = None) -> Tensor:
        return row(X)

    row.__module__ = old.__module__ = function.__module__  # whose table they stand in
    row = row if halves else in_f32(row)
    operator(name, since=6)(row)
    operator(name, since=1)(old)


# ---- arithmetic


def divide(a: Tensor, b: Tensor) -> Tensor:
    """Floats by the reciprocal; ints towards zero, exactly."""
    if a.dtype.is_float:
        return in_f32(lambda x, y: x / y)(a, b)
    whole = a - a.fmod(b)
    scale = b.to(DType.F64).reciprocal()
    near = (whole.to(DType.F64) * scale).round()
    if a.dtype.nbytes < 8:
        return near.to(a.dtype)
    quotient = near.minimum(LARGEST[a.dtype]).to(a.dtype)
    # beyond 2**53 it is close, not exact
    rest = (whole - quotient * b).to(DType.I64)
    return quotient + (rest.to(DType.F64) * scale).round().to(DType.I64).to(a.dtype)


binary("Add", lambda a, b: a + b)
binary("Sub", lambda a, b: a - b)
binary("Mul", lambda a, b: a * b)
binary("Div", divide)


@operator("Mod", since=10)
def mod(A: Tensor, B: Tensor, *, fmod: int = 0) -> Tensor:
    return A.fmod(B) if fmod else A.remainder(B)


@operator("Pow", since=7)
@in_f32
def power(X: Tensor, Y: Tensor) -> Tensor:
    if not X.dtype.is_float:
        return int_power(X, Y)
    exponent = constant(Y)
    if exponent is not None:
        return X.pow(float(exponent)).expand(*broadcast_shapes(X, X.shape, Y.shape))
    y = Y.to(X.dtype)
    size = (X.abs().log2() * y).exp2()
    whole, odd = y.trunc() == y, y.fmod(2.0).abs() == 1.0
    signed = where(odd, -size, where(whole, size, math.nan))  # of a negative base
    return where(y == 0.0, 1.0, where(X < 0.0, signed, size))


def int_power(x: Tensor, y: Tensor) -> Tensor:
    """A power of ints: by squaring for an int exponent, in f64 for a float one."""
    if y.dtype.is_float:
        exact: Tensor = power(x.to(DType.F64), y.to(DType.F64))
        near = exact.round()
        close = (exact - near).abs() <= near.abs() * 1e-9
        return where(close, near, exact.trunc()).to(x.dtype)
    result, square, size = x.lift(1), x, y.abs()
    for bit in range(6):  # larger exponents overflow every integer type
        odd = size.remainder(2 << bit) >= 1 << bit
        result, square = result * where(odd, square, 1), square * square
    vanishes = (y < 0) & (x.abs() != 1)
    return where(vanishes, 0, result)


@operator("Pow", since=1)
def power_1(X: Tensor, Y: Tensor, *, broadcast: int = 0, axis: int | None = None) -> Tensor:
    result: Tensor = power(X, aligned(X, Y, broadcast, axis))
    return result


def variadic(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    def row(*data_0: Tensor) -> Tensor:
        return reduce(function, data_0)

    def old(*data_0: Tensor, consumed_inputs: Any = None) -> Tensor:
        return reduce(function, data_0)

    operator(name, since=6)(row)
    operator(name, since=1)(old)


variadic("Sum", lambda a, b: a + b)
variadic("Max", lambda a, b: a.maximum(b))
variadic("Min", lambda a, b: a.minimum(b))


@operator("Mean", since=1)
@in_f32
def mean(*data_0: Tensor) -> Tensor:
    return reduce(lambda a, b: a + b, data_0) * (1.0 / len(data_0))


@operator("Clip", since=6)
def clip(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    return input.clip(min, max)


@operator("Clip", since=1)
def clip_1(
    input: Tensor, *, min: Any = None, max: Any = None, consumed_inputs: Any = None
) -> Tensor:
    return input.clip(min, max)


# ---- functions of one input

unary("Neg", lambda x: -x, halves=True)
unary("Abs", lambda x: x.abs(), halves=True)
unary("Floor", lambda x: x.floor(), halves=True)
unary("Ceil", lambda x: x.ceil(), halves=True)
unary("Round", lambda x: x.round(), halves=True)
unary("Sign", lambda x: x.sign(), halves=True)
unary("Sqrt", lambda x: x.sqrt(), halves=True)
unary("Reciprocal", lambda x: x.reciprocal(), halves=True)
unary("Sin", lambda x: x.sin(), halves=True)
unary("Exp", lambda x: x.exp())
unary("Log", lambda x: x.log())
unary("Cos", lambda x: x.cos())
unary("Tan", lambda x: x.tan())
unary("Erf", lambda x: x.erf())
unary("Tanh", lambda x: x.tanh())
unary("Sigmoid", lambda x: x.sigmoid())
unary("Sinh", lambda x: x.sinh())
unary("Cosh", lambda x: (x * LOG2E - 1.0).exp2() + (x * -LOG2E - 1.0).exp2())
unary("Asinh", lambda x: where(x < 0.0, -inverse_sinh(x.abs()), inverse_sinh(x.abs())))
unary("Acosh", lambda x: where(x > 1e4, x.log() + math.log(2), _inverse_cosh(x)))
unary("Atanh", lambda x: (x.abs() * 2.0 / (1.0 - x.abs())).log1p() * where(x < 0.0, -0.5, 0.5))
unary("Atan", lambda x: arctangent(x))
unary("Asin", lambda x: arctangent(x / ((1.0 - x) * (x + 1.0)).sqrt()))
unary("Acos", lambda x: arctangent(((1.0 - x) / (x + 1.0)).sqrt()) * 2.0)


def inverse_sinh(x: Tensor) -> Tensor:
    """Of x >= 0; a square would overflow where x is large."""
    near = (x + x * x / ((x * x + 1.0).sqrt() + 1.0)).log1p()
    return where(x > 1e4, x.log() + math.log(2), near)


def _inverse_cosh(x: Tensor) -> Tensor:
    more = x - 1.0
    return (more + (more * (x + 1.0)).sqrt()).log1p()


# odd polynomial of atan on [0, tan(pi/8)]: the Taylor terms fall below 1e-9 of it
_ATAN = tuple((-1.0) ** i / (2 * i + 1) for i in range(11))


def arctangent(x: Tensor) -> Tensor:
    """atan, reduced to |x| <= tan(pi / 8) by 1/x and (x - 1) / (x + 1)."""
    size = x.abs()
    large = size > 1.0
    inner = where(large, size.reciprocal(), size)
    middle = inner > math.tan(math.pi / 8)
    small = where(middle, (inner - 1.0) / (inner + 1.0), inner)
    square = small * small
    angle = small * polynomial(square, _ATAN) + where(middle, math.pi / 4, 0.0)
    return where(large, math.pi / 2 - angle, angle) * where(x < 0.0, -1.0, 1.0)
