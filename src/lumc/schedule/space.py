"""The schedule space of a kernel as a product of choices, with its exact size.

A schedule is a path of choices in the order of the rows of ``choices``: on a GPU first the threads
of a block; of every reduction its rows; then a tile of every axis; the order of the loops, how many
are distributed, and the flags of the whole. What a choice allows depends on earlier ones only
through a small state, so the schedules below a state are counted once for all paths that lead to
it.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from math import prod
from typing import Any

from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.schedule.case import END, Blocks, Case, Loops, held, spread
from lumc.schedule.choices import choices_on, off
from lumc.schedule.schedule import Schedule, Stage, Threads

Name = tuple[str, Any]  # what is chosen, and of which stage, position or axis
Path = tuple[Any, ...]  # a value per choice
State = Any  # hashable: what the choices that follow depend on


class Grammar:
    """The choices of one kernel on one target."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.case = Case(normalize(kernel), target)
        self.kernel, self.target = self.case.kernel, target
        self.default, self.axes = self.case.default, self.case.axes
        self.rows = {row.name: row for row in choices_on(self.case.gpu)}
        self.own = [row for row in self.rows.values() if row.of == "reduction"]
        head, loops = self._names("block"), self._names("loop", "nest")
        stages = [(row.name, i) for i in range(len(self.kernel.stages)) for row in self.own]
        blocks, free = [*head, *stages, *self._names("axis")], self._names("kernel", "threads")
        self.names: list[Name] = [*blocks, *loops, *free]
        self.head = len(head)
        # choices that depend on no earlier one start in these states
        self.starts: dict[int, State] = {
            0: None if head else self.case.start(),
            len(blocks): Loops(self.kernel.axes, 0, True),
            **dict.fromkeys(range(len(blocks) + len(loops), len(self.names))),
        }
        self._offered, self._weighed = cache(self._offer), cache(self._weigh)
        self.count, self._effects = cache(self._count), cache(self._effect)
        self.ends = cache(self._end)

    def _names(self, *of: str) -> list[Name]:
        """What is chosen by the rows of these kinds."""
        places = {"axis": self.axes, "loop": range(len(self.kernel.axes))}
        rows = [row for row in self.rows.values() if row.of in of]
        return [(row.name, at) for row in rows for at in places.get(row.of, (None,))]

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
            return sum(n * self.count(depth + len(self.own), s) for s, n in after)
        if what == "tile" and not state.limits:  # no axis depends on another
            tiles = zip(self.axes[-len(state.units) :], state.units, strict=True)
            return prod(len(self.case.sizes(*t)) for t in tiles)
        return sum(self.count(depth + 1, s) for _, s in self._offered(depth, state))

    def _end(self, depth: int, state: State) -> bool:
        """Can a path go on from a state, up to the next choice that does not depend on it?"""
        after = () if state == END else self._offered(depth, state)
        return state == END or any(self.ends(depth + 1, s) for _, s in after)

    def options(self, path: Sequence[Any]) -> list[Any]:
        """The values that may follow those of a path."""
        depth = len(path)
        every = self._offered(depth, self._state(path))
        return [value for value, after in every if self.ends(depth + 1, after)]

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
            now, depth = wanted.get(self.names[len(out)]), len(out) + 1
            every = self._offered(len(out), state)
            same = [o for o in every if o[0] == now and self.ends(depth, o[1])]
            found = same or [o for o in every if self.ends(depth, o[1])]
            value, after = min(found, key=lambda o: _distance(o[0], now))
            out.append(value)
            state = self.starts.get(len(out), after)
        return tuple(out)

    def path(self, schedule: Schedule) -> Path | None:
        """The path of a schedule, if it is in the space."""
        wanted, state = self.values(schedule), self.starts.get(0, None)
        path = tuple(wanted[n] for n in self.names)
        for depth, now in enumerate(path):
            after = [s for value, s in self._offered(depth, state) if value == now]
            if not after:
                return None
            state = self.starts.get(depth + 1, after[0])
        return path

    def values(self, schedule: Schedule) -> dict[Name, Any]:
        """What a schedule chose."""
        s, extent = schedule, self.kernel.extent
        out: dict[Name, Any] = {("tile", a): s.tile.get(a, n) for a, n in extent.items()}
        out |= {("order", i): a for i, a in enumerate(s.order)}
        for row in self.rows.values():
            if row.of == "reduction":
                out |= {(row.name, i): held(p, row.fields) for i, p in enumerate(s.stages)}
            elif row.of in ("block", "threads"):
                out[row.name, None] = held(s.threads, row.fields)
            elif row.of in ("nest", "kernel"):
                out[row.name, None] = held(s, row.fields)
        return out

    def build(self, path: Path) -> Schedule:
        """The schedule of a path."""
        got, extent = dict(zip(self.names, path, strict=True)), self.kernel.extent
        stages = tuple(
            Stage(**self._fields(got, i, "reduction")) for i in range(len(self.kernel.stages))
        )
        order = tuple(got["order", i] for i in range(len(self.kernel.axes)))
        tile = {a: got["tile", a] for a in sorted(extent) if got["tile", a] < extent[a]}
        shared = self._fields(got, None, "block", "threads")
        whole = off(self.case.gpu) | self._fields(got, None, "nest", "kernel")
        threads = Threads(**shared) if shared else None
        return Schedule(order, tile=tile, stages=stages, threads=threads, **whole)

    def _fields(self, got: Mapping[Name, Any], which: int | None, *of: str) -> dict[str, Any]:
        """The fields that the rows of these kinds fill."""
        out: dict[str, Any] = {}
        for row in (row for row in self.rows.values() if row.of in of):
            out |= spread(row.fields, got[row.name, which])
        return out

    # ---- states

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
        return self.rows[what].offers(self.case, which, state)

    def _passed(self, i: int, state: Blocks) -> Counter[State]:
        """All states after the choices of a stage, and how many of these lead to each."""
        out = Counter[State]()
        for s, n in self._effects(i, state.threads).items():
            limits = tuple(sorted({*state.limits, *s.limits}))
            out[s._replace(units=self.case.joint(state.units, s.units), limits=limits)] += n
        return out

    def _effect(self, i: int, threads: int) -> Counter[State]:
        """The same where nothing was chosen before."""
        ahead = Counter[State]([self.case.start(threads)])
        for depth in range(i * len(self.own), (i + 1) * len(self.own)):
            after = Counter[State]()
            for s, n in ahead.items():
                for _, t in self._offered(depth + self.head, s):
                    after[t] += n
            ahead = after
        return ahead


def _distance(value: Any, wanted: Any) -> tuple[Any, ...]:
    """Equal values first; of numbers the next larger one, else the nearest."""
    if type(value) is int and type(wanted) is int:
        return value < wanted, abs(value - wanted)
    if isinstance(value, tuple) and isinstance(wanted, tuple):
        return (sum(v != w for v, w in zip(value, wanted, strict=False)),)
    return (value != wanted,)
