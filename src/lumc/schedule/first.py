"""A sound default schedule for every kernel: its reductions (``first_stages``) and tiles
(``first_tiles``), what the threads have of these (``shares``), and how results go to memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from lumc.graph.expr import subterms
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.schedule.applies import grain, skewable, streamable
from lumc.schedule.first_blocks import guesses
from lumc.schedule.first_stages import LINE, default_stage
from lumc.schedule.first_tiles import default_tiles
from lumc.schedule.schedule import Schedule, Stage
from lumc.schedule.shares import distributed, evenly_dealt, lanes_dealt

LARGE = 8 << 20  # bytes: of such a result the next kernel finds little in the caches of a core
SKEWED = 2  # accumulators of one of several walks side by side: they share the registers


def first_schedules(kernel: Kernel, target: Target) -> Iterator[Schedule]:
    """Sound guesses for every kernel on this kind of machine, the most promising first; on a CPU
    only the default."""
    if target.gpu:
        yield from guesses(kernel, target)
    else:
        yield default_schedule(kernel, target)


def default_schedule(kernel: Kernel, target: Target) -> Schedule:
    """A sound guess for every kernel on a CPU."""
    kernel = normalize(kernel)
    return tiled(kernel, tuple(default_stage(kernel, s, target) for s in kernel.stages), target)


def tiled(kernel: Kernel, stages: tuple[Stage, ...], target: Target) -> Schedule:
    """The default tiles and order around these stages of a normalized kernel."""
    tile, order = default_tiles(kernel, stages, target)
    return _finish(kernel, order, tile, stages, target)


def _finish(
    kernel: Kernel,
    order: Sequence[str],
    tile: dict[str, int],
    stages: tuple[Stage, ...],
    target: Target,
) -> Schedule:
    """Distribute as many leading loops as it takes to have enough tiles for every part."""
    tile = _whole_panels(kernel, tile, stages, target)
    order = evenly_dealt(kernel, order, tile, stages, target)
    order, tile = lanes_dealt(kernel, order, tile, stages, target)
    parallel = distributed(kernel, order, tile)
    return _memory(kernel, Schedule(tuple(order), parallel, tile, stages), target)


def _memory(kernel: Kernel, schedule: Schedule, target: Target) -> Schedule:
    """Go around the caches with large results made of whole lines, unless there is a contraction
    to feed or the store hits what was just read. Prefetching beside plain stores only pays when
    there is much to compute between, and then walks go side by side: one computes, others move."""
    if any(p.form != "rows" for p in schedule.stages):
        return schedule
    terms = subterms(*kernel.values)
    read = {e.attr[0] for e in terms if e.kind == "load"}
    out = [kernel.buffer(r.buffer) for r in kernel.roots if streamable(kernel, r)]
    whole = all(b.shape[-1] * b.dtype.nbytes % LINE == 0 and b.name not in read for b in out)
    nbytes = {b.name: prod(b.shape) * b.dtype.nbytes for b in kernel.buffers}
    stream = bool(out) and whole and all(nbytes[b.name] >= LARGE for b in out)
    heavy = any(e.attr[:1] in (("exp2",), ("log2",), ("sin",)) for e in terms)
    ahead = stream or (heavy and sum(nbytes.values()) > target.l2)
    if skew := stream and heavy and skewable(kernel):
        few = tuple(replace(s, streams=min(s.streams, SKEWED)) for s in schedule.stages)
        schedule = replace(schedule, stages=few)
    return replace(schedule, stream=stream, skew=skew, prefetch=ahead)


def _whole_panels(
    kernel: Kernel, tile: dict[str, int], stages: tuple[Stage, ...], target: Target
) -> dict[str, int]:
    """Tiles rounded up to whole panels; those of the whole extent are left out."""
    out = {}
    for a in sorted(tile):
        unit = grain(kernel, stages, a, target)
        size = -(-tile[a] // unit) * unit
        if size < kernel.extent[a]:
            out[a] = size
    return out
