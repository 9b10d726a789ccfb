"""Polynomials for functions of f32, which lose nothing near zero.

Coefficients from the constant one on, fitted to the least maximum of the relative error.
``tests/accuracy.py`` measures what rounding adds: docs/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps

from lumc.frontend.api.elementwise import add, mul, to
from lumc.frontend.api.value import V
from lumc.graph.ops import DType


def polynomial(x: V, coefficients: Sequence[float]) -> V:
    """In Horner's form, from the constant coefficient on."""
    value = mul(x, coefficients[-1])
    for c in reversed(coefficients[1:-1]):
        value = mul(add(value, c), x)
    return add(value, coefficients[0])


def in_f32(function: Callable[[V], V]) -> Callable[[V], V]:
    """f16 and bf16 are computed with in f32 and rounded once; ints are f32."""

    @wraps(function)
    def widened(x: V) -> V:
        if x.dtype in (DType.F32, DType.F64):
            return function(x)
        wide = function(to(x, DType.F32))
        return to(wide, x.dtype) if x.dtype.is_float else wide

    return widened


# tanh(x) / x - 1 over z = x^2 for |x| <= 0.55, to 3.7e-8 of tanh
TANH = (-0.33332946652, 0.13320725468, -0.052671841274, 0.016437635906)
# erf(x) / x for z = x^2 up to 0.81, to 1.2e-8, and log2(1 - erf(x)) from 0.9 on, to 3e-8 of erf
ERF = (
    1.12837915379,
    -0.376125232797,
    0.112821409633,
    -0.0267789161735,
    0.00501197473311,
    -0.000609042410219,
)
ERFC = (
    -0.00239612690142,
    -1.61722856995,
    -0.937234584548,
    -0.13255121875,
    0.022847999221,
    -0.00185424418069,
)
# log(1 + z) / z for 0 <= z <= 1 as a quotient, to 2.1e-8; positive, so that no sum cancels
LOG1P = (1.0, 0.86951711363, 0.12463908663), (1.0, 1.3695157365, 0.47609113190, 0.031352453058)
# (exp(x) - 1) / x for |x| <= 1/2, to 3.2e-9, and sinh(x) / x in x^2 for |x| <= 1, to 2.4e-8
EXPM1 = (1.0, 0.5, 0.16666663957, 0.04166535960, 0.00833358445, 0.00139961435, 0.000198481093)
SINH = (1.0, 0.16666716017, 0.0083302838099, 0.00020372189731)
# (log(1 + x) - x + x^2 / 2) / x^3 between sqrt(1/2) - 1 and sqrt(2) - 1 (Cephes, logf)
NEAR_ONE = (
    3.3333331174e-1,
    -2.4999993993e-1,
    2.0000714765e-1,
    -1.6668057665e-1,
    1.4249322787e-1,
    -1.2420140846e-1,
    1.1676998740e-1,
    -1.1514610310e-1,
    7.0376836292e-2,
)

# log2 of (1 - erf) / (1 + erf) is odd: coefficients of x, x^3, ..; fitted to the least maximum of
# the error of erf, 5.8e-8. The last one keeps the right sign as x grows, so erf saturates at +-1.
NORMAL = (
    -3.255815610646363,
    -0.2965185008854734,
    0.0005320187307645316,
    0.001805445182947983,
    -0.00025885586077424285,
    1.7271061103997992e-05,
    -4.5866276136438734e-07,
)
