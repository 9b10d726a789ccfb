"""Maps whose guards are decided for whole runs of an axis, one map for each of them.

    (x[i] if 0 <= i < 3) + (y[i - 3] if 3 <= i < 8)    =    x[i] for i < 3, y[i - 3] from there on

A guard over one axis cuts it where it begins and ceases to hold, an index through // or % where it
jumps. The axis of the lanes is cut into loops; of every other one a row asks once which case it is
(``Case``), wherever its tile starts. Between two cuts the interval of an index proves what holds:
a guard that it does not decide stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import lumc.codegen.tile.program as ir
from lumc.graph.expr import Expr, Range, add, bounds, linear, num, rebuild, rewrite, subterms
from lumc.graph.index import narrowed
from lumc.kernel.bound import COST
from lumc.kernel.folded import folded
from lumc.kernel.term import const, dtype
from lumc.schedule.applies import PIECE

PIECES = 16  # of one map, at most, unless they are wide and their texts short
GROWTH = 4  # of the text of a map, in more pieces than that
JUMPS = 4  # of one // or %, at most
Spans = dict[str, Range]  # axes with inclusive bounds


def split_domains(program: ir.Program) -> ir.Program:
    """The program with every map in pieces on which its guards are decided."""
    spans: Spans = {a: (0, n - 1) for a, n in program.kernel.extent.items()}

    def split(body: list[ir.Op], loop: ir.Op | None) -> list[ir.Op]:
        if isinstance(loop, ir.Rows) and loop.lags:
            return body
        out, last = list[ir.Op](), None
        for op in body:
            pieces = [op]
            if isinstance(op, ir.Map) and op.axes and not op.abreast:
                pieces = _Split(program, op, spans).ops()
            joined = [*out[-1:], *pieces]
            out[-1:] = _one_walk(joined) if _beside(last, op) else joined
            last = op
        return out

    return replace(program, body=ir.rewrite(program.body, split))


def _beside(first: ir.Op | None, op: ir.Op) -> bool:
    """Are both copies, into other parts of one place? They may be made in any order."""
    if not isinstance(first, ir.Map) or not isinstance(op, ir.Map):
        return False
    return first.copy and op.copy and first.dst.attr == op.dst.attr


def _one_walk(ops: list[ir.Op]) -> list[ir.Op]:
    """Walks over the same rows as one: what all of them read is in the cache then."""
    match ops:
        case [ir.Rows() as a, ir.Rows() as b] if (a.axis, a.range) == (b.axis, b.range):
            joined = _one_walk([*a.body[-1:], *b.body[:1]])
            return [replace(a, body=[*a.body[:-1], *joined, *b.body[1:]])]
        case [ir.Rows() as a, ir.Map() as b] if b.axes[:-1] and b.axes[0] == a.axis:
            if b.ranges[a.axis] == a.range:
                inner = replace(b, axes=b.axes[1:])
                return [replace(a, body=[*a.body[:-1], *_one_walk([*a.body[-1:], inner])])]
    return ops


@dataclass
class _Split:
    """One map in pieces."""

    program: ir.Program
    map: ir.Map
    around: Spans
    rows: tuple[str, ...] = ()  # the axes that are walked around the pieces

    def ops(self) -> list[ir.Op]:
        op, place = self.map, self.program.places[self.map.dst.attr[0]]
        spans = {**self.around, **{a: self._span(a, r) for a, r in op.ranges.items()}}
        if not any(_asks(e) for e in subterms(op.term)):
            return [op]
        if place.panel is not None or op.turn:
            return self._operands({op.turn, ir.lane_of(op, place), op.axes[-1]}, spans)
        every = _cuts(op.term, spans)
        many = self._chosen(every, many=True)
        pieces = self._in_pieces(many, spans)
        if prod(len(at) + 1 for at in many.values()) <= PIECES or self._short(pieces):
            return pieces
        return self._in_pieces(self._chosen(every), spans)

    def _operands(self, whole: set[str | None], spans: Spans) -> list[ir.Op]:
        """A copy in panels, or one that is turned, of operands side by side: a map for each of
        them, along the axes around those that are to be whole."""
        op = self.map
        kept = min(i for i, a in enumerate(op.axes) if a in whole)
        cuts = {a: at for a, at in _cuts(op.term, spans).items() if a in op.axes[:kept]}
        pieces = self._in_pieces(cuts, spans)
        most = len(ir.loads_of(op)) - 1
        maps = [p for p in ir.leaves(pieces) if isinstance(p, ir.Map)]
        alone = all(len(ir.loads_of(p)) <= most for p in maps)
        return pieces if alone and len(maps) <= PIECES else [op]

    def _in_pieces(self, cuts: Mapping[str, list[int]], spans: Spans) -> list[ir.Op]:
        op = self.map
        if not cuts:
            return [op]
        deepest = max((i for i, a in enumerate(op.axes) if a in cuts), default=-1)
        self.rows = op.axes[: min(deepest + 1, len(op.axes) - 1)]
        outer = sorted(cuts.keys() - set(op.axes))
        return self._pieces([*outer, *self.rows, op.axes[-1]], cuts, spans, op.term)

    def _short(self, pieces: list[ir.Op]) -> bool:
        """Is the text of so many pieces not much longer than that of the map?"""
        found = (len(subterms(p.term)) for p in ir.leaves(pieces) if isinstance(p, ir.Map))
        return sum(found) <= GROWTH * len(subterms(self.map.term))

    def _span(self, a: str, r: ir.Range) -> Range:
        if r.lo in (num(0), ir.block_start(a)) and a in self.around:
            return self.around[a]
        starts = {f"{b}.0": span for b, span in self.around.items()}
        lo, hi = bounds(r.lo, {**self.around, **starts})
        return lo, hi + r.largest - 1

    def _chosen(self, cuts: Mapping[str, list[int]], many: bool = False) -> dict[str, list[int]]:
        """Of the axes whose cuts make few pieces, or ``many`` wide ones: that of the lanes, then
        the inner ones. Short vectors at the ends of pieces are free where elements are moved, not
        where functions of them are computed, unless each would ask many guards."""
        lane, out, pieces = self.map.axes[-1], dict[str, list[int]](), 1
        r, lanes = self.map.ranges[lane], self.program.target.lanes
        tiled = r.lo.kind != "num" or len(r.sizes) > 1 or r.largest <= lanes
        terms = subterms(self.map.term)
        computed = any(e.kind == "un" and e.attr[0] in COST and lane in e.free for e in terms)
        for a in (*reversed(self.map.axes), *sorted(cuts.keys() - set(self.map.axes))):
            n = pieces * (len(cuts.get(a, ())) + 1)
            few = n <= PIECES and not (a == lane and computed)
            wide = many and pieces == 1 and PIECES < n <= r.largest // (lanes if a == lane else 1)
            if a in cuts and (few or wide) and not (a == lane and tiled):
                out[a], pieces = cuts[a], n
        return out

    def _pieces(
        self,
        axes: list[str],
        cuts: Mapping[str, list[int]],
        spans: Spans,
        term: Expr,
        before: bool = False,
    ) -> list[ir.Op]:
        """The map of this term, to which the cuts of these axes are still to be made; ``before``:
        what these spans decide is decided already."""
        op, (a, *rest) = self.map, axes
        ends = [spans[a][0], *cuts.get(a, []), spans[a][1] + 1]
        first, last = spans[a]
        runs = list[tuple[Range, Expr]]()
        for (lo, hi), new in _runs(a, ends, spans, term, before):
            if runs and runs[-1][1] is new:
                lo = runs.pop()[0][0]
            runs.append(((lo, hi), new))
        if not rest:
            return [self._piece(a, span, new) for span, new in runs]
        body = list[ir.Op]()
        for (lo, hi), new in runs:
            below = self._pieces(rest, cuts, {**spans, a: (lo, hi)}, new, before=True)
            body += below if len(runs) == 1 else [ir.Case(a, lo, hi + 1, (first, last), below)]
        return [ir.Rows(a, op.ranges[a], body)] if a in op.axes else body

    def _piece(self, lane: str, span: Range, term: Expr) -> ir.Map:
        op, n = self.map, span[1] - span[0] + 1
        left = op.axes[len(self.rows) :]
        r = op.ranges[lane]
        if r.lo.kind == "num" and len(r.sizes) == 1:
            r = ir.Range(num(span[0]), num(n), (n,))
        nbytes = self.program.places[op.dst.attr[0]].dtype.nbytes
        stream = op.stream and r.largest * nbytes >= PIECE
        read = {e.attr[0] for e in subterms(term) if e.kind == "load"}
        ahead = tuple(e for e in op.ahead if e.attr[0] in read)
        ranges = {**op.ranges, lane: r}
        piece = replace(op, axes=left, ranges=ranges, term=term, stream=stream, ahead=ahead)
        loads = ((self.program.places[e.attr[0]].access(e)) for e in ir.loads_of(piece))
        turns = any(op.turn in load.transposed(lane) for load in loads)
        return piece if turns else replace(piece, turn=None)


# ---- where it is cut


def _asks(e: Expr) -> bool:
    return e.kind in ("guard", "div", "mod")


def _cuts(term: Expr, spans: Spans) -> dict[str, list[int]]:
    """By axis the values at which something changes, within its span."""
    found = dict[str, set[int]]()
    for e in subterms(term):
        if e.kind == "guard":
            index, (lo, hi) = e.kids[0], e.attr
            while index.kind == "div":  # lo <= x // c < hi where lo*c <= x < hi*c
                index, lo, hi = index.kids[0], lo * index.attr[0], hi * index.attr[0]
            steps = [(index, lo, hi)]
        elif e.kind in ("div", "mod"):
            least, most = (n // e.attr[0] for n in bounds(e.kids[0], spans))
            some = range(least, most + 1) if most - least <= JUMPS else ()
            steps = [(e.kids[0], q * e.attr[0], (q + 1) * e.attr[0]) for q in some]
        else:
            continue
        for index, lo, hi in steps:
            if (a := _deciding(index, lo, hi, spans)) in spans:
                first, last = narrowed(spans, index, lo, hi)[a]
                least, most = spans[a]
                at = {first, last + 1} if first <= last else set[int]()
                found.setdefault(a, set()).update(n for n in at if least < n <= most)
    return {a: sorted(at) for a, at in found.items() if at}


def _deciding(index: Expr, lo: int, hi: int, spans: Spans) -> str:
    """The axis of which each value alone says whether an index is within bounds; none: an empty
    name. Of 32*i + j with j below 32 and bounds that 32 divides it is i."""
    atoms = linear(index)[1]
    (atom, *others) = sorted(atoms, key=lambda a: -abs(atoms[a])) or (index,)
    if atom.kind != "axis" or any(a.kind != "axis" for a in others):
        return ""
    name: str = atom.attr[0]
    if others and not (index.free <= spans.keys() and _holds(index, name, lo, hi, spans)):
        return ""
    return name


def _holds(index: Expr, axis: str, lo: int, hi: int, spans: Spans) -> bool:
    """Is an index within bounds wherever an axis has a value for which it may be?"""
    some = narrowed(spans, index, lo, hi)[axis]
    least, most = bounds(index, {**spans, axis: some})
    return some[0] <= some[1] and lo <= least and most < hi


# ---- what holds there


def _runs(
    a: str, ends: Sequence[int], spans: Spans, term: Expr, before: bool
) -> Iterator[tuple[Range, Expr]]:
    """The parts of an axis between these ends, and the term there; by halves, as each has fewer
    guards to decide. ``before``: what the spans decide is decided already."""
    here = ends[0], ends[-1] - 1
    if not (before and here == spans[a]):
        term = decided(term, {**spans, a: here})
    if len(ends) == 2:
        yield here, term
        return
    middle = len(ends) // 2
    for half in (ends[: middle + 1], ends[middle:]):
        yield from _runs(a, half, {**spans, a: here}, term, before=True)


def decided(term: Expr, spans: Mapping[str, Range]) -> Expr:
    """The term where the axes are in these spans: guards that always or never hold are gone, and
    zeros that are added. The sign of a zero may differ."""

    def known(e: Expr, kids: list[Expr]) -> Expr:
        if e.kind == "guard":
            return _guarded(e, kids, spans)
        new = rebuild(e, kids)
        return _whole(new, spans) if e.kind in ("div", "mod") else folded(new)

    return rewrite(term, {}, known)


def _whole(e: Expr, spans: Mapping[str, Range]) -> Expr:
    """``x // c`` or ``x % c`` without them where the quotient is one number."""
    if e.kind not in ("div", "mod"):
        return e
    x, c = e.kids[0], e.attr[0]
    least, most = (n // c for n in bounds(x, spans))
    if least != most:
        return e
    return num(least) if e.kind == "div" else add(x, -least * c)


def _guarded(e: Expr, kids: Sequence[Expr], spans: Mapping[str, Range]) -> Expr:
    (lo, hi), (least, most) = e.attr, bounds(kids[0], spans)
    if lo <= least and most < hi:
        return kids[1]
    zero = const(0, dtype(e))
    return zero if most < lo or hi <= least or kids[1] is zero else rebuild(e, kids)
