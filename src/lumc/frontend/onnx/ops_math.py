"""Arithmetic and elementwise functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

from lumc.frontend.api.elementwise import broadcast_shapes, constant, where
from lumc.frontend.api.halves import in_f32
from lumc.frontend.api.integers import power as int_power
from lumc.frontend.api.integers import quotient
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.registry import operator
from lumc.graph.ops import DType


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
    return in_f32(lambda x, y: x / y)(a, b) if a.dtype.is_float else quotient(a, b)


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
        return int_power(X, Y) if not Y.dtype.is_float else _float_power(X, Y)
    exponent = constant(Y)
    if exponent is not None:
        return X.pow(float(exponent)).expand(*broadcast_shapes(X, X.shape, Y.shape))
    y = Y.to(X.dtype)
    size = (X.abs().log2() * y).exp2()
    whole, odd = y.trunc() == y, y.fmod(2.0).abs() == 1.0
    signed = where(odd, -size, where(whole, size, math.nan))  # of a negative base
    return where(y == 0.0, 1.0, where(X < 0.0, signed, size))


def _float_power(x: Tensor, y: Tensor) -> Tensor:
    """Of ints by floats, in f64."""
    exact: Tensor = power(x.to(DType.F64), y.to(DType.F64))
    near = exact.round()
    close = (exact - near).abs() <= near.abs() * 1e-9
    return where(close, near, exact.trunc()).to(x.dtype)


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
unary("Cosh", lambda x: x.cosh())
unary("Asinh", lambda x: x.asinh())
unary("Acosh", lambda x: x.acosh())
unary("Atanh", lambda x: x.atanh())
unary("Atan", lambda x: x.atan())
unary("Asin", lambda x: x.asin())
unary("Acos", lambda x: x.acos())
