"""Contractions as C: loops over panels and the dispatch to exact micro-kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from lumc.codegen.cpu.levels import LevelKernel
from lumc.codegen.cpu.micro import MicroKernel
from lumc.codegen.text.phases import LINE
from lumc.codegen.text.statements import WIDTH, new
from lumc.codegen.text.term import STORED
from lumc.codegen.text.writer import Writer, block_sizes, is_laddered, ladder
from lumc.codegen.tile.program import Contract, Place, Range, Valid, block_start
from lumc.graph.expr import Expr, add, axis, dim, linear, mul, num, substitute, text
from lumc.kernel.borders import Border
from lumc.kernel.term import dtype
from lumc.schedule.operands import lanes

SHARE = 8  # rows of a register tile that takes a part of a rest, at most: with two vectors no sum
IN_FLIGHT = 8  # waits; sums that hide the latency of additions: of four cycles, with two adders


def print_contract(w: Writer, op: Contract) -> None:
    w.comment(
        f"{text(op.dst)} += over {', '.join(op.red)} {text(op.a, WIDTH)} * {text(op.b, WIDTH)}"
    )
    every, op = op, _bounded(w, op)
    p, width = op.stage, lanes(w.target, dtype(op.dst))
    assert p.lane_axis is not None
    places = [w.places[e.attr[0]] for e in (op.a, op.b, op.dst)]
    moves = [q.access(e) for q, e in zip(places, (op.a, op.b, op.dst), strict=True)]
    blocks = {p.lane_axis: p.nv if p.form == "dot" else p.nv * width}
    if p.rows_axis:
        blocks[p.rows_axis] = p.mr
    batch = [a for a in op.kept if a not in blocks]
    order = [*batch, *(blocks if p.panels_first else reversed(blocks))]
    if p.panels_outside:
        order = [p.lane_axis, *batch, *[a for a in blocks if a != p.lane_axis]]
    calls = {a: -(-op.ranges[a].largest // blocks.get(a, 1)) for a in order}
    calls = {a: calls[a] for a in order[order.index(p.lane_axis) + 1 :]}
    ahead = _ahead(places[1], prod(calls.values())) if p.next_panel else 0
    once = p.next_panel and places[1].kind == "packed" and prod(calls.values()) == 1
    kinds = [q.dtype for q in places]
    padded = places[1].kind == "packed" and places[1].panel is not None
    ahead = 0 if op.levels else ahead
    counted = any(is_laddered(op.ranges[a], blocks[a]) for a in calls if a == p.rows_axis)
    given = op, kinds, width, moves, ahead, once, w.target.registers, padded, counted
    micro = LevelKernel(*given).reads(w.places) if op.levels else MicroKernel(*given)
    with ExitStack() as nest:
        for a in order:
            r, c = op.ranges[a], w.names.axis(a)
            if a not in blocks:
                nest.enter_context(w.loop(a, r))
                _print_bounds(w, every, a)
                continue
            if is_laddered(r, blocks[a]):
                size = _powers(w, a, r, blocks[a]) if a == p.lane_axis else row_shares(w, op)
                nest.enter_context(_steps(w, a, r, *size))
                continue
            nest.enter_context(w.count(c, w.index(r.lo), w.end(r), blocks[a], "panels"))
            if len(block_sizes(r, blocks[a])) > 1:
                w.let(_size(w, a), f"lumc_min({blocks[a]}, {w.end(r)} - {c})")
        if micro.ahead:
            _next_panel(w, op, micro, blocks, calls)
        _dispatch(w, op, micro, blocks)


@contextmanager
def _steps(w: Writer, a: str, r: Range, size: str, note: str) -> Iterator[None]:
    """A loop over blocks of an axis, each of the size that is said."""
    c, m, end = w.names.axis(a), _size(w, a), w.end(r)
    head = (
        f"for ({w.spelling.counter} {new(c)} = {w.index(r.lo)}, {new(m)}; {c} < {end}; {c} += {m})"
    )
    with w.block(head, note):
        w.line(f"{m} = {size};")
        yield


def _powers(w: Writer, a: str, r: Range, by: int) -> tuple[str, str]:
    """Full blocks, then powers of two that fill the rest."""
    *most, least = ladder(r, by)
    left = f"{w.end(r)} - {w.names.axis(a)}"
    said = " : ".join(f"{left} >= {n} ? {n}" for n in most)
    return f"{said} : {least}", "panels, the last in powers of two"


def row_shares(w: Writer, op: Contract) -> tuple[str, str]:
    """Full blocks of rows, then equal shares of the rest. Where these were so few rows that sums
    would wait for one another, the last full block is shared with them; but for panels, of which
    no block crosses the end."""
    a, p = op.stage.rows_axis or "", op.stage
    left, few = f"{w.end(op.ranges[a])} - {w.names.axis(a)}", -(-IN_FLIGHT // p.nv)
    alone = few == 1 or w.places[op.a.attr[0]].panel is not None
    full = f"{left} >= {p.mr}" if alone else f"{left} >= {p.mr + few} || {left} == {p.mr}"
    return f"{full} ? {p.mr} : lumc_share({left}, {min(p.mr, SHARE)})", "panels, the last in shares"


def _bounded(w: Writer, op: Contract) -> Contract:
    """The same over those steps only that add something; their number varies."""
    ranges = {**op.ranges}
    for counts, a in ((each.counts, each.border.over) for each in op.within):
        w.ranges |= {f"{a}.f": w.ranges[a], f"{a}.c": (0, counts[-1])}
        ranges[a] = Range(dim(f"{a}.f"), dim(f"{a}.c"), counts)
    return replace(op, ranges=ranges)


def _print_bounds(w: Writer, op: Contract, kept: str) -> None:
    """Where the steps begin that add something at a point of a kept axis, and their number."""
    for each in (each for each in op.within if each.border.kept == kept):
        b = each.border
        first, count = w.index(dim(f"{b.over}.f")), w.index(dim(f"{b.over}.c"))
        start, empty = _step_at(w, op, b, b.lo), 0 in each.counts
        # what is not read has an address inside, too
        w.let(first, f"lumc_min({start}, {w.end(op.ranges[b.over])} - 1)" if empty else start)
        if len(each.counts) > 1:
            w.let(count, f"{_step_at(w, op, b, b.hi)} - {start if empty else first}")


def _step_at(w: Writer, op: Contract, b: Border, bound: int) -> str:
    """The first step of a tile at which the index is not below a bound."""
    r, step = op.ranges[b.over], linear(b.index)[1][axis(b.over)]
    gap = f"{bound} - ({w.index(substitute(b.index, {axis(b.over): num(0)}))})"
    steps = gap if step == 1 else f"({gap} + {step - 1}) / {step}"
    return f"lumc_clamp({steps}, {w.index(r.lo)}, {w.end(r)})"


def _ahead(b: Place, calls: int) -> int:
    """Bytes of the next panel that a step of a call fetches, so that all calls with one panel
    fetch all of the next."""
    if b.panel is None or calls < 2 or b.size == b.panel_size:
        return 0
    return -(-b.panel[1] * b.dtype.nbytes // calls)


def _next_panel(
    w: Writer, op: Contract, micro: MicroKernel, blocks: dict[str, int], calls: dict[str, Any]
) -> None:
    """Where in the next panel of b this call begins to fetch, and where the calls are counted at
    run time how many bytes each step does: none if there is one call."""
    origin, place = {axis(k): op.ranges[k].lo for k in op.red}, w.places[op.b.attr[0]]
    panel = _pointer(w, substitute(op.b, origin), micro.stored("b"))
    number, steps = "", prod(op.ranges[k].largest for k in op.red)
    part = f"{steps * micro.ahead}L"
    if micro.counted and place.panel:
        rows, by = op.stage.rows_axis or "", op.stage.mr
        n, others = w.index(op.ranges[rows].n), prod(calls.values()) // calls[rows]
        calls = {**calls, rows: f"({n} / {by})"}
        each = place.panel[1] * place.dtype.nbytes // others
        some = f"lumc_min({-(-micro.ahead // LINE) * LINE}, {each} / ({n} / {by}))"
        w.let("`ahead`", f"{n} {'>=' if others > 1 else '>'} {by} ? {some} : 0")
        part = f"{steps}L * `ahead`"
    for a, count in calls.items():
        at = f"({w.index(add(axis(a), mul(op.ranges[a].lo, -1)))})"
        at = f"{at} / {blocks[a]}" if a in blocks else at
        number = f"({number} * {count} + {at})" if number else at
    after = f"(const char *)({panel} + {place.panel_size})"
    w.line(f"const char *`:next` = {after} + {number} * {part};")


def _dispatch(w: Writer, op: Contract, micro: MicroKernel, blocks: dict[str, int]) -> None:
    """One micro-kernel per combination of sizes, overwriting or adding."""
    if not op.overwrite:
        _variants(w, op, micro, blocks, add=op.overwrite is None)
        return
    first = " && ".join(f"{w.index(block_start(a))} == 0" for a in op.overwrite)
    with w.block(f"if ({first})"):
        _variants(w, op, micro, blocks, add=False)
    with w.block("else"):
        _variants(w, op, micro, blocks, add=True)


def _variants(
    w: Writer, op: Contract, micro: MicroKernel, blocks: dict[str, int], add: bool
) -> None:
    origin = {axis(k): op.ranges[k].lo for k in op.red}
    types = [*((e, kind) for _, e, kind in micro.operands), (op.dst, micro.element)]
    within = op.levels or any(is_laddered(op.ranges[a], by) for a, by in blocks.items())
    ends = [_pointer(w, substitute(e, origin), t, within) for e, t in types]
    ends += [w.index(op.ranges[k].n) for k in micro.varying]
    choices: dict[str, list[tuple[str, Any]]] = {
        a: [(f"{_size(w, a)} == {n}", n) for n in ladder(op.ranges[a], by)]
        for a, by in blocks.items()
    }
    rows, lane = op.stage.rows_axis or "", op.stage.lane_axis or ""
    choices[rows] = _tiles(w, op, blocks[rows]) if rows else [("", (1, ()))]
    inner = micro.written_out or ""
    n = w.index(op.ranges[inner].n) if inner else ""
    choices[inner or "steps"] = [
        (f"{n} == {size}", size) for size in (op.ranges[inner].sizes if inner else (0,))
    ]
    for i, chosen in enumerate(product(*choices.values())):
        several = (test for (test, _), c in zip(chosen, choices.values(), strict=True) if c[1:])
        tests = " && ".join(filter(None, several))
        size = {a: value for a, (_, value) in zip(choices, chosen, strict=True)}
        (m, valid), steps = size[rows], size[inner or "steps"]
        name = w.function(micro.function(m, size[lane], add, steps, valid))
        call = ", ".join([*ends, *["`next`", "`ahead`"][: micro.fetches(m)]])
        w.line(f"{'else ' if i else ''}{f'if ({tests}) ' if tests else ''}{name}({call});")


def _size(w: Writer, a: str) -> str:
    """How many elements of an axis the current register tile has."""
    return w.names.axis(f"{a}.m")


def _row_sizes(r: Range, by: int) -> list[int]:
    """The rows that register tiles have; where these may be many only few of them."""
    if not is_laddered(r, by):
        return block_sizes(r, by)
    return [by] * (r.largest >= by) + list(range(min(by - 1, SHARE), 0, -1))


def _tiles(w: Writer, op: Contract, by: int) -> list[tuple[str, tuple[int, Valid]]]:
    """The register tiles of ``by`` rows or what is left of them, each with what tells it from those
    that follow; next to a border some steps have fewer rows."""
    rows = op.stage.rows_axis or ""
    c = w.names.axis(rows)
    if op.edge is None:
        return [(f"{_size(w, rows)} == {n}", (n, ())) for n in _row_sizes(op.ranges[rows], by)]
    found = op.edge.rows(by, op.ranges[op.edge.border.over].largest).items()
    left, out = Counter(m for (m, _), _ in found), list[tuple[str, tuple[int, Valid]]]()
    for (m, valid), starts in sorted(found, key=lambda each: len(each[1])):
        left[m] -= 1
        here = " || ".join(f"{c} == {at}" for at in starts)
        test = f"({here})" if left[m] else f"{_size(w, rows)} == {m}" if len(left) > 1 else ""
        out.append((test, (m, () if {*valid} == {(0, m)} else valid)))
    return out


def _pointer(w: Writer, load: Expr, element: str, within: bool = False) -> str:
    """The address of an element; in a panel place, of one that starts a panel, or ``within``."""
    place = w.places[load.attr[0]]
    where = f"&{w.address(load)}"
    if place.panel is not None:
        at, width = place.panel
        lane = w.index(add(load.kids[at], mul(place.dims[at].origin, -1)))
        index = [place.dims[at].origin if i == at else k for i, k in enumerate(load.kids)]
        inner = w.index(place.offset(index))
        panel = f"({lane}) / {width} * {place.panel_size}L"
        panel += f" + ({lane}) % {width}" * within
        where = f"&{w.names.place(place)}[{panel}{'' if inner == '0' else f' + {inner}'}]"
    same = element == STORED[place.dtype] and place.steps == 1
    return where if same else f"({element} *){where}"
