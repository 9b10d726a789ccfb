"""Buckets: the parts of the lengths of runs that have kernels of their own.

A dim is tuned at some of its values. For each of them an entry has a bucket: the same entry for
values up to this one, with schedules that are chosen for it. A run takes the first bucket that
holds its dims. A bucket goes down to the least values, so each that holds gives right results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from lumc.graph.bind import Binding, check_values, dims_in, told_by
from lumc.graph.dim import Dim
from lumc.graph.graph import Entry, Graph

STEP = 16  # between two values that a dim is tuned at by default; measured: docs/lengths.md
MOST = 4  # buckets of an entry by default; derived: each is compiled, the first ones in no time


def with_points(graph: Graph, wanted: Mapping[str, Sequence[int]]) -> Graph:
    """The graph with dims tuned at these values, and others that shapes of inputs tell at some of
    their own. Raises E0111 (no such dim, or a value that it never has) and E0101 (too many
    combinations)."""
    for name, n in ((name, n) for name, at in wanted.items() for n in at):
        check_values(graph, {name: n})
    copy = Binding(graph.dims, {})
    tuned = {**graph.tuned, **wanted}
    left = MOST // prod(map(len, tuned.values()))
    told = {d for e in graph.entries for d in told_by(n.shape for n in e.inputs)}
    for name in sorted(told - tuned.keys(), key=lambda n: -len(graph.dims[n].values)):
        found = points(graph.dims[name], left)
        tuned[name], left = found, left // len(found)
    for name, at in tuned.items():
        copy.b.tune(name, at)
    return replace(graph, tuned=dict(copy.b.tuned))


def points(d: Dim, most: int) -> tuple[int, ...]:
    """The least value, those 16 times apart, and the greatest: at most so many."""
    least, last = d.values[0], d.values[-1]
    found = [least]
    while (n := STEP * max(found[-1], 1)) * STEP <= last:
        found.append(d.values[-(-(n - least) // d.values.step)])
    return tuple(dict.fromkeys((*found[: max(0, most - 1)], last)))


def in_buckets(graph: Graph) -> Graph:
    """The graph with an entry for every bucket of its entries, in the order in which they are
    tried; ``whole`` is the graph as it was. The same graph if no dim is tuned at several values."""
    boxes = {e.name: list(boxes_of(graph, e)) for e in graph.entries}
    if all(len(found) == 1 for found in boxes.values()):
        return graph
    entries = list[Entry]()
    for e in graph.entries:
        found = boxes[e.name]
        entries += [_bucket(graph, e, box) for box in found] if len(found) > 1 else [e]
    return replace(graph, entries=tuple(entries), whole=graph)


def boxes_of(graph: Graph, entry: Entry) -> Iterator[dict[str, Dim]]:
    """The bounds of dims of every bucket of an entry: of those that are tuned and that it has; not
    of one that counts its repetitions, which a run has all values of."""
    used = dims_in(entry) - {entry.repeat}
    own = {d: graph.tuned[d] for d in graph.dims if d in used and d in graph.tuned}
    for ends in product(*own.values()):
        yield {d: replace(graph.dims[d], hi=n) for d, n in zip(own, ends, strict=True)}


def _bucket(graph: Graph, entry: Entry, box: Mapping[str, Dim]) -> Entry:
    wanted = {name: d.values[0] if len(d.values) == 1 else d for name, d in box.items()}
    copy = Binding(graph.dims, wanted)
    copy.made |= {n: n for n in (*graph.weights, *graph.states)}
    ends = ".".join(
        f"{name}{d.values[-1]}" for name, d in box.items() if len(graph.tuned[name]) > 1
    )
    copy.entry(entry, f"{entry.name}@{ends}", entry.name, box)
    return copy.b.entries[0]
