"""The tile program as text that people read: the places that it touches, then a line per operation.

    scratch s.3 f32[i:16 from i.0, k:64] at 0        a place: kind, name, dtype, dims, offset
    par i:64 by 16                                   loops: an axis, its extent, the tile
    block k:64 by 16 to i.0 + 16                     and which of its steps count, if not all
    map i:16 j:64.  out[i, j] = exp2(x[i, j])        axes with the sizes of their tiles, then stores
    contract i:16 j:64 over k:8|32.  c[i, j] += a[i, k] * b[k, j]

An axis of a tile starts where its loop does: ``i.0``; where it does not, ``i:3 from 13`` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import lumc.codegen.tile.program as ir
from lumc.graph.expr import Expr, num, text

FEW = 4  # sizes of a range that are listed
WIDEST = 300  # characters of a term, which is a DAG: its text may be exponentially larger


def program_text(program: ir.Program) -> str:
    """The whole program, without a line break at its end."""
    head = f"tile program '{program.kernel.name}' for {program.target.name}"
    used = {e.attr[0] for op in ir.leaves(program.body) for e in ir.loads_of(op)}
    places = [_place(p, program) for p in program.places.values() if p.name in used]
    return "\n".join([head, *places, *_lines(program.body, "")])


def _place(p: ir.Place, program: ir.Program) -> str:
    dims = ", ".join(_dim(d, p.kind) for d in p.dims)
    out = f"{p.kind} {p.name} {p.dtype.value}[{dims}]"
    if p.panel:
        out += f" in panels of {p.panel[1]} {p.dims[p.panel[0]].label}"
    out += " in digits" * p.digits
    if p.name in program.packed:
        packing = program.packed[p.name]
        out += f" from {packing.weight}[{', '.join(map(str, packing.index))}]"
    return out + (f" at {program.scratch[p.name]}" if p.name in program.scratch else "")


def _dim(d: ir.Dim, kind: str) -> str:
    label = "" if kind == "argument" else f"{d.label}:"
    return f"{label}{d.size}" + ("" if d.origin is num(0) else f" from {d.origin}")


def _lines(body: Sequence[ir.Op], pad: str) -> Iterator[str]:
    for op in body:
        head, *more = _said(op)
        yield pad + head
        yield from (f"{pad}  {line}" for line in more)
        if isinstance(op, ir.NESTS):
            yield from _lines(op.body, pad + "  ")


def _said(op: ir.Op) -> list[str]:
    """An operation, without what is in its loop; further lines are indented."""
    match op:
        case ir.Par():
            return [f"par {', '.join(map(_loop, op.loops))}"]
        case ir.Block():
            return [f"block {_loop(op.loop)}"]
        case ir.Rows():
            lags = f", {' '.join(map(str, op.lags))} rows behind" if op.lags else ""
            return [f"rows {_axis(op.axis, op.range)}{lags}"]
        case ir.When():
            first = [f"the first tile of {a}" for a in op.first]
            first += ["the first tile of a part"] * op.part_start
            return [f"in {' and '.join(first)}"]
        case ir.Case():
            return [f"case {op.lo} <= {op.axis} < {op.hi}"]
        case ir.Map():
            return [f"map {_axes(op, op.axes)}.  {_one(op.dst)} = {_one(op.term)}{_how(op)}"]
        case ir.Reduce():
            return list(_reduced(op))
        case ir.Contract():
            return [_contracted(op)]


def _reduced(op: ir.Reduce) -> Iterator[str]:
    streams = f", {op.streams} streams" if op.streams > 1 else ""
    yield f"reduce {_over(op)}, lanes {op.lanes}{streams}{_ahead(op.ahead)}"
    for o in op.outputs:
        yield f"{_one(o.dst)} = {o.op} of {_one(o.term)} from {_one(o.init)}"
    for dst, term in op.stores:
        yield f"{_one(dst)} = {_one(term)}"
    if op.then:
        yield f"then {_one(op.then.dst)} = {_one(op.then.term)}"


def _contracted(op: ir.Contract) -> str:
    p, sign = op.stage, "=" if op.overwrite == () else "+="
    out = f"contract {_over(op)}.  {_one(op.dst)} {sign} {_one(op.a)} * {_of_levels(op)}"
    on_gpu = p.grid != (1, 1) or p.fragment != "simt"
    form, (rows, lanes) = (p.fragment, p.grid) if on_gpu else (p.form, (p.mr, p.nv))
    out += f", {form} {rows} x {lanes}"
    out += f", anew in the first tile of {' '.join(op.overwrite)}" if op.overwrite else ""
    for w in (*op.within, *([op.edge] if op.edge else ())):
        out += f", only {w.border.lo} <= {w.border.index} < {w.border.hi}"
    return out


def _of_levels(op: ir.Contract) -> str:
    """What is multiplied with a."""
    by, to = ("" if e is None else _one(e) for e in (op.scale, op.shift))
    out = f"{by} * {_one(op.b)}" if by else _one(op.b)
    return f"({out} + {to})" if to else f"({out})" if by else out


def _how(op: ir.Map) -> str:
    out = f", turned along {op.turn}" if op.turn else ""
    out += f" as {', '.join(map(str, op.turned))}" if op.turned else ""
    flags = (("a copy", op.copy), ("around caches", op.stream), ("abreast", op.abreast))
    return out + "".join(f", {word}" for word, on in flags if on) + _ahead(op.ahead)


def _ahead(loads: Sequence[Expr]) -> str:
    return f", fetching {' '.join(map(_one, loads))}" if loads else ""


def _loop(loop: ir.Loop) -> str:
    extent = f"{loop.extent}" if loop.length is None else f"{loop.length} <= {loop.extent}"
    ends = [f"from {e}" for e in loop.span.firsts] if loop.span else []
    ends += [f"to {e}" for e in loop.span.ends] if loop.span else []
    return " ".join([f"{loop.axis}:{extent} by {loop.tile}", *ends])


def _over(op: ir.Reduce | ir.Contract) -> str:
    return f"{_axes(op, op.kept)} over {_axes(op, op.red)}".strip()


def _axes(op: ir.Leaf, axes: Sequence[str]) -> str:
    return " ".join(_axis(a, op.ranges[a]) for a in axes)


def _axis(a: str, r: ir.Range) -> str:
    start = "" if r.lo in (num(0), ir.block_start(a)) else f" from {r.lo}"
    sizes = "|".join(map(str, r.sizes[:FEW])) if len(r.sizes) <= FEW else _many(r)
    return f"{a}:{sizes}{start}"


def _many(r: ir.Range) -> str:
    """The sizes of a live axis."""
    return f"{r.sizes[0]}..{r.largest} of {r.n}"


def _one(e: Expr) -> str:
    return text(e, WIDEST)
