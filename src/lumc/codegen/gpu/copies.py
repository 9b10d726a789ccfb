"""The two ends of a copy: what the registers of a thread add to them stands apart, where it is the
constant of an instruction and not an address of its own."""

from __future__ import annotations

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.distribution import Distribution
from lumc.codegen.gpu.writer import LARGE, GpuWriter
from lumc.graph.expr import Expr, add, axis, dim, linear, mul, num, substitute
from lumc.kernel.term import unguarded

PERIOD = 8  # rows of a panel after which pieces are exchanged alike


def apart(w: GpuWriter, op: ir.Map, points: Distribution) -> tuple[str, str]:
    """The addresses in the shared tile and in the argument."""
    own = {axis(a): w.at(points, a, op.ranges[a].lo) for a in op.axes}
    return _shared(w, op, points, own), _argument(w, unguarded(op.term), own)


def guards(w: GpuWriter, term: Expr) -> list[str]:
    """What holds where a copy reads, beside that its points are in the tile."""
    out = list[str]()
    while term.kind == "guard":
        (lo, hi), (i, term) = term.attr, term.kids
        index = w.index(i)
        out += [f"{index} >= {lo}", f"{index} < {hi}"]
    return out


def _argument(w: GpuWriter, load: Expr, own: dict[Expr, Expr]) -> str:
    place = w.places[load.attr[0]]
    if place.size >= LARGE:
        return f"&{w.address(load)}"
    near, far = _split(substitute(place.offset(load.kids), own))
    start = f"&{w.names.place(place)}[{w.index(near)}]"
    return start if far.kind == "num" else f"{start} + {w.index(far)}"


def _shared(w: GpuWriter, op: ir.Map, points: Distribution, own: dict[Expr, Expr]) -> str:
    tile, place = w.tiles[op.dst.attr[0]], w.places[op.dst.attr[0]]
    total = num(0)
    for i, d, stride in zip(op.dst.kids, place.dims, tile.strides, strict=True):
        if d.size > 1:
            total = add(total, mul(substitute(i, own), stride), mul(d.origin, -stride))
    near, far = _split(total)
    if tile.panels:
        width = tile.panels
        if not _alike(far, points, width * PERIOD):
            return f"&{w.address(op.dst)}"
        far = add(*(mul(a, n * 64 // width) for a, n in linear(far)[1].items()))
    if tile.swizzle and not _alike(far, points, tile.swizzle.period):
        return f"&{w.address(op.dst)}"
    start = f"&{w.array(op.dst.attr[0])}[{w.slotted(w.index(near), tile)}]"
    return start if far.kind == "num" else f"{start} + {w.index(far)}"


def _alike(far: Expr, points: Distribution, period: int) -> bool:
    """Is what the registers add whole periods, after which pieces are exchanged alike?"""
    steps = {dim(f"{r.axis}.o"): r.stride for r in points.registers}
    return all(n * steps.get(a, 1) % period == 0 for a, n in linear(far)[1].items())


def _split(index: Expr) -> tuple[Expr, Expr]:
    """An index without the parts of axes that come from registers, and these."""
    constant, atoms = linear(index)
    near, far = num(constant), num(0)
    for a, n in atoms.items():
        if a.kind == "dim" and a.attr[0].endswith(".o"):
            far = add(far, mul(a, n))
        else:
            near = add(near, mul(a, n))
    return near, far
