"""What the operations of a program read from memory, and what the traffic of each load depends on.

Of a sum of hundreds of loads most differ in where they start only: what is counted of one of them
holds for all that are alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd, prod

from lumc.codegen.gpu.expected import Expected
from lumc.codegen.tile.program import Leaf, Place, Reduce, loads_of
from lumc.graph.expr import Expr, linear, subterms

# of a load: its place, its axes, those along which it is contiguous, phases
Alike = tuple[str, frozenset[str], tuple[str, ...], int]
Reads = list[tuple[Expr, Alike]]


@dataclass
class Spent:
    """What was found of the leaves of a program, by their ids, for all of its prices."""

    operations: dict[int, float] = field(default_factory=dict)  # in one turn of the loops around
    reads: dict[int, Reads] = field(default_factory=dict)
    launch: Expected | None = None  # on a GPU

    def reads_of(self, op: Leaf, places: Mapping[str, Place]) -> Reads:
        """The loads of what lies in memory, each with all that its traffic depends on."""
        if id(op) not in self.reads:
            found = [(e, places[e.attr[0]]) for e in loads_of(op)]
            self.reads[id(op)] = [(e, _alike(e, p)) for e, p in found if p.kind != "scratch"]
        return self.reads[id(op)]


def _alike(e: Expr, place: Place) -> Alike:
    return e.attr[0], e.free, place.access(e).contiguous, phases(e.kids)


@lru_cache(maxsize=1 << 12)
def phases(index: tuple[Expr, ...]) -> int:
    """In how many steps everything is read: 2 where every second element is."""
    return prod(gcd(*atoms.values()) for k in index if (atoms := linear(k)[1]))


def starts(e: Expr, op: Leaf) -> set[str]:
    """The axes whose tiles say where the axes of a copy begin."""
    below = subterms(*(op.ranges[a].lo for a in e.free if a in op.ranges))
    return {s.attr[0].removesuffix(".0") for s in below if s.kind == "dim"}


def walked(op: Reduce) -> tuple[str, ...]:
    """The axes of a reduction, outer first: lanes run along the last one."""
    if op.lanes == "reduced":
        return (*op.kept, *op.red)
    return (*op.kept[:-1], *op.red, *op.kept[-1:])
