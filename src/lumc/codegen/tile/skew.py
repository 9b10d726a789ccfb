"""Software pipelining of the walks over a row: all of them in one loop, each some rows behind.

One walk waits for memory, the next for arithmetic, the last for stores. In one loop over pieces
of different rows they wait for neither of the others: while a row is read for its maximum, the
row before it is raised to powers and the one before that is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.memory import ALIGN, PAGE, aligned
from lumc.graph.expr import Expr, axis, make, mod, num, substitute
from lumc.schedule.applies import SKEWED

Walk = ir.Map | ir.Reduce


def skew_rows(program: ir.Program) -> ir.Program:
    """Give the operations of rows their lags, where that is possible. Results do not change."""
    places = dict(program.places)

    def skewed(body: list[ir.Op], _: ir.Op | None) -> list[ir.Op]:
        extent = program.kernel.extent
        return [_skewed(o, places, extent) if isinstance(o, ir.Rows) else o for o in body]

    return replace(program, body=ir.rewrite(program.body, skewed), places=places)


def _skewed(op: ir.Rows, places: dict[str, ir.Place], extent: Mapping[str, int]) -> ir.Rows:
    """The rows with lags, or as they are. What all rows share, one value or one row of them, gets
    a ring of slots: it is still read when it is written for later rows."""
    walks = [o for o in op.body if isinstance(o, ir.Map | ir.Reduce)]
    if len(walks) < len(op.body) or not _alike(walks):
        return op
    written = [(dst.attr[0], i) for i, o in enumerate(walks) for dst in ir.written(o)]
    writer = dict(written)
    reads = [{e.attr[0] for e in ir.loads_of(o, but=ir.written(o))} for o in walks]
    lags = list[int]()
    for i, names in enumerate(reads):
        made = {writer[n] for n in names if n in writer} - {i}
        if any(w > i for w in made):
            return op  # what was there before, not a value of this row
        lags.append(max((lags[w] + (_lane(walks[w]) is not None) for w in made), default=0))
    if len(writer) < len(written) or not 0 < max(lags) < op.range.largest:
        return op  # values that are written again, or nothing to overlap
    shared = [n for n in writer if n in set().union(*reads) and _is_shared(places[n], op.axis)]
    new = dict[Expr, Expr]()
    for name in shared:
        slots = 1 + max(lags[i] for i, names in enumerate(reads) if name in names)
        slots -= lags[writer[name]]
        if slots > 1:
            places[name] = _ring(places[name], slots)
            slot = mod(axis(op.axis), slots, {op.axis: (0, extent[op.axis] - 1)})
            for e in (e for o in walks for e in ir.loads_of(o) if e.attr[0] == name):
                new[e] = make("load", e.attr, (slot, *e.kids))
    return replace(op, body=[_renamed(o, new) for o in walks], lags=tuple(lags))


def _alike(walks: Sequence[Walk]) -> bool:
    """Do all walks go along one axis, of the same length?"""
    lengths = set()
    for o in walks:
        if isinstance(o, ir.Reduce) and (
            o.lanes != "reduced" or o.kept or len(o.red) > 1 or o.runs
        ):
            return False
        if isinstance(o, ir.Map) and (len(o.axes) > 1 or o.turn or o.copy):
            return False
        if lane := _lane(o):
            lengths.add(o.ranges[lane].sizes)
    return len(lengths) == 1 and all(len(s) == 1 and s[0] >= SKEWED for s in lengths)


def _lane(op: Walk) -> str | None:
    """The axis that a walk over one row goes along; None: it is a single value."""
    axes = op.axes if isinstance(op, ir.Map) else op.red
    return axes[-1] if axes else None


def _is_shared(place: ir.Place, row: str) -> bool:
    """Do all rows use the same memory?"""
    return place.kind == "scratch" and all(d.label != row or d.size == 1 for d in place.dims)


def _ring(place: ir.Place, slots: int) -> ir.Place:
    """Every slot starts one line earlier in its page: a load waits for a store before it that is
    as far in another page, and loads go upwards."""
    *outer, last = place.dims
    if last.size > 1:
        pages = aligned((last.size * place.dtype.nbytes) + ALIGN, PAGE)
        last = replace(last, size=(pages - ALIGN) // place.dtype.nbytes)
    return replace(place, dims=(ir.Dim("slot", num(0), slots), *outer, last))


def _renamed(o: Walk, new: Mapping[Expr, Expr]) -> Walk:
    """The same in other places."""
    if isinstance(o, ir.Map):
        return replace(o, dst=substitute(o.dst, new), term=substitute(o.term, new))
    outputs = tuple(
        ir.Output(substitute(x.dst, new), x.op, substitute(x.term, new), substitute(x.init, new))
        for x in o.outputs
    )
    stores = tuple((substitute(dst, new), substitute(term, new)) for dst, term in o.stores)
    return replace(o, outputs=outputs, stores=stores)
