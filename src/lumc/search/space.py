"""The ``.ls`` artifact: for every unique region its variants and cut points, and who uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lumc.graph.expr import Expr
from lumc.graph.graph import Graph
from lumc.kernel.codec import check_target, check_terms, from_plain, launches_from, to_plain
from lumc.kernel.plan import Instance, Outputs
from lumc.kernel.target import Target
from lumc.kernel.term import Extent
from lumc.search.cuts import Frame
from lumc.search.saturate import Stats


@dataclass(frozen=True)
class Variant:
    """One way to compute a region, and the values in it that may be stored in between."""

    value: Expr
    cuts: tuple[Expr, ...]


@dataclass(frozen=True)
class Region:
    """A unique region: all its variants are equal, the first takes the fewest operations."""

    key: str
    count: Extent  # instances
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
        "target": to_plain(space.target),
        "regions": [to_plain(r) for r in space.regions],
        "instances": [to_plain(i) for i in space.instances],
        "outputs": to_plain(space.outputs),
    }


def from_json(body: Mapping[str, Any], graph: Graph) -> Space:
    """The space of ``to_json``; raises ValueError, TypeError or LookupError for anything else."""
    regions = tuple(_checked(from_plain(Region, r)) for r in body["regions"])
    signatures = {r.key: {b.name: b for b in (*r.frame.inputs, r.frame.output)} for r in regions}
    target = check_target(from_plain(Target, body["target"]))
    return Space(graph, target, regions, *launches_from(body, graph, signatures))


def _checked(region: Region) -> Region:
    frame = region.frame
    check_terms([*frame.index, *(v.value for v in region.variants)], frame.inputs, frame.extent)
    for v in region.variants:
        if not v.value.free <= set(frame.axes) or len(frame.index) != len(frame.output.shape):
            raise ValueError("a variant does not fit the result of its region")
    return region
