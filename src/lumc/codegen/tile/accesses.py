"""Where operations reach: every index inside of its place, and what is read written before, in the
first tile of all loops, the last whole one and the last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import prod

import lumc.codegen.tile.program as ir
from lumc.graph.expr import Expr, Range, add, axis, bounds, mul, num, substitute, subterms, text
from lumc.graph.index import Bound
from lumc.kernel.inside import lies_inside
from lumc.kernel.lengths import STATIC, Lengths
from lumc.kernel.term import dtype
from lumc.schedule.operands import computed

FIRST, LAST = "first", "last"  # tile of all loops
SHOWN = 80  # characters of a term that is told


@dataclass(frozen=True)
class Scope:
    """What is open around an operation."""

    loops: Mapping[str, ir.Loop] = field(default_factory=dict)
    rows: Mapping[str, ir.Range] = field(default_factory=dict)
    ids: Mapping[str, int] = field(default_factory=dict)  # of the loops over rows
    cases: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    first: frozenset[str] = frozenset()  # axes of which this is done in the first tile only
    parts: tuple[str, ...] = ()  # axes that are dealt
    lags: Mapping[str, int] = field(default_factory=dict)  # rows behind, of the writers of values
    lag: int = 0


class _Seen:
    """The elements of places that operations touch in one tile: the span of every index, and how
    many there are at most."""

    def __init__(self) -> None:
        self.spans = dict[str, list[Range]]()
        self.points = dict[str, int]()

    def add(self, name: str, spans: Sequence[Range], points: int) -> None:
        pairs = zip(self.spans.get(name, spans), spans, strict=True)
        self.spans[name] = [(min(a, c), max(b, d)) for (a, b), (c, d) in pairs]
        self.points[name] = self.points.get(name, 0) + points


class Accesses:
    """All accesses of a program, in its order."""

    def __init__(self, program: ir.Program) -> None:
        self.program = program
        loads = (e for e in subterms(*program.kernel.values) if e.kind == "load")
        self.kinds = {e.attr[:2] for e in loads}  # as which the kernel reads its buffers
        self.stored, self.read = ({end: _Seen() for end in (FIRST, LAST)} for _ in range(2))
        self.rows_of = dict[str, list[int]]()  # of the places of one row: the loops over it

    def of(self, op: ir.Leaf, ranges: Mapping[str, ir.Range], s: Scope) -> Iterator[str]:
        """What is wrong with where an operation reads and stores; ``ranges`` of all open axes."""
        stores = set(ir.written(op))
        for e, guards in dict.fromkeys(_guarded(ir.terms_of(op))):
            place = self.program.places.get(e.attr[0])
            if place is None or len(place.dims) != len(e.kids):
                yield f"uses {text(e, SHOWN)}, which is no place of this rank"
                continue
            if (place.name, e.attr[1]) not in self.kinds and e.attr[1] != place.dtype.value:
                yield f"uses {place.name} as {e.attr[1]}"
            seen = self.stored if e in stores else self.read
            yield from self.inside(e, place, guards, ranges, s, seen)
            one = [d.origin.attr[0] for d in place.dims if d.origin.kind == "axis"]
            rows = [s.ids.get(a, -1) for a in one]
            if -1 in rows or self.rows_of.setdefault(place.name, rows) != rows:
                yield f"uses {place.name}, which has one row of {one}, outside of it"
        values = [(op.dst, op.term)] if isinstance(op, ir.Map) else []
        values += op.stores if isinstance(op, ir.Reduce) else []
        values += [(o.dst, o.term) for o in op.outputs] if isinstance(op, ir.Reduce) else []
        for dst, term in values:
            if computed(dtype(term)).is_float != computed(dtype(dst)).is_float:
                yield f"stores {dtype(term).value} to {dtype(dst).value}"

    def inside(
        self,
        e: Expr,
        place: ir.Place,
        guards: tuple[Bound, ...],
        ranges: Mapping[str, ir.Range],
        s: Scope,
        seen: Mapping[str, _Seen],
    ) -> Iterator[str]:
        """Every index of an access lies inside, in all tiles that differ; what it reaches is
        added to what is ``seen``."""
        origins, shape = [d.origin for d in place.dims], tuple(d.size for d in place.dims)
        index = tuple(add(i, mul(o, -1)) for i, o in zip(e.kids, origins, strict=True))
        own = free((*index, *(g.index for g in guards)))
        if not own <= ranges.keys():
            return  # said already
        below = subterms(*index, *(x for a in own for x in (ranges[a].lo, ranges[a].n)))
        used = tiles_in(*below)
        if used - s.loops.keys():
            yield f"uses {text(e, SHOWN)} of a tile of {sorted(used - s.loops.keys())}"
            return
        run = (x.kind == "dim" and "." not in x.attr[0] for x in subterms(*index))
        if any(x.kind == "dyn" for x in below) or any(run):
            return  # ``kernel.inside`` proves these, with the guards that the kernel has
        reached = reach(
            index,
            guards,
            shape,
            tuple((a, ranges[a], s.cases.get(a)) for a in sorted(own)),
            tuple(s.loops[a] for a in sorted(used)),
            seen is self.read,
            Lengths(self.program.kernel.lengths.dims),
        )
        if reached.escapes is not None:
            yield f"leaves {place.name}{list(shape)} with {text(e, SHOWN)} {reached.escapes}"
        for tile, spans, points in reached.ends:
            seen[tile].add(place.name, spans, points)

    def holes(self) -> Iterator[str]:
        """What is read of scratch values in the first or the last tile and not written there."""
        for end in (FIRST, LAST):
            for name in self.read[end].spans:
                if self.program.places[name].kind == "scratch" and name in self.stored[end].spans:
                    yield from self.hole(name, end)

    def hole(self, name: str, end: str) -> Iterator[str]:
        """What is read of a scratch value in the first or the last tile and not written there."""
        read, made = self.read[end].spans[name], self.stored[end].spans[name]
        for d, (lo, hi), (first, last) in zip(
            self.program.places[name].dims, read, made, strict=True
        ):
            if lo < first or hi > last:
                yield f"{name} is read along {d.label} at {lo}..{hi}, written at {first}..{last}"
        wanted, points = prod(hi - lo + 1 for lo, hi in read), self.stored[end].points[name]
        if points < wanted:
            yield f"{points} elements of {name} are written in the {end} tile, {wanted} are read"


def free(index: Sequence[Expr]) -> frozenset[str]:
    """The axes that some of these indices depend on."""
    return frozenset[str]().union(*(i.free for i in index))


def tiles_in(*terms: Expr) -> set[str]:
    """The axes that these terms have the present tile of."""
    dims = (e.attr[0].rpartition(".") for e in subterms(*terms) if e.kind == "dim")
    return {a for a, dot, _ in dims if dot}


def is_cut(r: ir.Range, a: str, s: Scope) -> bool:
    """Does a loop over tiles of this axis go on around?"""
    return a in s.loops and r.lo == ir.block_start(a)


@dataclass(frozen=True)
class Reach:
    """What an access touches in all tiles that differ: the tile in which it is not proven to stay
    inside, or else the spans of its indices and the number of its elements in the first and in the
    last tile, where these are known."""

    escapes: str | None
    ends: tuple[tuple[str, tuple[Range, ...], int], ...] = ()


@lru_cache(maxsize=1 << 12)  # a pass leaves most accesses as they were
def reach(
    index: tuple[Expr, ...],
    guards: tuple[Bound, ...],
    shape: tuple[int, ...],
    own: tuple[tuple[str, ir.Range, tuple[int, int] | None], ...],
    loops: tuple[ir.Loop, ...],
    read: bool,
    lengths: Lengths = STATIC,
) -> Reach:
    """What an access touches at these indices, one for each dim of the shape, under its guards;
    ``own`` has the axes in them, with their ranges and the cases that are open, ``loops`` those
    whose tiles the ranges speak of, ``lengths`` the dims that guards name."""
    tiles, ends = list(tiles_of(loops)), list[tuple[str, tuple[Range, ...], int]]()
    for i, now in enumerate(tiles):
        moved, sizes = dict(now), dict[str, int]()
        for a, r, case in own:
            lo, end = _values(r, now, case)
            moved[axis(a)], sizes[a] = add(axis(a), lo), end - lo
        if min(sizes.values(), default=1) < 1:
            continue
        here = tuple(substitute(x, moved) for x in index)
        bound = tuple(Bound(substitute(g.index, moved), g.lo, g.hi) for g in guards)
        if not lies_inside(here, bound, shape, tuple(sorted(sizes.items())), lengths):
            return Reach(", ".join(f"{k} = {v}" for k, v in now.items()))
        if guards or (read and sum(len(x.free) for x in here) > len(sizes)):
            continue  # what is read is no box of elements
        spans = tuple(bounds(x, {a: (0, n - 1) for a, n in sizes.items()}) for x in here)
        for tile in (t for t, at in ((FIRST, 0), (LAST, len(tiles) - 1)) if at == i):
            ends.append((tile, spans, prod(sizes.values())))
    return Reach(None, tuple(ends))


def _values(r: ir.Range, now: Mapping[Expr, Expr], case: tuple[int, int] | None) -> tuple[int, int]:
    """The values of an axis in a tile, the last one not included."""
    lo, n = substitute(r.lo, now), substitute(r.n, now)
    start = int(lo.attr[0]) if lo.kind == "num" else 0
    end = start + (int(n.attr[0]) if n.kind == "num" else r.largest)
    return (max(start, case[0]), min(end, case[1])) if case else (start, end)


def tiles_of(loops: Iterable[ir.Loop]) -> Iterator[dict[Expr, Expr]]:
    """The starts and sizes of the tiles of these loops: the first, the last whole, the last one."""
    every = []
    for x in loops:
        last = (x.count - 1) * x.tile
        starts = {0, max(0, x.extent // x.tile - 1) * x.tile, last}
        every.append([(x.axis, lo, min(x.tile, x.extent - lo)) for lo in sorted(starts)])
    for chosen in product(*every):
        starts_of = {ir.block_start(a): num(lo) for a, lo, _ in chosen}
        yield starts_of | {ir.block_size(a): num(n) for a, _, n in chosen}


def _guarded(terms: Sequence[Expr]) -> Iterator[tuple[Expr, tuple[Bound, ...]]]:
    """Every load of these terms, as often as it has other guards around it."""
    stack: list[tuple[Expr, tuple[Bound, ...]]] = [(t, ()) for t in reversed(terms)]
    seen = set[tuple[Expr, tuple[Bound, ...]]]()
    while stack:
        e, guards = stack.pop()
        if (e, guards) in seen:
            continue
        seen.add((e, guards))
        if e.kind == "load":
            yield e, guards
        if e.kind == "guard":
            stack += [(e.kids[0], guards), (e.kids[1], (*guards, Bound(e.kids[0], *e.attr)))]
        else:
            stack += [(k, guards) for k in reversed(e.kids)]
