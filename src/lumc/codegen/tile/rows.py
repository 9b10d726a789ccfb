"""Passes on the tile program: row fusion, storage folding, what follows windows, dead copies,
scratch layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.memory import ALIGN, aligned
from lumc.graph.expr import axis, subterms

Rowwise = ir.Map | ir.Reduce  # what rows are made of
LOCAL_BYTES = 256  # scratch values up to this size are arrays of the C function


def fuse_rows(program: ir.Program) -> ir.Program:
    """Run neighbouring maps and reductions that share a kept axis row by row, in cache.

    Legal because a stage value is only ever read at the reader's own row: it is addressed by
    axis name.
    """
    return replace(program, body=ir.rewrite(program.body, _fused))


def _fused(ops: Sequence[ir.Op], _: ir.Op | None = None) -> list[ir.Op]:
    out: list[ir.Op] = []
    while ops:
        axis, end = _longest_run(ops)
        if run := [_without(o, axis) for o in ops[:end] if axis and fusable(o)]:
            out.append(ir.Rows(axis, run[0].ranges[axis], _fused(run)))
        else:
            out.append(ops[0])
        ops = ops[end:]
    return out


def _longest_run(ops: Sequence[ir.Op]) -> tuple[str, int]:
    """The first axis that several operations from here on share as a row, and where they end."""
    first = ops[0]
    if not fusable(first):
        return "", 1
    for name in _row_axes(first) or (first.axes if isinstance(first, ir.Map) else ()):
        end = 0
        while end < len(ops) and _joins(ops[end], first, name):
            end += 1
        run = ops[:end]
        reduces = any(isinstance(o, ir.Reduce) for o in run)
        if end > 1 and reduces and any(name in _row_axes(o) for o in run):
            return name, end
    return "", 1


def fusable(op: ir.Op) -> TypeGuard[Rowwise]:
    """Can an operation run row by row beside others?"""
    return isinstance(op, ir.Reduce) or (isinstance(op, ir.Map) and not op.turn and not op.copy)


def _row_axes(op: ir.Op) -> tuple[str, ...]:
    """The axes of an operation that do not carry lanes."""
    if not fusable(op):
        return ()
    if isinstance(op, ir.Map):
        return op.axes[:-1]
    if op.lanes == "scattered":  # rows that it adds to come in any order
        return ()
    beside = {"reduced": 0, "windows": 2}.get(op.lanes, 1)  # windows share what rows read
    return op.kept[: len(op.kept) - beside]


def _joins(op: ir.Op, first: Rowwise, axis: str) -> bool:
    """A map over rows only (a maximum, a scale) joins a run over those rows."""
    if not fusable(op):
        return False
    has = axis in _row_axes(op) or (isinstance(op, ir.Map) and axis in op.axes and not op.stream)
    return has and op.ranges[axis] == first.ranges[axis]


def _without(op: Rowwise, axis: str) -> Rowwise:
    if isinstance(op, ir.Map):
        return replace(op, axes=tuple(a for a in op.axes if a != axis))
    return replace(op, kept=tuple(a for a in op.kept if a != axis))


def _reads(body: Sequence[ir.Op]) -> Counter[str]:
    """How many operations touch each place."""
    count: Counter[str] = Counter()
    for op in ir.leaves(body):
        count.update({e.attr[0] for e in ir.loads_of(op)})
    return count


def touched(body: Sequence[ir.Op]) -> set[str]:
    """The places that a program reads or writes."""
    return set(_reads(body))


def fold(program: ir.Program) -> ir.Program:
    """A scratch value that lives and dies inside one row loop needs one row, not a tile."""
    places, total = dict(program.places), _reads(program.body)

    def folded(body: list[ir.Op], loop: ir.Op | None) -> list[ir.Op]:
        if not isinstance(loop, ir.Rows):
            return body
        for name, count in _reads(body).items():
            p = places[name]
            if p.kind == "scratch" and p.panel is None and count == total[name]:
                dims = [_folded(d) if d.label == loop.axis else d for d in p.dims]
                places[name] = replace(p, dims=tuple(dims))
        return body

    return replace(program, body=ir.rewrite(program.body, folded), places=places)


def _folded(d: ir.Dim) -> ir.Dim:
    """One element, at the current row: the index minus the origin is zero."""
    return ir.Dim(d.label, axis(d.label), 1)


def finish_windows(program: ir.Program) -> ir.Program:
    """What is done to sums of windows and nothing else, while they are in registers."""
    places = {q.name for q in program.places.values() if q.kind == "scratch"}
    touched = {name: n for name, n in _reads(program.body).items() if name in places}

    def finished(body: list[ir.Op], _: ir.Op | None) -> list[ir.Op]:
        out = list[ir.Op]()
        for op in body:
            if out and isinstance(op, ir.Map) and _finishes(out[-1], op, touched):
                out[-1] = replace(out[-1], then=op)
            else:
                out.append(op)
        return out

    return replace(program, body=ir.rewrite(program.body, finished))


def _finishes(first: ir.Op, op: ir.Map, touched: Mapping[str, int]) -> TypeGuard[ir.Reduce]:
    """Does the map have the result of a walk over windows, point by point, and nobody else?"""
    if not isinstance(first, ir.Reduce) or first.lanes != "windows" or len(first.outputs) > 1:
        return False
    dst, loads = first.outputs[0].dst, [e for e in subterms(op.term) if e.kind == "load"]
    own = [e for e in loads if e.attr[0] == dst.attr[0]]
    alone = own == [dst] and touched.get(dst.attr[0]) == 2 and not first.stores and not first.then
    plain = not (op.turn or op.stream or op.copy) and op.axes == first.kept
    plain &= all(op.ranges[a] == first.ranges.get(a) for a in op.axes)
    asks = any(e.kind in ("guard", "dyn") for e in subterms(op.dst, op.term))
    return alone and plain and not asks


def drop_unread(program: ir.Program) -> ir.Program:
    """Remove operations whose result nobody reads (a copy that was replaced by another)."""
    wanted, before = set(program.kernel.stored), -1
    while before < len(wanted):
        before = len(wanted)
        for op in ir.leaves(program.body):
            if _written(op) & wanted:
                wanted |= {e.attr[0] for e in ir.loads_of(op, but=ir.written(op))}
    return replace(program, body=ir.rewrite_leaves(program.body, lambda op: _only(op, wanted)))


def _written(op: ir.Leaf) -> set[str]:
    return {dst.attr[0] for dst in ir.written(op)}


def _only(op: ir.Leaf, wanted: set[str]) -> list[ir.Op]:
    if not _written(op) & wanted:
        return []
    if not isinstance(op, ir.Reduce):
        return [op]
    outputs = tuple(o for o in op.outputs if o.dst.attr[0] in wanted)
    stores = tuple(s for s in op.stores if s[0].attr[0] in wanted)
    return [replace(op, outputs=outputs or op.outputs, stores=stores)]


def place_scratch(program: ir.Program) -> ir.Program:
    """Offsets of the scratch values of a part; small ones become local arrays."""
    used, offsets, top = _reads(program.body), dict[str, int](), 0
    for p in program.places.values():
        nbytes = p.size * p.dtype.nbytes
        if p.kind == "scratch" and used[p.name] and nbytes > LOCAL_BYTES:
            offsets[p.name] = top
            top += aligned(nbytes) + ALIGN  # neighbours do not start in one cache set
    return replace(program, scratch=offsets, scratch_bytes=top)
