"""The search pass: regions, unique ones, their e-graphs in worker processes, their variants."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from lumc.errors import Exit, LumcError
from lumc.graph.bind import require_lengths
from lumc.graph.graph import Entry, Graph, Node
from lumc.kernel.codec import encode, to_plain
from lumc.kernel.instance import Instance, Outputs
from lumc.kernel.key import rename, sha
from lumc.kernel.lengths import stated
from lumc.kernel.target import Target
from lumc.search.cuts import Frame, cut_points
from lumc.search.partial import with_partial_sums
from lumc.search.regions import partition
from lumc.search.saturate import Limits
from lumc.search.space import Region, Space, Variant
from lumc.search.translate import Body, TooManyViews, translate
from lumc.search.worker import Finding, explore_all

PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,30}")
BOUND_NAME = re.compile(r"k[0-9]+(n[0-9]+)?_.*")  # names that bound axes get


@dataclass(frozen=True)
class Found:
    """A region of an entry before deduplication."""

    entry: str
    node: Node
    output: str
    body: Body

    @property
    def key(self) -> str:
        """Equal for equal regions: the term with canonical names, dtypes and constness."""
        b = self.body
        terms = encode([b.value, *b.index])
        parts = [terms, [to_plain(x) for x in (*b.inputs, b.output)], dict(b.extent)]
        lengths = [to_plain(b.lengths)] if b.lengths.dims else []
        return sha(json.dumps([*parts, *lengths]))


def search(
    graph: Graph, target: Target, limits: Limits | None = None, inside: bool = False
) -> Space:
    """Everything that equals the graph, as far as the limits allow; the choice is not made here.

    Each unique region is saturated once, in a process that is killed when it exceeds the limits;
    ``inside`` saturates in this one. Raises E0112 (an extent that may be 0), E0402 (an update with
    a state as its value that is written too) and E0414 (a region of which no process could tell
    anything).
    """
    require_lengths(graph, "search")
    found = [f for entry in graph.entries for f in find_regions(entry)]
    keys = [f.key for f in found]
    count = Counter(keys)
    unique = {key: found[keys.index(key)] for key in count}
    findings = explore_all([f.body for f in unique.values()], limits or Limits(), inside)
    regions = tuple(
        make_region(key, count[key], f, finding)
        for (key, f), finding in zip(unique.items(), findings, strict=True)
    )
    instances = tuple(
        Instance(f.entry, key, tuple(s.name for s in f.body.sources), (f.output,))
        for key, f in zip(keys, found, strict=True)
    )
    outputs: Outputs = {e.name: tuple((n, v.name) for n, v in e.outputs) for e in graph.entries}
    return Space(graph, target, regions, instances, outputs)


def find_regions(entry: Entry) -> list[Found]:
    """The regions of an entry in execution order; updates of states come last. Raises E0402 (what
    ``check_updates`` finds)."""
    extra: list[Node] = []
    while True:
        cuts = partition(entry, extra)
        inputs = frozenset(cuts)
        found, torn = _regions(entry, cuts, inputs)
        if not torn:
            break
        extra += torn
    check_updates(entry)
    for u in entry.updates:
        body = translate(u.value, inputs, u.state, u.index)
        found.append(Found(entry.name, u.value, u.state.name, body))
    return found


def _regions(
    entry: Entry, cuts: Iterable[Node], inputs: frozenset[Node]
) -> tuple[list[Found], list[Node]]:
    """The regions of these cuts, and the nodes that must be cut too, below each other as well."""
    found, torn, pending = list[Found](), dict[Node, None](), deque(cuts)
    while pending:
        n = pending.popleft()
        try:
            found.append(Found(entry.name, n, n.name, translate(n, inputs.union(torn))))
        except TooManyViews as e:
            pending += [t for t in e.nodes if t not in torn]
            torn.update(dict.fromkeys(e.nodes))
    return found, list(torn)


def check_updates(entry: Entry) -> None:
    """Updates happen after the run, at once: the value of none may be a state that another one
    writes; raises E0402."""
    written = {u.state for u in entry.updates}
    bad = [u for u in entry.updates if u.value in written]
    if bad:
        names = ", ".join(f"{u.state.name} = {u.value.name}" for u in bad)
        raise LumcError(
            "E0402",
            f"an update reads a state that the same entry updates: {names}",
            where=f"entry '{entry.name}'",
            fix="copy the state with contiguous and use the copy as the value",
            exit=Exit.UNSUPPORTED,
        )


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
