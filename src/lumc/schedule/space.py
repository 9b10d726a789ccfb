"""The schedule space of a kernel as a product of choices, with its exact size.

A schedule is a path of choices in a fixed order: of every reduction its axes, the staging of its
operands, its register tile and its flags; then a tile of every axis; the order of the loops, how
many are distributed, and the flags of the whole. What a choice allows depends on earlier ones only
through a small state, so the schedules below a state are counted once for all paths that lead to
it. Only legal schedules are in the space:

* registers: the accumulators of a register tile and one row of b
* whole panels: a tile holds whole register tiles of every operand that is packed outside its loop
* caches: the part of an operand that is copied at run time is not beyond ``COPIES`` second caches
* roots: only axes that every root has are distributed
"""

from __future__ import annotations

import random
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from itertools import accumulate
from math import lcm, prod
from typing import Any

from lumc.graph.expr import Expr
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, dtype
from lumc.schedule.first import contraction_stage, default_schedule
from lumc.schedule.legal import own_axes, shared_prefix, skewable, streamable
from lumc.schedule.operands import can_dot, from_memory, lanes, operand_of, pairs, staging_modes
from lumc.schedule.registers import DOT_TILES, REGISTER_TILES
from lumc.schedule.schedule import Schedule, Stage

# tiles: also those of whole register tiles of 6, 12, 14, .. rows and 3 vectors
SIZES = tuple(odd << i for odd in (1, 3, 7) for i in range(13))
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)  # tiles of an axis that are equal, as far as possible
STREAMS = (1, 2, 4, 8)
COPIES = 16
FLAGS = tuple(f.name for f in fields(Schedule) if type(f.default) is bool)
STAGE_FLAGS = ("window", "panels_first", "panels_outside")  # broadcast belongs to the tile
PARTS = ("axes", "b", "a", "registers", "flags")  # what is chosen of every reduction
END: State = ()  # nothing that follows depends on what came before

Name = tuple[str, Any]  # what is chosen, and of which stage, position or axis
Path = tuple[Any, ...]  # a value per choice
State = Any  # hashable: what the choices that follow depend on
Units = tuple[int, ...]  # per axis: its tile is a multiple of
Limits = tuple[tuple[tuple[str, ...], int], ...]  # axes of a copy, and the bits that are left


class Grammar:
    """The choices of one kernel on one target."""

    head: tuple[Name, ...] = ()  # choices that those of all reductions depend on

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.kernel, self.target = normalize(kernel), target
        self.default = self._default()
        self.axes, k = tuple(self.kernel.extent), self.kernel
        self.shared = {a for a in k.axes if shared_prefix(k, (a,))}
        block = [*self.head, *((part, i) for i in range(len(k.stages)) for part in PARTS)]
        block += [("tile", a) for a in self.axes]
        nest: list[Name] = [("order", i) for i in range(len(k.axes))]
        nest += [("parallel", None), ("parts", None)]
        self.names: list[Name] = [*block, *nest, *self._free()]
        flags = range(len(block) + len(nest), len(self.names))
        # choices that depend on no earlier one start in these states
        self.starts: dict[int, State] = {
            0: self._start(0),
            len(block): (k.axes, 0, True),
            **dict.fromkeys(flags, None),
        }
        self._offered, self._weighed = cache(self._offer), cache(self._weigh)
        self.count, self._effects = cache(self._count), cache(self._effect)
        self.sizes = cache(self._list_sizes)

    def _default(self) -> Schedule:
        return default_schedule(self.kernel, self.target)

    def _free(self) -> list[Name]:
        """Choices that depend on nothing, and on which nothing depends."""
        return [("flag", f) for f in FLAGS]

    def _start(self, threads: int) -> State:
        """Before the first reduction: its stage so far, units and limits of tiles, threads."""
        return None, (1,) * len(self.axes), END, threads

    def size(self) -> int:
        """How many schedules there are."""
        return prod(self.count(depth, state) for depth, state in self.starts.items())

    def _count(self, depth: int, state: State) -> int:
        """Ways to go on from a state, up to the next choice that does not depend on it."""
        if state == END:
            return 1
        what, which = self.names[depth]
        if what == "axes":
            after = self._passed(which, state).items()
            return sum(n * self.count(depth + len(PARTS), s) for s, n in after)
        if what == "tile" and not state[2]:  # no axis depends on another
            tiles = zip(self.axes[-len(state[1]) :], state[1], strict=True)
            return prod(len(self.sizes(*t)) for t in tiles)
        return sum(self.count(depth + 1, s) for _, s in self._offered(depth, state))

    def options(self, path: Sequence[Any]) -> list[tuple[Any, int]]:
        """What may follow the values of a path, with the number of ways to go on from each."""
        return [(value, n) for value, _, n in self._weighed(len(path), self._state(path))]

    def sample(self, rng: random.Random, path: Sequence[Any] = ()) -> Path:
        """A path that goes on from these values; all are equally likely."""
        out, state = list(path), self._state(path)
        while len(out) < len(self.names):
            found = self._weighed(len(out), state)
            ends = list(accumulate(n for _, _, n in found))
            value, after, _ = found[bisect(ends, rng.randrange(ends[-1]))]
            out.append(value)
            state = self.starts.get(len(out), after)
        return tuple(out)

    def nearest(self, wanted: Mapping[Name, Any]) -> Path:
        """The path that takes the wanted values as far as that is possible."""
        out: list[Any] = []
        state = self.starts.get(0, None)
        while len(out) < len(self.names):
            now, found = wanted.get(self.names[len(out)]), self._weighed(len(out), state)
            same = (option for option in found if option[0] == now)
            value, after, _ = next(same, None) or min(found, key=lambda o: _distance(o[0], now))
            out.append(value)
            state = self.starts.get(len(out), after)
        return tuple(out)

    def path(self, schedule: Schedule) -> Path | None:
        """The path of a schedule, if it is in the space."""
        wanted = self.values(schedule)
        path = self.nearest(wanted)
        return path if path == tuple(wanted[n] for n in self.names) else None

    def values(self, schedule: Schedule) -> dict[Name, Any]:
        """What a schedule chose."""
        out: dict[Name, Any] = {}
        for i, p in enumerate(schedule.stages):
            out["axes", i] = p.form, p.rows_axis, p.lane_axis, p.lanes
            out["b", i], out["a", i] = p.stage_b, p.stage_a
            out["registers", i], out["flags", i] = self._stage_values(p)
        out |= {("tile", a): schedule.tile.get(a, n) for a, n in self.kernel.extent.items()}
        out |= {("order", i): a for i, a in enumerate(schedule.order)}
        out["parallel", None], out["parts", None] = schedule.parallel, schedule.parts
        return out | {("flag", f): getattr(schedule, f) for f in FLAGS}

    def _stage_values(self, p: Stage) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Its registers and its flags."""
        return (p.mr, p.nv, p.broadcast), (p.streams, *(getattr(p, f) for f in STAGE_FLAGS))

    def build(self, path: Path) -> Schedule:
        """The schedule of a path."""
        got, extent = dict(zip(self.names, path, strict=True)), self.kernel.extent
        stages = tuple(self._stage(got, i) for i in range(len(self.kernel.stages)))
        order = tuple(got["order", i] for i in range(len(self.kernel.axes)))
        tile = {a: got["tile", a] for a in sorted(extent) if got["tile", a] < extent[a]}
        nest = {"parallel": got["parallel", None], "parts": got["parts", None]}
        return Schedule(order, tile=tile, stages=stages, **nest, **self._whole(got))

    def _whole(self, got: Mapping[Name, Any]) -> dict[str, Any]:
        """What a schedule says of the whole kernel, but the loops."""
        return {f: got["flag", f] for f in FLAGS}

    def _stage(self, got: Mapping[Name, Any], i: int) -> Stage:
        form, rows, lane, along = got["axes", i]
        (mr, nv, broadcast), (streams, *flags) = got["registers", i], got["flags", i]
        staged = {"stage_a": got["a", i], "stage_b": got["b", i], "lanes": along}
        rest = dict(zip(STAGE_FLAGS, flags, strict=True), streams=streams, broadcast=broadcast)
        return Stage(form, rows, lane, mr, nv, **staged, **rest)

    # ---- the choices

    def _state(self, path: Sequence[Any]) -> State:
        state = self.starts.get(0, None)
        for depth, value in enumerate(path):
            after = dict(self._offered(depth, state))[value]
            state = self.starts.get(depth + 1, after)
        return state

    def _weigh(self, depth: int, state: State) -> list[tuple[Any, State, int]]:
        every = [(v, s, self.count(depth + 1, s)) for v, s in self._offered(depth, state)]
        return [option for option in every if option[2]]

    def _offer(self, depth: int, state: State) -> list[tuple[Any, State]]:
        what, which = self.names[depth]
        more = (what,) if what in ("a", "b") else ()
        offer = self._staged if more else getattr(self, f"_{what}")
        return list(offer(which, state, *more))

    def _passed(self, i: int, state: Any) -> Counter[State]:
        """All states after the choices of a stage, and how many of these lead to each."""
        out = Counter[State]()
        for (_, units, limits, threads), n in self._effects(i, state[3]).items():
            joint = tuple(sorted({*state[2], *limits}))
            out[None, self._joint(state[1], units), joint, threads] += n
        return out

    def _effect(self, i: int, threads: int) -> Counter[State]:
        """The same where nothing was chosen before."""
        ahead = Counter[State]([self._start(threads)])
        for depth in range(i * len(PARTS), (i + 1) * len(PARTS)):
            after = Counter[State]()
            for s, n in ahead.items():
                for _, t in self._offered(depth + len(self.head), s):
                    after[t] += n
            ahead = after
        return ahead

    def _joint(self, units: Units, others: Units) -> Units:
        """Multiples of both; at most the whole axis."""
        both = zip(self.axes, units, others, strict=True)
        return tuple(min(lcm(u, v), self.kernel.extent[a]) for a, u, v in both)

    def _axes(self, i: int, state: Any) -> Iterator[tuple[Any, State]]:
        stage = self.kernel.stages[i]
        found = [Stage("contract", *pair) for pair in pairs(stage)]
        found += [Stage("dot", *pair) for pair in pairs(stage) if can_dot(stage, pair)]
        found.append(Stage())
        if own_axes(stage, self.target.gpu is not None) & set(self.kernel.axes):
            found.append(Stage(lanes="kept"))
        for p in found:
            yield (p.form, p.rows_axis, p.lane_axis, p.lanes), (p, *state[1:])

    def _staged(self, i: int, state: Any, side: str) -> Iterator[tuple[Any, State]]:
        p, units, limits, threads = state
        stage = self.kernel.stages[i]
        modes = ["none"] if p.form == "rows" else staging_modes(self.kernel, stage, p, side)
        for mode in modes:
            more = self._copied(stage, p, side) if mode in ("inner", "hoist") else ()
            after = tuple(sorted({*limits, *more}))
            yield mode, (replace(p, **{f"stage_{side}": mode}), units, after, threads)

    def _copied(self, stage: Expr, p: Stage, side: str) -> Limits:
        """The limit of a copy of an operand, if it can be too large."""
        operand = operand_of(stage, (p.rows_axis, p.lane_axis or ""), side)
        axes = tuple(a for a in self.axes if a in operand.free)
        extent, now = self.kernel.extent, self.default.tile
        room = self._room().bit_length() - 1
        room = max(room, sum(_bits(now.get(a, extent[a])) for a in axes))
        return ((axes, room),) if sum(_bits(extent[a]) for a in axes) > room else ()

    def _room(self) -> int:
        """The most elements of one copy."""
        return COPIES * self.target.l2 // 4

    def _registers(self, i: int, state: Any) -> Iterator[tuple[Any, State]]:
        p, units, limits, threads = state
        if p.form == "rows":
            yield (1, 1, False), (Stage(lanes=p.lanes), units, limits, threads)
            return
        stage = self.kernel.stages[i]
        width = lanes(self.target, dtype(stage))
        for mr, nv in self._tiles(stage, p, self.default.stages[i], width):
            own = {p.rows_axis: (mr, p.stage_a), p.lane_axis: (nv * width, p.stage_b)}
            held = [own.get(a, (1, "none")) for a in self.axes]
            packed = p.form == "contract"
            unit = [1 if mode in ("none", "inner") or not packed else n for n, mode in held]
            after = (Stage(p.form), self._joint(units, tuple(unit)), limits, threads)
            yield (mr, nv, False), after
            if packed and nv > 1 and from_memory(mr, nv, width * dtype(stage).nbytes):
                yield (mr, nv, True), after

    def _tiles(self, stage: Expr, p: Stage, sound: Stage, width: int) -> list[tuple[int, int]]:
        """Register tiles that fit the registers and the axes, and the default one."""
        pair, extent = (p.rows_axis, p.lane_axis or ""), self.kernel.extent
        rows = extent[p.rows_axis] if p.rows_axis else 1
        most = -(-extent[pair[1]] // (width if p.form == "contract" else 1))
        known = DOT_TILES if p.form == "dot" else REGISTER_TILES[self.target.registers]
        fit = [t for t in known if t[0] * t[1] + t[1] <= self.target.registers]
        out = {(min(mr, rows), min(nv, most)) for mr, nv in fit}
        if p.form == "contract":
            base = contraction_stage(self.kernel, stage, pair, self.target)
            out.add((base.mr, base.nv))
        if (sound.form, sound.rows_axis, sound.lane_axis) == (p.form, *pair):
            out.add((sound.mr, sound.nv))
        return sorted(out)

    def _flags(self, i: int, state: Any) -> Iterator[tuple[Any, State]]:
        p, *rest = state
        weighted = self.kernel.stages[i].kind == "wsum"
        streams = STREAMS if weighted or (p.form == "rows" and p.lanes == "reduced") else (1,)
        base = [getattr(Stage(), f) for f in STAGE_FLAGS]
        every = [base] if p.form == "rows" else _booleans(len(base))
        for n in streams:
            for flags in every:
                yield (n, *flags), (None, *rest)

    def _tile(self, axis: str, state: Any) -> Iterator[tuple[Any, State]]:
        _, (unit, *units), limits, threads = state
        rest = self.axes[-len(units) :] if units else ()
        for n in self.sizes(axis, unit):
            left = [(axes, room - _bits(n) * (axis in axes)) for axes, room in limits]
            if all(room >= 0 for _, room in left):
                left = [(axes, room) for axes, room in left if self._most(axes, rest) > room]
                yield n, (None, tuple(units), tuple(left), threads) if rest else END

    def _most(self, axes: tuple[str, ...], rest: Sequence[str]) -> int:
        return sum(_bits(self.kernel.extent[a]) for a in axes if a in rest)

    def _list_sizes(self, axis: str, unit: int) -> list[int]:
        """Tiles of an axis that hold whole panels of ``unit``."""
        extent = self.kernel.extent[axis]
        wanted = {*SIZES, *(-(-extent // n) for n in COUNTS)}
        wanted.add(self.default.tile.get(axis, extent))
        return sorted({min(extent, -(-n // unit) * unit) for n in wanted})

    def _order(self, _: int, state: Any) -> Iterator[tuple[Any, State]]:
        left, prefix, leading = state
        for a in left:
            on = leading and a in self.shared
            yield a, (tuple(b for b in left if b != a), prefix + on, on)

    def _parallel(self, _: None, state: Any) -> Iterator[tuple[Any, State]]:
        yield from ((n, n > 0) for n in range(state[1] + 1))

    def _parts(self, _: None, state: Any) -> Iterator[tuple[Any, State]]:
        """Waking fewer threads may be faster; one part is what no distributed loop makes."""
        threads = self.target.threads if state else 0
        yield from ((n, END) for n in (0, *(2**i for i in range(1, 11) if 2**i < threads)))

    def _flag(self, name: str, state: Any) -> Iterator[tuple[Any, State]]:
        k = self.kernel
        can = name != "stream" or any(streamable(k, r) for r in k.roots)
        can = skewable(k) if name == "skew" else can
        yield from ((value, END) for value in (False, True)[: 1 + can])


def _bits(n: int) -> int:
    return (n - 1).bit_length()


def _booleans(n: int) -> list[list[bool]]:
    return [[bool(i >> k & 1) for k in range(n)] for i in range(1 << n)]


def _distance(value: Any, wanted: Any) -> tuple[Any, ...]:
    """Equal values first; of numbers the next larger one, else the nearest."""
    if type(value) is int and type(wanted) is int:
        return value < wanted, abs(value - wanted)
    if isinstance(value, tuple) and isinstance(wanted, tuple):
        return (sum(v != w for v, w in zip(value, wanted, strict=False)),)
    return (value != wanted,)
