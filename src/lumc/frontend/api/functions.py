"""Powers, exponentials, rounding and activations, composed of the primitives."""

from __future__ import annotations

import math
from typing import Any

from lumc.frontend.api.elementwise import (
    add,
    constant,
    div,
    floats,
    fmod,
    gt,
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
from lumc.frontend.api.value import V
from lumc.graph.ops import DType, Op

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453

# log2 of (1 - erf) / (1 + erf) is odd: coefficients of x, x^3, ..; fitted to the least maximum of
# the error of erf, 5.8e-8. The last one keeps the right sign as x grows, so erf saturates at +-1.
ERF = (
    -3.255815610646363,
    -0.2965185008854734,
    0.0005320187307645316,
    0.001805445182947983,
    -0.00025885586077424285,
    1.7271061103997992e-05,
    -4.5866276136438734e-07,
)


# ---- powers and quotients


def floordiv(x: V, y: Any) -> V:
    """``floor(x / y)``; of ints exactly, while the quotient has at most 50 bits."""
    a, b = pair(x, y)
    if a.dtype.is_float:
        return floor(div(a, b))
    whole = to(a - remainder(a, b), DType.F64)
    return to(floor(whole * reciprocal(to(b, DType.F64)) + 0.5), a.dtype)


def square(x: V) -> V:
    return mul(x, x)


def pow(x: V, y: Any) -> V:
    """Small integer powers by multiplication, halves by sqrt, else ``exp2(y * log2(x))``."""
    exponent = constant(y) if not isinstance(y, int | float) else y
    if exponent is None or not math.isfinite(exponent):
        a, b = floats(*pair(x, y))
        return exp2(mul(log2(a), b))
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
    if exponent != int(exponent):
        return exp2(mul(log2(x), exponent))
    size = exp2(mul(log2(abs(x)), exponent))
    return where(lt(x, 0), neg(size), size) if int(exponent) % 2 else size


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
    return x.unary(Op.EXP2)


def exp(x: V) -> V:
    return exp2(mul(x, LOG2E))


def log2(x: V) -> V:
    return x.unary(Op.LOG2)


def log(x: V) -> V:
    return mul(log2(x), LN2)


def sqrt(x: V) -> V:
    return x.unary(Op.SQRT)


def rsqrt(x: V) -> V:
    return reciprocal(sqrt(x))


def sin(x: V) -> V:
    return x.unary(Op.SIN)


def cos(x: V) -> V:
    """``1 - 2 sin(x / 2)^2``: unlike ``sin(x + pi / 2)`` it loses nothing for large x."""
    return square(sin(mul(x, 0.5))) * -2.0 + 1.0


def tan(x: V) -> V:
    return div(sin(x), cos(x))


# ---- pieces and rounding


def relu(x: V) -> V:
    """``max(x, 0)``; NaN stays NaN."""
    return select(logical_not(lt(x, 0)), x)


def abs(x: V) -> V:
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
    if not x.dtype.is_float:
        return x
    rest = _fraction(x)
    return add(sub(x, rest), select(lt(rest, 0.0), x.lift(-1.0)))


def ceil(x: V) -> V:
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
    return reciprocal(add(exp(neg(x)), 1.0))


def tanh(x: V) -> V:
    """``2 * sigmoid(2 x) - 1``."""
    return add(mul(sigmoid(mul(x, 2.0)), 2.0), -1.0)


def silu(x: V) -> V:
    return mul(x, sigmoid(x))


def softplus(x: V) -> V:
    """``log(1 + exp(x))`` without overflow."""
    return add(relu(x), log(add(exp(neg(abs(x))), 1.0)))


def elu(x: V, alpha: float = 1.0) -> V:
    below = mul(add(exp(x), -1.0), alpha)
    return where(lt(x, 0), below, x)


def leaky_relu(x: V, slope: float = 0.01) -> V:
    return mul(x, add(select(lt(x, 0), x.lift(slope - 1.0)), 1.0))


def hardsigmoid(x: V) -> V:
    return clip(add(mul(x, 1.0 / 6.0), 0.5), 0.0, 1.0)


def hardswish(x: V) -> V:
    return mul(x, hardsigmoid(x))


def erf(x: V) -> V:
    """``2 * sigmoid(2 g) - 1`` with g = atanh(erf(x)), an odd polynomial."""
    return add(mul(_normal_sigmoid(x), 2.0), -1.0)


def gelu(x: V, approximate: str = "none") -> V:
    """``x * (1 + erf(x / sqrt 2)) / 2``, or PyTorch's tanh form."""
    if approximate == "tanh":
        inner = mul(add(mul(mul(mul(x, x), x), 0.044715), x), 2.0 * math.sqrt(2.0 / math.pi))
        return mul(x, sigmoid(inner))
    return mul(x, _normal_sigmoid(mul(x, math.sqrt(0.5))))


def _normal_sigmoid(x: V) -> V:
    """``(1 + erf(x)) / 2`` as one logistic of an odd polynomial; see ``ERF``."""
    x2 = mul(x, x)
    poly = mul(x2, ERF[-1])
    for coefficient in reversed(ERF[1:-1]):
        poly = mul(add(poly, coefficient), x2)
    return reciprocal(add(exp2(mul(x, add(poly, ERF[0]))), 1.0))
