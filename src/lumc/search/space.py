"""The ``.ls`` artifact: for every unique region its variants and cut points, and who uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lumc.graph.expr import Expr
from lumc.graph.graph import Graph
from lumc.kernel.codec import (
    Outputs,
    buffer_from,
    buffer_to,
    check_terms,
    decode,
    encode,
    extent_from,
    launches_from,
    launches_to,
    pick,
    target_from,
    target_to,
)
from lumc.kernel.plan import Instance
from lumc.kernel.target import Target
from lumc.search.cuts import Frame
from lumc.search.saturate import Stats, StopReason


@dataclass(frozen=True)
class Variant:
    """One way to compute a region, and the values in it that may be stored in between."""

    value: Expr
    cuts: tuple[Expr, ...]


@dataclass(frozen=True)
class Region:
    """A unique region: all its variants are equal, the first takes the fewest operations."""

    key: str
    count: int  # instances
    frame: Frame
    variants: tuple[Variant, ...]
    stats: Stats


@dataclass(frozen=True)
class Space:
    """What may run: the choice of variants, cuts and schedules is left to ``profile``."""

    graph: Graph
    target: Target
    regions: tuple[Region, ...]
    instances: tuple[Instance, ...]
    outputs: Outputs


def to_json(space: Space) -> dict[str, Any]:
    """The body of a ``.ls`` file but for the graph."""
    return {
        "target": target_to(space.target),
        "regions": [_region_to(r) for r in space.regions],
        **launches_to(space.instances, space.outputs),
    }


def from_json(body: Mapping[str, Any], graph: Graph) -> Space:
    """The space of ``to_json``; raises ValueError, TypeError or KeyError for anything else."""
    regions = tuple(_region_from(r) for r in body["regions"])
    signatures = {r.key: {b.name: b for b in (*r.frame.inputs, r.frame.output)} for r in regions}
    instances, outputs = launches_from(body, graph, signatures)
    return Space(graph, target_from(body["target"]), regions, instances, outputs)


def _region_to(region: Region) -> dict[str, Any]:
    frame = region.frame
    cuts = [c for v in region.variants for c in v.cuts]
    roots = [*frame.index, *(v.value for v in region.variants), *cuts]
    nodes, positions = encode(roots)
    at = dict(zip(roots, positions, strict=True))
    return {
        "key": region.key,
        "count": region.count,
        "inputs": [buffer_to(b) for b in frame.inputs],
        "output": buffer_to(frame.output),
        "axes": list(frame.axes),
        "extent": dict(frame.extent),
        "index": [at[i] for i in frame.index],
        "terms": nodes,
        "variants": [
            {"value": at[v.value], "cuts": [at[c] for c in v.cuts]} for v in region.variants
        ],
        "stats": {**asdict(region.stats), "stop": region.stats.stop.value},
    }


def _region_from(data: Mapping[str, Any]) -> Region:
    terms = decode(data["terms"])
    extent = {str(a): extent_from(n) for a, n in data["extent"].items()}
    frame = Frame(
        tuple(buffer_from(b) for b in data["inputs"]),
        buffer_from(data["output"]),
        tuple(str(a) for a in data["axes"]),
        tuple(pick(terms, at) for at in data["index"]),
        extent,
    )
    variants = tuple(
        Variant(pick(terms, v["value"]), tuple(pick(terms, at) for at in v["cuts"]))
        for v in data["variants"]
    )
    check_terms([*frame.index, *(v.value for v in variants)], frame.inputs, extent)
    for v in variants:
        if not v.value.free <= set(frame.axes) or len(frame.index) != len(frame.output.shape):
            raise ValueError("a variant does not fit the result of its region")
    stats = Stats(**{**data["stats"], "stop": StopReason(data["stats"]["stop"])})
    return Region(str(data["key"]), extent_from(data["count"]), frame, variants, stats)
