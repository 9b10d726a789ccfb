"""The schedule space of a kernel on a GPU: the same choices, and those of the threads of a block.

How many threads a block has is chosen first, as every contraction must deal its tile to all of
them. Then contractions have a fragment and a grid of threads or warps instead of a register tile,
and a memory for each staged operand. What a block can hold is only known when its program is
distributed: some of these schedules are refused then, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from lumc.graph.expr import bound_axes
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.schedule.first_blocks import LEAST, guesses
from lumc.schedule.fragment import multiplied
from lumc.schedule.operands import pairs
from lumc.schedule.schedule import Schedule, Stage, Threads
from lumc.schedule.space import END, Grammar, Name, State

COUNTS = (32, 64, 128, 256, 512, 1024)  # threads of a block
SHARED = {  # how the threads of a block may share what is outside of contractions
    "row": (LEAST, 8, 16, 32, 64, 128, 256, 1024),
    "vector": (1, 2, 4, 8),
    "ring": (1, 2, 3, 4),
    "pad": (0, 16),
    "resident": (1, 2, 3, 4),
}
PLACES = ("shared", "register")
ROWS, ALONG = 64, 32  # threads or warps along the rows and the lanes, at most


class BlockGrammar(Grammar):
    """The choices of one kernel on one GPU."""

    head = (("threads", None),)

    def _default(self) -> Schedule:
        return next(guesses(self.kernel, self.target))

    def _free(self) -> list[Name]:
        return [("flag", "keep"), *(("share", f) for f in SHARED)]

    def _start(self, threads: int) -> State:
        return super()._start(threads) if threads else None

    def values(self, schedule: Schedule) -> dict[Name, Any]:
        assert schedule.threads
        share = {("share", f): getattr(schedule.threads, f) for f in SHARED}
        return super().values(schedule) | share | {("threads", None): schedule.threads.count}

    def _stage_values(self, p: Stage) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return (p.fragment, p.grid), (p.window, p.place_a, p.place_b)

    def _whole(self, got: Mapping[Name, Any]) -> dict[str, Any]:
        threads = Threads(got["threads", None], **{f: got["share", f] for f in SHARED})
        off = {"fuse_rows": False, "transpose": False, "skew": False}
        return {"keep": got["flag", "keep"], "threads": threads, **off}

    def _stage(self, got: Mapping[Name, Any], i: int) -> Stage:
        form, rows, lane, _ = got["axes", i]
        (fragment, grid), (window, a, b) = got["registers", i], got["flags", i]
        staged = {"stage_a": got["a", i], "stage_b": got["b", i], "place_a": a, "place_b": b}
        return Stage(form, rows, lane, fragment=fragment, grid=grid, window=window, **staged)

    # ---- the choices

    def _threads(self, _: None, state: Any) -> Iterator[tuple[Any, State]]:
        yield from ((n, self._start(n) if self.axes else END) for n in COUNTS)

    def _axes(self, i: int, state: Any) -> Iterator[tuple[Any, State]]:
        stage = self.kernel.stages[i]
        for p in [*(Stage("contract", *pair) for pair in pairs(stage)), Stage()]:
            yield (p.form, p.rows_axis, p.lane_axis, p.lanes), (p, *state[1:])

    def _staged(self, i: int, state: Any, side: str) -> Iterator[tuple[Any, State]]:
        for mode, after in super()._staged(i, state, side):
            if mode in ("none", "inner", "hoist"):  # blocks read tensors as they are
                yield mode, after

    def _room(self) -> int:
        return self.target.l1 // 4

    def _registers(self, i: int, state: Any) -> Iterator[tuple[Any, State]]:
        p, units, limits, threads = state
        if p.form == "rows":
            yield (p.fragment, p.grid), (p, units, limits, threads)
            return
        stage = self.kernel.stages[i]
        product = multiplied(stage, p.lane_axis or "", self.target) if p.rows_axis else None
        forms = {"simt": 1} | ({product.fragment: product.shape[2]} if product else {})
        for fragment, steps in forms.items():
            own = dict.fromkeys(bound_axes(stage)[:1], steps)
            units_of = threads if fragment == "simt" else threads // 32
            joint = self._joint(units, tuple(own.get(a, 1) for a in self.axes))
            for along in (1 << k for k in range(units_of.bit_length())):
                rows = units_of // along
                if along <= ALONG and rows <= ROWS and (p.rows_axis or rows == 1):
                    after = replace(p, fragment=fragment, grid=(rows, along))
                    yield (fragment, (rows, along)), (after, joint, limits, threads)

    def _flags(self, i: int, state: Any) -> Iterator[tuple[Any, State]]:
        p, *rest = state
        a, b = (PLACES if m in ("inner", "hoist") else PLACES[:1] for m in (p.stage_a, p.stage_b))
        windows = (True,) if p.form == "rows" else (True, False)
        for window in windows:
            yield from (((window, x, y), (None, *rest)) for x in a for y in b)

    def _parts(self, _: None, state: Any) -> Iterator[tuple[Any, State]]:
        yield 0, END

    def _share(self, name: str, state: Any) -> Iterator[tuple[Any, State]]:
        yield from ((n, END) for n in SHARED[name])


def space_of(kernel: Kernel, target: Target) -> Grammar:
    """The schedules of a kernel on the kind of machine that a target is."""
    return (BlockGrammar if target.gpu else Grammar)(kernel, target)
