"""Elements of a thread that lie side by side: loaded and stored at once, or taken out of a word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.distribution import VECTORS, Distribution, RegisterDigit
from lumc.codegen.gpu.program import Step, loads_of
from lumc.codegen.gpu.words import shifted
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
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[None]:
    """The elements of a thread where the conditions hold. Neighbours that memory moves at once are
    loaded before and stored after the loop over them, which is the last one; ``around`` says what
    else stands there."""
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
            with around(), w.registers(digits[len(outer) :], len(outer)):
                w.coordinates(points, axes, ranges, digits)
                yield
            w.vectors.clear()
            w.numbers.clear()
            if out:
                levels, starts = Levels(w, ()), replace(points, registers=tuple(outer))
                at = w.address(out, levels.value)
                in_memory = nullcontext() if out in step.wide else None  # under ``conditions``
                with in_memory or w.storing(out, starts, axes, ranges):
                    w.lines_of([*levels.at[0], f"lumc_store(&{at}, `OUT`);"])


@contextmanager
def exchanged(
    w: GpuWriter, step: Step, axes: Sequence[str], conditions: Sequence[str]
) -> Iterator[str]:
    """The results of a thread where the conditions hold, which are put where this says; they are
    stored as they lie after the exchange, and those beyond the data are not."""
    points, ranges, op, stored = step.points, step.op.ranges, step.op, step.stored
    assert stored and isinstance(op, ir.Map)
    *outer, half, near = points.registers
    n, kind = len(outer), w.spelling.stored[w.places[op.dst.attr[0]].dtype]
    with w.registers(outer):
        w.line("float `:OUT`[2][2] = {};")
        with w.registers([half], n):
            w.coordinates(points, axes, ranges, [*outer, half])
            with w.when(conditions):
                _load_vectors(w, step, [], n + 1)
                with w.registers([near], n + 1):
                    w.coordinates(points, axes, ranges, points.registers)
                    yield f"`OUT`[`D{n}`][`D{n + 1}`]"
                w.vectors.clear()
                w.numbers.clear()
        w.line("lumc_u32 `:NEXT`[2];")
        w.line(f"lumc_exchange<{kind}>(`tid`, `OUT`, `NEXT`);")
        with w.block():
            w.threads(stored, axes)
            w.coordinates(stored, axes, ranges, outer)
            levels = Levels(w, ())
            at = w.address(op.dst, levels.value)
            with w.storing(op.dst, stored, axes, ranges):
                w.lines_of([*levels.at[0], f"lumc_store((lumc_u32 *)&{at}, `NEXT`);"])


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
    op, each = step.op, f"`D{digit}`"
    assert not isinstance(op, ir.Contract)
    terms = [op.term] if isinstance(op, ir.Map) else [o.term for o in op.outputs]
    for e in (e for e in loads_of(*terms) if e in step.wide):
        name, place = quoted(f"V_{w.fresh()}"), w.places[e.attr[0]]
        if e.attr[0] in w.words:
            _load_words(w, step, e, name, inside, each)
            continue
        near = min(step.vector, VECTORS[-1] // place.dtype.nbytes)
        w.vectors[e] = _loaded(w, e, name, (near, step.vector), inside, each)


def _loaded(
    w: GpuWriter,
    load: Expr,
    name: str,
    sizes: tuple[int, int],
    inside: Sequence[str],
    each: str,
) -> str:
    """Neighbours, so many of all in one access: the element ``each`` of them."""
    (near, count), levels = sizes, Levels(w, ())
    at, kind = w.address(load, levels.value), w.spelling.stored[w.places[load.attr[0]].dtype]
    if near == count:
        w.line(f"{kind} {new(name)}[{count}]{' = {}' * bool(inside)};")
        with w.when(inside):
            w.lines_of([*levels.at[0], f"lumc_load({name}, &{at});"])
        return f"{name}[{each}]"
    w.line(f"{kind} {new(name)}[{count // near}][{near}]{' = {}' * bool(inside)};")
    with w.when(inside):
        w.lines_of(levels.at[0])
        with w.counting({"`P`": count // near}):
            w.line(f"lumc_load({name}[`P`], &{at} + `P` * {near});")
    return f"{name}[{each} / {near}][{each} % {near}]"


def _load_words(
    w: GpuWriter, step: Step, load: Expr, name: str, inside: Sequence[str], each: str
) -> None:
    """The words that neighbours lie in, of which each is taken."""
    packing, levels = w.words[load.attr[0]], Levels(w, ())
    word, at = w.word(load, levels.value)
    count = step.vector // packing.steps
    if count > 1:
        w.line(f"lumc_u32 {new(name)}[{count}]{' = {}' * bool(inside)};")
        said = f"lumc_load({name}, &{word});"
        w.numbers[load] = f"{name}[{each} / {packing.steps}]", f"{each} % {packing.steps}"
    else:
        w.line(f"lumc_u32 {new(name)} = 0;")
        said = f"{name} = {word if count else shifted(word, at, packing)};"
        w.numbers[load] = name, each
    with w.when(inside):
        w.lines_of([*levels.at[0], said])


def side_by_side(w: GpuWriter, ref: Expr, op: ir.Contract, points: Distribution) -> int:
    """How many elements of a shared operand the registers of a thread take at once."""
    tile, place = w.tiles.get(ref.attr[0]), w.places[ref.attr[0]]
    last = points.registers[-1] if points.registers else None
    if not tile or tile.memory != "shared" or not last or last.stride > 1:
        return 1
    n, r = last.extent, op.ranges[last.axis]
    for i, d, stride in zip(ref.kids, place.dims, tile.strides, strict=True):
        here = i is axis(last.axis) and stride == 1 and d.size % n == 0
        if not (here and (d.origin is r.lo or r.largest % n == 0)) and (
            last.axis in i.free or (d.size > 1 and stride % n)
        ):
            return 1
    return n if n * tile.dtype.nbytes in VECTORS else 1
