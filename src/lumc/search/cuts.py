"""Cut points of a variant, and the kernels that lie between chosen cuts.

A cut stores a value in memory between two kernels. Candidates are the reductions below the
result, and for each one the last elementwise value of the same axes that everything reads
instead of it. Values that differ only in the names of their free axes are one candidate. What is
read under a guard only is stored only there: below ``v if 3 <= j < 7`` a cut has four elements
of j. It may have no others, as its own operands may lie outside their buffers there.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from msgspec import UNSET, UnsetType

from lumc.graph.expr import (
    Expr,
    Range,
    add,
    axis,
    bound_axes,
    rebuild,
    rewrite,
    simplify,
    substitute,
    subterms,
)
from lumc.graph.index import narrowed
from lumc.kernel.key import abstract
from lumc.kernel.lengths import STATIC, Lengths, stated
from lumc.kernel.merge import merge_axes
from lumc.kernel.normal import normalize
from lumc.kernel.term import REDUCTIONS, Buffer, Extent, Kernel, Name, Root, dtype, load

ELEMENTWISE = ("un", "bin", "guard", "cast")
Function = tuple[Expr | None, ...]


@dataclass(frozen=True)
class Frame:
    """Where a region's result goes, over which axes, and what it reads: ``output[index]`` for all
    points of ``axes``; ``extent`` has bound axes too, as have lengths."""

    inputs: tuple[Buffer, ...]
    output: Buffer
    axes: tuple[Name, ...]
    index: tuple[Expr, ...]
    extent: Mapping[Name, Extent]
    live: Lengths | UnsetType = UNSET

    @property
    def lengths(self) -> Lengths:
        """Those of its live axes."""
        return self.live or STATIC


def cut_points(value: Expr, lengths: Lengths = STATIC) -> tuple[Expr, ...]:
    """The candidates below a term, inner ones first."""
    order = subterms(value)
    points, hiding = dict[Expr, None](), hidden_by(order)
    for e in order:
        if e is not value and e.kind in REDUCTIONS:
            points.update({e: None, _last_elementwise(value, hiding, e): None})
    return unlike((e for e, _, _ in _alike(order, points, lengths)), lengths)


def unlike(points: Iterable[Expr], lengths: Lengths) -> tuple[Expr, ...]:
    """The first ones of those that are equal but for names."""
    first = dict[Function, Expr]()
    for e in points:
        first.setdefault(function_of(e, lengths)[0], e)
    return tuple(first.values())


def function_of(e: Expr, lengths: Lengths) -> tuple[Function, tuple[str, ...]]:
    """What terms are one candidate by: ``abstract`` of it, and which of its axes are live."""
    function, axes = abstract(e)
    return (function, *(lengths.of.get(a) for a in axes)), axes


def _alike(
    terms: Iterable[Expr], points: Iterable[Expr], lengths: Lengths
) -> Iterator[tuple[Expr, Function, tuple[str, ...]]]:
    """The terms that equal any of the points but for names, with their functions and axes."""
    points = list(points)
    functions = {function_of(p, lengths)[0] for p in points}
    shapes = {(p.kind, len(p.free), p.size) for p in points}  # a cheap test first
    for e in terms:
        if (e.kind, len(e.free), e.size) in shapes:
            function, axes = function_of(e, lengths)
            if function in functions:
                yield e, function, axes


def hidden_by(order: Sequence[Expr]) -> dict[Expr, Expr]:
    """For every term, kids first, but for the last, which reads all: the next one that hides it
    from that, as all that reads it does so through this one (its immediate dominator). In n log n
    steps: every term also knows one far above it, as in Myers' skew-binary lists."""
    value = order[-1]
    above, far, depth = dict[Expr, Expr](), {value: value}, {value: 0}
    for reader in reversed(order):
        if reader is not value:  # all that reads it has been seen
            up = above[reader]
            top = far[far[up]]
            even = depth[up] - depth[far[up]] == depth[far[up]] - depth[top]
            far[reader], depth[reader] = top if even else up, depth[up] + 1
        for e in reader.kids:
            above[e] = _common(above.get(e, reader), reader, above, far, depth)
    return above


def _common(
    a: Expr,
    b: Expr,
    above: Mapping[Expr, Expr],
    far: Mapping[Expr, Expr],
    depth: Mapping[Expr, int],
) -> Expr:
    """The first term that hides both, or is one and hides the other."""
    if depth[a] < depth[b]:
        a, b = b, a
    while depth[a] > depth[b]:
        a = far[a] if depth[far[a]] >= depth[b] else above[a]
    while a is not b:  # equally deep ones have their far ones equally deep
        a, b = (above[a], above[b]) if far[a] is far[b] else (far[a], far[b])
    return a


def _last_elementwise(value: Expr, hiding: Mapping[Expr, Expr], inner: Expr) -> Expr:
    """The last term over the same axes that hides ``inner`` from the result."""
    last, e = inner, hiding[inner]
    while e is not value:
        last = e if e.kind in ELEMENTWISE and e.free == inner.free else last
        e = hiding[e]
    return last


def spans(
    value: Expr, extent: Mapping[str, Extent], live: Container[str] = ()
) -> dict[Expr, dict[str, Range]]:
    """For every term below ``value`` and every axis free in it: the least and the greatest value,
    inclusive, of the axis where the term is read. Guards around all its readers bound them, but
    not live axes, whose length does."""
    out: dict[Expr, dict[str, Range]] = {value: {a: (0, extent[a] - 1) for a in value.free}}
    for e in reversed(subterms(value)):  # readers first
        here = {a: (0, extent[a] - 1) for a in bound_axes(e)} | out[e]
        for at, kid in enumerate(e.kids):
            inner = _under(e, here, live) if e.kind == "guard" and at == 1 else here
            known = out.setdefault(kid, {})
            for a in kid.free:
                span = known.setdefault(a, inner[a])
                known[a] = span if span == inner[a] else _hull(span, inner[a])
    return out


def _hull(a: Range, b: Range) -> Range:
    return min(a[0], b[0]), max(a[1], b[1])


def _under(guard: Expr, outside: dict[str, Range], live: Container[str]) -> dict[str, Range]:
    """The spans where a guard holds; of one that never does, those around it."""
    spans = narrowed(outside, guard.kids[0], *guard.attr)
    spans |= {a: span for a, span in outside.items() if a in live}
    return spans if all(first <= last for first, last in spans.values()) else outside


@dataclass(frozen=True)
class _Stored:
    """A cut value: its buffer, its axes, and the order in which its function lists them."""

    name: str
    value: Expr
    buffer: Buffer
    axes: tuple[str, ...]
    index: tuple[Expr, ...]
    layout: tuple[int, ...] = ()
    first: tuple[int, ...] = ()  # per axis: where it begins in the readers
    moved: Mapping[Expr, Expr] = field(default_factory=dict)  # axes of the value -> of the buffer


class Splitting:
    """A variant, a value over the axes of a frame, that can be split at any of its cut points."""

    def __init__(self, frame: Frame, value: Expr, cuts: Sequence[Expr]) -> None:
        self.frame, self.extent = frame, dict(frame.extent)
        self.whole = _Stored("result", value, frame.output, frame.axes, frame.index)
        self.made: dict[tuple[str, Expr], Kernel] = {}
        functions = [function_of(c, frame.lengths) for c in cuts]
        number = {function: i for i, (function, _) in enumerate(functions)}
        equal: list[dict[Expr, tuple[str, ...]]] = [{} for _ in cuts]  # and their axes
        for e, function, axes in _alike(subterms(value), cuts, frame.lengths):
            equal[number[function]][e] = axes
        read = spans(value, frame.extent, frame.lengths.of)
        self.stored = [
            self._store(i, c, functions[i][1], _joint(equal[i], read)) for i, c in enumerate(cuts)
        ]
        self.loads = [  # what equals a cut, and its load
            {e: _load(part, axes) for e, axes in same.items()}
            for part, same in zip(self.stored, equal, strict=True)
        ]

    def _store(self, i: int, value: Expr, axes: Sequence[str], read: Sequence[Range]) -> _Stored:
        """Buffer ``v{i}`` of what is read; axes of the result come first, in their order."""
        own = self.frame.axes
        layout = sorted(
            range(len(axes)), key=lambda n: own.index(axes[n]) if axes[n] in own else len(own) + n
        )
        first = {axes[n]: read[n][0] for n in layout}
        shape = tuple(1 + read[n][1] - read[n][0] for n in layout)
        names = tuple(self._axis(axes[n], *read[n]) for n in layout)
        moved = {a: add(axis(n), first[a]) for a, n in zip(first, names, strict=True) if a != n}
        buffer, index = Buffer(f"v{i}", dtype(value), shape), tuple(map(axis, names))
        part = _Stored(
            f"part{i}", value, buffer, names, index, tuple(layout), tuple(first.values())
        )
        return replace(part, moved={axis(a): e for a, e in moved.items()})

    def _axis(self, name: str, first: int, last: int) -> str:
        """The axis of this part of another one."""
        if (first, last) == (0, self.extent[name] - 1):
            return name
        part = f"{name}_{first}_{last + 1}"
        self.extent[part] = last + 1 - first
        return part

    def kernels(self, chosen: Sequence[int] = ()) -> list[Kernel]:
        """The kernels when the values of these cut points, by their places among all, are stored:
        in execution order, the result last."""
        memo = {e: at for i in chosen for e, at in self.loads[i].items()}
        return [self._kernel(p, memo) for p in (*(self.stored[i] for i in chosen), self.whole)]

    def _kernel(self, part: _Stored, memo: dict[Expr, Expr]) -> Kernel:
        value = rebuild(part.value, [rewrite(k, memo) for k in part.value.kids])
        value = self._moved(value, part.moved) if part.moved else value
        if (part.name, value) not in self.made:
            known = (*self.frame.inputs, *(s.buffer for s in self.stored))
            roots, out = (Root(part.buffer.name, part.index, value),), (part.buffer,)
            lengths = self.frame.lengths
            parts = part.axes, roots, self.extent, known, out, lengths
            kernel = assemble(part.name, *parts, among=self.extent)
            self.made[part.name, value] = kernel
        return self.made[part.name, value]

    def _moved(self, value: Expr, moved: Mapping[Expr, Expr]) -> Expr:
        """The value over parts of its axes, in which more indices are known."""
        value = substitute(value, moved)
        ranges = {a: (0, n - 1) for a, n in self.extent.items()}
        ranges |= self.frame.lengths.ranges
        indices = [e for e in subterms(value) if e.kind in ("lin", "div", "mod")]
        return substitute(value, {e: simplify(e, ranges) for e in indices})


def _joint(
    equal: Mapping[Expr, Sequence[str]], read: Mapping[Expr, Mapping[str, Range]]
) -> list[Range]:
    """Per axis of equal values, in the order of their function: where any of them is read."""
    every = [[read[e][a] for a in axes] for e, axes in equal.items()]
    return [reduce(_hull, same) for same in zip(*every, strict=True)]


def _load(part: _Stored, axes: Sequence[str]) -> Expr:
    """A cut value read along these axes."""
    index = [add(axis(axes[n]), -first) for n, first in zip(part.layout, part.first, strict=True)]
    return load(part.buffer.name, part.buffer.dtype, *index)


def assemble(
    name: str,
    axes: tuple[str, ...],
    roots: tuple[Root, ...],
    extent: Mapping[str, int],
    known: Iterable[Buffer],
    stored: tuple[Buffer, ...],
    lengths: Lengths = STATIC,
    among: Mapping[str, int] | None = None,
) -> Kernel:
    """The kernel of these roots in its normal form, with axes that are read side by side as one;
    of what is known, and of the lengths, it gets what it reads. ``among``: as in ``normalize``."""
    below = subterms(*(r.value for r in roots))
    read = {e.attr[0] for e in below if e.kind == "load"}
    used = {*axes, *(a for e in below for a in (e.attr if e.kind == "axis" else bound_axes(e)))}
    buffers = (*(b for b in known if b.name in read), *stored)
    own = {a: n for a, n in extent.items() if a in used}
    live = stated(lengths.within(own, (*below, *(i for r in roots for i in r.index))))
    return merge_axes(normalize(Kernel(name, axes, own, roots, buffers, live), among))
