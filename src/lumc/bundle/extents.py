"""Dims, and extents that are made of them, as plan files say them.

A length is one step on dims and on lengths before it, so that the runner needs no parser. What a
reader knows of the bounds of dims says of every length that it does not overflow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lumc.graph.dim import MOST, Dim, Extent
from lumc.graph.expr import Expr, Range, add, dim, floordiv, linear, mod, mul, num

NUMBER, SUM, PRODUCT, QUOTIENT, REST = KINDS = range(5)
UNUSED, BY_NAME, BY_SHAPE, COUNTED = SOURCES = range(4)
MAX_DIMS, MAX_LENGTHS = 64, 512  # as in runner/internal.h
LATER = "a length is made of a later one"


class Length(NamedTuple):
    """A number; a + b; or a times, over or modulo the number. ``a`` and ``b`` are positions: of
    dims, then of lengths."""

    kind: int
    a: int
    b: int
    number: int


@dataclass(frozen=True)
class Source:
    """How an entry comes to the value of a dim: by name, by an extent of an input, which is
    ``coefficient * dim + constant``, or by counting how often a run has gone through it."""

    how: int
    input: int = 0
    axis: int = 0
    coefficient: int = 0
    constant: int = 0


class Lengths:
    """The table that is written: lengths of extents, each once."""

    def __init__(self, dims: Iterable[str]) -> None:
        self.places = {dim(name): i for i, name in enumerate(dims)}
        self.first = len(self.places)
        self.rows = list[Length]()
        self._known = dict[Length, int]()

    def word(self, e: Extent) -> int:
        """What an extent says of its length: 0 if it is always the greatest."""
        return 1 + self._place(e) if isinstance(e, Expr) else 0

    def _place(self, e: Expr) -> int:
        if e not in self.places:
            self.places[e] = self._of(e)
        return self.places[e]

    def _of(self, e: Expr) -> int:
        if e.kind in ("div", "mod"):
            kind = QUOTIENT if e.kind == "div" else REST
            return self._row(Length(kind, self._place(e.kids[0]), 0, e.attr[0]))
        constant, coefs = linear(e)
        found = list[int]()
        for atom, c in coefs.items():
            at = self._place(atom)
            found.append(at if c == 1 else self._row(Length(PRODUCT, at, 0, c)))
        if constant or not found:
            found.append(self._row(Length(NUMBER, 0, 0, constant)))
        whole = found[0]
        for at in found[1:]:
            whole = self._row(Length(SUM, whole, at, 0))
        return whole

    def _row(self, row: Length) -> int:
        if row not in self._known:
            self._known[row] = self.first + len(self.rows)
            self.rows.append(row)
        return self._known[row]


class Spans:
    """Dims and lengths that are read: the least and the greatest value of each, and what it is.
    Raises ValueError as plan.c refuses."""

    def __init__(self) -> None:
        self.dims, self.rows = dict[str, Dim](), list[Length]()
        self.bounds = list[tuple[int, int]]()
        self.terms = list[Expr]()

    def dim(self, name: str, lo: int, hi: int, multiple: int) -> None:
        known = Dim(name, lo, hi, multiple)
        if not 0 <= lo <= hi or multiple < 1 or not known.values:
            raise ValueError("a dim has no values")
        if name in self.dims:
            raise ValueError("two dims have one name")
        self.dims[name] = known
        self.bounds.append((known.values[0], known.values[-1]))
        self.terms.append(dim(name))

    def length(self, row: Length) -> None:
        before = len(self.terms)
        if row.kind != NUMBER and max(row.a, row.b) >= before:
            raise ValueError(LATER)
        if row.kind >= QUOTIENT and row.number < 1:
            raise ValueError("a length has no divisor")
        span = _span(row, self.bounds)
        if span[0] < -MOST or span[1] > MOST:
            raise ValueError("a length is too large")
        self.rows.append(row)
        self.bounds.append(span)
        self.terms.append(self._term(row))

    def within(self, most: Sequence[int]) -> list[Range]:
        """The bounds of dims and lengths where dims are not above these values."""
        out = list[Range]()
        for d, n in zip(self.dims.values(), most, strict=True):
            last = min(n, d.values[-1])
            out.append((d.values[0], last - last % d.multiple))
            if out[-1][1] < d.values[0]:
                raise ValueError("launches for no dims")
        for row in self.rows:
            out.append(_span(row, out))
        return out

    def _term(self, row: Length) -> Expr:
        if row.kind == NUMBER:
            return num(row.number)
        a, n, ranges = self.terms[row.a], row.number, self.ranges
        match row.kind:
            case 1:
                return add(a, self.terms[row.b])
            case 2:
                return mul(a, n)
            case 3:
                return floordiv(a, n, ranges)
        return mod(a, n, ranges)

    @property
    def ranges(self) -> Mapping[str, tuple[int, int]]:
        return {name: (d.values[0], d.values[-1]) for name, d in self.dims.items()}


def _span(row: Length, before: Sequence[Range]) -> Range:
    """The least and the greatest value of a length, of those of dims and lengths before it."""
    if row.kind == NUMBER:
        return row.number, row.number
    (lo, hi), n = before[row.a], row.number
    match row.kind:
        case 1:
            return lo + before[row.b][0], hi + before[row.b][1]
        case 2:
            return min(lo * n, hi * n), max(lo * n, hi * n)
        case 3:
            return lo // n, hi // n
    return (0, n - 1) if lo < 0 or hi >= n else (lo, hi)
