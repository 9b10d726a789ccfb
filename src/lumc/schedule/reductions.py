"""What may be chosen of a reduction: the values of the rows of ``choices``, and their words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from lumc.graph.expr import Expr, bound_axes
from lumc.kernel.running import running
from lumc.kernel.term import dtype
from lumc.schedule.applies import has_windows, own_axes, unit_of
from lumc.schedule.case import Blocks, Case, Limits, Units, Values, bits
from lumc.schedule.first_stages import contraction_stage, level_tiles
from lumc.schedule.fragment import Product, multiplied
from lumc.schedule.levels import panel_vectors
from lumc.schedule.operands import can_dot, lanes, operand_of, pairs
from lumc.schedule.registers import DOT_TILES, REGISTER_TILES
from lumc.schedule.schedule import Stage
from lumc.schedule.staging import reads_levels, staging_modes

STREAMS = (1, 2, 4, 8)
COPIES = 16
ROWS, ALONG = 64, 32  # threads or warps along the rows and the lanes, at most
COPIED = ("inner", "hoist")  # while the kernel runs


def forms(c: Case, i: int, _: Blocks) -> Iterator[tuple[Any, ...]]:
    """How a reduction may be done: form, rows axis, lane axis, lanes."""
    stage = c.kernel.stages[i]
    yield from (("contract", *pair, "reduced") for pair in pairs(stage))
    yield from (("dot", *p, "reduced") for p in pairs(stage) if not c.gpu and can_dot(stage, p))
    yield "rows", None, None, "reduced"
    if own_axes(stage, c.gpu):
        yield "rows", None, None, "kept"


def staged(side: str) -> Values:
    """How operand ``side`` (a or b) may be read, after the axes are chosen."""

    def values(c: Case, i: int, state: Blocks) -> list[str]:
        if state.stage.form == "rows":
            return ["none"]
        return c.once(_modes, i, state.stage, side)

    return values


def _modes(c: Case, i: int, p: Stage, side: str) -> list[str]:
    modes = staging_modes(c.kernel, c.kernel.stages[i], p, side, c.gpu)
    # a product of floats is one instruction, three of digits are many where there are none for them
    return [m for m in modes if m != "digits" or "vnni" in c.target.features]


def _products(c: Case, i: int, lane: str) -> dict[str, Product]:
    return multiplied(c.kernel.stages[i], lane, c.target)


def register_tiles(c: Case, i: int, state: Blocks) -> list[tuple[int, int]]:
    """Register tiles that fit the registers and the axes, and the default one."""
    p, stage, extent = state.stage, c.kernel.stages[i], c.kernel.extent
    if p.form == "rows":
        return [(1, 1)]
    pair, width = (p.rows_axis, p.lane_axis or ""), lanes(c.target, dtype(stage))
    rows = extent[p.rows_axis] if p.rows_axis else 1
    most = -(-extent[pair[1]] // (width if p.form == "contract" else 1))
    known = DOT_TILES if p.form == "dot" else REGISTER_TILES[c.target.registers]
    fit = [t for t in known if t[0] * t[1] + t[1] <= c.target.registers]
    if reads_levels(c.kernel, stage, p):
        return level_tiles(c.kernel, stage, pair, c.target, p.stage_b)
    out = {(min(mr, rows), min(nv, most)) for mr, nv in fit}
    if p.form == "contract":
        base = contraction_stage(c.kernel, stage, pair, c.target)
        out.add((base.mr, base.nv))
    return sorted({*out, *((q.mr, q.nv) for q in _sound(c, i, p))})


def fits(c: Case, i: int, state: Blocks, value: tuple[int, int]) -> bool:
    """Is it one of a contraction, and do panels of levels hold whole ones?"""
    p, stage = state.stage, c.kernel.stages[i]
    if p.form == "rows" or not reads_levels(c.kernel, stage, p):
        return p.form != "rows" or value == (1, 1)
    vectors = panel_vectors(c.kernel.extent[p.lane_axis or ""], lanes(c.target, dtype(stage)))
    return vectors % value[1] == 0


def _sound(c: Case, i: int, p: Stage) -> list[Stage]:
    """The default of this reduction, if it has the form and the axes of ``p``."""
    q = c.default.stages[i]
    same = (p.form, p.rows_axis, p.lane_axis) == (q.form, q.rows_axis, q.lane_axis)
    return [q] if same else []


def fragments(c: Case, i: int, state: Blocks) -> Iterator[tuple[str, tuple[int, int]]]:
    """Those with neither more rows nor more lanes than tiles have."""
    for fragment, count in _units(c, i, state).items():
        for along in (1 << k for k in range(count.bit_length())):
            value = fragment, (count // along, along)
            if along <= ALONG and count // along <= ROWS and deals(c, i, state, value):
                yield value


def _units(c: Case, i: int, state: Blocks) -> dict[str, int]:
    """Threads or warps that share a contraction, by fragment."""
    p = state.stage
    if p.form == "rows":
        return {"simt": 1}
    units = c.once(_products, i, p.lane_axis or "") if p.rows_axis else ()
    assert c.target.gpu
    warps = state.threads // c.target.gpu.warp
    return {"simt": state.threads} | dict.fromkeys(units, warps)


def deals(c: Case, i: int, state: Blocks, value: tuple[str, tuple[int, int]]) -> bool:
    """Does a grid have all threads of the block, or all of its warps? Warpgroups lie along rows,
    and read copies."""
    fragment, (rows, along) = value
    alone = state.stage.rows_axis is None and rows > 1
    if fragment == "wgmma" and (along > 1 or rows % 4 or state.stage.stage_b not in COPIED):
        return False
    return rows * along == _units(c, i, state).get(fragment, 0) and not alone


def streams(c: Case, i: int, state: Blocks) -> list[int]:
    """Accumulators that a row fills, and those of the default."""
    stage = c.kernel.stages[i]
    if not has_streams(c, i, state, 2) or _runs_on(c, stage, state.stage):
        return [1]
    vector = 1 if stage.kind == "wsum" else c.target.lanes
    most = c.kernel.extent[bound_axes(stage)[-1]] // vector
    return sorted({*(n for n in STREAMS if n <= max(1, most)), *_own(c, i, state, "streams")})


def has_streams(c: Case, i: int, state: Blocks, value: int) -> bool:
    """Are there several accumulators in this form at all?"""
    p = state.stage
    along = p.form == "rows" and p.lanes == "reduced"
    return value == 1 or along or c.kernel.stages[i].kind == "wsum"


def _runs_on(c: Case, stage: Expr, p: Stage) -> bool:
    """Do all results follow from one another?"""
    run = running(c.kernel, stage) if p.form == "rows" else None
    return run is not None and not run.last


def _own(c: Case, i: int, state: Blocks, field: str) -> list[Any]:
    return [getattr(p, field) for p in _sound(c, i, state.stage)]


def windows(c: Case, i: int, state: Blocks) -> tuple[bool, ...]:
    """Whether copied windows that overlap may be copied one by one."""
    p, stage = state.stage, c.kernel.stages[i]
    copied = [s for s in "ab" if p.form != "rows" and p.staging(s) in COPIED]
    found = (operand_of(stage, (p.rows_axis, p.lane_axis or ""), s) for s in copied)
    return (True, False)[: 1 + any(has_windows(c.kernel, e) for e in found)]


def panels_outside(c: Case, i: int, state: Blocks) -> list[bool]:
    """Whether panels of lanes may go outside all other axes."""
    return [value for value in (False, True) if is_outside(c, i, state, value)]


def is_outside(c: Case, i: int, state: Blocks, value: bool) -> bool:
    """Outside what is kept beside rows and lanes, or where the default says so."""
    p = state.stage
    beside = c.kernel.stages[i].free - {p.rows_axis, p.lane_axis}
    can = p.form != "rows" and len(beside) > 0
    return not value or can or value in _own(c, i, state, "panels_outside")


def panels_first(c: Case, i: int, state: Blocks) -> list[bool]:
    """Whether panels of lanes may go outside those of rows."""
    return [value for value in (True, False) if is_first(c, i, state, value)]


def is_first(c: Case, i: int, state: Blocks, value: bool) -> bool:
    """Of lanes, or of rows where the order of two loops is left to say."""
    two = state.stage.rows_axis is not None and not state.stage.panels_outside
    return value or two or value in _own(c, i, state, "panels_first")


def places(side: str) -> Values:
    """Where the copy of operand ``side`` (a or b) may lie in a block of a GPU."""

    def values(_: Case, __: int, state: Blocks) -> tuple[str, ...]:
        return ("shared", "register")[: 1 + (state.stage.staging(side) in COPIED)]

    return values


def settled(c: Case, i: int, state: Blocks, value: tuple[Any, Any]) -> Blocks:
    """What tiles must obey from now on, by a register tile, or a fragment and its grid."""
    fragment, mr, nv = (value[0], 1, 1) if c.gpu else ("simt", *value)
    units, limits = c.once(_obeyed, i, state.stage, fragment, mr, nv)
    every = tuple(sorted({*state.limits, *limits})) if limits else state.limits
    return Blocks(state.stage, c.joint(state.units, units), every, state.threads)


def _obeyed(c: Case, i: int, p: Stage, fragment: str, mr: int, nv: int) -> tuple[Units, Limits]:
    """The multiples and the limits of tiles that a reduction asks for."""
    stage, own = c.kernel.stages[i], dict[str | None, int]()
    if unit := c.once(_products, i, p.lane_axis or "").get(fragment):
        own = dict.fromkeys(bound_axes(stage)[:1], unit.shape[2])
    p = replace(p, mr=mr, nv=nv)
    units = tuple(max(own.get(a, 1), unit_of(c.kernel, stage, p, a, c.target)) for a in c.axes)
    copied = [side for side in "ab" if p.staging(side) in COPIED]
    return units, tuple({limit for side in copied for limit in _copied(c, stage, p, side)})


def _copied(c: Case, stage: Expr, p: Stage, side: str) -> Limits:
    """The limit of a copy of an operand, if it can be too large."""
    operand = operand_of(stage, (p.rows_axis, p.lane_axis or ""), side)
    axes = tuple(a for a in c.axes if a in operand.free)
    extent, now = c.kernel.extent, c.default.tile
    most = c.target.l1 // 4 if c.gpu else COPIES * c.target.l2 // 4  # elements
    room = max(most.bit_length() - 1, sum(bits(now.get(a, extent[a])) for a in axes))
    return ((axes, room),) if sum(bits(extent[a]) for a in axes) > room else ()


def ended(_: Case, __: int, state: Blocks, ___: Any) -> Blocks:
    """The state before the next reduction."""
    return state._replace(stage=Stage())


# ---- in words

STAGED = {
    "none": "read in place",
    "inner": "copied beside the contraction",
    "hoist": "packed once the loops of its axes have started",
    "link": "packed when the program is linked",
    "narrow": "packed as it is stored, when the program is linked",
    "integers": "packed as it is stored, when the program is linked, and multiplied as integers",
    "digits": "packed as it is stored, when the program is linked, and multiplied by digits",
}


def says_form(p: Stage) -> str:
    """The form of a walk in words; nothing for contractions."""
    along = "the reduced axis" if p.lanes == "reduced" else "the last kept axis"
    return f"one result at a time, lanes along {along}" if p.form == "rows" else ""


def says_tile(p: Stage) -> str:
    """The register tile of a contraction in words."""
    rows = f"{p.mr} rows of {p.rows_axis}" if p.rows_axis else "one row"
    along = p.lane_axis if p.form == "contract" else "the reduced axis"
    tile = f"register tile of {rows} by {p.nv} vectors along {along}"
    return "" if p.form == "rows" else tile


def says_fragment(p: Stage) -> str:
    """Who shares the tile of a contraction, in words."""
    who = "threads" if p.fragment == "simt" else f"warps ({p.fragment})"
    grid = f"{p.grid[0]} x {p.grid[1]} {who} along {p.rows_axis} and {p.lane_axis}"
    return "" if p.form == "rows" else grid


def says_staged(side: str) -> Callable[[Stage], str]:
    """How operand ``side`` (a or b) is read, in words."""
    return lambda p: "" if p.form == "rows" else f"{side} {STAGED[p.staging(side)]}"
