"""The operations of a distributed program as GPU text: loops, maps, reductions, the contractions of
plain threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from math import prod

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.copies import apart, guards
from lumc.codegen.gpu.distribution import Distribution, RegisterDigit
from lumc.codegen.gpu.grid import Grid
from lumc.codegen.gpu.neighbours import at_once, elements, exchanged, side_by_side
from lumc.codegen.gpu.program import Combine, Distributed, Nest, Node, Step, Sync, loads_of, writes
from lumc.codegen.gpu.writer import FULLY, OUTSIDE, TURNS, Dialect, GpuWriter
from lumc.codegen.text.levels import Levels
from lumc.codegen.text.statements import WIDTH, lines, live, new, quoted
from lumc.codegen.text.term import combine, literal
from lumc.codegen.text.writer import about
from lumc.graph.expr import Expr, axis, dim, num, text
from lumc.graph.ops import DType
from lumc.kernel.normal import least
from lumc.kernel.term import const, dtype, unguarded
from lumc.schedule.operands import computed


def print_kernel(d: Distributed, dialect: Dialect, symbol: str) -> tuple[str, Grid]:
    """The text of the kernel ``symbol``, whose parameters are its buffers in order, and how it is
    launched."""
    w = written(d, dialect)
    text = "\n".join([*dialect.kernel(w, symbol, lines(live(w.body))), ""])
    return text, Grid(max(1, d.program.tiles), d.threads.count, d.shared_bytes, d.maps)


def written(d: Distributed, dialect: Dialect) -> GpuWriter:
    """The statements of a kernel."""
    w = GpuWriter(d, dialect)
    dialect.declare(w)
    read_dims(w)
    w.registers_and_tiles()
    print_nodes(w, d.body)
    return w


def read_dims(w: GpuWriter) -> None:
    """Dims are read where they lie. A grid is that of the greatest ones: blocks beyond the tiles
    that there are have nothing to do."""
    for d in w.d.program.kernel.lengths.dims:
        w.let(w.names.dim(d.name), f"(int)*{w.names.given(d.name)}")
    for op in (n.op for n in w.d.body if isinstance(n, Nest)):
        if isinstance(op, ir.Par) and any(x.length and x.count > 1 for x in op.loops):
            w.line(f"if (`block` >= {w.tile_count(op.loops)}) return;")


def print_nodes(w: GpuWriter, body: Sequence[Node]) -> None:
    for node in body:
        match node:
            case Sync():
                w.dialect.sync(w)
            case Step():
                _step(w, node)
            case Combine():
                with w.block("", "the results of all warps"):
                    _combine(w, node.step, node.op)
            case Nest():
                _nest(w, node)


def _nest(w: GpuWriter, nest: Nest) -> None:
    if nest.slots > 1:
        w.dialect.ring(w, nest)
        return
    match nest.op:
        case ir.Par(loops=loops):
            w.comment("blocks: " + ", ".join(about(loop) for loop in loops))
            w.tile_starts(loops, "`block`")
            print_nodes(w, nest.body)
        case ir.Block(loop=loop):
            with w.tiles_of(loop):
                print_nodes(w, nest.body)
        case ir.When(first=first):
            tests = [f"{w.index(ir.block_start(a))} == 0" for a in first]
            with w.when(tests):
                print_nodes(w, nest.body)


def _step(w: GpuWriter, step: Step) -> None:
    packed = [e.attr[0] for e in writes(step) if e.attr[0] in w.tiles and w.tiles[e.attr[0]].packed]
    with w.block():
        w.loose |= {*packed}
        for name in packed:
            size = w.tiles[name].distribution.size
            w.line(f"float {new(w.array(name))}[{size}];")
        match step.op:
            case ir.Map():
                _map(w, step, step.op)
            case ir.Reduce():
                _reduce(w, step, step.op)
            case ir.Contract(stage=stage) as op:
                w.comment(f"{text(op.dst)} += {text(op.a, WIDTH)} * {text(op.b, WIDTH)}")
                if op.overwrite is not None and stage.fragment != "wgmma":
                    _clear(w, step, op)
                (_simt if stage.fragment == "simt" else w.dialect.fragments)(w, step, op)
        for name in packed:
            loose = w.array(name)
            w.loose.remove(name)
            _pack(w, name, loose)


def _pack(w: GpuWriter, name: str, loose: str) -> None:
    tile = w.tiles[name]
    kind = w.spelling.stored[tile.dtype]
    with w.counting({"`D`": tile.distribution.size // 2}):
        pair = f"{loose}[2 * `D`], {loose}[2 * `D` + 1]"
        w.line(f"{w.array(name)}[`D`] = lumc_pack<{kind}>({pair});")


def _map(w: GpuWriter, step: Step, op: ir.Map) -> None:
    w.comment(f"{text(op.dst)} = {text(op.term, WIDTH)}")
    points, ranges = step.points, op.ranges
    if step.moves and w.tiles[op.dst.attr[0]].memory == "shared":
        starts = [r for r in points.registers if r.axis != step.along or r.stride > 1]
        points = replace(points, registers=tuple(starts))
        with w.points(points, op.axes, ranges):
            conditions = [*w.once(points, op.dst.free), *w.fits(op.dst, points, ranges)]
            with w.when(conditions):
                ends = f"&{w.address(op.dst)}", f"&{w.address(unguarded(op.term))}"
                if step.ahead:
                    ends = apart(w, op, points)
                asked = [*w.inside(points, op.axes, ranges), *guards(w, op.term)]
                w.move(step, *ends, " && ".join(asked))
        return
    w.threads(points, op.axes)
    inside, stores = w.inside(points, op.axes, ranges), op.dst.attr[0] not in w.tiles
    conditions = [*inside, *w.once(points, op.dst.free)] if stores else []
    if step.stored:
        with exchanged(w, step, op.axes, inside) as place:
            levels = Levels(w, ())
            value = levels.value(op.term)
            w.lines_of([*levels.at[0], f"{place} = {value};"])
        return
    with elements(w, step, op.axes, points.registers, conditions):
        side = f"`OUT`[`D{len(points.registers) - 1}`]"
        if not stores and at_once(w, step):
            value = w.values([(op.term, OUTSIDE)], inside)[0]
            w.line(f"{side} = {w.narrowed(op.dst, value)};")
            return
        if not stores:
            with w.storing(op.dst, points, op.axes, ranges):
                value = w.values([(op.term, OUTSIDE)], inside)[0]
                w.line(w.store(op.dst, value))
            return
        levels = Levels(w, ())
        value = levels.value(op.term)
        if op.dst in step.wide:
            stored = f"{side} = {w.narrowed(op.dst, value)};"
        else:
            stored = w.store(op.dst, value, levels.value)
        w.lines_of([*levels.at[0], stored])


def _reduce(w: GpuWriter, step: Step, op: ir.Reduce) -> None:
    for o in op.outputs:
        w.comment(f"{text(o.dst)} = {o.op} over {', '.join(op.red)} of {text(o.term, WIDTH)}")
    points, ranges, axes = step.points, op.ranges, (*op.kept, *op.red)
    rows = points.on(op.kept)
    walked = [r for r in points.registers if r.axis in op.red]
    digits = [*rows.registers, *walked]
    w.threads(points, axes)
    with w.registers(rows.registers):
        results = _accumulators(w, op)
        touched = [*loads_of(*(o.term for o in op.outputs)), *(dst for dst, _ in op.stores)]
        turns = walked[:-1] if step.wide else walked  # of the loops around neighbours
        few = w.held(touched) or prod(r.extent for r in turns) <= (TURNS if step.wide else FULLY)
        shares = step.common or (None,) * len(op.outputs)
        sums = [quoted(f"c_{w.fresh()}") if c else a for c, a in zip(shares, results, strict=True)]
        around = partial(_with_common, w, step, op, results, sums)
        with elements(w, step, axes, digits, (), len(rows.registers), few, around):
            own = zip(op.outputs, shares, strict=True)
            terms = [(c.rest if c else o.term, _neutral(w, o)) for o, c in own]
            terms += [(e, OUTSIDE) for _, e in op.stores]
            values = w.values(terms, w.inside(points, axes, ranges))
            for o, a, v in zip(op.outputs, sums, values, strict=False):
                w.line(f"{a} = {combine(o.op, computed(dtype(o.term)), a, v)};")
            for (dst, _), v in zip(op.stores, values[len(results) :], strict=True):
                with w.storing(dst, points, axes, ranges):
                    w.line(w.store(dst, v))
        _across_lanes(w, points, op, results)
        with w.block():
            w.coordinates(rows, op.kept, ranges, rows.registers)
            if step.partials:
                _partial(w, step, op, results)
            else:
                _finish(w, op, rows, results)


@contextmanager
def _with_common(
    w: GpuWriter, step: Step, op: ir.Reduce, results: Sequence[str], sums: Sequence[str]
) -> Iterator[None]:
    """Neighbours that have a factor in common are added up apart, and multiplied by it once."""
    every = zip(op.outputs, step.common, results, sums, strict=False)
    found = [(o, c.factor, a, own) for o, c, a, own in every if c]
    for o, _, _, own in found:
        w.line(f"{w.spelling.types[computed(dtype(o.term))]} {new(own)} = {_neutral(w, o)};")
    yield
    inside = w.inside(step.points, (*op.kept, *op.red), op.ranges)
    for _, e, a, own in found:
        (factor,) = w.values([(e, OUTSIDE)], inside)
        w.line(f"{a} = {a} + {factor} * {own};")


def _accumulators(w: GpuWriter, op: ir.Reduce) -> list[str]:
    """A variable for every output, which has taken nothing yet."""
    names = [quoted(f"a_{w.fresh()}") for _ in op.outputs]
    for o, name in zip(op.outputs, names, strict=True):
        w.line(f"{w.spelling.types[computed(dtype(o.term))]} {new(name)} = {_neutral(w, o)};")
    return names


def _neutral(w: GpuWriter, o: ir.Output) -> str:
    kind = computed(dtype(o.term))
    return literal(const(0, kind) if o.op == "sum" else least(kind), w.spelling)


def _across_lanes(
    w: GpuWriter, points: Distribution, op: ir.Reduce, results: Sequence[str]
) -> None:
    """A butterfly over the threads of a warp that share a result."""
    for t in points.threads:
        bit = t.div
        while t.axis in op.red and bit < min(t.div * t.mod, w.d.warp):
            for o, a in zip(op.outputs, results, strict=True):
                kind = computed(dtype(o.term))
                wide = "" if kind.nbytes > 2 else f"({w.spelling.types[DType.I32]})"
                other = f"lumc_shuffle_xor({wide}{a}, {bit})"
                w.line(f"{a} = {combine(o.op, kind, a, other)};")
            bit *= 2


def _partial(w: GpuWriter, step: Step, op: ir.Reduce, results: Sequence[str]) -> None:
    """The first lane of every warp stores what it has."""
    parts, by = list[str](), 1
    for t in step.points.across_warps(op.red, w.d.warp):
        parts.append(w.digit(t) + f" * {by}" * (by > 1))
        by *= t.mod
    lanes = (
        t._replace(mod=min(t.mod, w.d.warp // t.div))
        for t in step.points.threads
        if t.axis in op.red and t.div < w.d.warp
    )
    alike = (t for t in step.points.threads if t.axis is None)
    first = [f"{w.digit(t)} == 0" for t in (*lanes, *alike) if t.mod > 1]
    with w.when(first):
        for name, a in zip(step.partials, results, strict=True):
            w.line(f"{_slot(w, name, op, ' + '.join(parts))} = {a};")


def _slot(w: GpuWriter, name: str, op: ir.Reduce, slot: str) -> str:
    row = ir.reference(w.places[name], [*(axis(a) for a in op.kept), num(0)])
    return f"{w.array(name)}[{w.offset(row, w.tiles[name])} + {slot}]"


def _combine(w: GpuWriter, step: Step, op: ir.Reduce) -> None:
    rows = step.points.on(op.kept)
    warps = prod(t.mod for t in step.points.across_warps(op.red, w.d.warp))
    with w.points(rows, op.kept, op.ranges):
        results = _accumulators(w, op)
        with w.counting({"`W`": warps}):
            for o, a, name in zip(op.outputs, results, step.partials, strict=True):
                kind, other = computed(dtype(o.term)), _slot(w, name, op, "`W`")
                w.line(f"{a} = {combine(o.op, kind, a, other)};")
        _finish(w, op, rows, results)


def _finish(w: GpuWriter, op: ir.Reduce, rows: Distribution, results: Sequence[str]) -> None:
    """Join the results of one walk with what they start from, and store them."""
    inside = w.inside(rows, op.kept, op.ranges)
    for o, a in zip(op.outputs, results, strict=True):
        with w.storing(o.dst, rows, op.kept, op.ranges):  # who stores it reads it, alone
            start = w.values([(o.init, OUTSIDE)], inside)[0]
            value = combine(o.op, computed(dtype(o.term)), start, a)
            if inside and o.dst.attr[0] in w.tiles:
                value = f"{' && '.join(inside)} ? {value} : {OUTSIDE}"
            w.line(w.store(o.dst, value))


def _clear(w: GpuWriter, step: Step, op: ir.Contract) -> None:
    with w.registers(step.points.registers):
        _offsets(w, step.points.registers)
        w.line(f"{w.address(op.dst)} = 0;")


def _offsets(w: GpuWriter, digits: Sequence[RegisterDigit]) -> None:
    """The register parts of axes alone."""
    for a in dict.fromkeys(d.axis for d in digits):
        r = [f"`D{i}` * {d.stride}" for i, d in enumerate(digits) if d.axis == a]
        w.let(w.index(dim(f"{a}.o")), " + ".join(r))


def _simt(w: GpuWriter, step: Step, op: ir.Contract) -> None:
    assert step.roles
    c, kind = step.roles.c, computed(dtype(op.dst))
    held = w.held((op.a, op.b))
    w.threads(c, op.kept)
    with ExitStack() as nest:
        for k in op.red:
            nest.enter_context(w.steps(k, op.ranges[k], held))
        sides = (("`A`", op.a), ("`B`", op.b))
        sizes = dict[str, Distribution]()
        for side, ref in sides:
            points = sizes[side] = c.on(ref.free.difference(op.red))
            axes = [a for a in op.kept if a in ref.free]
            w.line(f"{w.spelling.types[kind]} {new(side)}[{points.size}];")
            with w.block():
                _operand(w, op, ref, points, (side, axes))
        with w.registers(c.registers):
            _offsets(w, c.registers)
            a, b = (f"{s}[{_linear(c.registers, sizes[s])}]" for s, _ in sides)
            dst = w.address(op.dst)
            if kind.is_float:
                w.line(f"{dst} += {a} * {b};")
            else:
                product = f"lumc_mul_{kind.value}({a}, {b})"
                w.line(f"{dst} = lumc_add_{kind.value}({dst}, {product});")


def _operand(
    w: GpuWriter, op: ir.Contract, ref: Expr, points: Distribution, to: tuple[str, Sequence[str]]
) -> None:
    """What one step needs of an operand, neighbours at once."""
    (array, axes), n = to, side_by_side(w, ref, op, points)
    digits = points.registers if n == 1 else points.registers[:-1]
    at = f"{array}[{_linear(points.registers)}]"
    with w.registers(digits):
        w.coordinates(points, axes, op.ranges, digits)
        if n == 1:
            w.line(f"{at} = {w.operand(ref, op, points, axes)};")
            return
        conditions = w.readable(ref, op, points, axes)
        kind = w.spelling.stored[w.places[ref.attr[0]].dtype]
        w.line(f"{kind} `:NEXT`[{n}]{' = {}' * bool(conditions)};")
        with w.when(conditions):
            w.line(f"lumc_load(`NEXT`, &{w.address(ref)});")
        with w.registers(points.registers[-1:], len(digits)):
            w.line(f"{at} = {w.widened(ref, f'`NEXT`[`D{len(digits)}`]')};")


def _linear(digits: Sequence[RegisterDigit], only: Distribution | None = None) -> str:
    """The register index of the current digits, of those that a restriction has."""
    parts, step = list[str](), 1
    axes = {r.axis for r in (only.registers if only else digits)}
    for i, r in reversed([*enumerate(digits)]):
        if r.axis in axes:
            parts.append(f"`D{i}`" + f" * {step}" * (step > 1))
            step *= r.extent
    return " + ".join(reversed(parts)) or "0"
