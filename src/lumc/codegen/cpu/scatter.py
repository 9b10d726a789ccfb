"""Sums that select by an index as C: every step adds to the row that its index names."""

from __future__ import annotations

from contextlib import ExitStack

from lumc.codegen.cpu.map import print_map
from lumc.codegen.text.levels import Levels
from lumc.codegen.text.statements import SIMD
from lumc.codegen.text.term import combine
from lumc.codegen.text.writer import Writer
from lumc.codegen.tile.program import Map, Reduce, selection
from lumc.graph.expr import add
from lumc.kernel.term import dtype
from lumc.schedule.operands import computed


def print_scatter(w: Writer, op: Reduce) -> None:
    """All results as they begin; then the walk, and the lanes of what a step names. The index comes
    from data: what lies outside of the tile is somebody else's, or nobody's."""
    (o,), ranges = op.outputs, op.ranges
    found = selection(op)
    assert found
    lanes = [a for a in op.kept[-1:] if a != found.axis]
    if o.init is not o.dst:
        print_map(w, Map(o.dst, op.kept, ranges, o.init))
    outer = [a for a in op.kept if a not in (found.axis, *lanes)]
    r, levels = ranges[found.axis], Levels(w, (*op.red, *lanes))
    with w.loops(outer, ranges), ExitStack() as walk:
        at, value = levels.value(found.place), levels.value(found.value)
        total = combine("sum", computed(dtype(o.term)), w.load(o.dst), value)
        for i, a in enumerate(op.red):
            w.lines_of(levels.at[i])
            walk.enter_context(w.loop(a, ranges[a]))
        w.lines_of(levels.at[len(op.red)])
        lo, hi = (w.index(add(e, found.shift)) for e in (r.lo, add(r.lo, r.n)))
        with w.block(f"if ((int64_t){at} >= {lo} && (int64_t){at} < {hi})"):
            shift = f" - {found.shift}" * (found.shift != 0)
            w.let(w.names.axis(found.axis), f"(long)(int64_t){at}{shift}")
            store = w.store(o.dst, total)
            for a in lanes:
                with w.loop(a, ranges[a], pragma=SIMD if ranges[a].largest > 1 else ""):
                    w.lines_of([*levels.at[-1], store])
            if not lanes:
                w.line(store)
