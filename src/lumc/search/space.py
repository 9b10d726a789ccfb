"""The ``.ls`` artifact: for every unique region its variants and cut points, and who uses it."""

from __future__ import annotations

from dataclasses import dataclass

from lumc.graph.expr import Expr
from lumc.graph.graph import Graph
from lumc.kernel.instance import Instance, Outputs
from lumc.kernel.target import Target
from lumc.kernel.term import Extent, Title
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

    key: Title
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
