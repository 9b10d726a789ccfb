"""How a kernel runs: everything that lowering is told. It decides nothing itself.

A schedule belongs to a normalized kernel (``kernel.normal``) and a target. The block part
(order, parallel, tile) is shared by all stages; a ``Stage`` is the part of one reduction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from lumc.kernel.codec import from_plain, one_of, to_plain

Form = Annotated[str, one_of("contract", "dot", "rows")]
Staging = Annotated[str, one_of("none", "inner", "hoist", "link", "narrow", "integers", "digits")]
Lanes = Annotated[str, one_of("reduced", "kept")]
Fragment = Annotated[str, one_of("simt", "mma", "wgmma", "mfma", "wmma", "simdgroup")]
Memory = Annotated[str, one_of("shared", "register")]
# what JSON says of every schedule, as records of all versions do; other fields where they are set
ALWAYS = (
    *("order", "parallel", "tile", "stages"),
    *("keep", "fuse_rows", "transpose", "stream", "prefetch"),
)
Positive = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True)
class Stage:
    """The part of one reduction.

    ``contract``: a register tile of ``mr`` rows x ``nv`` vectors, lanes along ``lane_axis``.
    ``dot``: ``mr`` x ``nv`` vector accumulators, lanes along the last reduced axis.
    ``rows``: one result at a time, lanes along the reduced or the last kept axis.

    An operand of the first two forms (``a`` lacks the lane axis, ``b`` has it) is read in place
    (none) or copied: beside the contraction (inner), as soon as its axes are open (hoist) or
    when the program is linked, as it is computed (link) or as it is stored (narrow), also to be
    multiplied as integers with bytes (integers) or with floats in digits (digits).
    """

    form: Form = "rows"
    rows_axis: str | None = None  # None: one row
    lane_axis: str | None = None
    mr: Positive = 1
    nv: Positive = 1
    stage_a: Staging = "none"
    stage_b: Staging = "none"
    window: bool = True  # copy overlapping windows in index space (p = y + u), not axis space
    panels_first: bool = True  # loop over vector panels outside, over row panels inside
    panels_outside: bool = False  # vector panels outside the batch axes
    unroll: bool = False  # short steps of the register tile are written out several times
    next_panel: bool = False  # packed at link time: the next panel of b is fetched meanwhile
    lanes: Lanes = "reduced"  # rows: the axis that the lanes run along
    streams: Positive = 1  # rows: independent accumulators along the reduced axis
    # on a GPU a contraction has no register tile of its own: ``grid`` threads (simt) or warps (mma,
    # wgmma: four together, simdgroup) along the rows and the lane axis share the tile, and staged
    # operands lie in
    fragment: Fragment = "simt"
    grid: tuple[Positive, Positive] = (1, 1)
    place_a: Memory = "shared"
    place_b: Memory = "shared"

    def staging(self, side: str) -> str:
        """How operand ``side`` (a or b) is read."""
        return self.stage_a if side == "a" else self.stage_b


def power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


@dataclass(frozen=True)
class Threads:
    """How the threads of one block of a GPU share its work; counts are powers of two."""

    count: Positive = 128  # of a block
    row: Positive = 32  # along the lanes of operations outside contractions
    vector: Positive = 1  # consecutive elements that a thread moves
    ring: Positive = 1  # slots of the copies in flight; 1: copies are waited for at once
    pad: Annotated[int, msgspec.Meta(ge=0)] = 16  # bytes between the rows of shared tiles
    resident: Positive = 1  # blocks that share a processor, which bounds the registers of each
    # blocks that share what a tensor map copies of whole tiles; 0: threads copy
    bulk: Annotated[int, msgspec.Meta(ge=0, le=2)] = 0


@dataclass(frozen=True)
class Schedule:
    """The block part, and one ``Stage`` per reduction in the order of ``kernel.stages``."""

    order: tuple[str, ...]  # output axes, outer loop first
    parallel: Annotated[int, msgspec.Meta(ge=0)]  # this many leading loops are dealt to the parts
    tile: Mapping[str, Positive] = field(default_factory=dict)  # axis -> tile; missing: whole
    stages: tuple[Stage, ...] = ()
    keep: bool = True  # keep expensive values that a later pass reads again
    fuse_rows: bool = True  # neighbouring operations run row by row
    transpose: bool = True  # moves that change the unit-stride axis go through registers
    stream: bool = False  # results go to memory around the caches
    skew: bool = False  # the walks over a row go side by side, each behind what it reads
    prefetch: bool = False  # what later rows read is brought closer while these are computed
    parts: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0  # at most so many; 0: one per thread
    threads: Threads | None = None  # of a block; None on a CPU

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, without defaults of stages and, but for ``ALWAYS``, of the rest."""
        out, default, usual = to_plain(self), to_plain(Stage()), to_plain(Schedule((), 0))
        out["stages"] = [{k: v for k, v in s.items() if v != default[k]} for s in out["stages"]]
        return {k: v for k, v in out.items() if k in ALWAYS or v != usual[k]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Schedule:
        """The schedule of ``to_json``; raises ValueError or TypeError on anything else."""
        if not isinstance(data["stages"], list) or "order" not in data:
            raise ValueError("a schedule has an order and a list of stages")
        stages = [{**to_plain(Stage()), **stage} for stage in data["stages"]]
        return from_plain(Schedule, {**to_plain(Schedule((), 0)), **data, "stages": stages})
