"""The choices of a schedule, a row each: the fields that hold it and the values that it may take.

The rows stand in the order in which choices are made. What a row offers depends on earlier ones
only through a small state. Only legal values are offered:

* registers: the accumulators of a register tile and one row of b
* whole panels: a tile holds whole register tiles of every operand that is packed outside its loop
* caches: the part of an operand that is copied at run time is not beyond ``COPIES`` second caches
* roots: only axes that every root has are distributed

What the threads of a block of a GPU can hold is only known when its program is distributed: some
of these schedules are refused then, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

from lumc.graph.expr import Expr, bound_axes
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, dtype
from lumc.schedule.case import END, Blocks, Case, Choice, Limits, Loops, Values, Words, spread
from lumc.schedule.first import contraction_stage
from lumc.schedule.fragment import multiplied
from lumc.schedule.legal import own_axes, skewable, streamable, unit_of
from lumc.schedule.operands import can_dot, from_memory, lanes, operand_of, pairs, staging_modes
from lumc.schedule.registers import DOT_TILES, REGISTER_TILES
from lumc.schedule.schedule import Schedule, Stage

STREAMS = (1, 2, 4, 8)
COPIES = 16
BLOCKS = (32, 64, 128, 256, 512, 1024)  # threads of a block
PLACES = ("shared", "register")
ROWS, ALONG = 64, 32  # threads or warps along the rows and the lanes, at most

# ---- of a reduction


def _axes(c: Case, i: int, _: Blocks) -> Iterator[tuple[Any, ...]]:
    stage, cpu = c.kernel.stages[i], not c.target.gpu
    yield from (("contract", *pair, "reduced") for pair in pairs(stage))
    yield from (("dot", *p, "reduced") for p in pairs(stage) if cpu and can_dot(stage, p))
    yield "rows", None, None, "reduced"
    if cpu and own_axes(stage, False) & set(c.kernel.axes):
        yield "rows", None, None, "kept"


def _staged(side: str) -> Values:
    def values(c: Case, i: int, state: Blocks) -> Iterable[str]:
        if state.stage.form == "rows":
            return ["none"]
        modes = staging_modes(c.kernel, c.kernel.stages[i], state.stage, side)
        return [m for m in modes if not c.target.gpu or m in ("none", "inner", "hoist")]

    return values


def _registers(c: Case, i: int, state: Blocks) -> Iterator[tuple[int, int, bool]]:
    """Register tiles that fit the registers and the axes, and the default one."""
    p, stage, sound, extent = state.stage, c.kernel.stages[i], c.default.stages[i], c.kernel.extent
    if p.form == "rows":
        yield 1, 1, False
        return
    pair, width = (p.rows_axis, p.lane_axis or ""), lanes(c.target, dtype(stage))
    rows = extent[p.rows_axis] if p.rows_axis else 1
    most = -(-extent[pair[1]] // (width if p.form == "contract" else 1))
    known = DOT_TILES if p.form == "dot" else REGISTER_TILES[c.target.registers]
    fit = [t for t in known if t[0] * t[1] + t[1] <= c.target.registers]
    out = {(min(mr, rows), min(nv, most)) for mr, nv in fit}
    if p.form == "contract":
        base = contraction_stage(c.kernel, stage, pair, c.target)
        out.add((base.mr, base.nv))
    if (sound.form, sound.rows_axis, sound.lane_axis) == (p.form, *pair):
        out.add((sound.mr, sound.nv))
    for mr, nv in sorted(out):
        yield mr, nv, False
        packed = p.form == "contract" and nv > 1
        if packed and from_memory(mr, nv, width * dtype(stage).nbytes):
            yield mr, nv, True


def _fragments(c: Case, i: int, state: Blocks) -> Iterator[tuple[str, tuple[int, int]]]:
    p, stage = state.stage, c.kernel.stages[i]
    if p.form == "rows":
        yield p.fragment, p.grid
        return
    unit = multiplied(stage, p.lane_axis or "", c.target) if p.rows_axis else None
    for fragment in ("simt", *([unit.fragment] if unit else [])):
        count = state.threads if fragment == "simt" else state.threads // 32
        for along in (1 << k for k in range(count.bit_length())):
            rows = count // along
            if along <= ALONG and rows <= ROWS and (p.rows_axis or rows == 1):
                yield fragment, (rows, along)


def _flags(c: Case, i: int, state: Blocks) -> Iterator[tuple[Any, ...]]:
    p, base = state.stage, Stage()
    many = c.kernel.stages[i].kind == "wsum" or (p.form == "rows" and p.lanes == "reduced")
    every = [t[::-1] for t in product((False, True), repeat=3)]
    if p.form == "rows":
        every = [(base.window, base.panels_first, base.panels_outside)]
    yield from ((n, *flags) for n in STREAMS[: len(STREAMS) if many else 1] for flags in every)


def _places(_: Case, __: int, state: Blocks) -> Iterator[tuple[Any, ...]]:
    p = state.stage
    a, b = (PLACES if m in ("inner", "hoist") else PLACES[:1] for m in (p.stage_a, p.stage_b))
    yield from product((True,) if p.form == "rows" else (True, False), a, b)


def _settled(c: Case, i: int, state: Blocks, _: Any) -> Blocks:
    """What tiles must obey from now on; of the stage only what is still asked for."""
    p, stage, own = state.stage, c.kernel.stages[i], dict[str | None, int]()
    if p.fragment != "simt":
        unit = multiplied(stage, p.lane_axis or "", c.target)
        own = dict.fromkeys(bound_axes(stage)[:1], unit.shape[2] if unit else 1)
    units = tuple(max(own.get(a, 1), unit_of(stage, p, a, c.target)) for a in c.axes)
    copied = [side for side in "ab" if p.staging(side) in ("inner", "hoist")]
    limits = {limit for side in copied for limit in _copied(c, stage, p, side)}
    rest = Stage(p.form, stage_a=p.stage_a, stage_b=p.stage_b, lanes=p.lanes)
    every = tuple(sorted({*state.limits, *limits}))
    return Blocks(rest, c.joint(state.units, units), every, state.threads)


def _copied(c: Case, stage: Expr, p: Stage, side: str) -> Limits:
    """The limit of a copy of an operand, if it can be too large."""
    operand = operand_of(stage, (p.rows_axis, p.lane_axis or ""), side)
    axes = tuple(a for a in c.axes if a in operand.free)
    extent, now = c.kernel.extent, c.default.tile
    most = c.target.l1 // 4 if c.target.gpu else COPIES * c.target.l2 // 4  # elements
    room = max(most.bit_length() - 1, sum(_bits(now.get(a, extent[a])) for a in axes))
    return ((axes, room),) if sum(_bits(extent[a]) for a in axes) > room else ()


def _bits(n: int) -> int:
    return (n - 1).bit_length()


def _ended(_: Case, __: int, state: Blocks, ___: Any) -> Blocks:
    return state._replace(stage=Stage())


# ---- of an axis, of the loops, of a block of threads, of the kernel


def _tiles(c: Case, axis: str, state: Blocks) -> Iterator[int]:
    for n in c.sizes(axis, state.units[0]):
        if all(room >= _bits(n) * (axis in axes) for axes, room in state.limits):
            yield n


def _tiled(c: Case, axis: str, state: Blocks, n: int) -> Any:
    units = state.units[1:]
    rest = c.axes[-len(units) :] if units else ()
    left = [(axes, room - _bits(n) * (axis in axes)) for axes, room in state.limits]
    extent = c.kernel.extent
    limits = [(x, r) for x, r in left if sum(_bits(extent[a]) for a in x if a in rest) > r]
    return Blocks(Stage(), units, tuple(limits), state.threads) if rest else END


def _nested(c: Case, _: int, state: Loops, axis: str) -> Loops:
    on = state.leading and axis in c.shared
    return Loops(tuple(a for a in state.left if a != axis), state.dealt + on, on)


def _depths(_: Case, __: None, state: Loops) -> range:
    return range(state.dealt + 1)


def _left(_: Case, __: int, state: Loops) -> tuple[str, ...]:
    return state.left


def _dealt(_: Case, __: None, ___: Loops, loops: int) -> bool:
    return loops > 0


def _parts(c: Case, _: None, dealt: bool) -> tuple[int, ...]:
    """Waking fewer threads may be faster; one part is what no distributed loop makes."""
    threads = c.target.threads if dealt and not c.target.gpu else 0
    return 0, *(2**i for i in range(1, 11) if 2**i < threads)


def _one_of(*values: Any) -> Values:
    return lambda _, __, ___: values


def _if(applies: Callable[[Kernel], bool]) -> Values:
    return lambda c, _, __: (False, True)[: 1 + applies(c.kernel)]


def _can_stream(kernel: Kernel) -> bool:
    return any(streamable(kernel, r) for r in kernel.roots)


def _begun(c: Case, _: None, __: Any, threads: int) -> Any:
    return c.start(threads) if c.axes else END


# ---- in words

STAGED = {
    "none": "read in place",
    "inner": "copied beside the contraction",
    "hoist": "copied as soon as its axes are open",
    "link": "packed when the program is linked",
    "narrow": "packed as it is stored, when the program is linked",
}


def _says_form(p: Stage) -> str:
    along = "the reduced axis" if p.lanes == "reduced" else "the last kept axis"
    return f"one result at a time, lanes along {along}" if p.form == "rows" else ""


def _says_tile(p: Stage) -> str:
    rows = f"{p.mr} rows of {p.rows_axis}" if p.rows_axis else "one row"
    along = p.lane_axis if p.form == "contract" else "the reduced axis"
    loaded = ", elements of a loaded once" if p.broadcast else ""
    tile = f"register tile of {rows} by {p.nv} vectors along {along}{loaded}"
    return "" if p.form == "rows" else tile


def _says_fragment(p: Stage) -> str:
    who = "threads" if p.fragment == "simt" else f"warps ({p.fragment})"
    grid = f"{p.grid[0]} x {p.grid[1]} {who} along {p.rows_axis} and {p.lane_axis}"
    return "" if p.form == "rows" else grid


def _says_staged(side: str) -> Callable[[Stage], str]:
    return lambda p: "" if p.form == "rows" else f"{side} {STAGED[p.staging(side)]}"


def _says_walk(p: Stage) -> str:
    streams = f"{p.streams} accumulators" if p.streams > 1 else ""
    window = "" if p.window else "windows copied one by one"
    first = "" if p.panels_first else "panels of rows outside those of lanes"
    outside = "panels of lanes outside the other axes" if p.panels_outside else ""
    return "; ".join(filter(None, (streams, window, first, outside)))


def _says_places(p: Stage) -> str:
    window = "" if p.window else "windows copied one by one"
    held = (f"{s} in registers" for s, m in (("a", p.place_a), ("b", p.place_b)) if m == "register")
    return "; ".join(filter(None, (window, *held)))


def _said(field: str, text: str, usual: Any = None) -> Callable[[Any], str]:
    """These words where a field is not as usual."""
    return lambda r: "" if getattr(r, field) == usual else text.format(getattr(r, field))


# ---- the rows

CPU, GPU = ("cpu",), ("gpu",)


def _reduction(name: str, *fields: str, values: Values, words: Words, **more: Any) -> Choice:
    return Choice(name, "reduction", fields, values, words=words, **more)


def _switch(field: str, text: str, values: Values = _one_of(False, True), **more: Any) -> Choice:
    """Of the whole kernel; the text is said where it is not as by default."""
    usual = getattr(Schedule((), 0), field)
    return Choice(field, "kernel", (field,), values, words=_said(field, text, usual), **more)


def _shared(field: str, text: str, usual: int, *values: int) -> Choice:
    """How the threads of a block share what is outside of contractions."""
    words = _said(field, text, usual)
    return Choice(field, "threads", (field,), _one_of(*values), machines=GPU, words=words)


CHOICES = (
    Choice(
        *("threads", "block", ("count",), _one_of(*BLOCKS), _begun, GPU),
        words=_said("count", "{} threads in a block"),
    ),
    _reduction(
        *("axes", "form", "rows_axis", "lane_axis", "lanes"),
        values=_axes,
        words=_says_form,
        steps="structures",
    ),
    _reduction("b", "stage_b", values=_staged("b"), words=_says_staged("b")),
    _reduction("a", "stage_a", values=_staged("a"), words=_says_staged("a")),
    _reduction(
        *("registers", "mr", "nv", "broadcast"),
        values=_registers,
        after=_settled,
        machines=CPU,
        words=_says_tile,
    ),
    _reduction(
        *("fragment", "fragment", "grid"),
        values=_fragments,
        after=_settled,
        machines=GPU,
        words=_says_fragment,
    ),
    _reduction(
        *("walk", "streams", "window", "panels_first", "panels_outside"),
        values=_flags,
        after=_ended,
        machines=CPU,
        words=_says_walk,
    ),
    _reduction(
        *("places", "window", "place_a", "place_b"),
        values=_places,
        after=_ended,
        machines=GPU,
        words=_says_places,
    ),
    Choice("tile", "axis", ("tile",), _tiles, _tiled, steps="near"),
    Choice("order", "loop", ("order",), _left, _nested, steps="swaps"),
    Choice("parallel", "nest", ("parallel",), _depths, _dealt),
    Choice("parts", "nest", ("parts",), _parts, words=_said("parts", "at most {} parts", 0)),
    _switch("keep", "what is read again is computed again"),
    _switch("fuse_rows", "no rows are fused", machines=CPU, idle=False),
    _switch("transpose", "nothing is turned in registers", machines=CPU, idle=False),
    _switch("stream", "results go around the caches", _if(_can_stream), machines=CPU),
    _switch("skew", "walks over a row go side by side", _if(skewable), machines=CPU),
    _switch("prefetch", "what later rows read is fetched ahead", machines=CPU),
    _shared("row", "{} along a row", 0, 4, 8, 16, 32, 64, 128, 256, 1024),
    _shared("vector", "{} elements moved at once", 1, 1, 2, 4, 8),
    _shared("ring", "copies {} tiles deep", 1, 1, 2, 3, 4),
    _shared("pad", "no bytes between rows of tiles", 16, 0, 16),
    _shared("resident", "{} blocks on a processor", 1, 1, 2, 3, 4),
)


def choices_of(target: Target) -> tuple[Choice, ...]:
    """The rows of the kind of machine that a target is."""
    return choices_on(target.gpu is not None)


def choices_on(gpu: bool) -> tuple[Choice, ...]:
    return tuple(row for row in CHOICES if ("gpu" if gpu else "cpu") in row.machines)


def off(target: Target) -> dict[str, Any]:
    """The fields of a schedule that no row fills on a target, where they are not the default."""
    here = {row.name for row in choices_of(target)}
    idle = (row for row in CHOICES if row.idle is not None and row.name not in here)
    return {f: v for row in idle for f, v in spread(row.fields, row.idle).items()}
