"""Dims in plain C: extents as expressions, and copies between an array of the extents of a run and
memory for the greatest ones, where kernels find it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from lumc.codegen.tile.memory import aligned
from lumc.graph.dim import Dim, Extent, dim_ranges
from lumc.graph.expr import Expr, bounds, signed_sum
from lumc.graph.graph import Node


@dataclass(frozen=True)
class Dims:
    """The dims of an entry, and the C names of their values."""

    names: Mapping[str, str]
    known: Mapping[str, Dim]

    def text(self, e: Extent) -> str:
        """An extent as a C expression, which binds as tightly as a sum."""
        if isinstance(e, int):
            return str(e)
        match e.kind:
            case "num":
                return str(e.attr[0])
            case "dim":
                return self.names[e.attr[0]]
            case "lin":
                return signed_sum(e, self._product)
        (inner,), n = e.kids, e.attr[0]
        least = bounds(inner, dim_ranges(self.known))[0]
        more = max(0, -(least // n))  # C truncates, extents floor: n * more makes it no less than 0
        above = f"({self.text(inner)}{f' + {n * more}' * (more > 0)})"
        if e.kind == "mod":
            return f"{above} % {n}"
        return f"{above} / {n}{f' - {more}' * (more > 0)}"

    def _product(self, atom: Expr, factor: int) -> str:
        body = self.text(atom)
        body = body if atom.kind == "dim" else f"({body})"
        return body if factor == 1 else f"{factor} * {body}"

    def factor(self, e: Extent) -> str:
        """The same, to be multiplied."""
        text = self.text(e)
        return text if isinstance(e, int) or e.kind in ("dim", "num") else f"({text})"

    def of(self, n: Node) -> list[str]:
        """The dims that a shape names, in order."""
        found = {t for e in n.shape if isinstance(e, Expr) for t in _dims(e)}
        return [d for d in self.names if d in found]


def _dims(e: Expr) -> Iterator[str]:
    if e.kind == "dim":
        yield e.attr[0]
    for k in e.kids:
        yield from _dims(k)


def is_live(n: Node) -> bool:
    """Does a tensor have an extent that a run decides?"""
    return any(isinstance(e, Expr) for e in n.shape)


@dataclass(frozen=True)
class Copy:
    """A tensor whose memory kernels want as large as it may be: ``at`` this byte of the arena,
    where its place is number ``own``."""

    name: str
    node: Node
    at: int
    own: int

    @property
    def end(self) -> int:
        return aligned(self.at + self.node.size * self.node.dtype.nbytes)

    def smaller(self, dims: Dims) -> str:
        """Is the array of the run another one than that?"""
        pairs = zip(self.node.shape, self.node.sizes, strict=True)
        tests = [f"{dims.text(e)} != {n}" for e, n in pairs if isinstance(e, Expr)]
        return " || ".join(dict.fromkeys(tests))

    def lines(self, dims: Dims, *, into: bool) -> Iterator[str]:
        """Statements that copy what there is into the arena, or back."""
        shape, most, nbytes = self.node.shape, self.node.sizes, self.node.dtype.nbytes
        last = max(i for i, e in enumerate(shape) if isinstance(e, Expr))
        tail = prod(most[last + 1 :]) * nbytes
        for i, e in enumerate(shape[:last]):
            yield f"{'  ' * i}for (int64_t i{i} = 0; i{i} < {dims.text(e)}; ++i{i})"
        row = f"{dims.factor(shape[last])} * {tail}"
        here = _row([str(n) for n in most[:last]])
        there = _row([dims.factor(e) for e in shape[:last]])
        room = f"(char *)own[{self.own}]{f' + {here} * {most[last] * tail}' * (last > 0)}"
        dense = f"(char *){self.name}{f' + {there} * ({row})' * (last > 0)}"
        ends = f"{room}, {dense.replace('(char', '(const char', 1)}"
        ends = ends if into else f"{dense}, {room}"
        yield f"{'  ' * last}__builtin_memcpy({ends}, {row});"


def _row(extents: list[str]) -> str:
    """The number of a row, of loops i0, i1, ... over these."""
    out = ""
    for i, n in enumerate(extents):
        out = f"({out} * {n} + i{i})" if out else f"i{i}"
    return out
