"""Maps as C: loop nests, panels, register transposes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

from lumc.codegen.cpu.lanes import lane_loop, prefetch, walk_lanes, whole_pieces
from lumc.codegen.text.levels import Levels
from lumc.codegen.text.phases import array
from lumc.codegen.text.statements import WIDTH, new
from lumc.codegen.text.term import STORED
from lumc.codegen.text.writer import Writer, block_sizes, is_laddered
from lumc.codegen.tile.abreast import stores
from lumc.codegen.tile.program import Dim, Map, Place, Range, lane_of, reference
from lumc.graph.expr import Expr, add, axis, dim, mul, num, substitute, text
from lumc.graph.ops import DType
from lumc.kernel.term import dtype
from lumc.schedule.applies import PIECE
from lumc.schedule.operands import computed

BEHIND = 2  # pieces: results often lie a line or so further in their pages than operands


def print_map(w: Writer, op: Map, in_pieces: bool = False) -> None:
    """``in_pieces``: in step with other walks."""
    w.comment(f"{text(op.dst)} = {text(op.term, WIDTH)}")
    place = w.places[op.dst.attr[0]]
    if place.digits:
        _digits(w, op)
    elif place.panel is None:
        _move(w, op, in_pieces)
    else:
        _panels(w, op, place)


def _digits(w: Writer, op: Map) -> None:
    """Rows of floats, which become digits by vectors."""
    *outer, lane = op.axes
    r = op.ranges[lane]
    width = next(n for n in (16, 8, 4) if n <= max(4, w.target.lanes) and r.largest % n == 0)
    row = Place(f"row.{w.fresh()}", DType.F32, (Dim(lane, r.lo, r.largest),))
    w.places[row.name] = row
    with w.loops(outer, op.ranges), w.block(""):
        w.line(array(STORED[row.dtype], w.names.place(row), row.size))
        _nest(w, Map(reference(row, [axis(lane)]), (lane,), {lane: r}, op.term))
        to = w.address(substitute(op.dst, {axis(lane): r.lo}))
        with w.count(w.index(dim(f"{lane}.d")), "0", str(r.largest), width, "digits"):
            at = w.index(dim(f"{lane}.d"))
            w.line(f"lumc_digits_x{width}(&{to} + {at}, {w.names.place(row)} + {at});")


def _panels(w: Writer, op: Map, place: Place) -> None:
    """One panel after the other; inside one, the place is an ordinary one."""
    assert place.panel is not None
    at, width = place.panel
    lane = lane_of(op, place)
    r = op.ranges[lane]
    start = dim(f"{lane}.p")
    dims = (replace(d, origin=start) if i == at else d for i, d in enumerate(place.dims))
    view = replace(place, name=f"{place.name}.p", dims=tuple[Dim, ...](dims))
    w.places[view.name] = view
    c = w.index(start)
    with w.count(c, w.index(r.lo), w.end(r), width, f"panels of {lane}"):
        lanes_before = w.index(add(start, mul(place.dims[at].origin, -1)))
        panel = f"({lanes_before}) / {width} * {place.panel_size}L"
        base = f"{w.names.place(place)} + {panel}"
        w.line(f"{STORED[place.dtype]} *restrict {new(w.names.place(view))} = {base};")
        dst = reference(view, op.dst.kids)
        axes = (*(a for a in op.axes if a != lane), lane)
        for i, (test, part) in enumerate(_parts(w, r, start, width)):
            with w.block(test if i == 0 else f"else {test}".rstrip()):
                _move(w, replace(op, dst=dst, axes=axes, ranges={**op.ranges, lane: part}))
    del w.places[view.name]


def _parts(w: Writer, r: Range, start: Expr, width: int) -> Iterator[tuple[str, Range]]:
    """What a panel may have of a range, and the tests for it: exact ones, or where these are many
    all that it has and any part of it."""
    sizes, left = block_sizes(r, width), f"{w.end(r)} - {w.index(start)}"
    exact = sizes[: sizes[0] == width] if is_laddered(r, width) else sizes
    for n in exact:
        yield f"if ({left} {'>=' if n == width else '=='} {n})", Range(start, num(n), (n,))
    if rest := tuple(sizes[len(exact) :]):
        yield "", Range(start, add(r.lo, r.n, mul(start, -1)), rest)


def _move(w: Writer, op: Map, in_pieces: bool = False) -> None:
    if op.turn is None:
        _nest(w, op, in_pieces)
        return
    load, lane, lanes = op.turn, op.axes[-1], w.target.lanes
    blocks = {
        a: Range(dim(f"{a}.b"), dim(f"{a}.c"), tuple(block_sizes(op.ranges[a], lanes)))
        for a in (load, lane)
    }
    with ExitStack() as nest:
        nest.enter_context(w.loops([a for a in op.axes if a not in blocks], op.ranges))
        for a, block in blocks.items():
            r, start = op.ranges[a], w.index(block.lo)
            each = w.count(start, w.index(r.lo), w.end(r), lanes, f"blocks of {a}")
            nest.enter_context(each)
            w.let(w.index(block.n), f"lumc_min({lanes}, {w.end(r)} - {start})")
        _square(w, replace(op, axes=(load, lane)), blocks)


def _square(w: Writer, op: Map, blocks: dict[str, Range]) -> None:
    """A block of lanes x lanes: read along the first axis, transposed in registers, stored along
    the lane axis. Blocks with some rows missing take the same way, the others go one by one."""
    (load, lane), source, kind = op.axes, op.term, computed(dtype(op.term))
    whole = all(w.target.lanes in blocks[a].sizes for a in op.axes)
    if op.turned and whole:
        _turn_loads(w, op, blocks)
        return
    if source.kind != "load" or w.places[source.attr[0]].dtype is not kind:
        source = _block(w, kind, (lane, load), blocks)
        _nest(w, Map(source, (lane, load), blocks, op.term))
    for test, n in _tests(w, op, blocks):
        with w.block(test):
            _transpose(w, source, op.dst, op.axes, blocks, n)
    with w.block("else"):
        _nest(w, Map(op.dst, op.axes, blocks, source))


def _block(w: Writer, kind: DType, axes: tuple[str, ...], blocks: dict[str, Range]) -> Expr:
    """An element of a new array of lanes x lanes."""
    lanes = w.target.lanes
    dims = tuple(Dim(a, blocks[a].lo, lanes) for a in axes)
    block = Place(f"block.{w.fresh()}", kind, dims)
    w.places[block.name] = block
    w.line(array(STORED[kind], w.names.place(block), lanes * lanes))
    return reference(block, [axis(a) for a in axes])


def _tests(w: Writer, op: Map, blocks: dict[str, Range]) -> Iterator[tuple[str, int | None]]:
    """Whether so many rows of a block are there, all of which are whole; None: any number."""
    (load, lane), lanes = op.axes, w.target.lanes
    whole, many = f"{w.index(blocks[load].n)} == {lanes}", is_laddered(op.ranges[lane], lanes)
    some = [] if many else block_sizes(op.ranges[lane], lanes)
    for n in sorted({lanes, *some}, reverse=True):
        test = f"({whole} && {w.index(blocks[lane].n)} == {n})"
        yield f"{'if' if n == lanes else 'else if'} {test}", n
    if many:
        yield f"else if ({whole})", None


def _transpose(
    w: Writer, e: Expr, dst: Expr, axes: tuple[str, ...], blocks: dict[str, Range], n: int | None
) -> None:
    """Store ``n`` rows of a block of a load, along the other axis."""
    (load, lane), lanes = axes, w.target.lanes
    origin, ends = {axis(a): r.lo for a, r in blocks.items()}, ""
    for end, along, const in ((e, lane, "const "), (dst, load, "")):
        step = w.places[end.attr[0]].access(end).stride(along)
        ends += f"({const}float *)&{w.address(substitute(end, origin))}, {step}, "
    part, sizes = ("", "") if n == lanes else ("_part", f", {n}, {lanes}")
    if n is None:
        part, sizes = "_rows", f", {w.index(blocks[lane].n)}"
    w.line(f"lumc_transpose{part}({ends[:-2]}{sizes});")


def _turn_loads(w: Writer, op: Map, blocks: dict[str, Range]) -> None:
    """A block whose operands are transposed instead of its result."""
    (load, lane), lanes = op.axes, w.target.lanes
    turned = {e: _block(w, w.places[e.attr[0]].dtype, op.axes, blocks) for e in op.turned}
    for test, n in _tests(w, op, blocks):
        with w.block(test):
            for e, to in turned.items():
                _transpose(w, e, to, op.axes, blocks, n)
            whole = {load: lanes} | ({} if n is None else {lane: n})
            exact = {a: Range(blocks[a].lo, num(k), (k,)) for a, k in whole.items()}
            ranges = {**blocks, **exact}
            _nest(w, Map(op.dst, op.axes, ranges, substitute(op.term, turned)))
    with w.block("else"):
        _nest(w, Map(op.dst, op.axes, blocks, op.term))


# ---- one loop nest


def _nest(w: Writer, op: Map, in_pieces: bool = False) -> None:
    """Loops over the axes, lanes along the last one; a sub-term is computed in the outermost loop
    that fixes it."""
    axes, values = stores(op)
    levels = Levels(w, axes)
    stored = [w.store(dst, levels.value(e), levels.value) for dst, e in values]
    width = PIECE // w.places[op.dst.attr[0]].dtype.nbytes
    if not op.stream:
        walk_lanes(levels, op.ranges, stored, width, op.ahead, in_pieces)
        return
    with levels.nest(op.ranges, len(op.axes) - 1):
        _stream(w, op, levels, stored[0], width, in_pieces)


def _stream(w: Writer, op: Map, levels: Levels, stored: str, width: int, in_pieces: bool) -> None:
    """Whole pieces are computed beside the result, in registers if the compiler can, and stored
    around the caches; what does not fill lines is stored as usual."""
    lane, kind = op.axes[-1], w.places[op.dst.attr[0]].dtype
    r, start = op.ranges[lane], dim(f"{lane}.at")
    at, n, end = w.index(start), w.index(dim(f"{lane}.n{w.fresh()}")), w.end(r)
    first, own = w.index(r.lo), levels.at[-1]
    if in_pieces:
        first = _stream_in_pieces(w, op, levels, stored, width)
    with w.block(f"for (long {new(at)} = {first}, {new(n)}; {at} < {end}; {at} += {n})"):
        w.line(f"{n} = lumc_piece(&{_address(w, op, start)}, {kind.nbytes}, {end} - {at});")
        prefetch(w, lane, op.ahead, width)
        with w.block(f"if ({n} == {width})"):
            _piece(w, op, levels, start, width)
        with w.block("else"):
            lane_loop(w, lane, n, [*own, stored], most=width)


def _stream_in_pieces(w: Writer, op: Map, levels: Levels, stored: str, width: int) -> str:
    """The pieces that go in step with other walks, some behind them: a load waits for a store
    before it to the same place of another page. Where the pieces go on that are left."""
    lane, kind = op.axes[-1], w.places[op.dst.attr[0]].dtype
    r, start = op.ranges[lane], dim(f"{lane}.first")
    whole = dim(f"{lane}.h")  # elements before the first whole piece
    at, head = w.names.axis(f"{lane}.at"), w.index(whole)
    lo, first, to = w.index(r.lo), w.index(start), _address(w, op, r.lo)
    w.let(head, f"lumc_piece(&{to}, {kind.nbytes}, {width}) % {width}")
    lane_loop(w, lane, head, [*levels.at[-1], stored], most=width, start=r.lo)
    with whole_pieces(w, at, r, width):
        w.let(first, f"{at} + {head} - {BEHIND * width}")
        with w.block(f"if ({first} >= {lo})"):
            prefetch(w, lane, op.ahead, width)
            _piece(w, op, levels, start, width)
    done = max(0, r.largest // width - BEHIND) * width
    return w.index(add(add(r.lo, whole), num(done)))


def _address(w: Writer, op: Map, at: Expr) -> str:
    """The element of the result at this index of the lanes."""
    return w.address(substitute(op.dst, {axis(op.axes[-1]): at}))


def _piece(w: Writer, op: Map, levels: Levels, start: Expr, width: int) -> None:
    """A piece that starts with a whole line."""
    lane, kind = op.axes[-1], w.places[op.dst.attr[0]].dtype
    piece = Place(f"piece.{w.fresh()}", kind, (Dim(lane, start, width),))
    w.places[piece.name], name = piece, w.names.place(piece)
    into = w.store(reference(piece, [axis(lane)]), levels.value(op.term), levels.value)
    w.line(array(STORED[kind], name, width))
    lane_loop(w, lane, width, [*levels.at[-1], into], start=start)
    w.line(f"lumc_stream(&{_address(w, op, start)}, {name});")
