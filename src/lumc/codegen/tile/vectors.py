"""Rows of windows in whole vectors.

    row of 14 results    ->    two vectors of 8 in scratch, of which 14 elements are read

Windows are summed with their results in registers, one vector after the other; what is left of a
row takes as many steps as a vector, or more. Where rows are read from copies and kept in scratch,
both get some room behind each row, and nothing is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import lumc.codegen.tile.program as ir
from lumc.graph.expr import Expr, add, axis, num, subterms
from lumc.graph.ops import DType
from lumc.kernel.access import access
from lumc.kernel.term import const, dtype
from lumc.schedule.operands import computed, lanes

Room = Counter[tuple[str, int]]  # elements behind each row: by place and dimension


def whole_vectors(program: ir.Program) -> ir.Program:
    """The program with rounded rows; the places get the room."""
    rounding = _Rounding(program)
    body = ir.rewrite_leaves(program.body, rounding.of)
    return replace(program, body=body, places=rounding.places)


class _Rounding:
    def __init__(self, program: ir.Program) -> None:
        self.target, self.places = program.target, dict(program.places)
        ops = list(ir.leaves(program.body))
        self.copies, length = set[str](), Room()  # of rows, which may have room already
        for o in ops:
            if isinstance(o, ir.Map) and _is_copy(o):
                self.copies.add(o.dst.attr[0])
                rows = ((i, a) for i, k in enumerate(o.dst.kids) for a in k.free)
                length |= Room({(o.dst.attr[0], i): o.ranges[a].largest for i, a in rows})
        self.room = Room()
        for op in ops:
            if (found := self.needed(op)) is not None:
                self.room |= found
                self.copies |= {dst.attr[0] for dst in ir.written(op)}
        for (name, at), more in self.room.items():
            place = self.places[name]
            dims = [*place.dims]
            size = dims[at].size
            dims[at] = replace(dims[at], size=max(size, (length[name, at] or size) + more))
            self.places[name] = replace(place, dims=tuple(dims))

    def extra(self, op: ir.Reduce) -> int:
        """The lanes that are missing to whole vectors, or halves of them."""
        r, kind = op.ranges[op.kept[-1]], dtype(op.outputs[0].dst)
        half = max(1, lanes(self.target, kind) // 2)
        few = len(r.sizes) > 1 or r.largest < half // 2
        return 0 if few else -r.largest % half

    def needed(self, op: ir.Op) -> Room | None:
        """The room in the copies that rounded rows of an operation read; None: they stay."""
        if not isinstance(op, ir.Reduce) or op.lanes != "windows" or op.stores:
            return None
        lane, more, room = op.kept[-1], self.extra(op), Room()
        terms = subterms(*(o.term for o in op.outputs))
        if not more or any(lane in e.free for e in terms if e.kind in ("guard", "iota")):
            return None
        for e in (e for e in terms if e.kind == "load" and lane in e.free):
            along = [i for i, k in enumerate(e.kids) if lane in k.free]
            plain = len(along) == 1 and self.places[e.attr[0]].access(e).is_contiguous(lane)
            if not plain or e.attr[0] not in self.copies:
                return None
            room |= Room({(e.attr[0], along[0]): access(e.kids[along[0]]).stride(lane) * more})
        return room

    def of(self, op: ir.Leaf) -> list[ir.Op]:
        if isinstance(op, ir.Reduce) and self.needed(op) is not None:
            return self.rounded(op)
        return [op, *self.zeros(op)]

    def zeros(self, op: ir.Op) -> list[ir.Op]:
        """Behind the rows of a copy."""
        if not _is_copy(op):
            return []
        assert isinstance(op, ir.Map)
        out, place = list[ir.Op](), self.places[op.dst.attr[0]]
        for (name, at), more in self.room.items():
            if name == place.name and more:
                (a,) = op.dst.kids[at].free
                r = op.ranges[a]
                rest = place.dims[at].size - r.largest
                behind = ir.Range(add(r.lo, r.n), num(rest), (rest,))
                zero = (
                    const(0.0, dtype(op.dst)) if place.dtype.is_float else const(0, dtype(op.dst))
                )
                axes = (*(x for x in op.axes if x != a), a)
                out.append(replace(op, axes=axes, ranges={**op.ranges, a: behind}, term=zero))
        return out

    def rounded(self, op: ir.Reduce) -> list[ir.Op]:
        lane, more = op.kept[-1], self.extra(op)
        r = op.ranges[lane]
        n = r.largest + more
        outputs, after = list[ir.Output](), list[ir.Op]()
        for o in op.outputs:
            name = o.dst.attr[0]
            place = self.places[name]
            inner = place.kind == "scratch" and o.dst.kids[-1:] == (axis(lane),)
            if inner:
                size = max(n, place.dims[-1].size)
                dims = (*place.dims[:-1], replace(place.dims[-1], size=size))
                self.places[name] = replace(place, dims=dims)
                outputs.append(o)
            else:
                wide = {**op.ranges, lane: ir.Range(r.lo, num(n), (n,))}
                dst = self.new(op.kept, wide, dtype(o.dst))
                outputs.append(replace(o, dst=dst))
                own = {a: op.ranges[a] for a in op.kept}
                after.append(ir.Map(o.dst, op.kept, own, dst))
        ranges = {**op.ranges, lane: ir.Range(r.lo, num(n), (n,))}
        return [replace(op, outputs=tuple(outputs), ranges=ranges), *after]

    def new(self, axes: Sequence[str], ranges: Mapping[str, ir.Range], kind: DType) -> Expr:
        """A place for rows, and the load that reads it."""
        dims = tuple(ir.Dim(a, ranges[a].lo, ranges[a].largest) for a in axes)
        name = f"row.{len(self.places)}"
        self.places[name] = ir.Place(name, computed(kind), dims)
        return ir.reference(self.places[name], [axis(a) for a in axes])


def _is_copy(op: ir.Op) -> bool:
    return isinstance(op, ir.Map) and op.copy
