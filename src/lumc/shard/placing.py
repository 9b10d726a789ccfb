"""Where along a pipeline every value is computed: at a weight, between others.

Weights are numbered in the order in which they are first read, those that one node reads together
by one number. What reads a weight is computed there; everything else where the sum over all values
of their bytes times the weights that they pass is least: on to the last reader, back to the first.
That is found exactly by halves: which nodes lie behind the middle one is a least sum of tables over
two values each, and the answers for all thresholds are nested (Hochbaum 2001), so each half is one
problem of its own. A value that needs no weight is free: it is computed wherever it is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from lumc.graph.graph import Node
from lumc.shard.eliminate import MOST, Table, least


def numbered(nodes: Iterable[Node], shared: Collection[Node]) -> dict[Node, int]:
    """The weights and states that these nodes read, in order; read together, with one number."""
    groups = dict[Node, list[Node]]()
    for n in nodes:
        found = [r.source.home for r in n.reads if r.source.home in shared]
        merged = list(dict.fromkeys(m for leaf in found for m in groups.get(leaf, [leaf])))
        groups.update(dict.fromkeys(merged, merged))
    order = dict.fromkeys(id(g) for g in groups.values())
    number = {key: i for i, key in enumerate(order)}
    return {leaf: number[id(g)] for leaf, g in groups.items()}


def placed(
    nodes: Sequence[Node], at: Mapping[Node, int], pins: Mapping[Node, int]
) -> dict[Node, int]:
    """The weight at which each of these nodes is computed; free ones have none. Of some it is
    known."""
    out = dict[Node, int](pins)
    needs = set[Node]()  # that need a weight
    for n in nodes:
        own = [at[r.source.home] for r in n.reads if r.source.home in at]
        if own:
            out[n] = own[0]
        if n in out or any(r.source in needs for r in n.reads):
            needs.add(n)
    readers = dict[Node, dict[Node, None]]()
    for n in nodes:
        for r in n.reads:
            if r.source in needs:
                readers.setdefault(r.source, {})[n] = None
    left = [n for n in nodes if n in needs and n not in out]
    _halves(left, max(at.values(), default=0), {n: list(r) for n, r in readers.items()}, out)
    return out


Readers = Mapping[Node, Sequence[Node]]  # of values


def _halves(nodes: Sequence[Node], last: int, readers: Readers, out: dict[Node, int]) -> None:
    """Place nodes that lie from 0 to the last weight; those that have a place are fixed."""
    todo = [(nodes, 0, last, readers)]
    while todo:
        nodes, lo, hi, readers = todo.pop()
        if lo == hi or not nodes:
            out.update(dict.fromkeys(nodes, lo))
            continue
        middle = (lo + hi) // 2
        behind = _Half(nodes, middle, readers, out).behind()
        parts = ([n for n in nodes if n not in behind], [n for n in nodes if n in behind])
        # wherever a node of one half ends up, it is beyond the thresholds of the other one
        out.update(dict.fromkeys(parts[0], middle))
        out.update(dict.fromkeys(parts[1], middle + 1))
        for part, ends in zip(parts, ((lo, middle), (middle + 1, hi)), strict=True):
            own = set(part)
            near = {n: r for n, r in readers.items() if n in own or not own.isdisjoint(r)}
            todo.append((part, *ends, near))


class _Half:
    """Which nodes lie behind the middle, as a least sum: a variable for each node, and for a value
    of several readers one for the last and one for the first of them."""

    def __init__(
        self, nodes: Sequence[Node], middle: int, readers: Readers, out: Mapping[Node, int]
    ) -> None:
        self.nodes, self.middle, self.out = nodes, middle, out
        self.place = {n: i for i, n in enumerate(nodes)}
        self.alone = [np.zeros(2) for _ in nodes]
        self.pairs: list[tuple[tuple[int, ...], Table]] = []
        for source, every in readers.items():
            nbytes = float(source.size * source.dtype.nbytes)
            for side in (1, 0):  # on to readers behind, back to readers before
                self.pay(source, self.farthest(every, side), nbytes, side)

    def side(self, n: Node) -> int:
        """Where a node that is fixed lies."""
        return int(self.out[n] > self.middle)

    def farthest(self, readers: Sequence[Node], side: int) -> int | None:
        """The variable that is on a side if any reader is; None if one is for sure, -1 if none."""
        if any(n not in self.place and self.side(n) == side for n in readers):
            return None
        free = [self.place[n] for n in readers if n in self.place]
        if len(free) < 2:
            return free[0] if free else -1
        self.alone.append(np.zeros(2))
        own = len(self.alone) - 1
        forbidden = np.zeros((2, 2))
        forbidden[1 - side, side] = np.inf
        self.pairs += [((own, reader), forbidden) for reader in free]
        return own

    def pay(self, source: Node, far: int | None, nbytes: float, side: int) -> None:
        """A value passes the middle if it is made on one side, and read on the other."""
        own = self.place.get(source)
        if far == -1 or (own is None and (far is None or self.side(source) == side)):
            return
        if own is None:
            assert far is not None
            self.alone[far][side] += nbytes
        elif far is None:
            self.alone[own][1 - side] += nbytes
        elif far != own:
            table = np.zeros((2, 2))
            table[1 - side, side] = nbytes
            self.pairs.append(((own, far), table))

    def behind(self) -> set[Node]:
        tables = [((i,), row) for i, row in enumerate(self.alone)]
        found = least([2] * len(self.alone), [*tables, *self.pairs], MOST)
        return {n for n, value in zip(self.nodes, found.values, strict=False) if value}
