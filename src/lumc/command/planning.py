"""``lumc shard --plan``: which mesh of many devices a step is expected to be fastest on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from lumc.artifacts import files
from lumc.command.sources import parse_dims
from lumc.disk import artifact
from lumc.errors import Exit, LumcError
from lumc.graph.bind import require_static
from lumc.graph.ranks import require_one_rank
from lumc.report.log import Log
from lumc.report.trace import of_stages
from lumc.shard.devices import DEVICES, Device
from lumc.shard.pipeline import turns
from lumc.shard.plan import Choice, choices, tensors
from lumc.shard.work import Work, rows_of, work

SHOWN = 64  # micro-batches of a timeline
MODEL = (
    "note: a model of data sheets, and nothing is measured; it expects 0.91 to 1.07 times what ten "
    "published trainings reached (docs/mesh.md)"
)


class Saying(NamedTuple):
    """How many meshes are listed, a file for the timeline of the first, and in which form."""

    top: int
    timeline: str | None
    as_json: bool
    verbose: int


def plan(
    source: str,
    devices: int,
    name: str,
    dims: Sequence[str],
    halves: bool,
    price: float,
    said: Saying,
) -> None:
    """Say which meshes take least. Raises E0140 (a graph for a mesh), E0112 (a dim without a
    number), E0203 (several entries) and E0142 (no mesh)."""
    log, device = Log(said.verbose), DEVICES[name]
    if said.timeline:
        artifact.check_writable(said.timeline)
    with log.step("read"):
        graph = files.read_graph(source, parse_dims(dims), mesh=True)
    require_one_rank(graph, "--plan")
    require_static(graph, "--plan")
    if len(graph.entries) > 1:
        what = "--plan takes a graph of one entry, and this one has several"
        fix = ", ".join(e.name for e in graph.entries)
        raise LumcError("E0203", what, fix=f"leave one of them: {fix}", exit=Exit.USAGE)
    with log.step("rows"):
        rows = rows_of(graph)
    works = list[Work]()
    for tp in tensors(device, devices):
        with log.step(f"tp {tp}"):
            works.append(work(rows, tp, device, price, halves))
    found = sorted(choices(works, device, devices), key=lambda c: c.order)
    fits = require_some(found, device, f"{devices} {name}", rows.number)
    best = fits[: said.top]
    if said.timeline:
        write_timeline(said.timeline, best[0])
    if said.as_json:
        print(json.dumps(as_plain(best, works[0], name, devices), allow_nan=False))
        return
    print(
        f"plan: {devices} {name}, {rows.number} rows in a step, {works[0].flops:.3g} operations "
        f"in a row; {len(fits)} of {len(found)} meshes fit into {device.memory / 1e9:.0f} GB"
    )
    print("\n".join(table(best, device)))
    for line in stages(best[0], works[0].names):
        log(1, line)
    log(0, MODEL)


def require_some(found: list[Choice], device: Device, what: str, rows: int) -> list[Choice]:
    """The meshes that fit into memory; raises E0142 if there are none."""
    fits = [c for c in found if c.nbytes <= device.memory]
    if fits:
        return fits
    if not found:
        why = f"{rows} rows are not divided by any mesh of {what}"
        raise LumcError("E0142", why, exit=Exit.UNSUPPORTED)
    least = min(c.nbytes for c in found)
    why = f"no mesh of {what} holds a step: the least is {least / 1e9:.3g} GB of a device"
    raise LumcError("E0142", f"{why}, which has {device.memory / 1e9:.3g}", exit=Exit.UNSUPPORTED)


HEAD = ("tp", "pp", "dp", "rows", "batches", "again", "time", "wait", "tensor", "sums", "memory")


def table(best: Sequence[Choice], device: Device) -> list[str]:
    """A line for each mesh, the first one of the titles."""
    rows: list[Sequence[str]] = [(*HEAD, "TFLOP/s", "of peak")]
    for c in best:
        shares = (c.waiting, c.exchange, c.reduce)
        rows.append(
            (
                *map(str, (c.tp, c.pp, c.dp, c.rows, c.batches, "yes" if c.again else "no")),
                f"{c.seconds:.4g} s" if c.seconds >= 1 else f"{c.seconds * 1e3:.3f} ms",
                *(f"{100 * s / c.seconds:.0f} %" for s in shares),
                f"{c.nbytes / 1e9:.3g} GB",
                f"{c.flops / 1e12:.3g}",
                f"{100 * c.flops / device.flops:.0f} %",
            )
        )
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    return ["  ".join(f"{v:>{w}}" for v, w in zip(r, widths, strict=True)) for r in rows]


def stages(choice: Choice, names: Sequence[str]) -> list[str]:
    """Where the pipeline of a mesh is cut."""
    forward, backward = choice.slots
    out = list[str]()
    for s, (lo, hi) in enumerate(pairwise(choice.cuts)):
        took = f"{forward[s] * 1e3:.3g} ms forward, {backward[s] * 1e3:.3g} ms backward"
        out.append(f"  stage {s}: {names[lo]} .. {names[hi - 1]}, {took} for a micro-batch")
    return out


def as_plain(best: Sequence[Choice], of: Work, name: str, devices: int) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "device": name,
        "devices": devices,
        "rows": of.rows,
        "flops_per_row": of.flops,
        "meshes": [
            {
                "tp": c.tp,
                "pp": c.pp,
                "dp": c.dp,
                "rows": c.rows,
                "micro_batches": c.batches,
                "forward_again": c.again,
                "seconds": c.seconds,
                "waiting_seconds": c.waiting,
                "tensor_seconds": c.exchange,
                "sums_seconds": c.reduce,
                "device_bytes": c.nbytes,
                "device_flops_per_second": c.flops,
                "stages": [
                    {"first": of.names[at], "forward_seconds": f, "backward_seconds": b}
                    for at, f, b in zip(c.cuts, *c.slots, strict=False)
                ],
            }
            for c in best
        ],
    }


def write_timeline(path: str, choice: Choice) -> None:
    """The first micro-batches of a step of the first mesh, a row for each stage."""
    forward, backward = choice.slots
    spans = turns(forward, backward if any(backward) else (), min(choice.batches, SHOWN))
    of_stages("lumc shard --plan", spans, choice.pp).write(path)
