"""Kernel bodies: terms over named axes, and the kernel that is made of them.

    load (buffer, dtype) i1 ..       the element of a buffer at these indices
    const (dtype, value)             a scalar
    iota (dtype) i                   an index as a value
    guard (lo, hi) i e               e where lo <= i < hi, else 0 (e is not evaluated there)
    un (op) e                        log2 exp2 sin sqrt recip
    bin (op) a b                     add mul mod lt; eq; sel (a is bool: b where a, else 0); or
    where a b c                      b where a (bool), else c
    cast (dtype) e
    red (op, axes) e                 sum or max over one or several bound axes
    wsum (axis) s v                  Sum_axis exp2(s - Max_axis s) * v, in one pass

A tensor value is a term and the order of its free axes. Broadcasting is not mentioning an axis.
The dtype of every term follows from its parts (``dtype``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Annotated

import msgspec

from lumc.graph.expr import Expr, Range, dim, index, make, num, substitute, subterms
from lumc.graph.ops import DTYPES, DType
from lumc.graph.tensor import Tensor
from lumc.kernel.access import Access, row_major
from lumc.kernel.lengths import STATIC, Lengths

# Names reach generated source and paths only as these two, which mean nothing there: of axes and
# buffers, and of kernels, regions and values.
NAME = r"[A-Za-z_][A-Za-z0-9_]{0,200}"
TITLE = r"(?:[A-Za-z0-9_][A-Za-z0-9_.@ -]{0,1099})?"
Name = Annotated[str, msgspec.Meta(pattern=rf"\A{NAME}\Z")]
Title = Annotated[str, msgspec.Meta(pattern=rf"\A{TITLE}\Z")]
Extent = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
REDUCTIONS = ("red", "wsum")
INDEX_KINDS = ("axis", "dim", "num", "lin", "div", "mod", "dyn")


def load(buffer: str, dtype: DType, *indices: Expr | str | int) -> Expr:
    """The element of a row-major buffer of this dtype at these indices, one for each dim."""
    return make("load", (buffer, dtype.value), tuple(index(i) for i in indices))


def const(value: float | int | bool, dtype: DType = DType.F32) -> Expr:
    """A scalar of this dtype, f32 if not told."""
    if dtype is DType.BOOL:
        return make("const", (dtype.value, bool(value)))
    return make("const", (dtype.value, float(value) if dtype.is_float else int(value)))


def iota(i: Expr | str | int, dtype: DType = DType.I64) -> Expr:
    """An index as a value of this dtype, i64 if not told."""
    return make("iota", (dtype.value,), (index(i),))


def guard(i: Expr | str | int, lo: int, hi: int, e: Expr) -> Expr:
    """``e`` where ``lo <= i < hi``, else 0 of its dtype; ``e`` is not read there."""
    return make("guard", (lo, hi), (index(i), e))


def unguarded(e: Expr) -> Expr:
    """What is below the guards of a term."""
    while e.kind == "guard":
        e = e.kids[1]
    return e


def unary(op: str, e: Expr) -> Expr:
    """``log2 exp2 sin sqrt recip`` of a float, in its dtype."""
    return make("un", (op,), (e,))


def binary(op: str, a: Expr, b: Expr) -> Expr:
    """``add mul mod`` of one dtype, in that; ``lt eq`` of one dtype and ``or`` of bools, as bool;
    ``sel`` of a bool and any dtype, in the latter."""
    return make("bin", (op,), (a, b))


def where(condition: Expr, a: Expr, b: Expr) -> Expr:
    """``a`` where the bool holds, else ``b`` of the same dtype."""
    return make("where", (), (condition, a, b))


def cast(dtype: DType, e: Expr) -> Expr:
    """``e`` in this dtype."""
    return make("cast", (dtype.value,), (e,))


def reduce(op: str, axes: str | Iterable[str], e: Expr) -> Expr:
    """The ``sum`` or ``max`` of ``e`` over axes, as a text with blanks or one by one, in its
    dtype."""
    names = tuple(axes.split()) if isinstance(axes, str) else tuple(axes)
    return make("red", (op, names), (e,), names)


def wsum(axis: str, scores: Expr, values: Expr) -> Expr:
    """``Sum exp2(scores - Max scores) * values`` over an axis, in the dtype of the values."""
    return make("wsum", (axis,), (scores, values), (axis,))


def factors(e: Expr) -> list[Expr]:
    """What a product multiplies, one of anything else. A product that it multiplies by twice is one
    factor the second time: written out, a chain of squares has no end."""
    found, seen, todo = list[Expr](), set[Expr](), [e]
    while todo:
        e = todo.pop()
        if e.kind == "bin" and e.attr[0] == "mul" and e not in seen:
            seen.add(e)
            todo += e.kids[::-1]
        else:
            found.append(e)
    return found


def constants(e: Expr, op: str) -> Iterator[tuple[Expr, Expr]]:
    """The operands of a sum or product that are constants, each with the other one."""
    if e.kind == "bin" and e.attr[0] == op:
        yield from ((c, rest) for c, rest in (e.kids, e.kids[::-1]) if c.kind == "const")


def dyn(e: Expr) -> Expr:
    """The value of a term as an index (gather)."""
    return make("dyn", (), (e,))


@lru_cache(maxsize=1 << 12)  # passes ask again and again, as for ``subterms``
def dtype(e: Expr) -> DType:
    """The dtype of a value term."""
    while True:
        match e.kind:
            case "load":
                return DTYPES[e.attr[1]]
            case "const" | "iota" | "cast":
                return DTYPES[e.attr[0]]
            case "bin" if e.attr[0] in ("lt", "eq", "or"):
                return DType.BOOL
            case "bin" if e.attr[0] == "sel":
                e = e.kids[1]
            case "guard" | "wsum" | "where":
                e = e.kids[1]
            case _:
                e = e.kids[0]


@dataclass(frozen=True)
class Buffer(Tensor):
    """A tensor that a kernel reads or writes."""

    name: Name
    shape: tuple[Extent, ...]
    constant: bool = False  # a weight: may be packed at link time
    few: Annotated[int, msgspec.Meta(ge=1, le=8)] | msgspec.UnsetType = msgspec.UNSET  # bits

    @property
    def bits(self) -> int:
        """That tell its values apart, if it is known that fewer do than its dtype has; else 0."""
        return self.few or 0


@dataclass(frozen=True)
class Root:
    """One store of a kernel: ``buffer[index] = value`` for every point of the axes in ``index``,
    which has an expression for each dim of the buffer."""

    buffer: Name
    index: tuple[Expr, ...]
    value: Expr

    @property
    def axes(self) -> frozenset[str]:
        """The axes that it has an element for every point of."""
        return frozenset[str]().union(*(i.free for i in self.index))


@dataclass(frozen=True)
class Kernel:
    """What one kernel computes: stores of terms over named axes.

    ``axes`` are the output axes in the order of the first root; ``extent`` gives the extent of
    every axis, bound ones included. ``buffers`` lists every buffer that is read or written, in
    argument order: inputs first, then outputs. Binder names are unique within a kernel unless
    the binding terms are equal. ``live`` are the lengths of axes of which it is known when it runs
    how many values they have; files of kernels without any do not say so.
    """

    name: Title
    axes: tuple[Name, ...]
    extent: Mapping[Name, Extent]
    roots: tuple[Root, ...]
    buffers: tuple[Buffer, ...]
    live: Lengths | msgspec.UnsetType = msgspec.UNSET

    @property
    def lengths(self) -> Lengths:
        """Those of its live axes."""
        return self.live or STATIC

    @cached_property
    def told(self) -> Mapping[str, int | str]:
        """What tells its axes apart: extents, and lengths as text."""
        return self.lengths.told(self.extent)

    @cached_property
    def ranges(self) -> Mapping[str, Range]:
        """The least and the greatest value of every axis and dim."""
        return {a: (0, n - 1) for a, n in self.extent.items()} | dict(self.lengths.ranges)

    def bound(self, dims: Mapping[str, int]) -> Kernel:
        """The kernel where its dims have these values: of its buffers, which stay as large, it
        reads and writes a part."""
        at = {dim(n): num(v) for n, v in dims.items()}
        new = {a: int(substitute(e, at).attr[0]) for a, e in self.lengths.live}
        roots = tuple(
            Root(r.buffer, tuple(substitute(i, at) for i in r.index), substitute(r.value, at))
            for r in self.roots
        )
        return replace(self, extent={**self.extent, **new}, roots=roots, live=msgspec.UNSET)

    @cached_property
    def _by_name(self) -> dict[str, Buffer]:
        return {b.name: b for b in self.buffers}

    def buffer(self, name: str) -> Buffer:
        """The buffer of this name; raises KeyError if there is none."""
        return self._by_name[name]

    def access(self, load: Expr) -> Access:
        """How a load of one of the buffers moves."""
        return row_major(load.kids, self.buffer(load.attr[0]).shape)

    def points(self, axes: Iterable[str]) -> int:
        """Steps of a loop nest over these axes: the product of their extents."""
        return prod(self.extent[a] for a in axes)

    @property
    def values(self) -> list[Expr]:
        """What the roots store, in their order."""
        return [root.value for root in self.roots]

    @property
    def stored(self) -> list[str]:
        """Names of the buffers that are written, in argument order."""
        written = {root.buffer for root in self.roots}
        return [b.name for b in self.buffers if b.name in written]

    @cached_property
    def stages(self) -> list[Expr]:
        """Every reduction below the roots, inner ones first, in a fixed order."""
        return [e for e in subterms(*self.values) if e.kind in REDUCTIONS]
