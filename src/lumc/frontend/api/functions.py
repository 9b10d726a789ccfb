"""Powers, exponentials, rounding and activations, composed of the primitives."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from lumc.frontend.api.elementwise import (
    add,
    broadcast_shapes,
    constant,
    div,
    eq,
    expand_to,
    floats,
    fmod,
    gt,
    isinf,
    isnan,
    logical_and,
    logical_not,
    logical_or,
    lt,
    mul,
    neg,
    never_nan,
    pair,
    reciprocal,
    remainder,
    select,
    sub,
    to,
    where,
)
from lumc.frontend.api.minimax import (
    ERF,
    ERFC,
    EXPM1,
    LOG1P,
    NEAR_ONE,
    NORMAL,
    SINH,
    TANH,
    in_f32,
    polynomial,
)
from lumc.frontend.api.value import Saturating, V
from lumc.graph.ops import DType, Op

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


# ---- powers and quotients


def floordiv(x: V, y: Any) -> V:
    """``floor(x / y)``; of ints exactly, while the quotient has at most 50 bits."""
    a, b = pair(x, y)
    if a.dtype.is_float:
        return floor(div(a, b))
    whole = to(a - remainder(a, b), DType.F64)
    return to(floor(whole * reciprocal(to(b, DType.F64)) + 0.5), a.dtype)


def square(x: V) -> V:
    """x * x."""
    return mul(x, x)


def pow(x: V, y: Any) -> V:
    """Small integer powers by multiplication, halves by sqrt, else ``exp2(y * log2(x))``."""
    exponent = constant(y) if not isinstance(y, int | float) else y
    if exponent is None or not math.isfinite(exponent):
        return _general_power(*floats(*pair(x, y)))
    shape = () if isinstance(y, int | float) else y.shape
    return expand_to(_known_power(x, exponent), broadcast_shapes(x, x.shape, shape))


def _known_power(x: V, exponent: float) -> V:
    """``x ** exponent``, of x's shape."""
    if exponent == int(exponent) and -16 <= exponent <= 16:
        n = int(math.fabs(exponent))
        base = x if exponent >= 0 else reciprocal(x)
        return _power(base, n) if n else x.model.full(x.shape, 1, x.dtype)
    if not x.dtype.is_float:
        x = to(x, DType.F32)
    if exponent == 0.5:
        return sqrt(x)
    if exponent == -0.5:
        return rsqrt(x)
    if exponent != int(exponent):  # of negative numbers NaN, but not of -inf
        return exp2(mul(log2(where(lt(x, -x.dtype.greatest), math.inf, x)), exponent))
    size = exp2(mul(log2(abs(x)), exponent))
    return where(lt(x, 0), neg(size), size) if int(exponent) % 2 else size


def _general_power(x: V, y: V) -> V:
    """``x ** y`` as numpy has it."""
    size = exp2(mul(log2(abs(x)), y))
    whole, odd = eq(trunc(y), y), eq(abs(fmod(y, 2.0)), 1.0)
    signed = where(odd, neg(size), where(whole, size, math.nan))
    signed = where(lt(x, -x.dtype.greatest), where(odd, neg(size), size), signed)
    value = where(lt(x, 0.0), signed, size)
    is_one = logical_or(eq(y, 0.0), eq(x, 1.0))
    return where(logical_or(is_one, logical_and(eq(x, -1.0), isinf(y))), 1.0, value)


def _power(x: V, n: int) -> V:
    """``x ** n`` by squaring, n >= 1."""
    if n == 1:
        return x
    half = _power(x, n // 2)
    whole = mul(half, half)
    return mul(whole, x) if n % 2 else whole


def rpow(x: V, base: Any) -> V:
    if not isinstance(base, int | float):
        return pow(x.lift(base), x)
    if not x.dtype.is_float:
        x = to(x, DType.F32)
    return exp2(mul(x, math.log2(base))) if base > 0 else pow(x.lift(float(base)), x)


# ---- exponentials and friends


def exp2(x: V) -> V:
    """2^x."""
    return x.unary(Op.EXP2)


def exp(x: V) -> V:
    """e^x."""
    return exp2(mul(x, LOG2E))


def log2(x: V) -> V:
    """Logarithm to base 2."""
    return x.unary(Op.LOG2)


def log(x: V) -> V:
    """Natural logarithm."""
    return mul(log2(x), LN2)


@in_f32
def expm1(x: V) -> V:
    """``exp(x) - 1``: near 0 by a polynomial."""
    far = add(exp(x), -1.0)
    if x.dtype is DType.F64:
        return far
    return where(lt(abs(x), 0.5), mul(x, polynomial(x, EXPM1)), far)


@in_f32
def sinh(x: V) -> V:
    """``(exp(x) - exp(-x)) / 2``, the halves in the exponents: nothing overflows early."""
    grows, falls = (exp2(add(mul(x, sign * LOG2E), -1.0)) for sign in (1, -1))
    far = sub(grows, falls)
    if x.dtype is DType.F64:
        return far
    return where(lt(abs(x), 1.0), mul(x, polynomial(square(x), SINH)), far)


@in_f32
def log1p(x: V) -> V:
    """``log(1 + x)``: near 0 by a polynomial."""
    far = log(add(x, 1.0))
    if x.dtype is DType.F64:
        return far
    square = mul(x, x)
    near = add(add(mul(mul(x, square), polynomial(x, NEAR_ONE)), mul(square, -0.5)), x)
    return where(lt(abs(add(x, -0.0606)), 0.3535), near, far)


def sqrt(x: V) -> V:
    """Square root."""
    return x.unary(Op.SQRT)


def rsqrt(x: V) -> V:
    """1 / sqrt(x)."""
    return reciprocal(sqrt(x))


def sin(x: V) -> V:
    """Sine, of radians."""
    return x.unary(Op.SIN)


@in_f32
def cos(x: V) -> V:
    """``sin(2 x) / (2 sin(x))``, exact near its zeros too; ``1 - 2 sin(x / 2)^2`` where that is
    0 / 0 or beyond the range. The sine primitive is exact for every x."""
    size = abs(x)
    usual = logical_and(gt(size, 1e-4), lt(size, 1.7e38))
    whole = sin(mul(x, add(select(usual, x.lift(1.5)), 0.5)))
    half = sin(mul(x, add(select(usual, x.lift(0.5)), 0.5)))
    share = div(whole, where(usual, half, 1.0))  # never infinite: its slope goes on where x is 0
    return where(usual, mul(share, 0.5), add(mul(mul(whole, half), -2.0), 1.0))


def tan(x: V) -> V:
    """Tangent, of radians."""
    return div(sin(x), cos(x))


# ---- pieces and rounding


def relu(x: V) -> V:
    """``max(x, 0)``; NaN stays NaN."""
    return select(logical_not(lt(x, 0)), x)


def abs(x: V) -> V:
    """Absolute value."""
    return mul(x, _sign_or_one(x))


def _sign_or_one(x: V) -> V:
    """-1 below zero, else 1."""
    return add(select(lt(x, 0), x.lift(-2)), 1)


def sign(x: V) -> V:
    """-1, 0 or 1; 0 of NaN."""
    return add(select(gt(x, 0), x.lift(1)), select(lt(x, 0), x.lift(-1)))


def maximum(x: V, y: Any) -> V:
    """The greater one; NaN when either is NaN."""
    a, b = pair(x, y)
    if constant(a) is not None:
        a, b = b, a
    below = lt(a, b)
    if b.dtype.is_float and not never_nan(b):
        below = logical_or(below, isnan(b))
    return where(below, b, a)


def minimum(x: V, y: Any) -> V:
    """The smaller one; NaN when either is NaN."""
    a, b = pair(x, y)
    if constant(a) is not None:
        a, b = b, a
    above = gt(a, b)
    if b.dtype.is_float and not never_nan(b):
        above = logical_or(above, isnan(b))
    return where(above, b, a)


def clip(x: V, low: Any = None, high: Any = None) -> V:
    """Between ``low`` and ``high``; None: no bound."""
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)


def trunc(x: V) -> V:
    """Towards zero."""
    return x if not x.dtype.is_float else sub(x, _fraction(x))


def _fraction(x: V) -> V:
    """What lies behind the point, with the sign of x; 0 of inf and NaN."""
    rest = fmod(x, 1.0)
    return select(lt(rest, 1.0), rest)  # fmod(inf, 1) is NaN


def floor(x: V) -> V:
    """The next integer below."""
    if not x.dtype.is_float:
        return x
    rest = _fraction(x)
    return add(sub(x, rest), select(lt(rest, 0.0), x.lift(-1.0)))


def ceil(x: V) -> V:
    """The next integer above."""
    if not x.dtype.is_float:
        return x
    rest = _fraction(x)
    return add(sub(x, rest), select(gt(rest, 0.0), x.lift(1.0)))


def round(x: V) -> V:
    """To the nearest integer, halves to the even one."""
    if not x.dtype.is_float:
        return x
    low = floor(x)
    rest = sub(x, low)
    odd = gt(remainder(low, 2.0), 0.5)
    up = logical_or(gt(rest, 0.5), logical_and(logical_not(lt(rest, 0.5)), odd))
    return add(low, select(up, x.lift(1.0)))


# ---- activations


def sigmoid(x: V) -> V:
    """1 / (1 + e^-x)."""
    return reciprocal(add(exp(neg(x)), 1.0))


@in_f32
def tanh(x: V) -> V:
    """``2 * sigmoid(2 x) - 1``: near 0 by a polynomial."""

    def end(sign: int) -> V:
        return mul(sigmoid(mul(x, 2.0 * sign)), 2.0 * sign)

    far = add(end(1), -1.0)
    if x.dtype is DType.F64:
        return far
    z = square(x)
    near = add(mul(mul(x, z), polynomial(z, TANH)), x)
    return replace(where(lt(z, 0.3025), near, far), ends=Saturating(1.0, end))


def silu(x: V) -> V:
    """x * sigmoid(x)."""
    return mul(x, sigmoid(x))


@in_f32
def softplus(x: V) -> V:
    """``log(1 + exp(x))`` without overflow."""
    small = exp(neg(abs(x)))
    if x.dtype is DType.F64:
        return add(relu(x), log(add(small, 1.0)))
    above, below = (polynomial(small, c) for c in LOG1P)
    return add(relu(x), div(mul(small, above), below))


def elu(x: V, alpha: float = 1.0) -> V:
    """x above 0, below it alpha * (e^x - 1)."""
    return where(lt(x, 0), mul(expm1(x), alpha), x)


def leaky_relu(x: V, slope: float = 0.01) -> V:
    """x above 0, below it slope * x."""
    return mul(x, add(select(lt(x, 0), x.lift(slope - 1.0)), 1.0))


def mish(x: V) -> V:
    """x tanh(log(1 + e^x)) by one power: tanh(log(y)) is (y^2 - 1) / (y^2 + 1), 1 from 20 on."""
    power = exp(minimum(x, 20.0))
    n = mul(power, add(power, 2.0))
    return mul(x, div(n, add(n, 2.0)))


def hardsigmoid(x: V) -> V:
    """x / 6 + 1/2, clipped to 0..1."""
    return clip(add(mul(x, 1.0 / 6.0), 0.5), 0.0, 1.0)


def hardswish(x: V) -> V:
    """x * hardsigmoid(x)."""
    return mul(x, hardsigmoid(x))


@in_f32
def erf(x: V) -> V:
    """Near 0 by a polynomial, else ``1 - 2^p(|x|)``; in f64 by a logistic (see ``NORMAL``)."""

    def end(sign: int) -> V:
        return mul(_normal_sigmoid(mul(x, float(sign))), 2.0 * sign)

    if x.dtype is DType.F64:
        return add(end(1), -1.0)
    z, sign = square(x), _sign_or_one(x)
    far = mul(add(neg(exp2(polynomial(mul(x, sign), ERFC))), 1.0), sign)
    near = mul(x, polynomial(z, ERF))
    return replace(where(lt(z, 0.81), near, far), ends=Saturating(1.0, end))


def gelu(x: V, approximate: str = "none") -> V:
    """``x * (1 + erf(x / sqrt 2)) / 2``, or PyTorch's tanh form."""
    if approximate == "tanh":
        inner = mul(add(mul(mul(mul(x, x), x), 0.044715), x), 2.0 * math.sqrt(2.0 / math.pi))
        return mul(x, sigmoid(inner))
    return mul(x, _normal_sigmoid(mul(x, math.sqrt(0.5))))


def _normal_sigmoid(x: V) -> V:
    """``(1 + erf(x)) / 2`` as one logistic of an odd polynomial; see ``NORMAL``."""
    return reciprocal(add(exp2(mul(x, polynomial(mul(x, x), NORMAL))), 1.0))
