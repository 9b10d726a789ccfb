"""Where the values between launches live: offsets in one arena, reused by liveness.

Launches run in order with a barrier between, so a value is alive from the launch that writes it
to the last one that reads it, both included. Values that are alive together never overlap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lumc.kernel.instance import PLACE

ALIGN = PLACE
PAGE = 4096
Span = tuple[int, int]  # bytes, from and to


@dataclass(frozen=True)
class Interval:
    """A value of ``nbytes`` that is alive in the launches ``first`` to ``last``."""

    name: str
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Arena:
    """Offsets in bytes by name, and the sizes of the arena with and without reuse."""

    offsets: Mapping[str, int]
    nbytes: int
    nbytes_without_reuse: int


def allocate(values: Iterable[Interval]) -> Arena:
    """Place the largest values first, each at the lowest free offset of its lifetime. Of equal
    ones those that begin first, or those that are there last, whichever takes less: of a step of
    training these are what a way back reads at its end."""
    largest = sorted(values, key=lambda v: (-v.nbytes, v.first, v.name))
    latest = sorted(largest, key=lambda v: (-v.nbytes, -v.last))
    return min(_placed(largest), _placed(latest), key=lambda arena: arena.nbytes)


def _placed(order: Iterable[Interval]) -> Arena:
    offsets, most, sum_of_all = dict[str, int](), 0, 0
    starting, alive = defaultdict[int, list[Span]](list), defaultdict[int, list[Span]](list)
    for value in order:
        launches = range(value.first, value.last + 1)
        beside = {*alive[value.first], *(span for t in launches[1:] for span in starting[t])}
        offset = _first_gap(sorted(beside), room(value.nbytes))
        span = offset, offset + room(value.nbytes)
        offsets[value.name], most = offset, max(most, span[1])
        sum_of_all += aligned(value.nbytes)
        starting[value.first].append(span)
        for t in launches:
            alive[t].append(span)
    return Arena(offsets, most, sum_of_all)


def aligned(nbytes: int, to: int = ALIGN) -> int:
    """The bytes rounded up to a multiple of ``to``."""
    return -(-nbytes // to) * to


def room(nbytes: int) -> int:
    """The bytes kept for a value. Whole pages get a cache line more: neighbours whose addresses
    are equal modulo 4096 would evict each other from L1."""
    return aligned(nbytes) + (ALIGN if nbytes and nbytes % PAGE == 0 else 0)


def _first_gap(taken: list[Span], nbytes: int) -> int:
    offset = 0
    for start, end in taken:
        if offset + nbytes <= start:
            break
        offset = max(offset, end)
    return offset
