"""Operands as whole numbers of parts of the greatest element of a block, in three digits.

    most[..]      = max |x|                    x[.., k] is by[..] times a whole number of FINE bits
    by[..]        = most / (2^FINE - 1)        and a sign, to within half of by: what f32 keeps of
    sums[..]      = by * sum round(x / by)     a number next to the greatest one
    made[.., k]   = x / by, stored as digits

The parts of a block with an infinity or a NaN are NaN, and so are all sums of products with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from lumc.codegen.tile.context import Body, Context, Scope
from lumc.codegen.tile.program import Contract, Leaf, Map, Output, Place, Reduce, loads_of, written
from lumc.graph.expr import Expr, axis
from lumc.graph.ops import DType
from lumc.kernel.term import binary, const, dtype, unary, where
from lumc.schedule.levels import FINE

FOUR = 4  # neighbours that share words
LEAST = 1e-30  # is taken for the greatest of a block where that is less
PARTS = 2.0**FINE - 1
NEAR = 1.5 * 2.0 ** (FINE + 1)  # beside it a float has no bits below 1


class Digits(NamedTuple):
    """Loads of a row in digits, of its parts and of its sum."""

    made: Expr
    by: Expr
    sums: Expr


def copy_digits(c: Context, value: Expr, inner: str, scope: Scope, body: Body) -> Digits:
    """Operations that make digits of an operand in blocks along an axis."""
    outer = c.order(value.free - {inner})
    axes = (*outer, inner)

    def write(dst: Expr, over: Sequence[str], term: Expr) -> None:
        body.ops.append(Map(dst, tuple(over), {a: scope[a] for a in over}, term, copy=True))

    if value.kind != "load" or dtype(value) is not DType.F32:
        copied = c.new("copy", axes, scope, DType.F32)
        write(copied, axes, value)
        value = copied
    most, count, sums, by, up = (c.new("block", outer, scope, DType.F32) for _ in range(5))
    away = where(binary("lt", value, const(0.0)), _times(value, -1.0), value)
    ranges = {a: scope[a] for a in axes}
    greatest = Output(most, "top", away, const(LEAST))
    body.ops.append(Reduce(outer, (inner,), ranges, (greatest,), copy=True))
    write(up, outer, _times(unary("recip", most), PARTS))
    near = binary("add", binary("mul", value, up), const(NEAR))
    total = Output(count, "sum", binary("add", near, const(-NEAR)), const(0.0))
    body.ops.append(Reduce(outer, (inner,), ranges, (total,), copy=True))
    # infinities and NaN are not in the greatest, but make the sum times 0 a NaN
    write(by, outer, binary("add", _times(most, 1 / PARTS), _times(count, 0.0)))
    write(sums, outer, binary("mul", count, by))
    made = c.new("copy", axes, scope, DType.F32)
    c.places[made.attr[0]] = replace(c.places[made.attr[0]], digits=True)
    write(made, axes, binary("mul", value, up))
    return Digits(made, by, sums)


def wrong_digits(op: Leaf, places: Mapping[str, Place]) -> Iterator[str]:
    """What is wrong with how an operation makes or reads digits."""

    def holds(e: Expr) -> bool:
        return e.attr[0] in places and places[e.attr[0]].digits

    known = op if isinstance(op, Contract) and op.stage.stage_b == "digits" else None
    read = [e for e in loads_of(op, but=written(op)) if holds(e)]
    if known is None and read:
        yield "takes digits for floats"
    if known is not None and (read != [known.a] or known.by is None or not known.levels):
        yield "takes floats for digits"
    for dst in filter(holds, written(op)):
        last = op.axes[-1] if isinstance(op, Map) and op.axes and op.turn is None else ""
        if not last or dst.kids[-1] != axis(last) or any(n % FOUR for n in op.ranges[last].sizes):
            yield "makes digits of other than rows of fours"


def _times(e: Expr, n: float) -> Expr:
    return binary("mul", e, const(n))
