"""In which order the regions of an entry run: values before those who read them, and what reads a
state as it was before what writes it.

A state has one memory. Its versions are the state that a run begins with, and what each update
leaves; a region that reads one of them stands after the update that made it and before the next.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

from lumc.errors import Exit, LumcError
from lumc.graph.batches import AFTER, BEFORE, phases_of
from lumc.graph.collective import Collective
from lumc.graph.graph import Entry, Node, reachable
from lumc.kernel.codec import encode, to_plain
from lumc.kernel.key import sha
from lumc.search.translate import Body


@dataclass(frozen=True)
class Found:
    """A region of an entry before deduplication: of a node, or of an update."""

    entry: str
    node: Node
    output: str
    body: Body
    write: int | None = None  # which of the updates of the entry it is
    whole: Node | None = None  # the node that ``node`` is, or is a piece of

    @property
    def key(self) -> str:
        """Equal for equal regions: the term with canonical names, dtypes and constness."""
        b = self.body
        terms = encode([b.value, *b.index, *(e for pair in b.equal for e in pair)])
        parts = [terms, [to_plain(x) for x in (*b.inputs, b.output)], dict(b.extent)]
        lengths = [to_plain(b.lengths)] if b.lengths.dims else []
        return sha(json.dumps([*parts, *lengths]))

    @property
    def sources(self) -> tuple[Node, ...]:
        """What it reads."""
        return self.body.sources


@dataclass(frozen=True)
class Exchange:
    """A collective, which stands between regions."""

    node: Node
    write: None = None
    whole: None = None

    @property
    def sources(self) -> tuple[Node, ...]:
        """What it reads."""
        return (self.node.reads[0].source,)


def in_order(
    entry: Entry, regions: Sequence[Found], exchanged: Iterable[Node] = ()
) -> tuple[list[Found], list[Found]]:
    """The regions in an order that gives all of them what they read, that of the entry as far as
    possible but for what comes before and after micro-batches, and has room for the collectives;
    and those that no order has room for. Raises E0101 as ``phases_of``."""
    found: list[Found | Exchange] = [*regions, *map(Exchange, exchanged)]
    place, phases = {n: i for i, n in enumerate(entry.nodes)}, phases_of(entry)
    named = [place[n] for n in entry.nodes if n.op == "update"]
    last = AFTER if phases else BEFORE
    rank = [
        (phases.get(f.whole or f.node, BEFORE), place.get(f.node, -1))
        if f.write is None
        else (last, named[f.write] if f.write < len(named) else len(place) + f.write)
        for f in found
    ]
    later = _edges(entry, found)
    waits = [0] * len(found)
    for b in (b for after in later for b in after):
        waits[b] += 1
    ready = [(rank[i], i) for i, n in enumerate(waits) if not n]
    heapq.heapify(ready)
    out = list[Found | Exchange]()
    while ready:
        _, i = heapq.heappop(ready)
        out.append(found[i])
        for b in later[i]:
            waits[b] -= 1
            if not waits[b]:
                heapq.heappush(ready, (rank[b], b))
    stuck = [f for f, n in zip(regions, waits, strict=False) if n]
    return [f for f in out if isinstance(f, Found)], stuck


def _edges(entry: Entry, found: Sequence[Found | Exchange]) -> list[set[int]]:
    """Of every region those that have to follow it."""
    made = dict[Node, list[int]]()
    for i, f in enumerate(found):
        if f.write is None:
            made.setdefault(f.whole or f.node, []).append(i)
    writers = {f.write: i for i, f in enumerate(found) if f.write is not None}
    chains, versions = chains_of(entry), versions_of(entry)
    later = [set[int]() for _ in found]
    for i, f in enumerate(found):
        for s in f.sources:
            if s.home.op != "state":
                for maker in made.get(s, ()):
                    later[maker].add(i)
                continue
            chain, version = chains.get(s.home, []), versions.get(s, 0)
            if version:
                later[writers[chain[version - 1]]].add(i)
            if version < len(chain):  # an update that reads what it writes waits for itself
                later[i].add(writers[chain[version]])
    for chain in chains.values():
        for a, b in pairwise(chain):
            later[writers[a]].add(writers[b])
    return later


def chains_of(entry: Entry) -> dict[Node, list[int]]:
    """The updates of every state, in order, by their places among all of the entry. Those without
    elements do nothing, and are not among them."""
    out = dict[Node, list[int]]()
    for i, u in enumerate(entry.writes):
        if u.value.size:
            out.setdefault(u.state, []).append(i)
    return out


def versions_of(entry: Entry) -> dict[Node, int]:
    """Of every updated state that is a node, by how many updates."""
    out, count = dict[Node, int](), dict[Node, int]()
    for n in (n for n in entry.nodes if n.op == "update"):
        out[n] = count[n.home] = count.get(n.home, 0) + bool(n.write.value.size)
    return out


def early_readers(entry: Entry, found: Iterable[Found], inputs: frozenset[Node]) -> list[Node]:
    """The nodes inside of regions that read a state which is still to be updated: stored on their
    own, they are regions that can run before it."""
    chains, versions = chains_of(entry), versions_of(entry)

    def is_old(s: Node) -> bool:
        return versions.get(s, 0) < len(chains.get(s.home, []))

    def inside(n: Node) -> list[Node]:
        return [r.source for r in n.reads if not r.source.is_leaf and r.source not in inputs]

    out = dict[Node, None]()
    for f in found:
        if f.write is None or f.node not in inputs:
            below = reachable([f.node], inside)
            old = (n for n in entry.nodes if n in below and any(is_old(r.source) for r in n.reads))
            out.update(dict.fromkeys(n for n in old if n is not f.node or f.write is not None))
    return list(out)


def refuse(entry: Entry, found: Iterable[Found]) -> NoReturn:
    """Raises E0402: no order has room for these regions."""
    writes = entry.writes
    names = dict.fromkeys(
        f"{writes[f.write].state.name} = {writes[f.write].value.name}"
        for f in found
        if f.write is not None
    )
    raise LumcError(
        "E0402",
        f"an update reads a state that the same entry updates: {', '.join(names)}",
        where=f"entry '{entry.name}'",
        fix="copy the state with contiguous and use the copy as the value",
        exit=Exit.UNSUPPORTED,
    )


def values_in_place(entry: Entry) -> set[Node]:
    """Values that an update writes, and nothing else needs: they are computed into the state. What
    a collective makes is none of them."""
    count = Counter(u.value for u in entry.writes if u.value.size)
    needed = {n for _, n in entry.outputs}
    needed |= {r.source for n in entry.nodes if not n.is_leaf for r in n.reads}
    made = (n for n, times in count.items() if times == 1 and not n.is_leaf and n not in needed)
    return {n for n in made if not isinstance(n.op, Collective)}
