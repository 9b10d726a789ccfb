"""Reductions as C: several outputs over one walk, lanes along the reduced or a kept axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod

from lumc.codegen.cpu.explicit import in_vectors
from lumc.codegen.cpu.lanes import lane_loop, pieces, walk_lanes
from lumc.codegen.cpu.map import print_map
from lumc.codegen.cpu.scatter import print_scatter
from lumc.codegen.text.levels import Levels
from lumc.codegen.text.phases import array
from lumc.codegen.text.statements import SIMD, WIDTH, new, quoted
from lumc.codegen.text.term import C_TYPES, combine
from lumc.codegen.text.writer import Writer, is_laddered
from lumc.codegen.tile.program import (
    Dim,
    Map,
    Output,
    Place,
    Range,
    Reduce,
    loads_of,
    reference,
)
from lumc.graph.expr import Expr, add, axis, dim, linear, mul, num, substitute, subterms, text
from lumc.graph.ops import DType
from lumc.kernel.term import binary, const, dtype, unary
from lumc.schedule.operands import computed, lanes
from lumc.schedule.registers import ABREAST

# sums of integers wrap: they are unsigned, and modulo 2^32 is also modulo 2^8
_SUMS = {
    DType.F32: "float",
    DType.F64: "double",
    DType.I64: "uint64_t",
    DType.I32: "uint32_t",
    DType.I16: "uint32_t",
    DType.I8: "uint32_t",
    DType.U64: "uint64_t",
    DType.U32: "uint32_t",
    DType.U16: "uint32_t",
    DType.U8: "uint32_t",
}
_BITS = {"float": 32, "double": 64, "uint64_t": 64, "uint32_t": 32}
# what adds one more step of a window
STEPS = {"sum": "add", "max": "max", "top": "top", "key": "keymax", "keyed": "keymax"}
LONG = 64  # lanes of a piece
# longer sums do not overlap with those of the next lanes, for processors look some 128 operations
# ahead: so many of them are made side by side as fill two multipliers that take four cycles
ALONE, SUMS_ABREAST = 16, 8
BYTES = 1 << 17  # that f32 sums exactly
SIMD_FROM = 4  # elements; shorter reductions stay scalar


def print_reduce(w: Writer, op: Reduce) -> None:
    for o in op.outputs:
        w.comment(f"{text(o.dst)} = {o.op} over {', '.join(op.red)} of {text(o.term, WIDTH)}")
    if op.then is not None:
        w.comment(f"{text(op.then.dst)} = {text(op.then.term, WIDTH)}")
    if op.lanes == "kept":
        _along_kept(w, op)
    elif op.lanes == "strips":
        _in_strips(w, op)
    elif op.lanes == "windows":
        _window(w, op)
    elif op.lanes == "scattered":
        print_scatter(w, op)
    elif (bytes_ := _summed_bytes(w, op)) is not None:
        _sum_bytes(w, op, bytes_)
    else:
        _along_reduced(w, op)


def _summed_bytes(w: Writer, op: Reduce) -> Expr | None:
    """The signed bytes, side by side, of which an operation only sums values as f32. Compilers
    widen them in small vectors, and wait for these to be stored and read as a large one."""
    if len(op.outputs) > 1 or op.stores or op.then or len(op.red) > 1 or op.runs:
        return None
    (o,), (last,) = op.outputs, op.red
    load = o.term.kids[0] if o.term.kind == "cast" else o.term
    if o.op != "sum" or o.init != const(0.0) or load.kind != "load" or dtype(load) is not DType.I8:
        return None
    place = w.places[load.attr[0]]
    exact = dtype(o.term) is DType.F32 and op.ranges[last].largest <= BYTES
    return load if exact and not place.panel and place.access(load).is_contiguous(last) else None


def _sum_bytes(w: Writer, op: Reduce, load: Expr) -> None:
    (o,), (last,) = op.outputs, op.red
    r = op.ranges[last]
    with w.loops(op.kept, op.ranges):
        first = w.address(substitute(load, {axis(last): r.lo}))
        w.line(w.store(o.dst, f"lumc_sum_i8(&{first}, {w.index(r.n)})"))


def _along_kept(w: Writer, op: Reduce) -> None:
    """Accumulate through the row of results; the reduction loops run outside the lanes."""
    lane, ranges = op.kept[-1], op.ranges
    with w.loops(op.kept[:-1], ranges):
        for o in op.outputs:
            if o.init is not o.dst:
                print_map(w, Map(o.dst, (lane,), ranges, o.init))
        levels = Levels(w, (*op.red, lane))
        values = [levels.value(o.term) for o in op.outputs]
        stores = [(dst, levels.value(term)) for dst, term in op.stores]
        totals = [
            w.store(o.dst, combine(o.op, computed(dtype(o.term)), w.load(o.dst), value))
            for o, value in zip(op.outputs, values, strict=True)
        ]
        steps = [*totals, *(w.store(dst, value) for dst, value in stores)]
        walk_lanes(levels, ranges, steps, LONG)


def _window(w: Writer, op: Reduce) -> None:
    """All steps of a short walk at once, for each lane: results stay in registers. Some rows side
    by side share what they read of neighbouring windows."""
    outer = list(op.kept[:-1])
    if not outer:
        _windows(w, op, "", 1)
        return
    row = outer.pop()
    r, c = op.ranges[row], w.names.axis(row)
    long = prod(op.ranges[a].largest for a in op.red) > ALONE
    most = SUMS_ABREAST if long and all(o.op == "sum" for o in op.outputs) else ABREAST
    many = 1 if _weighs_alone(op, row) else _even(r.largest, most)
    with w.loops(outer, op.ranges), w.block():
        w.line(f"long {new(c)} = {w.index(r.lo)};")
        with w.block(f"for (; {c} + {many} <= {w.end(r)}; {c} += {many})", f"{many} of {row}"):
            _windows(w, op, row, many)
        for rest in r.rests(many):
            with w.block(f"if ({w.end(r)} - {c} == {rest})" if len(r.sizes) > 1 else ""):
                _windows(w, op, row, rest)


def _weighs_alone(op: Reduce, row: str) -> bool:
    """Has every row weights of its own? Those of several rows find no room in registers."""
    loads = (e for o in op.outputs for e in subterms(o.term) if e.kind == "load")
    return any(row in e.free and op.kept[-1] not in e.free for e in loads)


def _even(extent: int, most: int) -> int:
    """At most ``most`` of an extent, so that all parts of it are about as large."""
    return max(1, -(-extent // -(-extent // most)))


def _windows(w: Writer, op: Reduce, row: str, count: int) -> None:
    """The windows of so many rows, one line of all windows after the other: few values are alive
    at a time, and those of neighbours are read once."""
    levels = Levels(w, (op.kept[-1],))
    indices = [i for o in op.outputs for e in subterms(o.term) if e.kind == "load" for i in e.kids]
    beside = {a for i in indices if row in i.free for a in i.free}
    red = sorted(op.red, key=beside.__contains__)
    across = [a for a in red if a not in beside]
    none = num(0)
    there = [{axis(row): add(axis(row), n)} if n else {} for n in range(count)]
    totals = {(o, n): none for o in op.outputs for n in range(count)}
    for outer in product(*(range(op.ranges[a].largest) for a in across)):
        for (o, n), total in totals.items():
            for inner in product(*(range(op.ranges[a].largest) for a in red[len(across) :])):
                step = dict(zip(map(axis, red), map(num, outer + inner), strict=True))
                term = substitute(o.term, there[n] | step)
                total = term if total is none else binary(STEPS[o.op], total, term)
            totals[o, n] = total
            levels.value(total)
    results = {
        (substitute(o.dst, there[n])): unary("unkey", t) if o.op == "keyed" else t
        for (o, n), t in totals.items()
    }
    if op.then is not None:
        lasting = (substitute(op.then.dst, at) for at in there)
        terms = [substitute(substitute(op.then.term, at), results) for at in there]
        results = dict(zip(lasting, terms, strict=True))
    if in_vectors(levels, op.ranges[op.kept[-1]], results):
        return
    stores = [w.store(dst, levels.value(t)) for dst, t in results.items()]
    walk_lanes(levels, op.ranges, stores, LONG)


def _in_strips(w: Writer, op: Reduce) -> None:
    """Along the kept axis, one vector of results at a time, in arrays of exactly one vector, which
    compilers keep in registers; the rest of the axis goes through memory, or where all that is read
    and written has room behind it is a vector too: what nobody reads is computed with it."""
    *outer, lane = op.kept
    r, width = op.ranges[lane], lanes(w.target, dtype(op.outputs[0].dst))
    start, end = dim(f"{lane}.s{w.fresh()}"), add(r.lo, r.n)
    with w.loops(outer, op.ranges):
        c = w.index(start)
        w.line(f"long {new(c)} = {w.index(r.lo)};")
        if _has_room(w, op, width):
            with w.block(f"for (; {c} < {w.index(end)}; {c} += {width})", "one vector"):
                _strip(w, op, start, width)
            return
        if r.largest >= width:
            with w.block(f"for (; {c} + {width} <= {w.index(end)}; {c} += {width})", "one vector"):
                _strip(w, op, start, width)
        sizes = sorted({size % width for size in r.sizes})
        if sizes != [0]:
            rest = Range(start, add(end, mul(start, -1)), tuple(sizes))
            _along_kept(w, replace(op, kept=(lane,), ranges={**op.ranges, lane: rest}))


def _has_room(w: Writer, op: Reduce, width: int) -> bool:
    """May the lanes, of a number that is known at run time, go on to a whole vector? In scratch
    values that have so many."""
    lane, r = op.kept[-1], op.ranges[op.kept[-1]]
    most = -(-r.largest // width) * width
    for e in (e for e in loads_of(op) if lane in e.free):
        place, at = w.places[e.attr[0]], [i for i, k in enumerate(e.kids) if lane in k.free]
        own = place.kind == "scratch" and place.panel is None and len(at) == 1
        if not own or e.kids[at[0]] != axis(lane):
            return False
        if place.dims[at[0]].origin != r.lo or place.dims[at[0]].size < most:
            return False
    return is_laddered(r, width)


def _strip(w: Writer, op: Reduce, start: Expr, width: int) -> None:
    """One vector of results, in ``streams`` independent parts along the last reduced axis."""
    lane, last, r = op.kept[-1], op.red[-1], op.ranges[op.red[-1]]
    even = all(size % op.streams == 0 for size in r.sizes)
    sums = any(o.op == "sum" for o in op.outputs)
    streams = range(op.streams if even and not sums and not op.stores else 1)

    def cells_like(like: Expr) -> Expr:
        """One value per lane."""
        kind = computed(dtype(like))
        place = Place(f"strip.{w.fresh()}", kind, (Dim(lane, start, width),))
        w.places[place.name] = place
        w.line(array(C_TYPES[kind], w.names.place(place), width))
        return reference(place, [axis(lane)])

    def over(steps: Callable[[Levels], list[str]]) -> None:
        levels = Levels(w, (lane,))
        lines = steps(levels)
        w.lines_of(levels.at[0])
        lane_loop(w, lane, width, [*levels.at[1], *lines], start=start)

    def joined(o: Output, cell: Expr, value: str) -> str:
        return w.store(cell, combine(o.op, computed(dtype(o.term)), w.load(cell), value))

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
    fixed = {e: cells_like(e) for e in _fixed(terms, set(op.red), lane)}
    cells = [(o, [cells_like(o.term) for _ in streams]) for o in op.outputs]
    over(begin)
    chunk = r.n if len(streams) == 1 else _chunk(w, last, r, len(streams))
    with w.loops(op.red[:-1], op.ranges), w.loop(last, Range(r.lo, chunk, r.sizes)):
        for u in streams:
            over(partial(walk, u, mul(chunk, u)))
    over(finish)


def _fixed(terms: Sequence[Expr], red: set[str], lane: str) -> list[Expr]:
    """The greatest sub-terms that are the same all along the reduced axes."""
    fixed, todo = dict[Expr, bool](), [*reversed(terms)]
    while todo:
        e = todo.pop()
        fixed[e] = lane in e.free and not e.free & red and e.kind != "iota"
        if not fixed[e] and e.kind in ("un", "bin", "where", "cast"):
            todo += (k for k in reversed(e.kids) if k not in fixed)
    return [e for e, same in fixed.items() if same]


def _chunk(w: Writer, last: str, r: Range, streams: int) -> Expr:
    """The length of one stream."""
    if len(r.sizes) == 1:
        return num(r.sizes[0] // streams)
    chunk = dim(f"{last}.s{w.fresh()}")
    w.let(w.index(chunk), f"({w.index(r.n)}) / {streams}")
    return chunk


class _Accumulator:
    """The variables of one output, one per lane: the values so far, and the magnitude bits of an
    exact maximum. The compiler keeps them in registers."""

    def __init__(self, o: Output, serial: int, width: int) -> None:
        self.output, self.kind, self.sums = o, computed(dtype(o.term)), o.op == "sum"
        self.name, self.width = quoted(f"a_{serial}"), width
        size = f"lumc_magnitude_{self.kind.value}"
        self.parts = [(self.name, (_SUMS if self.sums else C_TYPES)[self.kind], "")]
        if o.op == "max" and self.kind.is_float:
            bits = "int32_t" if self.kind is DType.F32 else "int64_t"
            self.parts.append((quoted(f"m_{serial}"), bits, size))

    def declare(self, w: Writer, init: str) -> None:
        self.init = init
        for name, c_type, _ in self.parts:
            w.line(f"{c_type} {new(name)}[{self.width}];")
        with w.count("`lane`", "0", f"{self.width}", pragma=SIMD):
            for name, _, of in self.parts:
                w.line(f"{name}[`lane`] = {'0' if self.sums else f'{of}({init})'};")

    def _take(self, variable: str, value: str) -> str:
        if self.sums or self.kind is DType.BOOL:
            return f"{variable} {'+' if self.sums else '|'}= {value};"
        return f"{variable} = {value} > {variable} ? {value} : {variable};"

    def step(self, value: str, lane: str, masked: bool) -> list[str]:
        """Take one value; ``masked``: unless its lane was ``seen``."""
        value = _unseen(value, "0" if self.sums else f"{self.name}[{lane}]", lane, masked)
        return [self._take(f"{n}[{lane}]", f"{of}({value})") for n, _, of in self.parts]

    def finish(self, w: Writer) -> None:
        """Store the result of all lanes."""
        w.line(w.store(self.output.dst, self._sum(w) if self.sums else self._greatest(w)))

    def _sum(self, w: Writer) -> str:
        """Vectors first, then halves: fewer steps in a row than one lane after the other."""
        unit, c_type = min(self.width, w.target.lanes), self.parts[0][1]
        vector = f"{'f' if self.kind.is_float else 'u'}{_BITS[c_type]}x{unit}"
        parts = [f"*(lumc_{vector} *)({self.name} + {k})" for k in range(0, self.width, unit)]
        total = f"({C_TYPES[self.kind]})lumc_sum_{vector}({' + '.join(parts)})"
        return combine("sum", self.kind, self.init, total)

    def _greatest(self, w: Writer) -> str:
        top = "LUMC_TOP" if self.kind.is_float else "|" if self.kind is DType.BOOL else "max"
        tops = {n: quoted(f"{n[1:-1]}_top") for n, _, _ in self.parts}
        for name, c_type, _ in self.parts:
            w.line(f"{c_type} {new(tops[name])} = {name}[0];")
        if self.width > 1:
            clauses = (f" reduction({'max' if of else top}:{tops[n]})" for n, _, of in self.parts)
            with w.count("`lane`", "0", f"{self.width}", pragma=f"{SIMD}{''.join(clauses)}"):
                w.lines_of([self._take(of, f"{n}[`lane`]") for n, of in tops.items()])
        found = ", ".join(tops.values())
        return f"lumc_join_{self.kind.value}({found})" if len(self.parts) > 1 else found


def _unseen(value: str, old: str, lane: str, masked: bool) -> str:
    """The value, but ``old`` in lanes that were ``seen``."""
    return f"({lane} < `seen` ? {old} : {value})" if masked else value


def _goes_back(op: Reduce) -> bool:
    """Does it sum floats, and read something backwards?"""
    if not any(o.op == "sum" and dtype(o.term).is_float for o in op.outputs):
        return False
    terms = [*(o.term for o in op.outputs), *(term for _, term in op.stores)]
    indices = (i for e in subterms(*terms) if e.kind == "load" for i in e.kids)
    return any(linear(i)[1].get(axis(a), 0) < 0 for i in indices for a in op.red)


def _along_reduced(w: Writer, op: Reduce) -> None:
    """One result at a time: the lanes run along the last reduced axis, in ``streams`` vectors of
    accumulators, or fewer over a short range."""
    last, r = op.red[-1], op.ranges[op.red[-1]]
    width = op.streams * w.target.lanes
    if r.largest < width:
        width = 1 << r.largest.bit_length() - 1 if r.largest >= SIMD_FROM else 1
    sums = [_Accumulator(o, w.fresh(), width) for o in op.outputs]
    with w.loops(op.kept, op.ranges):
        start = Levels(w, ())
        inits = [start.value(o.init) for o in op.outputs]
        w.lines_of(start.at[0])
        for a, init in zip(sums, inits, strict=True):
            a.declare(w, init)
        levels, lane = Levels(w, op.red), w.names.axis(f"{last}.l") if width > 1 else "0"
        values = [levels.value(a.output.term) for a in sums]
        stored = [(dst, levels.value(term)) for dst, term in op.stores]
        steps, masked = (
            [s for a, v in zip(sums, values, strict=True) for s in a.step(v, lane, again)]
            + [w.store(dst, _unseen(v, w.load(dst), lane, again)) for dst, v in stored]
            for again in (False, True)
        )
        with levels.nest(op.ranges, len(op.red) - 1):
            if width > 1:
                inner = levels.at[-1]
                pieces(w, last, r, width, op.ahead, [*inner, *steps], [*inner, *masked])
            else:
                with w.loop(last, r):
                    if _goes_back(op) and r.sizes != (1,):  # else there is no loop
                        w.line(f"LUMC_HIDE({w.names.axis(last)});")
                    w.lines_of([*levels.at[-1], *steps])
        for a in sums:
            a.finish(w)
