"""Elements of a thread that lie side by side: loaded and stored at once, or taken out of a word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.distribution import VECTORS, RegisterDigit
from lumc.codegen.gpu.program import Step, loads_of
from lumc.codegen.gpu.words import shifted, taken
from lumc.codegen.gpu.writer import GpuWriter
from lumc.codegen.text.levels import Levels
from lumc.codegen.text.statements import new, quoted
from lumc.graph.expr import Expr, axis


@contextmanager
def elements(
    w: GpuWriter,
    step: Step,
    axes: Sequence[str],
    digits: Sequence[RegisterDigit],
    conditions: Sequence[str] = (),
    start: int = 0,
    unroll: bool = True,
) -> Iterator[None]:
    """The elements of a thread where the conditions hold. Neighbours that memory moves at once are
    loaded before and stored after the loop over them, which is the last one."""
    points, ranges = step.points, step.op.ranges
    outer = digits[:-1] if step.wide else digits
    with w.registers(outer[start:], start, unroll):
        w.coordinates(points, axes, ranges, outer)
        with w.when(conditions):
            if not step.wide:
                yield
                return
            _load_vectors(w, step, [] if conditions else w.inside(points, axes, ranges), len(outer))
            out = step.op.dst if isinstance(step.op, ir.Map) else None
            out = out if out in step.wide or at_once(w, step) else None
            if out:
                kind = w.spelling.stored[w.places[out.attr[0]].dtype]
                w.line(f"{kind} `:OUT`[{step.vector}];")
            with w.registers(digits[len(outer) :], len(outer)):
                w.coordinates(points, axes, ranges, digits)
                yield
            w.vectors.clear()
            if out:
                levels, starts = Levels(w, ()), replace(points, registers=tuple(outer))
                at = w.address(out, levels.value)
                in_memory = nullcontext() if out in step.wide else None  # under ``conditions``
                with in_memory or w.storing(out, starts, axes, ranges):
                    w.lines_of([*levels.at[0], f"lumc_store(&{at}, `OUT`);"])


def at_once(w: GpuWriter, step: Step) -> bool:
    """Do neighbours that a thread makes of a word lie side by side in a shared tile, too?"""
    op, n = step.op, step.vector
    if not step.wide or not isinstance(op, ir.Map) or not op.copy or not step.along:
        return False
    tile = w.tiles.get(op.dst.attr[0])
    if not tile or tile.memory != "shared" or tile.panels or n * tile.dtype.nbytes not in VECTORS:
        return False
    dims = zip(op.dst.kids, w.places[op.dst.attr[0]].dims, tile.strides, strict=True)
    return all(
        stride == 1 and d.size % n == 0 and d.origin is op.ranges[step.along].lo
        if i is axis(step.along)
        else step.along not in i.free and (stride % n == 0 or d.size == 1)
        for i, d, stride in dims
    )


def _load_vectors(w: GpuWriter, step: Step, inside: Sequence[str], digit: int) -> None:
    op = step.op
    assert not isinstance(op, ir.Contract)
    terms = [op.term] if isinstance(op, ir.Map) else [o.term for o in op.outputs]
    for e in (e for e in loads_of(*terms) if e in step.wide):
        name, levels = quoted(f"V_{w.fresh()}"), Levels(w, ())
        if e.attr[0] in w.words:
            _load_word(w, e, name, inside, digit)
            continue
        at = w.address(e, levels.value)
        kind = w.spelling.stored[w.places[e.attr[0]].dtype]
        w.line(f"{kind} {new(name)}[{step.vector}]{' = {}' * bool(inside)};")
        with w.when(inside):
            w.lines_of([*levels.at[0], f"lumc_load({name}, &{at});"])
        w.vectors[e] = f"{name}[`D{digit}`]"


def _load_word(w: GpuWriter, load: Expr, name: str, inside: Sequence[str], digit: int) -> None:
    """The word that neighbours lie in, of which each is taken."""
    packing, levels = w.words[load.attr[0]], Levels(w, ())
    place = w.places[load.attr[0]]
    word = shifted(w.names.place(place), w.element(load, levels.value), packing)
    w.line(f"lumc_u32 {new(name)} = 0;")
    with w.when(inside):
        w.lines_of([*levels.at[0], f"{name} = {word};"])
    w.vectors[load] = taken(name, f"`D{digit}`", packing, place.dtype)
