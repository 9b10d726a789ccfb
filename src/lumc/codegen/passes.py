"""Passes on the tile program: row fusion, storage folding, dead copies, scratch layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from lumc.codegen.program import (
    NESTS,
    Contract,
    Dim,
    Map,
    Op,
    Program,
    Reduce,
    Rows,
    leaves,
    terms_of,
)
from lumc.graph.expr import Expr, axis, subterms
from lumc.kernel.term import Kernel

LOCAL_BYTES = 256  # scratch values up to this size are arrays of the C function
ALIGN = 64


def fuse_rows(body: Sequence[Op]) -> list[Op]:
    """Run neighbouring maps and reductions that share a kept axis row by row, in cache.

    Legal because a stage value is only ever read at the reader's own row: it is addressed by
    axis name.
    """
    ops = [replace(o, body=fuse_rows(o.body)) if isinstance(o, NESTS) else o for o in body]
    out: list[Op] = []
    while ops:
        axis, end = _longest_run(ops)
        if axis:
            first = ops[0]
            assert isinstance(first, Map | Reduce)
            rows = fuse_rows([_without(o, axis) for o in ops[:end]])
            out.append(Rows(axis, first.ranges[axis], rows))
        else:
            out.append(ops[0])
        ops = ops[end:]
    return out


def _longest_run(ops: list[Op]) -> tuple[str, int]:
    """The first axis that several operations from here on share as a row, and where they end."""
    first = ops[0]
    for name in _row_axes(first) or (first.axes if isinstance(first, Map) else ()):
        end = 0
        while end < len(ops) and _joins(ops[end], first, name):
            end += 1
        run = ops[:end]
        reduces = any(isinstance(o, Reduce) for o in run)
        if end > 1 and reduces and any(name in _row_axes(o) for o in run):
            return name, end
    return "", 1


def _fusable(op: Op) -> bool:
    return isinstance(op, Reduce) or (isinstance(op, Map) and not op.turn and not op.copy)


def _row_axes(op: Op) -> tuple[str, ...]:
    """The axes of an operation that do not carry lanes."""
    if isinstance(op, Map) and _fusable(op):
        return op.axes[:-1]
    if isinstance(op, Reduce):
        return op.kept if op.lanes == "reduced" else op.kept[:-1]
    return ()


def _joins(op: Op, first: Op, axis: str) -> bool:
    if not _fusable(op) or not isinstance(op, Map | Reduce) or not isinstance(first, Map | Reduce):
        return False
    # a map over rows only (a maximum, a scale) joins a run over those rows
    has = axis in _row_axes(op) or (isinstance(op, Map) and axis in op.axes)
    return has and op.ranges[axis] == first.ranges[axis]


def _without(op: Op, axis: str) -> Op:
    if isinstance(op, Map):
        return replace(op, axes=tuple(a for a in op.axes if a != axis))
    assert isinstance(op, Reduce)
    return replace(op, kept=tuple(a for a in op.kept if a != axis))


def _reads(body: Sequence[Op]) -> Counter[str]:
    """How many operations touch each place."""
    count: Counter[str] = Counter()
    for op in leaves(body):
        count.update({e.attr[0] for t in terms_of(op) for e in subterms(t) if e.kind == "load"})
    return count


def touched(body: Sequence[Op]) -> set[str]:
    """The places that a program reads or writes."""
    return set(_reads(body))


def fold(program: Program) -> Program:
    """A scratch value that lives and dies inside one row loop needs one row, not a tile."""
    places, total = dict(program.places), _reads(program.body)

    def walk(body: Sequence[Op]) -> None:
        for op in body:
            if not isinstance(op, NESTS):
                continue
            walk(op.body)
            if isinstance(op, Rows):
                for name, count in _reads(op.body).items():
                    p = places[name]
                    if p.kind == "scratch" and p.panel is None and count == total[name]:
                        dims = [_folded(d) if d.label == op.axis else d for d in p.dims]
                        places[name] = replace(p, dims=tuple(dims))

    walk(program.body)
    return replace(program, places=places)


def _folded(d: Dim) -> Dim:
    """One element, at the current row: the index minus the origin is zero."""
    return Dim(d.label, axis(d.label), 1)


def drop_unread(kernel: Kernel, body: Sequence[Op]) -> list[Op]:
    """Remove operations whose result nobody reads (a copy that was replaced by another)."""
    wanted = set(kernel.stored)
    while True:
        before = len(wanted)
        for op in leaves(body):
            if _written(op) & wanted:
                wanted |= _read(op)
        if len(wanted) == before:
            return _only(body, wanted)


def _destinations(op: Map | Reduce | Contract) -> list[Expr]:
    if isinstance(op, Reduce):
        return [*(o.dst for o in op.outputs), *(dst for dst, _ in op.stores)]
    return [op.dst]


def _written(op: Map | Reduce | Contract) -> set[str]:
    return {dst.attr[0] for dst in _destinations(op)}


def _read(op: Map | Reduce | Contract) -> set[str]:
    terms = [t for t in terms_of(op) if t not in _destinations(op)]
    return {e.attr[0] for t in terms for e in subterms(t) if e.kind == "load"}


def _only(body: Sequence[Op], wanted: set[str]) -> list[Op]:
    out: list[Op] = []
    for op in body:
        if isinstance(op, NESTS):
            inner = _only(op.body, wanted)
            if inner:
                out.append(replace(op, body=inner))
        elif isinstance(op, Reduce) and _written(op) & wanted:
            outputs = tuple(o for o in op.outputs if o.dst.attr[0] in wanted)
            stores = tuple(s for s in op.stores if s[0].attr[0] in wanted)
            out.append(replace(op, outputs=outputs or op.outputs, stores=stores))
        elif _written(op) & wanted:
            out.append(op)
    return out


def place_scratch(program: Program) -> Program:
    """Offsets of the scratch values of a part; small ones become local arrays."""
    used, offsets, top = _reads(program.body), dict[str, int](), 0
    for p in program.places.values():
        nbytes = p.size * p.dtype.nbytes
        if p.kind == "scratch" and used[p.name] and nbytes > LOCAL_BYTES:
            offsets[p.name] = top
            top += -(-nbytes // ALIGN) * ALIGN + ALIGN  # neighbours do not start in one cache set
    return replace(program, scratch=offsets, scratch_bytes=top)
