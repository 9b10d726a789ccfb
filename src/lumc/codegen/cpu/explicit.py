"""Long steps over lanes as C in which the vectors are written out.

Compilers make good vectors of short loops. In a long one, as of the 49 products of a window for
some rows at once, gcc has a pointer for every load and keeps none of them in a register: what it
makes of the vectors here takes 0.7 of the time. A rest of lanes is a part of a vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lumc.codegen.text.levels import Levels
from lumc.codegen.text.statements import Let, Simple, new
from lumc.codegen.text.writer import Writer, is_laddered
from lumc.codegen.tile.program import Range
from lumc.graph.expr import Expr
from lumc.graph.ops import DType
from lumc.kernel.term import dtype
from lumc.schedule.operands import lanes

LONG = 64  # loads and operations of one lane, from which on it pays
LEAST = 4  # lanes of a vector


def in_vectors(levels: Levels, r: Range, results: Mapping[Expr, Expr]) -> bool:
    """Print what a walk over lanes stores, by its places, if that takes long, and is sums and
    products of f32 that lie side by side; else nothing."""
    w, lane = levels.writer, levels.loops[-1]
    width = lanes(w.target, DType.F32)
    many = len(levels.at[-1]) >= LONG and width >= LEAST and not is_laddered(r, width)
    read = _read(lane, [*results.values()])
    if not many or read is None or not _side_by_side(w, [*results, *read], lane):
        return False
    values = {dst: levels.value(term) for dst, term in results.items()}
    own, levels.at[-1] = levels.at[-1], []
    c, end = w.names.axis(lane), w.end(r)
    with levels.nest({lane: r}, 0), w.block():
        w.line(f"long {new(c)} = {w.index(r.lo)};")
        if r.largest >= width:
            with w.block(f"for (; {c} + {width} <= {end}; {c} += {width})", "one vector"):
                _steps(w, own, values, width, width)
        for rest in r.rests(width):
            with w.block(f"if ({end} - {c} == {rest})" if len(r.sizes) > 1 else ""):
                _steps(w, own, values, max(LEAST, 1 << (rest - 1).bit_length()), rest)
    return True


def _read(lane: str, terms: Sequence[Expr]) -> list[Expr] | None:
    """What sums and products of f32 read along the lanes; None if there is anything else, or a term
    that is the same in all lanes."""
    read, seen, todo = list[Expr](), set[Expr](), [*terms]
    if any(lane not in e.free for e in terms):
        return None
    while todo:
        e = todo.pop()
        if e in seen or lane not in e.free:
            continue
        seen.add(e)
        if e.kind == "load":
            read.append(e)
        elif e.kind == "bin" and e.attr[0] in ("add", "mul") and dtype(e) is DType.F32:
            todo += e.kids
        else:
            return None
    return read


def _side_by_side(w: Writer, elements: Sequence[Expr], lane: str) -> bool:
    places = [(w.places[e.attr[0]], e) for e in elements]
    return all(
        p.dtype is DType.F32 and p.panel is None and p.access(e).is_contiguous(lane)
        for p, e in places
    )


def _steps(
    w: Writer, own: Sequence[Simple], values: Mapping[Expr, str], width: int, count: int
) -> None:
    """These steps for ``count`` lanes of a vector of ``width``."""
    vector, part = f"lumc_f32x{width}", f", {count})" if count < width else ""
    for s in own:
        assert isinstance(s, Let)
        value = s.value
        if s.op == "load" and part:
            value = f"lumc_part_f32x{width}(&{value}{part}"
        elif s.op == "load":
            value = f"*(const {vector} *)&{value}"
        w.line(Let(vector, s.name, value, s.op, s.of))
    for dst, value in values.items():
        at = w.address(dst)
        put = f"lumc_put_f32x{width}(&{at}, {value}{part};"
        w.line(put if part else f"*({vector} *)&{at} = {value};")
