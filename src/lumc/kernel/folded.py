"""Operations whose result a constant tells. The sign of a zero may differ, and nothing else: a
float that is multiplied with zero may be infinite, and stays."""

from __future__ import annotations

from math import isfinite

from lumc.graph.expr import Expr
from lumc.graph.ops import DType
from lumc.kernel.term import const, dtype


def folded(e: Expr) -> Expr:
    """The term, or what it always is; of the same dtype. Only its top operation is looked at."""
    fixed = [k for k in e.kids if k.kind == "const"]
    if e.kind == "cast" and fixed:
        known = dtype(fixed[0]) is DType.BOOL or fixed[0].attr[1] == 0
        return const(fixed[0].attr[1], dtype(e)) if known else e
    if e.kind == "where" and e.kids[0].kind == "const":
        return e.kids[1] if e.kids[0].attr[1] else e.kids[2]
    if e.kind != "bin" or not fixed:
        return e
    op, (a, b) = e.attr[0], e.kids
    if op == "sel" and a.kind == "const":
        return b if a.attr[1] else const(0, dtype(e))
    if op == "lt" and dtype(a) is DType.BOOL:  # not a, and b
        if const(True, DType.BOOL) is a or const(False, DType.BOOL) is b:
            return const(False, DType.BOOL)
        return b if a.kind == "const" else e
    finite = not dtype(e).is_float or (len(fixed) == 2 and all(isfinite(k.attr[1]) for k in fixed))
    for one, other in ((a, b), (b, a)):
        value = one.attr[1] if one.kind == "const" else None
        if op == "mul" and value == 0 and finite and dtype(other) is dtype(e):
            return const(0, dtype(e))
        if (op, value) in (("mul", 1), ("add", 0), ("or", False)) and dtype(other) is dtype(e):
            return other
    return e
