"""What other regions store, as equations for the search of one.

    o[i, c] = sum_k p[i, k] * v[k, c]    where a region reads p and v, and o is stored before

Laws alone may find that the sum over k of p and a product with v is one over c of o: what was
summed once is read. That the value of another region is equal to what it stores holds wherever all
that this is made of is read here too, for some axes of this region; what is stored and made of few
operations may stand for what it is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from lumc.graph.expr import Expr, axis, bound_axes, rebuild, rewrite, substitute, subterms
from lumc.kernel.key import rename
from lumc.kernel.term import REDUCTIONS, load
from lumc.search.order import Found
from lumc.search.translate import Body

WAYS = 4  # of axes for which an equation is said, at most; a guess

Axes = Mapping[str, str]
Makers = Mapping[tuple[str, str], Found]  # of what is stored, by entry and name


def with_equations(found: Sequence[Found]) -> list[Found]:
    """The regions of an entry in execution order, told what those before them store."""
    out, makers = list[Found](), dict[tuple[str, str], Found]()
    for n, f in enumerate(found):
        body = f.body
        for other in found[:n]:
            body = _told(body, other, makers) if other.entry == f.entry else body
        makers[f.entry, f.output] = f
        out.append(replace(f, body=body))
    return out


def _told(body: Body, other: Found, makers: Makers) -> Body:
    """A region that may read what another one stores, where it could compute the same."""
    number = {n: b.name for n, b in zip(body.read, body.inputs, strict=True)}
    if not _is_plain(other) or other.output in number or body.lengths.dims:
        return body
    own = other.body
    for name in own.read:
        maker = makers.get((other.entry, name))
        if name not in number and maker and number.keys() >= {*maker.body.read}:
            own = _inlined(own, name, maker)
    costly = any(e.kind in REDUCTIONS for e in subterms(own.value))
    if not costly or not number.keys() >= {*own.read}:
        return body
    names = {b.name: number[n] for n, b in zip(own.read, own.inputs, strict=True)}
    buffer = replace(own.output, name=f"b{len(body.inputs)}")
    equal = [
        (
            load(buffer.name, buffer.dtype, *(rename(i, axes) for i in own.index)),
            rename(own.value, axes, names),
        )
        for axes in islice(_ways(own, body, names), WAYS)
    ]
    if not equal:
        return body
    return replace(
        body,
        inputs=(*body.inputs, buffer),
        sources=(*body.sources, other.whole or other.node),
        read=(*body.read, other.output),
        equal=(*body.equal, *equal),
    )


def _is_plain(f: Found) -> bool:
    """Does a region store its value as it is?"""
    own = tuple(i for i in f.body.own if i.kind == "axis")  # others have one element
    return f.write is None and f.body.index == own and not f.body.lengths.dims


def _inlined(own: Body, name: str, maker: Found) -> Body:
    """A region that makes itself what another one, which reduces nothing, stores."""
    made = maker.body
    if not _is_plain(maker) or any(e.kind in REDUCTIONS for e in subterms(made.value)):
        return own
    names = {n: b.name for n, b in zip(own.read, own.inputs, strict=True)}
    new = {n: f"b{len(own.inputs) + i}" for i, n in enumerate(made.read) if n not in names}
    to = {b.name: (names | new)[n] for n, b in zip(made.read, made.inputs, strict=True)}
    value = rename(made.value, {a: f"m_{a}" for a in made.extent}, to)
    axes = [axis(f"m_{i.attr[0]}") for i in made.own if i.kind == "axis"]
    old = names[name]

    def inside(e: Expr, kids: list[Expr]) -> Expr:
        if e.kind == "load" and e.attr[0] == old:
            return substitute(value, dict(zip(axes, kids, strict=True)))
        return rebuild(e, kids)

    read_here = zip(own.inputs, own.sources, own.read, strict=True)
    left = [(b, s, n) for b, s, n in read_here if n != name]
    read_there = zip(made.inputs, made.sources, made.read, strict=True)
    left += [(replace(b, name=new[n]), s, n) for b, s, n in read_there if n in new]
    inputs, sources, read = (tuple(each) for each in zip(*left, strict=True))
    return replace(
        own,
        value=rewrite(own.value, {}, inside),
        inputs=inputs,
        sources=sources,
        read=read,
    )


def _ways(own: Body, body: Body, names: Mapping[str, str]) -> Iterator[Axes]:
    """The axes of a region for those of another one, such that all that this reads is read: those
    that sums bind are bound there, and each has the same extent."""
    inner = {a for e in subterms(body.value) for a in bound_axes(e)}
    bound = {a for e in subterms(own.value) for a in bound_axes(e)}
    wanted = [e for e in subterms(own.value) if e.kind == "load"]
    here = [e for e in subterms(body.value) if e.kind == "load"]

    def grown(axes: Axes, a: Expr, b: Expr) -> Axes | None:
        """With one index of each more."""
        if a.kind != "axis" or b.kind != "axis":
            return axes if rename(a, axes) is b and a.free <= axes.keys() else None
        one, other = a.attr[0], b.attr[0]
        if one in axes:
            return axes if axes[one] == other else None
        alike = own.extent[one] == body.extent[other] and (one not in bound or other in inner)
        return {**axes, one: other} if alike else None

    def go(at: int, axes: Axes) -> Iterator[Axes]:
        if at == len(wanted):
            yield axes
            return
        e = wanted[at]
        for other in (t for t in here if t.attr == (names[e.attr[0]], e.attr[1])):
            found: Axes | None = axes
            for a, b in zip(e.kids, other.kids, strict=True):
                found = None if found is None else grown(found, a, b)
            if found is not None:
                yield from go(at + 1, found)

    terms = subterms(own.value, *own.index)
    every = {t.attr[0] for t in terms if t.kind == "axis"} | bound
    whole = (axes for axes in go(0, {}) if every <= axes.keys())
    return (axes for axes in whole if all(_is_kept(e, axes) for e in terms))


def _is_kept(e: Expr, axes: Axes) -> bool:
    """Whether no sum takes what was free in a term."""
    return rename(e, axes).free == {axes[a] for a in e.free}
