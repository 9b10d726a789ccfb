"""How a value can be held by the ranks along one axis of a mesh."""

from __future__ import annotations

from typing import NamedTuple

from lumc.graph.collective import Collective, Kind
from lumc.graph.ops import DType, Op


class Held(NamedTuple):
    """Whole by every rank; in blocks of a dim, one for each rank; or partial: the sum or maximum of
    what the ranks have is the value."""

    dim: int = -1  # of which ranks have blocks
    op: Op | None = None  # that makes the value of partial ones

    def __str__(self) -> str:
        if self.op:
            return f"partial {self.op.value}"
        return "whole" if self.dim < 0 else f"blocks of dim {self.dim}"


WHOLE = Held()
SUMS, MAXIMA = Held(op=Op.SUM), Held(op=Op.MAX)
HALVES = (DType.F16, DType.BF16)


def block(dim: int) -> Held:
    """Held in blocks of a dim."""
    return Held(dim)


def travelling(dtype: DType, held: Held) -> DType:
    """In what dtype partial values are kept and sent: sums of 16 bits would be rounded twice."""
    return DType.F32 if dtype in HALVES and held == SUMS else dtype


def exchange(have: Held, want: Held, mesh: str, ranks: int) -> Collective | None:
    """The collective that makes a value held one way of one held another way; None if none does."""
    split = want.dim if want.dim >= 0 else None
    concat = have.dim if have.dim >= 0 else None
    if want.op or have == want:
        return None
    if have.op:
        kind = Kind.ALL_REDUCE if want == WHOLE else Kind.REDUCE_SCATTER
        return Collective(kind, mesh, ranks, have.op, split)
    if have == WHOLE:
        return Collective(Kind.ALL_SLICE, mesh, ranks, split=split)
    kind = Kind.ALL_GATHER if want == WHOLE else Kind.ALL_TO_ALL
    return Collective(kind, mesh, ranks, None, split, concat)
