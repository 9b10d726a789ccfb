"""Reductions as C: several outputs over one walk, lanes along the reduced or a kept axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from lumc.codegen.cmap import print_map
from lumc.codegen.cterm import C_TYPES, Levels
from lumc.codegen.cwriter import Writer
from lumc.codegen.program import Dim, Map, Output, Place, Range, Reduce, reference
from lumc.graph.expr import Expr, add, axis, dim, mul, num, substitute, text
from lumc.graph.ops import DType
from lumc.kernel.contraction import computed, lanes
from lumc.kernel.term import dtype

# sums of integers wrap: they are unsigned, and modulo 2^32 is also modulo 2^8
_SUMS = {
    DType.F32: "float",
    DType.F64: "double",
    DType.I64: "uint64_t",
    DType.I32: "uint32_t",
    DType.I8: "uint32_t",
    DType.U8: "uint32_t",
}
SIMD_FROM = 4  # elements; shorter reductions stay scalar


def print_reduce(w: Writer, op: Reduce) -> None:
    for o in op.outputs:
        w.comment(f"{text(o.dst)} = {o.op} over {', '.join(op.red)} of {text(o.term)}")
    if op.lanes == "kept":
        _along_kept(w, op)
    elif op.lanes == "strips":
        _in_strips(w, op)
    else:
        _along_reduced(w, op)


def _combine(op: str, kind: DType, a: str, b: str) -> str:
    """One step of a reduction over values of one dtype, exact for NaN."""
    if op == "sum":
        return f"{a} + {b}" if kind.is_float else f"lumc_add_{kind.value}({a}, {b})"
    return f"lumc_{op}_{kind.value}({a}, {b})"


def _along_kept(w: Writer, op: Reduce) -> None:
    """Accumulate through the row of results; the reduction loops run outside the lanes."""
    lane, ranges = op.kept[-1], op.ranges
    with w.loops(op.kept[:-1], ranges):
        for o in op.outputs:
            if o.init is not o.dst:
                print_map(w, Map(o.dst, (lane,), ranges, o.init))
        levels = w.levels((*op.red, lane))
        values = [levels.value(o.term) for o in op.outputs]
        stores = [(dst, levels.value(term)) for dst, term in op.stores]
        with ExitStack() as nest:
            for depth, a in enumerate((*op.red, lane)):
                w.lines_of(levels.at[depth])
                simd = "" if a == lane and ranges[a].largest > 1 else None
                nest.enter_context(w.loop(a, ranges[a], simd=simd))
            w.lines_of(levels.at[-1])
            for o, value in zip(op.outputs, values, strict=True):
                old = w.load(o.dst, levels.value)
                kind = computed(dtype(o.term))
                w.line(w.store(o.dst, _combine(o.op, kind, old, value), levels.value))
            for dst, value in stores:
                w.line(w.store(dst, value, levels.value))


def _in_strips(w: Writer, op: Reduce) -> None:
    """Along the kept axis, one vector of results at a time, in arrays of exactly one vector, which
    compilers keep in registers; the rest of the axis goes through memory."""
    *outer, lane = op.kept
    r, width = op.ranges[lane], lanes(w.target, dtype(op.outputs[0].dst))
    start, end = dim(f"{lane}.s{w.fresh()}"), add(r.lo, r.n)
    with w.loops(outer, op.ranges):
        c = w.index(start)
        w.line(f"long {c} = {w.index(r.lo)};")
        if r.largest >= width:
            with w.block(f"for (; {c} + {width} <= {w.index(end)}; {c} += {width})", "one vector"):
                _strip(w, op, start, width)
        if any(size % width for size in r.sizes):
            rest = Range(start, add(end, mul(start, -1)), r.sizes)
            _along_kept(w, replace(op, kept=(lane,), ranges={**op.ranges, lane: rest}))


def _strip(w: Writer, op: Reduce, start: Expr, width: int) -> None:
    """One vector of results, in ``streams`` independent parts along the last reduced axis."""
    lane, last, r = op.kept[-1], op.red[-1], op.ranges[op.red[-1]]
    even = all(size % op.streams == 0 for size in r.sizes)
    sums = any(o.op == "sum" for o in op.outputs)
    streams = range(op.streams if even and not sums and not op.stores else 1)
    c, part = w.names.axis(lane), w.index(dim(f"{lane}.l"))

    def array(like: Expr) -> Expr:
        """A local array of one value per lane."""
        kind = computed(dtype(like))
        place = Place(f"strip.{w.fresh()}", kind, (Dim(lane, start, width),))
        w.places[place.name] = place
        w.line(f"{C_TYPES[kind]} {w.names.place(place)}[{width}] __attribute__((aligned(64)));")
        return reference(place, [axis(lane)])

    def over(steps: Callable[[Levels], list[str]]) -> None:
        levels = w.levels((lane,))
        lines = steps(levels)
        w.lines_of(levels.at[0])
        w.line("#pragma omp simd")
        with w.block(f"for (long {part} = 0; {part} < {width}; {part}++)"):
            w.lines_of([f"const long {c} = {w.index(start)} + {part};", *levels.at[1], *lines])

    def joined(o: Output, cell: Expr, value: str) -> str:
        return w.store(cell, _combine(o.op, computed(dtype(o.term)), w.load(cell), value))

    def begin(levels: Levels) -> list[str]:
        values = [*fixed.items(), *((o.init, a) for o, parts in cells for a in parts)]
        return [w.store(a, levels.value(e)) for e, a in values]

    def walk(u: int, shift: Expr, levels: Levels) -> list[str]:
        moved = {**fixed, axis(last): add(axis(last), shift)}
        values = [levels.value(substitute(o.term, moved)) for o, _ in cells]
        out = [joined(o, a[u], value) for (o, a), value in zip(cells, values, strict=True)]
        for dst, term in op.stores:
            value = levels.value(substitute(term, moved))
            out.append(w.store(substitute(dst, moved), value, levels.value))
        return out

    def finish(levels: Levels) -> list[str]:
        out = [joined(o, a[0], w.load(other)) for o, a in cells for other in a[1:]]
        return out + [w.store(o.dst, w.load(a[0]), levels.value) for o, a in cells]

    terms = [*(o.term for o in op.outputs), *(term for _, term in op.stores)]
    fixed = {e: array(e) for e in _fixed(terms, set(op.red), lane)}
    cells = [(o, [array(o.term) for _ in streams]) for o in op.outputs]
    over(begin)
    chunk = r.n if len(streams) == 1 else _chunk(w, last, r, len(streams))
    with w.loops(op.red[:-1], op.ranges), w.loop(last, Range(r.lo, chunk, r.sizes)):
        for u in streams:
            over(partial(walk, u, mul(chunk, u)))
    over(finish)


def _fixed(terms: Sequence[Expr], red: set[str], lane: str) -> list[Expr]:
    """The greatest sub-terms that are the same all along the reduced axes."""
    out: dict[Expr, None] = {}
    for e in terms:
        if lane in e.free and not e.free & red and e.kind != "iota":
            out[e] = None
        elif e.kind in ("un", "bin", "cast"):
            out.update(dict.fromkeys(_fixed(e.kids, red, lane)))
    return list(out)


class _Accumulator:
    """The variables of one output: one per stream, and the magnitude bits of an exact maximum."""

    def __init__(self, o: Output, serial: int, streams: int) -> None:
        self.output, self.kind, self.sums = o, computed(dtype(o.term)), o.op == "sum"
        self.names = [f"a_{serial}_{u}" for u in range(streams)]
        exact = o.op == "max" and self.kind.is_float
        self.magnitude = f"m_{serial}" if exact else ""

    def declare(self, w: Writer, init: str) -> None:
        c_type = _SUMS[self.kind] if self.sums else C_TYPES[self.kind]
        for u, name in enumerate(self.names):
            # the greatest so far is a fine start for every stream of a maximum
            w.line(f"{c_type} {name} = {'0' if self.sums and u else init};")
        if self.magnitude:
            c_type = "int32_t" if self.kind is DType.F32 else "int64_t"
            w.line(f"{c_type} {self.magnitude} = {self._size(init)};")

    def _size(self, value: str) -> str:
        return f"lumc_magnitude_{self.kind.value}({value})"

    def clause(self) -> str:
        top = "LUMC_TOP" if self.kind.is_float else "|" if self.kind is DType.BOOL else "max"
        clause = f" reduction({'+' if self.sums else top}:{', '.join(self.names)})"
        return clause + (f" reduction(max:{self.magnitude})" if self.magnitude else "")

    def step(self, u: int, value: str) -> list[str]:
        a, m, size = self.names[u], self.magnitude, self._size(value)
        if self.sums or self.kind is DType.BOOL:
            return [f"{a} {'+' if self.sums else '|'}= {value};"]
        out = [f"{a} = {value} > {a} ? {value} : {a};"]
        return [*out, f"{m} = {size} > {m} ? {size} : {m};"] if m else out

    def result(self) -> str:
        total = self.names[0]
        name = f"lumc_{'top' if self.kind.is_float else 'max'}_{self.kind.value}"
        for a in self.names[1:]:
            total = f"{total} + {a}" if self.sums else f"{name}({total}, {a})"
        if self.magnitude:
            return f"lumc_join_{self.kind.value}({total}, {self.magnitude})"
        return total if self.kind.is_float else f"({C_TYPES[self.kind]})({total})"


def _along_reduced(w: Writer, op: Reduce) -> None:
    """One result at a time in scalar accumulators; the innermost loop over the last reduced axis
    is vectorised, in ``streams`` independent parts and a rest."""
    last, r = op.red[-1], op.ranges[op.red[-1]]
    streams = op.streams if r.largest >= w.target.lanes * op.streams else 1
    sums = [_Accumulator(o, w.fresh(), streams) for o in op.outputs]
    with w.loops(op.kept, op.ranges):
        start = w.levels(())
        inits = [start.value(o.init) for o in op.outputs]
        w.lines_of(start.at[0])
        for a, init in zip(sums, inits, strict=True):
            a.declare(w, init)
        with ExitStack() as nest:
            chunk = r.n if streams == 1 else _chunk(w, last, r, streams)
            main, steps = _walk(w, op, sums, [mul(chunk, u) for u in range(streams)])
            for depth, name in enumerate(op.red[:-1]):
                w.lines_of(main.at[depth])
                nest.enter_context(w.loop(name, op.ranges[name]))
            w.lines_of(main.at[len(op.red) - 1])
            clauses = "".join(a.clause() for a in sums)
            simd = clauses if r.largest >= SIMD_FROM else None
            with w.loop(last, Range(r.lo, chunk, r.sizes), simd=simd):
                w.lines_of([*main.at[-1], *steps])
            if any(s % streams for s in r.sizes):
                _rest(w, op, sums, Range(add(r.lo, mul(chunk, streams)), r.n, r.sizes))
        for a in sums:
            w.line(w.store(a.output.dst, a.result()))


def _chunk(w: Writer, last: str, r: Range, streams: int) -> Expr:
    """The length of one stream."""
    if len(r.sizes) == 1:
        return num(r.sizes[0] // streams)
    chunk = dim(f"{last}.s{w.fresh()}")
    w.line(f"const long {w.index(chunk)} = ({w.index(r.n)}) / {streams};")
    return chunk


def _walk(
    w: Writer, op: Reduce, sums: list[_Accumulator], shifts: list[Expr]
) -> tuple[Levels, list[str]]:
    """The statements of one step of every stream."""
    levels, steps = w.levels(op.red), list[str]()
    last = axis(op.red[-1])
    for u, shift in enumerate(shifts):
        moved = {last: add(last, shift)}
        for a in sums:
            steps += a.step(u, levels.value(substitute(a.output.term, moved)))
        for dst, term in op.stores:
            value = levels.value(substitute(term, moved))
            steps.append(w.store(substitute(dst, moved), value, levels.value))
    return levels, steps


def _rest(w: Writer, op: Reduce, sums: list[_Accumulator], r: Range) -> None:
    """What the streams leave, one by one."""
    levels, steps = _walk(w, op, sums, [num(0)])
    for statements in levels.at[:-1]:
        w.lines_of(statements)
    c, whole = w.names.axis(op.red[-1]), op.ranges[op.red[-1]]
    with w.block(f"for (long {c} = {w.index(r.lo)}; {c} < {w.end(whole)}; {c}++)", "rest"):
        w.lines_of([*levels.at[-1], *steps])
