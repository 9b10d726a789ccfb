"""Regions read a part of a value, where they read one place of its outer dims only.

    xs[3, i]    =    x[i]    where x is the part of xs that begins behind three rows

The steps of a recurrence that is written out differ in such a place and in nothing else: as parts
they are one region, which is searched, printed and compiled once.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from math import prod

from lumc.graph.expr import Expr, Range, add, bounds, make, rebuild, rewrite, subterms
from lumc.graph.graph import Node
from lumc.kernel.instance import PLACE, elements_of, part_of, whole_of
from lumc.kernel.term import Buffer
from lumc.search.translate import Body


def parted(body: Body, whole: Container[Node]) -> Body:
    """The body on parts of its inputs. Those that are ``whole`` have memory of their own, from
    where they are read as they are."""
    loads: dict[str, list[Expr]] = {}
    for e in subterms(body.value, *body.index):
        if e.kind == "load":
            loads.setdefault(e.attr[0], []).append(e)
    buffers, read, outer = list(body.inputs), list(body.read), dict[str, int]()
    for n, (b, source) in enumerate(zip(body.inputs, body.sources, strict=True)):
        place = () if source.is_leaf or source in whole else _place(b, loads.get(b.name, []))
        if place:
            outer[b.name] = len(place)
            buffers[n] = replace(b, shape=b.shape[len(place) :])
            size, start = prod(buffers[n].shape), 0
            for at, extent in zip(place, b.shape, strict=False):
                start = start * extent + at
            read[n] = part_of(read[n], start * size, (start + 1) * size)
    if not outer:
        return body

    def within(e: Expr, kids: list[Expr]) -> Expr:
        if e.kind == "load" and e.attr[0] in outer:
            return make("load", e.attr, tuple(kids[outer[e.attr[0]] :]))
        return rebuild(e, kids)

    memo: dict[Expr, Expr] = {}
    value, *index = (rewrite(e, memo, within) for e in (body.value, *body.index))
    return replace(body, value=value, index=tuple(index), inputs=tuple(buffers), read=tuple(read))


def narrowed(body: Body) -> Body:
    """The body on those rows of its inputs that it reads, also of what lies in memory of its own:
    x[3, i + 64, j] for i < 64 are 64 rows of x[3]. Weights are packed as they are, and an update
    reads the state that it writes."""
    terms = (body.value, *body.index, *(e for pair in body.equal for e in pair))
    ranges = {a: (0, n - 1) for a, n in body.extent.items()}
    loads: dict[str, list[Expr]] = {}
    for e in subterms(*terms):
        if e.kind == "load":
            loads.setdefault(e.attr[0], []).append(e)
    buffers, read, moved = list(body.inputs), list(body.read), dict[str, tuple[int, int]]()
    for n, (b, source) in enumerate(zip(body.inputs, body.sources, strict=True)):
        if b.constant or source.home.op == "state" or body.lengths.dims or b.name not in loads:
            continue
        place = _place(b, loads[b.name])
        rows = _rows(b, len(place), loads[b.name], ranges)
        if not place and rows == range(*b.shape[:1] or (1,)):
            continue
        start, row = 0, b.shape[len(place) + 1 :]
        for at, extent in zip((*place, rows.start), b.shape, strict=False):
            start = start * extent + at
        shape = (len(rows), *row) if len(place) < len(b.shape) else ()
        start = start * prod(row)
        own = elements_of(read[n])
        start += own.start if own else 0
        moved[b.name] = len(place), rows.start
        buffers[n] = replace(b, shape=shape)
        read[n] = part_of(whole_of(read[n]), start, start + prod(shape))
    if not moved:
        return body

    def within(e: Expr, kids: list[Expr]) -> Expr:
        if e.kind == "load" and e.attr[0] in moved:
            outer, first = moved[e.attr[0]]
            inner = kids[outer:]
            inner = [add(inner[0], -first), *inner[1:]] if inner else inner
            return make("load", e.attr, tuple(inner))
        return rebuild(e, kids)

    memo: dict[Expr, Expr] = {}
    value, *rest = (rewrite(e, memo, within) for e in terms)
    index, pairs = rest[: len(body.index)], rest[len(body.index) :]
    return replace(
        body,
        value=value,
        index=tuple(index),
        inputs=tuple(buffers),
        read=tuple(read),
        equal=tuple(zip(pairs[::2], pairs[1::2], strict=True)),
    )


def _rows(b: Buffer, dim: int, loads: list[Expr], ranges: Mapping[str, Range]) -> range:
    """Which values of a dim loads read; all where these would not begin where values may, or where
    that is not known."""
    if dim == len(b.shape):
        return range(1)
    every = range(b.shape[dim])
    spans = [bounds(e.kids[dim], ranges) for e in loads]
    rows = range(min(lo for lo, _ in spans), max(hi for _, hi in spans) + 1)
    row = prod(b.shape[dim + 1 :]) * b.dtype.nbytes
    fits = rows.start >= 0 and rows.stop <= len(every) and rows.start * row % PLACE == 0
    return rows if fits else every


def _place(b: Buffer, loads: list[Expr]) -> tuple[int, ...]:
    """The outer indices that all loads have in common, if they are numbers; fewer of them where
    what they leave would not begin where values may."""
    common = list[int]()
    for extent, *indices in zip(b.shape, *(e.kids for e in loads), strict=True):
        first = indices[0] if indices else None
        if first is None or first.kind != "num" or any(i is not first for i in indices):
            break
        if not 0 <= first.attr[0] < extent:
            break
        common.append(first.attr[0])
    sizes = (prod(b.shape[n:]) * b.dtype.nbytes for n in range(len(common) + 1))
    fits = [n for n, nbytes in enumerate(sizes) if nbytes and nbytes % PLACE == 0]
    return tuple(common[: max(fits, default=0)])
