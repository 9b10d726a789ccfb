"""In which ways a node can be computed by several ranks, from its index maps alone.

The law. Deal a loop axis ``a`` of n values to P ranks: on rank p put ``a + p * n/P`` for ``a``,
which has the values 0 .. n/P - 1 now, in every index of every operand. An operand of which p drops
out is needed whole. One of whose indices p moves exactly one, by p blocks of that dim, is needed in
blocks of it, and the indices without p are those in the block. Anything else cannot be dealt. The
result is in blocks where a is an axis of it; where a is reduced, each rank has a part of the sum or
of the maximum.

What is partial goes through nodes that commute with the sum (or the maximum) over ranks.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from lumc.graph.collective import Collective
from lumc.graph.dim import Dim, Extent
from lumc.graph.expr import Expr, add, axis, linear, mul, simplify, substitute
from lumc.graph.graph import Bound, Iota, Node, Operand, Read, Update
from lumc.graph.index import Loops, is_inside, loop_ranges
from lumc.graph.ops import DType, Op
from lumc.shard.held import HALVES, MAXIMA, SUMS, WHOLE, Held, block

RANK = axis("@rank")  # no axis of a graph is called so


@dataclass(frozen=True)
class Way:
    """A way to compute a node: which of its loop axes is dealt ("" for none), how its result is
    held then, and how each of its reads has to be."""

    axis: str
    result: Held
    needs: tuple[Held, ...]


@dataclass(frozen=True)
class Dealing:
    """An axis of a node that is dealt to so many ranks: the loops of one rank, and what an index of
    the node is there."""

    axis: str
    ranks: int
    loops: Loops
    step: int  # values of the axis that a rank has
    dims: Mapping[str, Dim]

    def moved(self, e: Expr) -> tuple[int, Expr] | None:
        """By how much an index moves from one rank to the next, and what it is on the first; None
        where it does not move evenly."""
        if self.axis not in e.free:
            return 0, e
        ranges = {**loop_ranges(self.loops, self.dims), "@rank": (0, self.ranks - 1)}
        here = {axis(self.axis): add(axis(self.axis), mul(RANK, self.step))}
        there = simplify(substitute(e, here), ranges)
        move = linear(there)[1].get(RANK, 0)
        rest = add(there, mul(RANK, -move))
        return None if "@rank" in rest.free else (move, rest)

    def bounds(self, guards: Sequence[Bound]) -> tuple[Bound, ...] | None:
        """Guards as every rank has them; None where they would differ."""
        out = list[Bound]()
        for g in guards:
            found = self.moved(g.index)
            if found is None or found[0]:
                return None
            out.append(Bound(found[1], g.lo, g.hi))
        return tuple(out)

    def read(
        self, index: Sequence[Expr], shape: Sequence[Extent], guards: Sequence[Bound]
    ) -> tuple[Held, tuple[Expr, ...]] | None:
        """How a tensor of a shape is needed that is read at an index, and at which index of what a
        rank has; None where it cannot be dealt."""
        need, out = WHOLE, list[Expr]()
        for d, (e, size) in enumerate(zip(index, shape, strict=True)):
            found = self.moved(e)
            if found is None:
                return None
            move, rest = found
            own = size
            if move:
                if need != WHOLE or not isinstance(size, int) or size != move * self.ranks:
                    return None
                need, own = block(d), move
            if rest is not e and not is_inside(rest, own, guards, self.loops, self.dims):
                return None
            out.append(rest)
        return need, tuple(out)


def divides(size: object, ranks: int) -> bool:
    """Can an axis of this extent be cut into blocks, one for each rank?"""
    return isinstance(size, int) and size >= ranks and size % ranks == 0


def structure(n: Node) -> Hashable:
    """What the ways to compute a node, and what they take, depend on: equal for equal layers."""
    if n.is_leaf and n.op != "update":
        return n.op, n.dtype, n.shape
    reads = tuple((r.index, r.bounds, r.source.shape, r.dtype) for r in n.reads)
    others = tuple(
        (o.index if isinstance(o, Iota) else None, o.bounds)
        for o in n.operands
        if not isinstance(o, Read)
    )
    return n.op, n.dtype, n.loops, n.reduced, reads, others, n.at


def dealing(
    loops: Sequence[tuple[str, Extent]], name: str, ranks: int, dims: Mapping[str, Dim]
) -> Dealing | None:
    """An axis of these loops as several ranks have it; None where it does not divide."""
    size = dict(loops)[name]
    if not isinstance(size, int) or not divides(size, ranks):
        return None
    own: Loops = {**dict(loops), name: size // ranks}
    return Dealing(name, ranks, own, size // ranks, dims)


def dealt(node: Node, name: str, ranks: int) -> tuple[tuple[Held, ...], list[Operand]] | None:
    """How the reads of a primitive are needed where a loop axis is dealt, and its operands as one
    rank has them (reads are still of the old sources); None where that cannot be."""
    deal = dealing(node.loops, name, ranks, node.dims)
    if deal is None:
        return None
    needs, out = list[Held](), list[Operand]()
    for o in node.operands:
        guards = deal.bounds(o.bounds)
        if guards is None:
            return None
        if isinstance(o, Read):
            found = deal.read(o.index, o.source.shape, guards)
            if found is None:
                return None
            needs.append(found[0])
            out.append(Read(o.source, found[1], guards))
        elif isinstance(o, Iota):
            moved = deal.moved(o.index)
            if moved is None or moved[0]:
                return None
            out.append(Iota(o.dtype, moved[1], guards))
        else:
            out.append(replace(o, bounds=guards))
    return tuple(needs), out


def dealt_update(update: Update, dim: int, ranks: int) -> Held | None:
    """How a state has to be held whose new values are in blocks of a dim; None where they do not go
    to one block of the state. Such an index is linear, and moves with every axis, as no element is
    written twice: where a rank writes its values is said by the same index."""
    value = update.value
    loops = [*zip(value.axes, value.shape, strict=True)]
    deal = dealing(loops, value.axes[dim], ranks, value.dims)
    found = deal.read(update.index, update.state.shape, ()) if deal else None
    return found[0] if found else None


def ways(node: Node, ranks: int) -> list[Way]:
    """All ways to compute a node; the first one is by every rank alone."""
    out = [Way("", WHOLE, (WHOLE,) * len(node.reads))]
    if node.op == "update":
        return out + _of_update(node, ranks)
    if isinstance(node.op, Collective):
        return out + _of_collective(node, node.op, ranks)
    for name, _ in node.loops:
        found = dealt(node, name, ranks)
        if found is None:
            continue
        needs, _ = found
        if name in node.axes:
            out.append(Way(name, block(node.axes.index(name)), needs))
        elif any(n != WHOLE for n in needs):
            assert isinstance(node.op, Op)
            out.append(Way(name, Held(op=node.op), needs))
    return out + [Way("", held, needs) for held, needs in _through(node)]


def _of_update(node: Node, ranks: int) -> list[Way]:
    out = list[Way]()
    for dim in range(len(node.write.value.axes)):
        held = dealt_update(node.write, dim, ranks)
        if held:
            out.append(Way(node.write.value.axes[dim], held, (held, block(dim))))
    return out


def _of_collective(node: Node, op: Collective, ranks: int) -> list[Way]:
    """A collective along another axis of the mesh leaves other dims alone, and is linear but for a
    maximum."""
    out = list[Way]()
    for d, size in enumerate(node.shape):
        if divides(size, ranks) and d not in (op.split, op.concat):
            out.append(Way(node.axes[d], block(d), (block(d),)))
    if op.op is not Op.MAX and is_summable(node.dtype):
        out.append(Way("", SUMS, (SUMS,)))
    if op.op is not Op.SUM:
        out.append(Way("", MAXIMA, (MAXIMA,)))
    return out


def is_summable(dtype: DType) -> bool:
    """May partial sums of it go through other nodes? Those of 16 bits are kept as f32."""
    return dtype is not DType.BOOL and dtype not in HALVES


def _through(node: Node) -> list[tuple[Held, tuple[Held, ...]]]:
    """What a node makes of partial values: sums go through what is linear in them, maxima through
    copies and maxima. Where guards do not hold all ranks have zero, and so has their sum."""
    every = all(isinstance(o, Read) for o in node.operands)
    same = node.op is Op.CONTIGUOUS and node.operands[0].dtype is node.dtype
    out = list[tuple[Held, tuple[Held, ...]]]()
    if is_summable(node.dtype):
        if every and (same or node.op is Op.SUM):
            out.append((SUMS, (SUMS,)))
        if every and node.op is Op.ADD:
            out.append((SUMS, (SUMS, SUMS)))
        if node.op is Op.MUL:
            out += [(SUMS, needs) for needs in _linear(node)]
    if every and (same or node.op is Op.MAX):
        out.append((MAXIMA, (MAXIMA,)))
    return out


def _linear(node: Node) -> list[tuple[Held, ...]]:
    """A product is linear in either factor; the condition of a select is none."""
    out = list[tuple[Held, ...]]()
    for at, factor in enumerate(node.reads):
        if factor.dtype is node.dtype:
            out.append(tuple(SUMS if i == at else WHOLE for i in range(len(node.reads))))
    return out
