"""Cut points of a variant, and the kernels that lie between chosen cuts.

A cut stores a value in memory between two kernels. Candidates are the reductions below the
result, and for each one the last elementwise value of the same axes that everything reads
instead of it. Values that differ only in the names of their free axes are one candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lumc.graph.expr import Expr, axis, bound_axes, rebuild, rewrite, substitute, subterms
from lumc.kernel.key import abstract
from lumc.kernel.term import REDUCTIONS, Buffer, Extent, Kernel, Root, const, dtype, load

ELEMENTWISE = ("un", "bin", "guard", "cast")


@dataclass(frozen=True)
class Frame:
    """Where a region's result goes, over which axes, and what it reads."""

    inputs: tuple[Buffer, ...]
    output: Buffer
    axes: tuple[str, ...]
    index: tuple[Expr, ...]
    extent: Mapping[str, Extent]


def cut_points(value: Expr) -> tuple[Expr, ...]:
    """The candidates below a term, inner ones first."""
    order = subterms(value)
    points: dict[Expr, None] = {}
    for e in order:
        if e is not value and e.kind in REDUCTIONS:
            points.update({e: None, _last_elementwise(value, order, e): None})
    first: dict[Expr, Expr] = {}  # the innermost of those that are equal but for names
    for e, function, _ in _alike(order, points):
        first.setdefault(function, e)
    return tuple(first.values())


def _alike(
    terms: Iterable[Expr], points: Iterable[Expr]
) -> Iterator[tuple[Expr, Expr, tuple[str, ...]]]:
    """The terms that equal any of the points but for names, with ``abstract`` of each."""
    points = list(points)
    functions = {abstract(p)[0] for p in points}
    shapes = {(p.kind, len(p.free)) for p in points}  # a cheap test first
    for e in terms:
        if (e.kind, len(e.free)) in shapes:
            function, axes = abstract(e)
            if function in functions:
                yield e, function, axes


def _last_elementwise(value: Expr, order: Sequence[Expr], inner: Expr) -> Expr:
    """The last term over the same axes that hides ``inner`` from the result."""
    last = inner
    for e in order:
        plain = e.kind in ELEMENTWISE and e.free == inner.free and e is not value
        if plain and inner in subterms(e):
            without = substitute(value, {e: const(0)})
            last = last if inner in subterms(without) else e
    return last


@dataclass(frozen=True)
class _Stored:
    """A cut value: its buffer, its axes, and the order in which its function lists them."""

    name: str
    value: Expr
    buffer: Buffer
    axes: tuple[str, ...]
    index: tuple[Expr, ...]
    layout: tuple[int, ...] = ()


class Splitting:
    """A variant that can be split at any of its cut points."""

    def __init__(self, frame: Frame, value: Expr, cuts: Sequence[Expr]) -> None:
        self.frame = frame
        self.whole = _Stored("result", value, frame.output, frame.axes, frame.index)
        self.made: dict[tuple[str, Expr], Kernel] = {}
        functions = [abstract(c) for c in cuts]
        self.stored = [self._store(i, c, functions[i][1]) for i, c in enumerate(cuts)]
        self.loads: list[dict[Expr, Expr]] = [{} for _ in cuts]  # what equals a cut, and its load
        number = {function: i for i, (function, _) in enumerate(functions)}
        for e, function, axes in _alike(subterms(value), cuts):
            part = self.stored[number[function]]
            index = [axes[n] for n in part.layout]
            self.loads[number[function]][e] = load(part.buffer.name, part.buffer.dtype, *index)

    def _store(self, i: int, value: Expr, axes: Sequence[str]) -> _Stored:
        """Buffer ``v{i}``; axes of the result come first, in their order."""
        own = self.frame.axes
        layout = sorted(
            range(len(axes)), key=lambda n: own.index(axes[n]) if axes[n] in own else len(own) + n
        )
        names = tuple(axes[n] for n in layout)
        shape = tuple(self.frame.extent[a] for a in names)
        buffer, index = Buffer(f"v{i}", dtype(value), shape), tuple(map(axis, names))
        return _Stored(f"part{i}", value, buffer, names, index, tuple(layout))

    def kernels(self, chosen: Sequence[int] = ()) -> list[Kernel]:
        """The kernels when the values of these cut points are stored, in execution order."""
        memo = {e: at for i in chosen for e, at in self.loads[i].items()}
        return [self._kernel(p, memo) for p in (*(self.stored[i] for i in chosen), self.whole)]

    def _kernel(self, part: _Stored, memo: dict[Expr, Expr]) -> Kernel:
        value = rebuild(part.value, [rewrite(k, memo) for k in part.value.kids])
        if (part.name, value) not in self.made:
            known = (*self.frame.inputs, *(s.buffer for s in self.stored))
            roots, out = (Root(part.buffer.name, part.index, value),), (part.buffer,)
            kernel = assemble(part.name, part.axes, roots, self.frame.extent, known, out)
            self.made[part.name, value] = kernel
        return self.made[part.name, value]


def assemble(
    name: str,
    axes: tuple[str, ...],
    roots: tuple[Root, ...],
    extent: Mapping[str, int],
    known: Iterable[Buffer],
    stored: tuple[Buffer, ...],
) -> Kernel:
    """The kernel of these roots: of what is known it gets what it reads."""
    below = subterms(*(r.value for r in roots))
    read = {e.attr[0] for e in below if e.kind == "load"}
    used = {*axes, *(a for e in below for a in (e.attr if e.kind == "axis" else bound_axes(e)))}
    buffers = (*(b for b in known if b.name in read), *stored)
    return Kernel(name, axes, {a: n for a, n in extent.items() if a in used}, roots, buffers)
