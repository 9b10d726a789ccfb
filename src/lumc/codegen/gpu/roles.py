"""The distributions that contractions fix: those of their results and operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.dealing import Dealing
from lumc.codegen.gpu.distribution import Distribution, Roles, mma, simdgroup, simt, sixteen
from lumc.codegen.gpu.program import Step, plain
from lumc.graph.expr import Expr, linear, num
from lumc.kernel.term import dtype
from lumc.schedule.fragment import SIXTEENS, products_of

# fragments that are read as words of several elements, or whole
PACKED = ("mma", "wgmma", *SIXTEENS)
RDNA4 = 0x1200  # from which threads share the steps of an operand
PANEL = 64  # elements of a row that lie together for warpgroups: 128 bytes
GROUP = 4  # warps of a warpgroup, each with 16 of its 64 rows
LANES = range(16, 257, 16)  # of one instruction, as the header has them


def anchor(d: Dealing, step: Step, op: ir.Contract) -> None:
    """The distributions of a contraction's tiles, from its fragment and its grid."""
    p, size = op.stage, {a: r.largest for a, r in op.ranges.items()}
    assert p.lane_axis
    batch = [a for a in op.kept if a not in (p.rows_axis, p.lane_axis)]
    if p.fragment == "simt":
        free = op.a.free, op.b.free
        roles = simt(p.rows_axis, p.lane_axis, size, p.grid, batch, op.red, free)
    else:
        roles = _fragments(d, op, size, batch)
    step.roles, step.points = roles, roles.c
    d.known.add(step)
    d.values.setdefault(d.name_of(op), d.labelled(op.dst, roles.c))
    for ref, role, memory in ((op.a, roles.a, p.place_a), (op.b, roles.b, p.place_b)):
        if not d.inside(ref.attr[0]):
            continue
        fits = plain(ref) and d.still(op, ref)
        if memory == "register" and fits and (p.fragment == "simt" or len(op.red) == 1):
            d.values.setdefault(ref.attr[0], d.labelled(ref, role))
        if p.fragment in PACKED:  # others are read one by one, where there is something
            _grow(d, op, ref, role)
            d.stored[ref.attr[0]] = d.places[ref.attr[0]].dtype


def _fragments(d: Dealing, op: ir.Contract, size: Mapping[str, int], batch: Sequence[str]) -> Roles:
    p = op.stage
    assert p.lane_axis
    kinds = {d.places[e.attr[0]].dtype for e in (op.a, op.b)}
    product = products_of(d.program.target, kinds, dtype(op.dst)).get(p.fragment)
    if product is None:
        named = " and ".join(sorted(k.value for k in kinds))
        raise d.refuse(f"no {p.fragment} fragments of {named} on {d.program.target.name}")
    if p.rows_axis is None or any(size[a] > 1 for a in batch):
        raise d.refuse("a fragment has rows and lanes, and no third axis")
    along = max(op.red, key=lambda a: (size[a], a))
    if op.ranges[along].lo != num(0) and size[along] % product.shape[2]:
        raise d.refuse(f"tiles of {size[along]} steps are not whole fragments")
    if p.fragment == "simdgroup":
        return simdgroup(p.rows_axis, p.lane_axis, along, size, p.grid)
    if p.fragment in SIXTEENS:
        of_wmma = 8 if d.program.target.generation >= RDNA4 else 16
        near = 4 if p.fragment == "mfma" else of_wmma
        axes = p.rows_axis, p.lane_axis, along
        return replace(sixteen(*axes, size, p.grid, d.gpu.warp, near), product=product)
    again = {a for s in d.steps if isinstance(s.op, ir.Contract) for a in s.op.red}
    paired = p.fragment == "wgmma" or p.lane_axis in again  # results that are multiplied again
    roles = mma(p.rows_axis, p.lane_axis, along, size, p.grid, product.shape[2], paired)
    if p.fragment == "wgmma":
        rows, lanes, _ = roles.counts
        if p.grid[0] % GROUP or p.grid[1] > 1 or rows > 1 or lanes * 8 not in LANES:
            raise d.refuse("a product of warpgroups has 64 rows each, and 16 to 256 lanes")
    return replace(roles, product=product)


def _grow(d: Dealing, op: ir.Contract, ref: Expr, role: Distribution) -> None:
    """Tiles of operands hold whole fragments; what lies beyond the data is zero. For warpgroups
    they hold whole panels, whichever axis these run along."""
    place, whole = d.places[ref.attr[0]], PANEL if op.stage.fragment == "wgmma" else 1
    dims = [
        replace(x, size=-(-_reach(op, role, x, i) // (n := whole if x.size > 1 else 1)) * n)
        for x, i in zip(place.dims, ref.kids, strict=True)
    ]
    d.places[place.name] = replace(place, dims=tuple(dims))


def _reach(op: ir.Contract, role: Distribution, d: ir.Dim, index: Expr) -> int:
    """How far along a dimension a contraction reads: whole fragments, past the last tile of a
    copy that was made outside the loop as well."""
    if index.kind != "axis":
        extra = 0
        for a, c in linear(index)[1].items():
            if a.kind == "axis" and a.attr[0] in op.ranges:
                name = a.attr[0]
                extra += abs(c) * max(0, role.span(name) - op.ranges[name].largest)
        return d.size + extra
    if index.attr[0] not in op.ranges:
        return d.size
    r, span = op.ranges[index.attr[0]], role.span(index.attr[0])
    if d.origin is r.lo:
        return max(d.size, span)
    return max(d.size, (-(-d.size // r.largest) - 1) * r.largest + span)
