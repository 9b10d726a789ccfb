"""Symbolic dims: integers known at run time, with bounds. An extent is an int or an index
expression over dims (``s + 1``), in normal form, so equal extents compare equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from lumc.graph.expr import Expr, Range, bounds, dim, index, substitute
from lumc.graph.expr import num as number

Extent = int | Expr
MOST = 1 << 62


@dataclass(frozen=True)
class Dim:
    """``dim NAME in lo..hi multiple m``: an integer of which only the bounds are known, both of
    them inclusive."""

    name: str
    lo: int
    hi: int
    multiple: int = 1

    @cached_property
    def values(self) -> range:
        """All that it may be."""
        step = self.multiple
        return range(-(-self.lo // step) * step, self.hi + 1, step)

    @property
    def bounds(self) -> str:
        """What it may be in words: ``1..64 multiple 8``."""
        return f"{self.lo}..{self.hi}" + (f" multiple {self.multiple}" if self.multiple > 1 else "")

    def __str__(self) -> str:
        return f"{self.name} in {self.bounds}"

    @property
    def is_possible(self) -> bool:
        """May it be anything at all, and no number too large to count with?"""
        known = 0 <= self.lo <= self.hi <= MOST and 1 <= self.multiple <= MOST
        return known and bool(self.values)


def extent(e: Extent) -> Extent:
    """The simplest form: a constant expression becomes an int."""
    return int(e.attr[0]) if isinstance(e, Expr) and e.kind == "num" else e


def as_expr(e: Extent) -> Expr:
    """An extent as an index expression."""
    return index(e) if isinstance(e, int) else e


def dim_ranges(dims: Mapping[str, Dim]) -> dict[str, Range]:
    """The least and the greatest value of dims, by name."""
    return {d.name: (d.values[0], d.values[-1]) for d in dims.values()}


def largest(e: Extent, dims: Mapping[str, Dim]) -> int:
    """The greatest value that an extent can take."""
    if isinstance(e, int):
        return e
    if e.kind == "dim" and e.attr[0] in dims:
        return dims[e.attr[0]].values[-1]
    return bounds(e, dim_ranges(dims))[1]


def bind(e: Extent, values: Mapping[str, int]) -> Extent:
    """Replace dims, by name, by their values: an int where no other dim is left."""
    if isinstance(e, int):
        return e
    return extent(substitute(e, {dim(n): number(v) for n, v in values.items()}))
