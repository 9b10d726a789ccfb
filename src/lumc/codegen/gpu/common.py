"""Factors that neighbours have in common, as the scale of a block of levels: they are multiplied
by once, ``sum_j f t = f sum_j t`` with j not in free(f), as the rule ``factor`` of the search."""

from __future__ import annotations

from typing import NamedTuple

from lumc.codegen.tile.program import Output
from lumc.graph.expr import Expr
from lumc.graph.ops import DType
from lumc.kernel.term import dtype, factors
from lumc.schedule.operands import product


class Common(NamedTuple):
    """A sum's term as ``factor * rest``."""

    factor: Expr
    rest: Expr


def common(output: Output, axis: str) -> Common | None:
    """What is the same for all neighbours along this axis, if that and more is multiplied."""
    term = output.term
    if output.op != "sum" or dtype(term) not in (DType.F32, DType.F64):
        return None
    parts = factors(term)
    factor, rest = ([p for p in parts if (axis in p.free) == own] for own in (False, True))
    return Common(product(factor), product(rest)) if factor and rest else None
