"""Regions read a part of a value, where they read one place of its outer dims only.

    xs[3, i]    =    x[i]    where x is the part of xs that begins behind three rows

The steps of a recurrence that is written out differ in such a place and in nothing else: as parts
they are one region, which is searched, printed and compiled once.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from math import prod

from lumc.graph.expr import Expr, make, rebuild, rewrite, subterms
from lumc.graph.graph import Node
from lumc.kernel.instance import PLACE, part_of
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
