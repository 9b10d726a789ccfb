"""What the rows of ``choices`` are asked about, and what a row is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, cached_property
from math import lcm
from typing import Any, NamedTuple, TypeVar

from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.schedule.applies import contracts, shared_prefix
from lumc.schedule.first import first_schedules
from lumc.schedule.schedule import Schedule, Stage

# tiles: also those of whole register tiles of 6, 12, 14, .. rows and 3 vectors
SIZES = tuple(odd << i for odd in (1, 3, 7) for i in range(13))
EVEN = (1, 2, 3, 4, 6, 8, 12, 16)  # tiles of an axis that are equal, as far as possible

T = TypeVar("T")
Units = tuple[int, ...]  # per axis: its tile is a multiple of
Limits = tuple[tuple[tuple[str, ...], int], ...]  # axes of a copy, and the bits that are left
END = ()  # nothing that follows depends on what came before


class Blocks(NamedTuple):
    """What the choices of reductions and tiles depend on."""

    stage: Stage  # of the present reduction, so far
    units: Units  # of the tiles that are still to be chosen
    limits: Limits
    threads: int  # of a block of a GPU


class Loops(NamedTuple):
    """What the choices of loops depend on."""

    left: tuple[str, ...]
    dealt: int  # leading loops that may be distributed
    leading: bool  # may the next one be?


BLOCKS = (32, 64, 128, 256, 512, 1024)  # threads


class Case:
    """A normalized kernel on a target, and the sound schedule that the choices start from."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.kernel, self.target, self.gpu = kernel, target, target.gpu is not None
        self.axes = tuple(kernel.extent)
        self.shared = {a for a in kernel.axes if shared_prefix(kernel, (a,))}
        self.sizes, self._known = cache(self._sizes), dict[Any, Any]()

    def once(self, f: Callable[..., T], *args: Any) -> T:
        """``f(self, *args)``, which is asked again in many states."""
        if (key := (f, *args)) not in self._known:
            self._known[key] = f(self, *args)
        out: T = self._known[key]
        return out

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        """Threads that a block may have: whole warps."""
        return tuple(n for n in BLOCKS if self.target.gpu and n >= self.target.gpu.warp)

    @cached_property
    def copies(self) -> bool:
        """May there be copies of operands?"""
        return contracts(self.kernel)

    @cached_property
    def default(self) -> Schedule:
        """The schedule of the first guess for this machine."""
        return next(first_schedules(self.kernel, self.target))

    def start(self, threads: int = 0) -> Blocks:
        """Before the first reduction."""
        return Blocks(Stage(), (1,) * len(self.axes), (), threads)

    def joint(self, units: Units, others: Units) -> Units:
        """Multiples of both; at most the whole axis."""
        both = zip(self.axes, units, others, strict=True)
        return tuple(min(lcm(u, v), self.kernel.extent[a]) for a, u, v in both)

    def _sizes(self, axis: str, unit: int) -> list[int]:
        """Tiles of an axis that hold whole panels of ``unit``."""
        extent = self.kernel.extent[axis]
        wanted = {*SIZES, *(-(-extent // n) for n in EVEN)}
        wanted.add(self.default.tile.get(axis, extent))
        return sorted({min(extent, -(-n // unit) * unit) for n in wanted})


Values = Callable[[Case, Any, Any], Iterable[Any]]  # of what, after a state
Legal = Callable[[Case, Any, Any, Any], bool]  # of what, after a state, a value
Words = Callable[[Any], str]


class Choice(NamedTuple):
    """A row of the table."""

    name: str
    of: str  # what it is made of: the block of threads, each reduction, axis or loop, the kernel
    fields: tuple[str, ...]  # of ``Threads``, ``Stage`` or ``Schedule``; several: chosen together
    values: Values  # that the space has: legal, and each of them another program
    after: Callable[[Case, Any, Any, Any], Any] | None = None  # the state after a value
    machines: tuple[str, ...] = ("cpu", "gpu")
    idle: Any = None  # on other machines, if that is not the default of the field
    asked: bool = True  # by later rows of the reduction; else its value is no part of the state
    steps: str = "each"  # what moves try: each other value, near ones, swaps, or structures only
    words: Words = lambda _: ""  # of the record that has the fields; "": as usual
    legal: Legal | None = None  # of a value; None: the values are
    law: str = ""  # in words: where it applies, what may be chosen
    early: bool = False  # varied with the structure, where nothing is contracted: memory decides
    moot: str = ""  # when other choices, or short axes, leave nothing to do

    def offers(self, c: Case, which: Any, state: Any) -> list[tuple[Any, Any]]:
        """The values of this choice after a state, each with the state after it."""
        return [(v, self._next(c, which, state, v)) for v in self.values(c, which, state)]

    def allows(self, c: Case, which: Any, state: Any, value: Any) -> bool:
        """Is a value legal after a state?"""
        if self.legal is not None:
            return self.legal(c, which, state, value)
        return value in tuple(self.values(c, which, state))

    def _next(self, c: Case, which: Any, state: Any, value: Any) -> Any:
        if self.of == "reduction":
            if self.asked:
                state = state._replace(stage=having(state.stage, self.fields, value))
            return self.after(c, which, state, value) if self.after else state
        return self.after(c, which, state, value) if self.after else END


def spread(fields: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A choice by fields."""
    return dict(zip(fields, value if len(fields) > 1 else (value,), strict=True))


def having(record: T, fields: tuple[str, ...], value: Any) -> T:
    """The record with a choice: as ``replace`` makes it, in a fifth of the time."""
    out = object.__new__(type(record))
    vars(out).update(vars(record), **spread(fields, value))
    return out


def held(record: Any, fields: tuple[str, ...]) -> Any:
    """The choice that a record has."""
    if len(fields) == 1:
        return getattr(record, fields[0])
    return tuple([getattr(record, f) for f in fields])


def bits(n: int) -> int:
    """Of the numbers below n."""
    return (n - 1).bit_length()
