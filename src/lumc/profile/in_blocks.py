"""Which of the values between regions are made in blocks (``graph/blockwise.py``), so that less is
in memory at a time: those that take most, in blocks as large as the bound allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from lumc.graph.blockwise import blockwise
from lumc.graph.graph import Entry, Graph, Node
from lumc.profile.memory import in_states, regions_of, room_between
from lumc.search.order import Found

PARTS = (4, 8, 16, 32)  # of the bound, a block takes at most; a guess
MOST = 128  # blocks of a value; a guess
ROWS = 16  # elements of an axis that a block has at least, if it has more than one; a guess

Sizes = tuple[tuple[str, int], ...]


def in_blocks(
    entry: Entry, graph: Graph, again: int, limit: int, room: int
) -> tuple[Entry, int] | None:
    """The entry with large values in blocks, the largest blocks with which regions hand on at most
    ``limit`` bytes, or those with which they hand on least, and how many; None if that is not less
    than ``room``."""
    given = {*graph.dims, *(n.name for n in (*graph.weights, *graph.states, *entry.inputs))}
    found, best = regions_of(entry, again), None
    for part in PARTS if room > limit else ():
        made = _made(entry, found, limit // part, given | {n.name for n in entry.nodes})
        least = room_between(made, regions_of(made, again)) if made is not entry else room
        if least < room:
            best, room = (made, least), least
        if least <= limit:
            break
    return best


def _made(entry: Entry, found: Iterable[Found], most: int, given: set[str]) -> Entry:
    """The entry with its stored values of more than so many bytes in blocks of less."""
    elsewhere = {n for _, n in entry.outputs} | in_states(entry, found := list(found))
    stored = dict.fromkeys(f.whole for f in found if f.whole and f.write is None)
    large = [n for n in stored if n not in elsewhere and n.size * n.dtype.nbytes > most]
    for n in sorted(large, key=lambda n: -n.size * n.dtype.nbytes):
        if n in entry.nodes:  # as it was: not in blocks yet
            ways = (blockwise(entry, n, sizes, given) for sizes in _sizes(n, most))
            made = next(filter(None, ways), None)
            if made:
                entry, given = made, given | {n.name for n in made.nodes}
    return entry


def _sizes(n: Node, most: int) -> Iterator[Sizes]:
    """Ways to make a value in blocks of so many bytes at most: single elements of its outer axes,
    and the most of the next one."""
    axes = [(a, e) for a, e in zip(n.axes, n.sizes, strict=True) if e > 1]
    for first in range(len(axes)):
        out, left, count = list[tuple[str, int]](), n.size * n.dtype.nbytes, 1
        for a, e in axes[first:]:
            sizes = (d for d in range(e - 1, 0, -1) if e % d == 0 and left // e * d <= most)
            size = next(sizes, 1)
            out, left, count = [*out, (a, size)], left // e * size, count * (e // size)
            if left <= most:
                break
        if left <= most and count <= MOST and (out[-1][1] >= ROWS or prod(s for _, s in out) == 1):
            yield tuple(out)
