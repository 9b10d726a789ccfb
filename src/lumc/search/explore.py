"""The search pass: regions, unique ones, their e-graphs in worker processes, their variants."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from lumc.graph.bind import require_lengths
from lumc.graph.blockwise import is_stored
from lumc.graph.buckets import in_buckets
from lumc.graph.graph import Entry, Graph, Node
from lumc.graph.ranks import exchanged
from lumc.kernel.instance import Instance, Outputs
from lumc.kernel.key import rename
from lumc.kernel.lengths import stated
from lumc.kernel.target import Target
from lumc.limits import AGAIN
from lumc.search.cuts import Frame, cut_points
from lumc.search.equations import with_equations
from lumc.search.order import Found, early_readers, in_order, refuse, values_in_place
from lumc.search.partial import with_partial_sums
from lumc.search.parts import narrowed, parted
from lumc.search.pieces import Piece, pieces_of
from lumc.search.regions import partition
from lumc.search.saturate import Limits
from lumc.search.space import Region, Space, Variant
from lumc.search.translate import Body, TooManyViews, translate
from lumc.search.worker import Finding, explore_all

PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,30}")
BOUND_NAME = re.compile(r"k[0-9]+(n[0-9]+)?_.*")  # names that bound axes get


def search(
    graph: Graph,
    target: Target,
    limits: Limits | None = None,
    inside: bool = False,
    again: int = AGAIN,
    equations: bool = False,
) -> Space:
    """Everything that equals the graph, as far as the limits allow; the choice is not made here.
    Entries are in the buckets of what the graph is tuned at.

    Each unique region is saturated once, in a process that is killed when it exceeds the limits;
    ``inside`` saturates in this one. ``again``: operations per element, up to which several regions
    make a value, each for itself, instead of storing it; ``equations``: regions may read what those
    before them store in place of what they would compute again. Raises E0101 (stages or
    micro-batches that do not fit), E0112 (an extent that may be 0), E0402 (an update with a state
    as its value that is written too) and E0414 (a region of which no process could tell anything).
    """
    require_lengths(graph, "search")
    graph = in_buckets(graph)
    found = [f for entry in graph.entries for f in find_regions(entry, again)]
    if equations:
        rows = {e.name for e in graph.entries if any(map(is_stored, e.nodes))}  # in blocks
        told = with_equations(found)
        found = [replace(f, body=narrowed(f.body)) if f.entry in rows else f for f in told]
    keys = [f.key for f in found]
    count = Counter(keys)
    unique = dict(zip(reversed(keys), reversed(found), strict=True))  # the first of each
    unique = {key: unique[key] for key in count}
    findings = explore_all([f.body for f in unique.values()], limits or Limits(), inside)
    regions = tuple(
        make_region(key, count[key], f, finding)
        for (key, f), finding in zip(unique.items(), findings, strict=True)
    )
    instances = tuple(
        Instance(f.entry, key, f.body.read, (f.output,)) for key, f in zip(keys, found, strict=True)
    )
    outputs: Outputs = {e.name: tuple((n, v.name) for n, v in e.outputs) for e in graph.entries}
    return Space(graph, target, regions, instances, outputs)


def find_regions(entry: Entry, again: int = AGAIN) -> list[Found]:
    """The regions of an entry in execution order. Raises E0101 as ``phases_of``, and E0402 (updates
    that have to come before what reads the state as it was)."""
    extra: list[Node] = []
    pieces = pieces_of(entry)
    nodes = {whole: [p.node for p in each] for whole, each in pieces.items()}
    while True:
        cuts = partition(entry, extra, nodes, again)
        in_place = values_in_place(entry).difference(extra)
        found, torn = _regions(entry, cuts, in_place, pieces)
        if not torn:
            ordered, stuck = in_order(entry, found, exchanged(entry))
            if not stuck:
                return ordered
            stored = frozenset(cuts).union(exchanged(entry)).difference(in_place)
            torn = [n for n in early_readers(entry, stuck, stored) if n not in extra]
            if not torn:
                refuse(entry, stuck)
        extra += torn


def _regions(
    entry: Entry, cuts: Iterable[Node], in_place: set[Node], pieces: Mapping[Node, list[Piece]]
) -> tuple[list[Found], list[Node]]:
    """The regions of these cuts and of updates, and the nodes that must be cut too, below each
    other as well. A value ``in_place`` has one region, that of its update."""
    inputs = frozenset(cuts).union(pieces, exchanged(entry))
    found, torn = list[Found](), dict[Node, None]()
    part = {p.node: p for each in pieces.values() for p in each}
    writes = [(i, u) for i, u in enumerate(entry.writes) if u.value.size]  # others do nothing
    whole = {n for _, n in entry.outputs}
    pending = deque[tuple[Node, int | None]]((n, None) for n in cuts if n not in in_place)
    pending += ((u.value, i) for i, u in writes)
    while pending:
        n, which = pending.popleft()
        try:
            body = _body(entry, n, which, inputs.union(torn).difference(in_place))
        except TooManyViews as e:
            pending += [(t, None) for t in e.nodes if t not in torn]
            torn.update(dict.fromkeys(e.nodes))
            continue
        update = None if which is None else entry.writes[which]
        if update and n in in_place and update.state in [s.home for s in body.sources]:
            torn[n] = None  # it reads what it would write
        piece = part.get(n)
        output = update.state.name if update else piece.name if piece else n.name
        stored = piece.whole if piece else n
        found.append(Found(entry.name, n, output, parted(body, whole), which, stored))
    return found, list(torn)


def _body(entry: Entry, n: Node, which: int | None, inputs: frozenset[Node]) -> Body:
    if which is None:
        return translate(n, inputs - {n})
    update = entry.writes[which]
    return translate(n, inputs, update.state, update.index)


def make_region(key: str, count: int, found: Found, finding: Finding) -> Region:
    """The region with readable axis names: those of its node."""
    body = found.body
    names = _axis_names(body, found.node)
    values = [rename(v, names) for v in finding.values]
    values = list(dict.fromkeys([*values, *map(with_partial_sums, values)]))
    used, terms = {*names.values(), *finding.alike}, (*values, *body.index)
    frame = Frame(
        inputs=body.inputs,
        output=body.output,
        axes=tuple(names.values()),
        index=tuple(rename(i, names) for i in body.index),
        extent={names[a]: body.extent[a] for a in names}
        | {a: body.extent[b] for a, b in finding.alike.items()},
        live=stated(body.lengths.with_alike(finding.alike).renamed(names).within(used, terms)),
    )
    variants = tuple(Variant(v, cut_points(v, frame.lengths)) for v in values)
    return Region(key, count, frame, variants, finding.stats)


def _axis_names(body: Body, node: Node) -> dict[str, str]:
    """Level names of the output axes -> names of the node's axes, where these are usable."""
    level = [a for a in body.extent if a.startswith("o")]
    out: dict[str, str] = {}
    for a in level:
        name, place = next((x, i) for x, i in zip(node.axes, body.own, strict=True) if a in i.free)
        name += f"_{a.rsplit('_')[-1]}" if len(place.free) > 1 else ""
        usable = PLAIN_NAME.fullmatch(name) and not BOUND_NAME.fullmatch(name)
        usable = usable and name not in node.dims
        out[a] = name if usable and name not in out.values() else f"i{len(out)}_{a}"
    return out
