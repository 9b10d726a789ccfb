"""Lookups read a weight where products have it: one copy of a table serves both.

    w[<ids[i]>, k]    =    packed[<ids[i]> // 64, k, <ids[i]> % 64]

A packing says which element of a weight lies where; its inverse says where to find an element.
Numbers that share a word are read as its bytes. So what reads a packed weight is an ordinary kernel
on another buffer. Of a table that data index few rows are read: that their elements lie apart
costs little beside a second copy of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from msgspec import UNSET

from lumc.codegen.code import Launch
from lumc.codegen.tile.packing import WORD, Packing, least_of
from lumc.graph.expr import (
    Expr,
    axis,
    combine,
    floordiv,
    linear,
    make,
    mod,
    rebuild,
    rewrite,
    substitute,
    subterms,
)
from lumc.graph.expr import Range as Bounds
from lumc.graph.ops import DType
from lumc.kernel.term import Buffer, Kernel, Root, binary, cast, const, iota, load, where

BYTE, BYTES = 8, WORD // 8
Held = Mapping[str, Packing]  # by buffer of a kernel: what that buffer is read from
Read = tuple[str, str]  # a kernel by key, and a buffer of it
T = TypeVar("T")


def lookups(
    kernels: Mapping[str, Kernel],
    launches: Iterable[Launch],
    touched: Mapping[str, Iterable[str]],
    packed: Iterable[Packing],
) -> dict[str, Held]:
    """By key of a kernel what its lookups may read: packings that hold all of a weight which
    nothing else reads as it is stored, and words of numbers of few bits where there are none.

    ``touched`` are the buffers that a kernel reads as they are stored, by key. The weights of
    ``packed`` are values of the graph, those of the result buffers of the kernel.
    """
    readers, names = dict[str, set[Read]](), dict[Read, dict[str, None]]()
    for one in launches:
        kernel = kernels[one.kernel]
        for b, value in zip(kernel.buffers, one.args, strict=True):
            if b.constant and b.name in touched[one.kernel]:
                names.setdefault((one.kernel, b.name), {})[value] = None
                readers.setdefault(value, set()).add((one.kernel, b.name))
    asked = {r for r in names if _is_lookup(kernels[r[0]], r[1])}
    found, there = dict[str, dict[str, Packing]](), list(packed)
    for read in (r for r in names if r in asked):
        if any(not readers[n] <= asked for n in names[read]):
            continue  # it is there as it is stored anyway
        key, name = read
        each = ([replace(p, weight=name) for p in there if p.weight == n] for n in names[read])
        first, *others = each
        own = kernels[key].buffer(name)
        usable = (p for p in first if all(p in some for some in others) and _places(p, own.shape))
        if packing := next(usable, None) or _in_words(own):
            found.setdefault(key, {})[name] = packing
    return dict(found)


def through(kernel: Kernel, held: Held) -> Kernel:
    """The kernel whose loads of these buffers find each element where its packing has it; the
    buffers have the packings' elements, or bytes of their words."""
    loaded: dict[str, Callable[[Sequence[Expr]], Expr]] = {}
    buffers = {b.name: b for b in kernel.buffers}
    for name, packing in held.items():
        buffers[name], loaded[name] = _read(packing, buffers[name], kernel.ranges)

    def moved(e: Expr, kids: list[Expr]) -> Expr:
        if e.kind == "load" and e.attr[0] in loaded:
            return loaded[e.attr[0]](kids)
        if e.kind == "guard":  # the numbers of a word are no load: it is said of the one below
            index, value = kids
            own = (t for t in subterms(value) if t.kind == "load" and t.attr[0] in loaded)
            below = {t: make("guard", e.attr, (index, t)) for t in own if t not in subterms(index)}
            return rebuild(e, (index, substitute(value, below)))
        return rebuild(e, kids)

    memo = dict[Expr, Expr]()
    roots = tuple(Root(r.buffer, r.index, rewrite(r.value, memo, moved)) for r in kernel.roots)
    return replace(kernel, roots=roots, buffers=tuple(buffers.values()))


def _is_lookup(kernel: Kernel, buffer: str) -> bool:
    """Is it read at places only that data choose?"""
    loads = [e for e in subterms(*kernel.values) if e.kind == "load" and e.attr[0] == buffer]
    return all(any(t.kind == "dyn" for t in subterms(*e.kids)) for e in loads)


def _in_words(b: Buffer) -> Packing | None:
    """Rows of words, of numbers of so few bits that a byte for each is too much."""
    if not 0 < b.bits < BYTE or len(b.shape) < 2 or b.shape[-1] * b.bits % WORD:
        return None
    names = [f"a{i}" for i in range(len(b.shape))]
    axes = [*zip(names, b.shape, strict=True)]
    index, panel = tuple(map(axis, names)), (len(axes) - 1, 1)
    return Packing(b.name, DType.I32, index, (*axes[1:], axes[0]), panel, b.shape, b.bits)


# ---- where an element of a packed weight lies


def _places(packing: Packing, shape: tuple[int, ...]) -> dict[str, tuple[int, int]] | None:
    """How an axis of the packing follows from an index of the weight, if it holds all elements:
    its dim, and how many steps of that are one of the axis. None if something is missing."""
    out, extent = dict[str, tuple[int, int]](), dict(packing.axes)
    for d, (e, size) in enumerate(zip(packing.index, packing.seen(shape), strict=True)):
        constant, coefs = linear(e)
        step = 1
        for atom, c in sorted(coefs.items(), key=lambda item: item[1]):
            if atom.kind != "axis" or c != step or atom.attr[0] in out:
                return None
            out[atom.attr[0]] = d, step
            step *= extent[atom.attr[0]]
        if constant or step != size:
            return None
    return out if out.keys() >= {a for a, n in packing.axes if n > 1} else None


def _read(
    packing: Packing, b: Buffer, ranges: Mapping[str, Bounds]
) -> tuple[Buffer, Callable[[Sequence[Expr]], Expr]]:
    """The buffer that a packing of another one is, and the value of a load of the latter at some
    indices."""
    places, seen = _places(packing, b.shape) or {}, packing.seen(b.shape)
    lane, width = packing.panel or (0, 1)
    extents = [n for _, n in packing.axes]
    rows = -(-extents[lane] // width)

    def lying(outer: T, each: Sequence[T], inner: T) -> list[T]:
        """In the order of memory, from the parts of the lane's axis and all axes."""
        if packing.panel is None:
            return [*each]
        return [outer, *each[:lane], *each[lane + 1 :], inner]

    def along(a: str, n: int, index: Sequence[Expr]) -> Expr:
        d, step = places.get(a, (0, seen[0]))
        part = floordiv(index[d], step, ranges)
        return part if step * n == seen[d] else mod(part, n, ranges)

    def value(given: Sequence[Expr]) -> Expr:
        index = given if seen == b.shape else _reshaped(given, b.shape, seen, ranges)
        each = [along(a, n, index) for a, n in packing.axes]
        outer, inner = floordiv(each[lane], width, ranges), mod(each[lane], width, ranges)
        at = lying(outer, each, inner)
        if not packing.bits:
            element = load(b.name, packing.dtype, *at)
            return element if packing.dtype is b.dtype else cast(b.dtype, element)
        *before, k, inner = at
        word, step = floordiv(k, packing.steps, ranges), mod(k, packing.steps, ranges)
        byte = load(b.name, DType.U8, *before, word, inner, mod(step, BYTES, ranges))
        return _number(byte, floordiv(step, BYTES, ranges), packing.bits, b.dtype)

    shape = lying(rows, extents, width)
    if not packing.bits:
        return replace(b, dtype=packing.dtype, shape=tuple(shape), few=UNSET), value
    shape = [*shape[:-2], shape[-2] // packing.steps, width, BYTES]
    return replace(b, dtype=DType.U8, shape=tuple(shape), few=UNSET), value


def _number(byte: Expr, part: Expr, bits: int, kind: DType) -> Expr:
    """The number of few bits that is this part of a byte, lowest bits first."""
    number, count = cast(DType.I32, byte), BYTE // bits
    if count > 1:
        half = 1 << bits
        above = cast(DType.I32, binary("mul", cast(DType.F32, byte), const(1 / half)))
        is_lower = binary("lt", iota(part), const(1, DType.I64))
        number = where(is_lower, binary("mod", number, const(half, DType.I32)), above)
    least = least_of(bits, kind)
    return cast(kind, binary("add", number, const(least, DType.I32)) if least else number)


def _reshaped(
    index: Sequence[Expr], shape: Sequence[int], seen: Sequence[int], ranges: Mapping[str, Bounds]
) -> list[Expr]:
    """Indices of a tensor as those of its elements in another shape."""
    flat, n = list[tuple[Expr, int]](), 1
    for i, extent in zip(reversed(index), reversed(shape), strict=True):
        flat.append((i, n))
        n *= extent
    rest, out = combine(flat), list[Expr]()
    for extent in reversed(seen[1:]):
        out.append(mod(rest, extent, ranges))
        rest = floordiv(rest, extent, ranges)
    return [rest, *reversed(out)]
