"""How a kernel runs: everything that lowering is told. It decides nothing itself.

A schedule belongs to a normalized kernel (``kernel.normal``) and a target. The block part
(order, parallel, tile) is shared by all stages; a ``Stage`` is the part of one reduction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

FORMS = ("contract", "dot", "rows")
STAGING = ("none", "inner", "hoist", "link")
LANES = ("reduced", "kept")


@dataclass(frozen=True)
class Stage:
    """The part of one reduction.

    ``contract``: a register tile of ``mr`` rows x ``nv`` vectors, lanes along ``lane_axis``.
    ``dot``: ``mr`` x ``nv`` vector accumulators, lanes along the last reduced axis.
    ``rows``: one result at a time, lanes along the reduced or the last kept axis.

    An operand of the first two forms (``a`` lacks the lane axis, ``b`` has it) is read in place
    (none) or copied: beside the contraction (inner), as soon as its axes are open (hoist) or
    when the program is linked (link).
    """

    form: str = "rows"
    rows_axis: str | None = None  # None: one row
    lane_axis: str | None = None
    mr: int = 1
    nv: int = 1
    stage_a: str = "none"
    stage_b: str = "none"
    window: bool = True  # copy overlapping windows in index space (p = y + u), not axis space
    panels_first: bool = True  # loop over vector panels outside, over row panels inside
    panels_outside: bool = False  # vector panels outside the batch axes
    lanes: str = "reduced"  # rows: the axis that the lanes run along
    streams: int = 1  # rows: independent accumulators along the reduced axis

    def staging(self, side: str) -> str:
        return self.stage_a if side == "a" else self.stage_b


@dataclass(frozen=True)
class Schedule:
    """The block part, and one ``Stage`` per reduction in the order of ``kernel.stages``."""

    order: tuple[str, ...]  # output axes, outer loop first
    parallel: int  # this many leading loops are dealt to the parts
    tile: Mapping[str, int] = field(default_factory=dict)  # axis -> tile; missing: whole
    stages: tuple[Stage, ...] = ()
    keep: bool = True  # keep expensive values that a later pass reads again
    fuse_rows: bool = True  # neighbouring operations run row by row
    transpose: bool = True  # moves that change the unit-stride axis go through registers

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; fields of stages that have their default value are left out."""
        default = asdict(Stage())
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        out["order"], out["tile"] = list(self.order), dict(self.tile)
        out["stages"] = [
            {k: v for k, v in asdict(s).items() if v != default[k]} for s in self.stages
        ]
        return out

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Schedule:
        """The schedule of ``to_json``; raises ValueError on anything else."""
        _check(Schedule, data)
        stages = []
        for part in data["stages"]:
            _check(Stage, part)
            stages.append(Stage(**part))
        tile = {str(a): _positive(n) for a, n in data["tile"].items()}
        order = tuple(str(a) for a in data["order"])
        return Schedule(**{**data, "order": order, "tile": tile, "stages": tuple(stages)})


_TYPES: dict[str, tuple[type, ...]] = {
    "order": (list,),
    "parallel": (int,),
    "tile": (dict,),
    "stages": (list,),
    "rows_axis": (str, type(None)),
    "lane_axis": (str, type(None)),
}
_CHOICES = {"form": FORMS, "stage_a": STAGING, "stage_b": STAGING, "lanes": LANES}


def _positive(n: Any) -> int:
    if type(n) is not int or n < 1:
        raise ValueError(f"expected a positive number, got {n!r}")
    return n


def _check(what: type, data: Mapping[str, Any]) -> None:
    """Known fields of the right type only."""
    known = {f.name: f for f in fields(what)}
    for name, value in data.items():
        if name not in known:
            raise ValueError(f"unknown field '{name}' of a {what.__name__.lower()}")
        types = _TYPES.get(name) or (type(known[name].default),)
        if type(value) not in types or value not in _CHOICES.get(name, (value,)):
            raise ValueError(f"bad value of '{name}': {value!r}")
        if name in ("mr", "nv", "streams"):
            _positive(value)
