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

from collections.abc import Callable, Iterator
from typing import Any

from lumc.kernel.term import Kernel
from lumc.schedule.applies import (
    fetchable,
    fusable,
    grain,
    keepable,
    shared_prefix,
    skewable,
    streamable,
    turnable,
)
from lumc.schedule.case import END, Blocks, Case, Choice, Loops, Values, bits, spread
from lumc.schedule.levels import AS_LEVELS
from lumc.schedule.of_cuda import maps, of_cuda
from lumc.schedule.reductions import (
    deals,
    ended,
    fits,
    forms,
    fragments,
    has_streams,
    is_first,
    is_outside,
    panels_first,
    panels_outside,
    places,
    register_tiles,
    says_form,
    says_fragment,
    says_staged,
    says_tile,
    settled,
    staged,
    streams,
    windows,
)
from lumc.schedule.schedule import Schedule, Stage

ALONG_ROWS = (4, 8, 16, 32, 64, 128, 256, 1024)  # of them

# ---- of an axis, of the loops, of a block of threads, of the kernel


def _tiles(c: Case, axis: str, state: Blocks) -> Iterator[int]:
    for n in c.sizes(axis, state.units[0]):
        if all(room >= bits(n) * (axis in axes) for axes, room in state.limits):
            yield n


def _tiled(c: Case, axis: str, state: Blocks, n: int) -> Any:
    units = state.units[1:]
    rest = c.axes[-len(units) :] if units else ()
    left = [(axes, room - bits(n) * (axis in axes)) for axes, room in state.limits]
    extent = c.kernel.extent
    limits = [(x, r) for x, r in left if sum(bits(extent[a]) for a in x if a in rest) > r]
    return Blocks(Stage(), units, tuple(limits), state.threads) if rest else END


def _unrolls(_: Case, __: int, state: Blocks) -> tuple[bool, ...]:
    return (False, True)[: 1 + (state.stage.form == "contract")]


def _fetches(_: Case, __: int, state: Blocks) -> tuple[bool, ...]:
    p = state.stage
    return (False, True)[: 1 + (p.form == "contract" and p.stage_b in ("link", *AS_LEVELS))]


def _is_whole(c: Case, axis: str, s: Schedule, n: int) -> bool:
    return n >= c.kernel.extent[axis] or n % grain(c.kernel, s.stages, axis, c.target) == 0


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
    threads = c.target.threads if dealt and not c.gpu else 0
    return 0, *(2**i for i in range(1, 11) if 2**i < threads)


def _one_of(*values: Any) -> Values:
    return lambda _, __, ___: values


def _can_stream(kernel: Kernel) -> bool:
    return any(streamable(kernel, r) for r in kernel.roots)


def _begun(c: Case, _: None, __: Any, threads: int) -> Any:
    return c.start(threads)


def _rows(c: Case, _: None, state: Blocks) -> list[int]:
    """What walks over rows ask for; without reductions that of the default."""
    assert c.default.threads
    own, most = c.default.threads.row, state.threads
    return sorted({min(own, most), *(n for n in ALONG_ROWS if c.kernel.stages and n <= most)})


def _placed(c: Case, _: None, state: Blocks, __: int) -> Any:
    return state if c.axes else END


def _said(field: str, text: str, usual: Any = None) -> Callable[[Any], str]:
    """These words where a field is not as usual."""
    return lambda r: "" if getattr(r, field) == usual else text.format(getattr(r, field))


# ---- the rows

CPU, GPU = ("cpu",), ("gpu",)
Applies = Callable[[Kernel], bool]


def _any(_: Case, __: Any, ___: Any, ____: Any) -> bool:
    return True


def _reduction(field: str, words: str, values: Values, law: str, **more: Any) -> Choice:
    """A row of one field of a reduction."""
    says = _said(field, words, getattr(Stage(), field))
    return Choice(field, "reduction", (field,), values, words=says, law=law, **more)


def _switch(field: str, words: str, applies: Applies, law: str, **more: Any) -> Choice:
    """Of the whole kernel; the words are said where it is not as by default."""
    usual = getattr(Schedule((), 0), field)

    def values(c: Case, _: Any, __: Any) -> tuple[bool, ...]:
        return (usual, not usual)[: 1 + legal(c, None, None, not usual)]

    def legal(c: Case, _: Any, __: Any, value: bool) -> bool:
        return value == usual or applies(c.kernel) or value == getattr(c.default, field)

    says = _said(field, words, usual)
    return Choice(field, "kernel", (field,), values, words=says, legal=legal, law=law, **more)


def _shared(field: str, words: str, usual: int, values: Values, **more: Any) -> Choice:
    """How the threads of a block share what is outside of contractions."""
    says = _said(field, words, usual)
    return Choice(field, "threads", (field,), values, machines=GPU, words=says, **more)


CHOICES = (
    Choice(
        *("threads", "block", ("count",), lambda c, _, __: c.blocks, _begun, GPU),
        words=_said("count", "{} threads in a block"),
        legal=lambda c, _, __, n: n >= c.blocks[0],
        law="of a warp at least",
    ),
    Choice(
        *("row", "block", ("row",), _rows, _placed, GPU),
        words=_said("row", "{} along a row"),
        legal=lambda _, __, s, n: n <= s.threads.count,
        law="at most the threads of the block",
        moot="contractions deal everything, or a row is shorter",
    ),
    Choice(
        *("axes", "reduction", ("form", "rows_axis", "lane_axis", "lanes"), forms),
        steps="structures",
        words=says_form,
        law="a walk over rows, or the rows and the lanes of a contraction",
        moot="threads walk as those do who made what they read",
    ),
    Choice(
        *("b", "reduction", ("stage_b",), staged("b")),
        words=says_staged("b"),
        law="how its axes, its dtype and the machine let it be read",
        moot="no loop lies between two places to copy it",
    ),
    Choice(
        *("a", "reduction", ("stage_a",), staged("a")),
        words=says_staged("a"),
        law="how its axes, its dtype and the machine let it be read",
        moot="no loop lies between two places to copy it",
    ),
    Choice(
        *("registers", "reduction", ("mr", "nv"), register_tiles, settled, CPU),
        asked=False,
        words=says_tile,
        legal=fits,
        law="the register tile of a contraction, of levels in whole parts of a panel",
    ),
    Choice(
        *("fragment", "reduction", ("fragment", "grid"), fragments, settled, GPU),
        asked=False,
        words=says_fragment,
        legal=deals,
        law="all threads of the block, or its warps where matrix units multiply these operands",
    ),
    _reduction(
        *("streams", "{} accumulators", streams),
        "of walks along reduced axes",
        asked=False,
        machines=CPU,
        legal=has_streams,
        moot="the range is short or uneven, or another sum with these weights has more",
    ),
    _reduction(
        *("window", "windows copied one by one", windows),
        "of copied operands with windows that overlap",
        asked=False,
        legal=lambda c, i, state, value: value or False in windows(c, i, state),
        moot="tiles hold one window, or a copy of windows could not be read",
    ),
    _reduction(
        *("panels_outside", "panels of lanes outside all other axes", panels_outside),
        "of contractions that keep more axes",
        machines=CPU,
        legal=is_outside,
        moot="rows and lanes are all that is kept",
    ),
    _reduction(
        *("unroll", "short steps written out", _unrolls),
        "of contractions",
        asked=False,
        machines=CPU,
        moot="steps are long, or no register tile is small",
    ),
    _reduction(
        *("next_panel", "the next panel of b fetched meanwhile", _fetches),
        "of contractions whose b is packed at link time",
        asked=False,
        machines=CPU,
        moot="there is one panel, or one call for each",
    ),
    _reduction(
        *("panels_first", "panels of rows outside those of lanes", panels_first),
        "of contractions with rows, where panels of lanes are not outside all other axes",
        after=ended,
        machines=CPU,
        legal=is_first,
        moot="panels of lanes are outside all others",
    ),
    _reduction(
        *("place_a", "a in registers", places("a")),
        "of operands that are copied",
        asked=False,
        machines=GPU,
        moot="its owners are not those who read it",
    ),
    _reduction(
        *("place_b", "b in registers", places("b")),
        "of operands that are copied",
        after=ended,
        machines=GPU,
        moot="its owners are not those who read it",
    ),
    Choice(
        *("tile", "axis", ("tile",), _tiles, _tiled),
        steps="near",
        legal=lambda c, a, s, n: (
            n >= c.kernel.extent[a] or n % grain(c.kernel, s.stages, a, c.target) == 0
        ),
        law="whole panels",
    ),
    Choice(
        *("order", "loop", ("order",), _left, _nested),
        steps="swaps",
        legal=_any,
        moot="an axis is whole",
    ),
    Choice(
        *("parallel", "nest", ("parallel",), _depths, _dealt),
        legal=lambda c, _, s, n: n <= shared_prefix(c.kernel, s.order),
        law="leading loops over axes that every root has",
        moot="an axis is whole",
    ),
    Choice(
        *("parts", "nest", ("parts",), _parts),
        words=_said("parts", "at most {} parts", 0),
        legal=lambda c, _, s, n: n == 0 or (s.parallel > 0 and not c.gpu),
        law="of distributed loops, on a CPU",
    ),
    _switch(
        *("keep", "what is read again is computed again", keepable),
        "of what is expensive and read along two axes",
        moot="the reduction is cut, or no walk over rows",
    ),
    _switch(
        *("fuse_rows", "no rows are fused", fusable),
        "of reductions with something beside them",
        machines=CPU,
        idle=False,
        moot="what is side by side shares no axis",
    ),
    _switch(
        *("transpose", "nothing is turned in registers", turnable),
        "of four bytes that are read across the axis along which they lie",
        machines=CPU,
        idle=False,
        moot="tiles are short, or no operand is copied along the other axis",
    ),
    _switch(
        *("stream", "results go around the caches", _can_stream),
        "of long rows of results that are not summed in place",
        machines=CPU,
        early=True,
        moot="tiles are short, or results are turned",
    ),
    _switch(
        *("skew", "walks over a row go side by side", skewable),
        "of rows of 256 elements or more that are reduced, but not contracted, along one axis",
        machines=CPU,
        early=True,
        moot="rows are cut, not fused, or alone",
    ),
    _switch(
        *("prefetch", "what later rows read is fetched ahead", fetchable),
        "of arguments with long rows",
        machines=CPU,
        early=True,
        moot="tiles are short, there is no later row, or another operation reads it first",
    ),
    _shared(
        *("vector", "{} elements moved at once", 1, _one_of(1, 2, 4, 8, 16)),
        legal=_any,
        moot="elements that lie side by side are fewer",
    ),
    _shared(
        *("ring", "copies {} tiles deep", 1),
        **of_cuda(lambda c: c.copies),
        law="of asynchronous copies, which CUDA has",
        moot="no copy in a loop moves whole vectors",
    ),
    _shared(
        *("bulk", "whole tiles copied by tensor maps, each for {} blocks", 0, maps),
        law="of Hopper: what warpgroups read, in rings; for two blocks where they read the same",
        moot="no copy in a ring is a box of a buffer",
    ),
    _shared(
        *("pad", "{} bytes between rows of tiles", 16, _one_of(0, 16)),
        legal=_any,
        moot="no tile has rows to pad",
    ),
    _shared(
        *("resident", "{} blocks on a processor", 1),
        **of_cuda(lambda _: True),
        law="CUDA can be asked for it",
    ),
)


def choices_on(gpu: bool) -> tuple[Choice, ...]:
    """The rows of a kind of machine."""
    return tuple(row for row in CHOICES if ("gpu" if gpu else "cpu") in row.machines)


def off(gpu: bool) -> dict[str, Any]:
    """The fields of a schedule that no row fills on a machine, where they are not the default."""
    idle = (row for row in absent(gpu) if row.idle is not None)
    return {f: v for row in idle for f, v in spread(row.fields, row.idle).items()}


def absent(gpu: bool) -> tuple[Choice, ...]:
    """The rows whose fields no row fills on a kind of machine."""
    here = {f for row in choices_on(gpu) for f in row.fields}
    return tuple(row for row in CHOICES if not here & {*row.fields})
