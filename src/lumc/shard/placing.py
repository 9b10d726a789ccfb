"""Where along a pipeline every value is computed: at a weight, between others.

Weights are numbered in the order in which they are first read, those that one node reads together
by one number. What reads a weight is computed there; everything else where the sum over all reads
of bytes times the weights that they pass is least. That is found exactly by halves: which nodes lie
behind the middle one is a least sum of tables over two values each, and the answers for all
thresholds are nested (Hochbaum 2001), so each half is one problem of its own. A value that needs no
weight is free: it is computed wherever it is read.
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
    edges = [(r.source, n) for n in nodes for r in n.reads if r.source in needs]
    left = [n for n in nodes if n in needs and n not in out]
    _halves(left, 0, max(at.values(), default=0), edges, out)
    return out


def _halves(
    nodes: list[Node],
    lo: int,
    hi: int,
    edges: Sequence[tuple[Node, Node]],
    out: dict[Node, int],
) -> None:
    """Place nodes that lie from ``lo`` to ``hi``; those with a place already are fixed."""
    todo = [(nodes, lo, hi, edges)]
    while todo:
        nodes, lo, hi, edges = todo.pop()
        if lo == hi or not nodes:
            out.update(dict.fromkeys(nodes, lo))
            continue
        middle = (lo + hi) // 2
        behind = _behind(nodes, middle, edges, out)
        parts = ([n for n in nodes if n not in behind], [n for n in nodes if n in behind])
        # where a node of the other half ends up, it is beyond the threshold of every one here
        out.update(dict.fromkeys(parts[0], middle))
        out.update(dict.fromkeys(parts[1], middle + 1))
        for part, ends in zip(parts, ((lo, middle), (middle + 1, hi)), strict=True):
            own = set(part)
            todo.append((part, *ends, [e for e in edges if e[0] in own or e[1] in own]))


def _behind(
    nodes: Sequence[Node],
    middle: int,
    edges: Sequence[tuple[Node, Node]],
    out: Mapping[Node, int],
) -> set[Node]:
    """Those of the nodes that lie behind the middle."""
    place = {n: i for i, n in enumerate(nodes)}
    alone = np.zeros((len(nodes), 2))
    pairs = dict[tuple[int, int], float]()
    for source, reader in edges:
        nbytes = float(source.size * source.dtype.nbytes)
        a, b = place.get(source), place.get(reader)
        if a is None and b is None:
            continue
        if a is not None and b is not None:
            pairs[a, b] = pairs.get((a, b), 0.0) + nbytes
        elif a is not None:
            alone[a, int(out[reader] <= middle)] += nbytes
        elif b is not None:
            alone[b, int(out[source] <= middle)] += nbytes
    tables: list[tuple[tuple[int, ...], Table]] = [((i,), row) for i, row in enumerate(alone)]
    tables += [(ends, nbytes * (1 - np.eye(2))) for ends, nbytes in pairs.items()]
    found = least([2] * len(nodes), tables, MOST)
    return {n for n, value in zip(nodes, found.values, strict=True) if value}
