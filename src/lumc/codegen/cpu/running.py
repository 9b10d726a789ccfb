"""Running reductions as C: every step stores its result, which the next one goes on from."""

from __future__ import annotations

from lumc.codegen.cpu.lanes import lane_loop, prefetch, walk_lanes, whole_pieces
from lumc.codegen.cpu.reduce import LONG
from lumc.codegen.text.levels import Levels
from lumc.codegen.text.phases import array
from lumc.codegen.text.statements import WIDTH, new, quoted
from lumc.codegen.text.term import C_TYPES, combine
from lumc.codegen.text.writer import Writer
from lumc.codegen.tile.program import Dim, Output, Place, Range, Reduce, reference
from lumc.graph.expr import add, axis, dim, num, substitute, text
from lumc.graph.ops import DType
from lumc.kernel.term import dtype
from lumc.schedule.operands import computed


def print_running(w: Writer, op: Reduce) -> None:
    for o in op.outputs:
        w.comment(f"{text(o.dst)} = {o.op} up to {op.red[0]} of {text(o.term, WIDTH)}")
    if op.lanes == "kept":
        _along_kept(w, op)
    else:
        _along_steps(w, op)


def _along_kept(w: Writer, op: Reduce) -> None:
    """A row of results from the row before; the first one from what they start with."""
    *outer, lane = op.kept
    (over,), one = op.red, num(1)
    back = {axis(over): add(axis(over), -1)}
    first, r = {**op.ranges, over: Range(num(0), one, (1,))}, op.ranges[over]
    later = {**op.ranges, over: Range(one, num(r.largest - 1), (r.largest - 1,))}
    with w.loops(outer, op.ranges):
        for ranges, begins in ((first, True), (later, False))[: r.largest]:
            levels = Levels(w, (over, lane))
            steps = list[str]()
            for o in op.outputs:
                before = levels.value(o.init) if begins else w.load(substitute(o.dst, back))
                value = combine(o.op, computed(dtype(o.term)), before, levels.value(o.term))
                steps.append(w.store(o.dst, value))
            walk_lanes(levels, ranges, steps, LONG)


def _along_steps(w: Writer, op: Reduce) -> None:
    """The lanes run along the steps: the terms of a piece are made side by side, then joined one
    after the other, or in vectors, and stored."""
    (over,), (o,) = op.red, op.outputs
    r, kind, total = op.ranges[over], computed(dtype(o.term)), quoted(f"run_{w.fresh()}")
    at = w.names.axis(f"{over}.at")
    with w.loops(op.kept, op.ranges):
        start = Levels(w, ())
        init = start.value(o.init)
        w.lines_of(start.at[0])
        w.line(f"{C_TYPES[kind]} {new(total)} = {init};")
        whole, rest = divmod(r.largest, LONG)
        if whole:
            with whole_pieces(w, at, r, LONG):
                prefetch(w, over, op.ahead, LONG)
                _piece(w, op, o, total, LONG)
        if rest:
            with w.block("", "rest"):
                w.let(at, f"{w.end(r)} - {rest}")
                _piece(w, op, o, total, rest)


def _piece(w: Writer, op: Reduce, o: Output, total: str, count: int) -> None:
    """The results of some steps, of which the last one is left in ``total``."""
    (over,), kind = op.red, computed(dtype(o.term))
    place = Place(f"run.{w.fresh()}", kind, (Dim(over, dim(f"{over}.at"), count),))
    w.places[place.name], name = place, w.names.place(place)
    cell, lane = reference(place, [axis(over)]), w.names.axis(f"{over}.l")
    w.line(array(C_TYPES[kind], name, count))
    levels = Levels(w, (over,))
    into = w.store(cell, levels.value(o.term))
    w.lines_of(levels.at[0])
    lane_loop(w, over, count, [*levels.at[1], into])
    if o.op == "sum" and kind is DType.F32:
        w.line(f"{total} = lumc_run_sum_f32({name}, {count}, {total});")
    else:
        step = combine(o.op, kind, total, f"{name}[{lane}]")
        head = f"for (long {new(lane)} = 0; {lane} < {count}; {lane}++)"
        w.line(f"{head} {name}[{lane}] = {total} = {step};")
    lane_loop(w, over, count, [w.store(o.dst, w.load(cell))])
