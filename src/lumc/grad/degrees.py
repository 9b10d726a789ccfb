"""Degrees: how results move when one value does, and the proof that a result does not.

Exponentials that are made shares have a maximum subtracted before, which cancels. So nothing flows
back to the maximum, and what computes that flow need not be computed. The proof looks at no name
and no pattern: let an element m of the value become ``m + t``. A result that becomes ``v + a t``
then has the degree ("add", a), one that becomes ``v * 2^(a t)`` the degree ("mul", a); m itself has
("add", 1). A result without a degree stays as it is, and so do comparisons, as far as derivatives
know. Whatever else a result may become, the proof fails, and the flow is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from lumc.graph.expr import Expr, axis, substitute
from lumc.graph.graph import Node, Operand, Read, Scalar
from lumc.graph.ops import DType, Op

EXACT = 1e-12  # a sum of degrees that is smaller, beside the greatest, is 0 but for rounding


class Degree(NamedTuple):
    """How a value moves; ``of`` is the element of m that moves it, over the axes of its node."""

    kind: str  # "add" or "mul"; "": in another way
    by: float
    of: tuple[Expr, ...]


OTHER = Degree("", 0.0, ())


def moves(m: Node, end: Node, nodes: Sequence[Node], readers: Mapping[Node, Sequence[int]]) -> bool:
    """Whether ``end`` may depend on the value of ``m``, as far as degrees tell. ``nodes`` are all
    that ``end`` is made of, each behind what it reads, ``readers`` the positions there of those
    that read a node."""
    if m is end:
        return True
    degrees = {m: Degree("add", 1.0, tuple(map(axis, m.axes)))}
    todo = list(readers.get(m, ()))
    heapify(todo)
    while todo:
        n = nodes[heappop(todo)]
        found = degree(n, [_seen(o, degrees) for o in n.operands])
        if found is OTHER or (found and n is end):
            return True
        if found and n not in degrees:
            degrees[n] = found
            for at in readers.get(n, ()):
                heappush(todo, at)
    return False


def _seen(o: Operand, degrees: Mapping[Node, Degree]) -> Degree | None:
    """The degree of an operand, over the loops of its reader."""
    d = degrees.get(o.source) if isinstance(o, Read) else None
    if d is None or not isinstance(o, Read):
        return None
    if o.bounds and d.kind != "mul":  # beyond them it is 0, which does not move
        return OTHER
    over = dict(zip(map(axis, o.source.axes), o.index, strict=True))
    return d._replace(of=tuple(substitute(e, over) for e in d.of))


def degree(n: Node, ds: Sequence[Degree | None]) -> Degree | None:
    """The degree of a node, from those of its operands, of which one at least has one."""
    if not n.dtype.is_float:  # as for derivatives, comparisons and integers are constant
        return None
    if OTHER in ds:
        return OTHER
    some = [d for d in ds if d is not None]
    d, *more = some
    alike = not more or (d.kind, d.of) == (more[0].kind, more[0].of)
    both = len(some) == len(ds)
    match n.op:
        case Op.ADD if alike and d.kind == "add":
            return _total(some)
        case Op.ADD if both and some[0] == some[-1]:
            return d
        case Op.MUL if n.operands[0].dtype is DType.BOOL:
            return d if d.kind == "mul" and ds[0] is None else OTHER
        case Op.MUL if alike and d.kind == "mul":
            return _total(some)
        case Op.MUL if not more:
            by = [o.value for o in n.operands if isinstance(o, Scalar) and not o.bounds]
            return _total([d._replace(by=d.by * by[0])]) if by else OTHER
        case Op.EXP2 if d.kind == "add":
            return d._replace(kind="mul")
        case Op.LOG2 if d.kind == "mul":
            return d._replace(kind="add")
        case Op.RECIP if d.kind == "mul":
            return d._replace(by=-d.by)
        case Op.SQRT if d.kind == "mul":
            return d._replace(by=d.by / 2)
        case Op.SUM | Op.MAX if n.reduced:
            return _reduced(n, d)
        case Op.CONTIGUOUS:
            return d
    return OTHER


def _total(some: Sequence[Degree]) -> Degree | None:
    """What degrees of one kind add up to."""
    total = sum(d.by for d in some)
    small = EXACT * max(abs(d.by) for d in some)
    return some[0]._replace(by=total) if abs(total) > small else None


def _reduced(n: Node, d: Degree) -> Degree:
    """Of a sum or a maximum over an axis, along which one element moves all."""
    assert n.reduced
    name, size = n.reduced
    if any(name in e.free for e in d.of):
        return OTHER
    if n.op is Op.SUM and d.kind == "add":
        return d._replace(by=d.by * size) if isinstance(size, int) else OTHER
    return d
