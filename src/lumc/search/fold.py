"""Constants that meet are one: fewer operations, whatever the laws make of the rest.

    (a + b) + c  =  a + (b + c)             constants that are not there to round a
    c * (.. * (b * x))  =  .. * ((c * b) * x)
    c * (.. * (b * x + d))  =  .. * ((c * b) * x + c * d)    and so on: polynomials in Horner's form
    (b * x) * (c * y)  =  (b * c) * (x * y)
    a + .. * a * (c * x)  =  a * (.. * (c * x) + 1)          [finite]

As laws of the e-graph they would not end: with 2 * 0.5 = 1 every x is 2 * (0.5 * x), and with
c - c = 0 every x is (x + c) - c, a class that contains itself. So terms are folded as they are
made. As with the laws (rules/README.md) rounding may change, with an infinite part ``inf`` may
become NaN and NaN ``inf``, and what a select hides is not touched.
"""

from __future__ import annotations

from lumc.graph.expr import Expr
from lumc.graph.ops import DType
from lumc.kernel.term import binary, const, constants, dtype

ROUNDS = 1e6  # added and taken away again, a constant from here on rounds what it is added to
RANGE = {DType.F16: (1e-4, 6e4)}  # magnitudes that constants may get
DEEP = 16  # operations that a factor may pass on its way to another


def add(a: Expr, b: Expr) -> Expr:
    """``a + b`` of floats of one dtype."""
    for x, y in ((a, b), (b, a)):
        if y.kind == "const":
            for c, rest in constants(x, "add"):
                value = c.attr[1] + y.attr[1]
                if abs(c.attr[1]) + abs(y.attr[1]) < ROUNDS and (not value or _is_plain(value, y)):
                    return binary("add", rest, const(value, dtype(y))) if value else rest
        elif (factor := _without(x, y, DEEP)) and _scaled(factor, 1.0, DEEP):
            return mul(y, add(factor, const(1.0, dtype(y))))
    return binary("add", a, b)


def mul(a: Expr, b: Expr) -> Expr:
    """``a * b`` of floats of one dtype."""
    for x, y in ((a, b), (b, a)):
        if x.kind == "const":
            return _scaled(y, x.attr[1], DEEP) or binary("mul", a, b)
        if (found := _split(x, DEEP)) and (new := _scaled(y, found[0].attr[1], DEEP)):
            return _outside(binary("mul", found[1], new))
    return binary("mul", a, b)


def _outside(e: Expr) -> Expr:
    """A product with its constant first, where others find it."""
    found = _split(e, DEEP)
    return binary("mul", *found) if found else e


def _split(e: Expr, deep: int) -> tuple[Expr, Expr] | None:
    """A product as a constant and the rest."""
    for c, rest in constants(e, "mul"):
        return c, rest
    if e.kind == "bin" and e.attr[0] == "mul" and deep:
        for x, y in (e.kids, e.kids[::-1]):
            if found := _split(x, deep - 1):
                return found[0], binary("mul", found[1], y)
    return None


def _scaled(e: Expr, factor: float, deep: int) -> Expr | None:
    """``factor * e`` without another operation: a constant of e takes it."""
    if e.kind != "bin" or not deep:
        return None
    for c, rest in constants(e, "mul"):
        value = c.attr[1] * factor
        if rest.kind == "red" and -1 in (c.attr[1], factor):
            return None  # laws see a distance from a maximum by its -1
        if value == 1:
            return rest
        return binary("mul", const(value, dtype(c)), rest) if _is_plain(value, c) else None
    if e.attr[0] == "mul":
        for x, y in (e.kids, e.kids[::-1]):
            if new := _scaled(x, factor, deep - 1):
                return binary("mul", new, y)
    for c, rest in constants(e, "add"):
        new, value = _scaled(rest, factor, deep - 1), c.attr[1] * factor
        if new and _is_plain(value, c):
            return binary("add", new, const(value, dtype(c)))
    return None


def _without(e: Expr, factor: Expr, deep: int) -> Expr | None:
    """``e / factor``, if that is a factor of it."""
    if e.kind == "bin" and e.attr[0] == "mul" and deep:
        for x, y in (e.kids, e.kids[::-1]):
            if x is factor:
                return y
            if new := _without(x, factor, deep - 1):
                return binary("mul", new, y)
    return None


def _is_plain(value: float, like: Expr) -> bool:
    """Does a constant neither overflow nor vanish?"""
    low, high = RANGE.get(dtype(like), (1e-37, 1e37))
    return low < abs(value) < high
