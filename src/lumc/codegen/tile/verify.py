"""What every tile program obeys, after every pass.

    loops      axes of the kernel, each open once; what is done in the first tile does not depend on
               the others; cases lie in the values that their axis has
    axes       every axis of an operation has a range, whose sizes are those that it takes; terms
               use open axes only, results have all of the axes that they are stored along
    places     known, of this rank and dtype; every index lies inside, in the first, the last whole
               and the last tile of all loops; scratch values lie apart
    values     written before they are read, as far as they are read; sums over tiles go on from
               what was summed before; all results are stored, each as often as it has elements
    parts      what several of them may run at once stores to different elements, and reads none
               that others store

It proves what it can and is silent about the rest: a program without problems may be wrong, one
with problems is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.accesses import SHOWN, Accesses, Scope, free, is_cut, tiles_in, tiles_of
from lumc.codegen.tile.digits import wrong_digits
from lumc.codegen.tile.memory import ALIGN
from lumc.errors import LumcError
from lumc.graph.expr import (
    Expr,
    num,
    substitute,
    subterms,
    text,
)
from lumc.kernel.term import REDUCTIONS

LANES = ("reduced", "kept", "strips", "windows", "scattered")
OPERATIONS = ("sum", "max", "top", "key", "keyed")
EARLY = ("lower", "whole vectors", "fuse rows")  # before what nobody reads is dropped


def verify(name: str, program: ir.Program) -> None:
    """Raises E0417 for a program with problems; ``name`` is that of the pass that made it."""
    if found := problems(program, name in EARLY):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        what = f"after '{name}' the tile program is wrong: {found[0]}{more}"
        raise LumcError("E0417", what, where=f"kernel '{program.kernel.name}'")


def problems(program: ir.Program, early: bool = False) -> list[str]:
    """Everything that is wrong with a program, in its order. An ``early`` one may still make
    values that nobody reads."""
    check = _Check(program)
    check.body(program.body, Scope())
    return [*check.found, *check.ends(), *(() if early else check.unread())]


class _Check:
    def __init__(self, program: ir.Program) -> None:
        self.program, self.found = program, list[str]()
        kernel = program.kernel
        given = {e.attr[0] for e in subterms(*kernel.values) if e.kind == "load"}
        self.written, self.accesses = given | set(program.packed), Accesses(program)
        self.points = dict[str, int]()  # that are stored to each result
        dealt = (x for op in program.body if isinstance(op, ir.Par) for x in op.loops)
        self.dealt = any(x.count > 1 for x in dealt)
        every = (dst for op in ir.leaves(program.body) for dst in ir.written(op))
        self.results = [d for d in dict.fromkeys(every) if d.attr[0] in kernel.stored]

    def say(self, what: str) -> None:
        self.found.append(what)

    # ---- loops

    def body(self, body: Sequence[ir.Op], s: Scope) -> None:
        for op in body:
            match op:
                case ir.Par():
                    if s.loops or s.rows:
                        self.say("a loop is dealt inside of another one")
                    inner = replace(s, parts=tuple(x.axis for x in op.loops if x.count > 1))
                    self.body(op.body, self.opened(op.loops, inner))
                case ir.Block():
                    self.span(op, s)
                    self.body(op.body, self.opened([op.loop], s))
                case ir.Rows():
                    self.rows(op, s)
                case ir.When():
                    if unknown := set(op.first) - s.loops.keys():
                        self.say(f"the first tile of {sorted(unknown)} outside of its loop")
                    self.body(op.body, replace(s, first=s.first | {*op.first}))
                case ir.Case():
                    self.case(op, s)
                case _:
                    self.leaf(op, s)

    def opened(self, loops: Sequence[ir.Loop], s: Scope) -> Scope:
        for x in loops:
            kernel = self.program.kernel
            if kernel.extent.get(x.axis) != x.extent or not 0 < x.tile <= x.extent:
                self.say(f"the loop {x.axis}:{x.extent} by {x.tile} is none of the kernel")
            if x.length != kernel.lengths.of.get(x.axis):
                self.say(f"the loop {x.axis} goes to {x.length}, of which it has another length")
            if x.axis in s.loops or x.axis in s.rows:
                self.say(f"{x.axis} is open already")
            s = replace(s, loops={**s.loops, x.axis: x})
        return s

    def span(self, op: ir.Block, s: Scope) -> None:
        """Does a loop that leaves tiles out say so of what is open, and is nothing done in its
        first tile only?"""
        if not (own := op.loop.span):
            return
        if tiles_in(*own.firsts, *own.ends) - s.loops.keys() or free((*own.firsts, *own.ends)):
            self.say(f"the loop {op.loop.axis} ends by what is not open")
        if not 0 <= own.share < 1 or not (own.firsts or own.ends):
            self.say(f"the loop {op.loop.axis} leaves out nothing, or more than all")
        leaves = [x for x in ir.leaves(op.body) if isinstance(x, ir.Contract)]
        firsts = [x.first for x in op.body if isinstance(x, ir.When)]
        if any(op.loop.axis in each for each in (*firsts, *(x.overwrite or () for x in leaves))):
            self.say(f"the first tile of {op.loop.axis} may be left out")

    def rows(self, op: ir.Rows, s: Scope) -> None:
        if op.axis in s.rows:
            self.say(f"the rows of {op.axis} are open already")
        self.range(f"rows of {op.axis}", op.axis, op.range, s)
        inner = replace(s, rows={**s.rows, op.axis: op.range}, ids={**s.ids, op.axis: id(op)})
        if not op.lags:
            return self.body(op.body, inner)
        if len(op.lags) != len(op.body) or min(op.lags) < 0:
            return self.say(f"rows of {op.axis}: a lag for every operation, none before the loop")
        behind = {
            dst.attr[0]: lag
            for o, lag in zip(op.body, op.lags, strict=True)
            for dst in ir.written(o)  # type: ignore[arg-type]
        }
        for o, lag in zip(op.body, op.lags, strict=True):
            self.body([o], replace(inner, lags=behind, lag=lag))
        return None

    def case(self, op: ir.Case, s: Scope) -> None:
        first, last = op.span
        if not first <= op.lo < op.hi <= last + 1:
            self.say(f"the case {op.lo} <= {op.axis} < {op.hi} of {first}..{last}")
        if op.axis not in s.rows and op.axis not in s.loops:
            self.say(f"a case of {op.axis}, which is not open")
        lo, hi = s.cases.get(op.axis, (first, last + 1))
        self.body(op.body, replace(s, cases={**s.cases, op.axis: (max(lo, op.lo), min(hi, op.hi))}))

    # ---- operations

    def leaf(self, op: ir.Leaf, s: Scope) -> None:
        own = op.axes if isinstance(op, ir.Map) else (*op.kept, *op.red)
        self.now = f"{type(op).__name__.lower()} {text(ir.written(op)[0], SHOWN)}"
        if len({*own}) < len(own) or {*own} & s.rows.keys():
            self.wrong("runs twice along an axis")
        for a in own:
            if a in op.ranges:
                self.range(self.now, a, self.exact(op, a, s), s, self.has_all(op, a))
            else:
                self.wrong(f"has no range of {a}")
        if {*own} <= op.ranges.keys():
            ranges = {**s.rows, **{a: self.exact(op, a, s) for a in own}}
            self.terms(op, own, ranges)
            self.form(op)
            places = self.program.places
            for what in (*self.accesses.of(op, ranges, s), *wrong_digits(op, places)):
                self.wrong(what)
            self.flow(op, ranges, s)
            self.races(op, s)

    def wrong(self, what: str) -> None:
        self.say(f"{self.now} {what}")

    def has_all(self, op: ir.Leaf, a: str) -> bool:
        """Do the values that it makes stay, for all of an axis, where each tile has its own?"""
        whole = ir.Dim(a, num(0), self.program.kernel.extent.get(a, 0))
        places = [self.program.places[dst.attr[0]] for dst in ir.written(op)]
        return all(p.kind == "scratch" and whole in p.dims for p in places)

    def range(self, of: str, a: str, r: ir.Range, s: Scope, has_all: bool = False) -> None:
        """Does a range use open loops, start with its own one (but for values that ``has_all`` of
        them), and have the sizes that it says?"""
        if r != self.live(a, r, s):
            return self.say(f"{of}: {a} does not end with its length")
        used, varies = tiles_in(r.lo, r.n), any(e.kind == "dim" for e in subterms(r.lo, r.n))
        if used - s.loops.keys():
            return self.say(f"{of}: {a} stands in a tile of {sorted(used - s.loops.keys())}")
        if used & s.first:
            self.say(f"{of}: done in the first tile, {a} stands in every one")
        if a in s.loops and s.loops[a].count > 1 and a not in used and not has_all:
            self.say(f"{of}: {a} does not start with its tile")
        own = r.lo == ir.block_start(a) and a in s.loops
        for now in tiles_of(s.loops[a] for a in sorted(used)):
            n = substitute(r.n, now)
            if any(e.kind == "dim" for e in subterms(n)):
                continue  # known when it runs
            if n.kind != "num" or n.attr[0] not in r.sizes:
                return self.say(f"{of}: {a} has other sizes than {r.sizes}")
            if own and n is not now[ir.block_size(a)]:
                return self.say(f"{of}: {a} has {n} values in a tile of {now[ir.block_size(a)]}")
        if min(r.sizes) < 0 or (not varies and len(r.sizes) > 1):
            self.say(f"{of}: {a} never has all of the sizes {r.sizes}")
        return None

    def live(self, a: str, r: ir.Range, s: Scope) -> ir.Range:
        """The range itself; of a live axis the one that it is to have: up to its length."""
        lengths = self.program.kernel.lengths
        if a not in lengths.of:
            return r
        if a in s.loops and r.lo == ir.block_start(a):
            return ir.live_tile(a, lengths.sizes(a), s.loops[a].tile)
        return ir.Range(num(0), lengths.of[a], lengths.sizes(a))

    def exact(self, op: ir.Leaf, a: str, s: Scope) -> ir.Range:
        """The range of an axis without the lanes beyond its length, which nobody reads: of a
        contraction from panels into scratch that have them."""
        r, own = op.ranges[a], self.live(a, op.ranges[a], s)
        if not isinstance(op, ir.Contract) or a != op.stage.lane_axis or not r.sizes or r == own:
            return r
        to, b = (self.program.places[e.attr[0]] for e in (op.dst, op.b))
        panels = b.panel is not None and b.panel[1] % r.sizes[0] == 0
        room = any(d.label == a and d.size >= r.largest for d in to.dims)
        room &= to.kind == "scratch" and panels
        return own if room and r == ir.rounded(own, r.sizes[0]) else r

    def terms(self, op: ir.Leaf, own: Sequence[str], ranges: Mapping[str, ir.Range]) -> None:
        every = ir.terms_of(op)
        for t in every:
            if t.free - ranges.keys():
                self.wrong(f"uses {sorted(t.free - ranges.keys())} in {text(t, SHOWN)}")
        if any(e.kind in REDUCTIONS for e in subterms(*every)):
            self.wrong("has a reduction inside of a term")
        kept = own if isinstance(op, ir.Map) else op.kept
        for dst in ir.written(op):
            lost = [a for a in kept if a not in dst.free and ranges[a].largest > 1]
            if lost:
                self.wrong(f"stores all of {lost} to one element")
            if dst.kind != "load":
                self.wrong("stores to no place")

    def form(self, op: ir.Leaf) -> None:
        """Is it one of the forms that are printed?"""
        match op:
            case ir.Map():
                if not {*op.turned} <= {*ir.loads_of(op, but=[op.dst])}:
                    self.wrong(f"turns {', '.join(map(str, op.turned))}")
                if op.turn is not None and (op.turn not in op.axes[:-1] or not op.axes):
                    self.wrong(f"turns along {op.turn}")
                if op.abreast and len(op.axes) < 2:
                    self.wrong("has no axes abreast")
            case ir.Reduce():
                known = all(o.op in OPERATIONS for o in op.outputs) and op.lanes in LANES
                if not known or not op.red or not op.outputs or op.streams < 1:
                    self.wrong("is no reduction")
                if op.lanes == "scattered" and not ir.selection(op, self.program.kernel.extent):
                    self.wrong("adds to nothing that it selects")
                if op.lanes != "reduced" and not op.kept:
                    self.wrong("has lanes on an axis that it does not keep")
            case ir.Contract():
                self.contract(op)
        extent = self.program.kernel.extent
        for a in (
            () if isinstance(op, ir.Map) or (isinstance(op, ir.Reduce) and op.runs) else op.red
        ):
            r = op.ranges[a]
            if a in extent and r.lo.kind == "num" and (r.lo != num(0) or r.largest != extent[a]):
                self.wrong(f"goes along {r.largest} of {extent[a]} values of {a}")

    def contract(self, op: ir.Contract) -> None:
        p, a, b = op.stage, op.a.free, op.b.free
        if p.lane_axis not in op.kept or (p.rows_axis and p.rows_axis not in op.kept):
            self.wrong("keeps neither its rows nor its lanes")
        if p.lane_axis in a or p.lane_axis not in b or (p.rows_axis and p.rows_axis in b):
            self.wrong("has its lanes in a, or its rows in b")
        if {*op.kept} - (a | b) or any(x not in a & b for x in op.red[-1:] if p.form == "dot"):
            self.wrong("does not have its axes in its operands")
        rest = frozenset[str]().union(*(e.free for e in op.rest))
        if rest & {p.rows_axis, *op.red[-1:]} or (op.rest and not op.levels):
            self.wrong("has a scale or a shift along its rows or its last reduced axis")
        if not {*op.red} <= a | b or op.a.kind != "load" or op.b.kind != "load":
            self.wrong("adds the same products again")
        if not {*op.means} <= {*op.red}:
            self.wrong("has a border along an axis that is not summed")
        if e := op.edge:
            rows = p.rows_axis or ""
            if e.border.kept != rows or e.tile != op.ranges[rows].largest:
                self.wrong("has an edge that is none of its rows")

    # ---- values

    def flow(self, op: ir.Leaf, ranges: Mapping[str, ir.Range], s: Scope) -> None:
        stores = {e.attr[0] for e in ir.written(op)}
        reads = {e.attr[0] for e in ir.loads_of(op, but=ir.written(op))}
        if isinstance(op, ir.Contract):
            reads |= stores if op.overwrite is None else set()
            self.goes_on(op.red, op.ranges, op.overwrite, s)
        if isinstance(op, ir.Reduce):
            inits = subterms(*(o.init for o in op.outputs))
            again = {e.attr[0] for e in inits if e.kind == "load"}
            reads = (reads - {dst.attr[0] for dst, _ in op.stores}) | again
            cut = [a for a in op.red if is_cut(op.ranges[a], a, s)]
            if cut and not all({e.attr[0] for e in subterms(o.init) if e.kind == "load"}
                               for o in op.outputs):  # fmt: skip
                self.wrong(f"forgets what it summed in tiles of {cut} before")
        for name in sorted(reads - self.written):
            self.wrong(f"reads {name}, which is not written yet")
        for name in sorted(reads & s.lags.keys()):
            if s.lags[name] > s.lag:
                self.wrong(f"reads {name} {s.lags[name] - s.lag} rows before it is written")
            dims = self.program.places[name].dims if name in self.program.places else ()
            slots = [d.size for d in dims if d.label == "slot"]
            if slots and slots[0] <= s.lag - s.lags[name]:
                self.wrong(f"reads {name} when its slot has another row")
        self.written |= stores
        for dst in ir.written(op):
            name = dst.attr[0]
            if name in self.program.kernel.stored:
                self.points[name] = self.points.get(name, 0) + self.count(dst, ranges, s)

    def goes_on(
        self,
        red: Sequence[str],
        ranges: Mapping[str, ir.Range],
        overwrite: tuple[str, ...] | None,
        s: Scope,
    ) -> None:
        """Does a sum over tiles begin in the first one, and only there?"""
        cut = {a for a in red if is_cut(ranges[a], a, s)}
        if overwrite is not None and {*overwrite} != cut:
            self.wrong(f"begins anew in the first tile of {[*overwrite]}, of {sorted(cut)}")

    def count(self, dst: Expr, ranges: Mapping[str, ir.Range], s: Scope) -> int:
        """How many elements of a result an operation stores, in all tiles."""
        total = 1
        for a in sorted(dst.free & ranges.keys()):
            r, n = ranges[a], ranges[a].largest
            if a in s.cases:
                n = max(0, s.cases[a][1] - s.cases[a][0])
            elif a in s.loops and r.lo == ir.block_start(a):
                n = s.loops[a].extent
            total *= n
        return total

    # ---- parts

    def races(self, op: ir.Leaf, s: Scope) -> None:
        """May parts that run at once touch an element that another one stores?"""
        shared = {n for n, p in self.program.places.items() if p.kind == "argument"}
        for dst in (d for d in ir.written(op) if d.attr[0] in shared):
            name = dst.attr[0]
            if name not in self.program.kernel.stored:
                self.wrong(f"stores to {name}, which is no result")
            if self.dealt and not s.parts:
                self.wrong(f"stores to {name} in every part")
            if lost := [a for a in s.parts if a not in dst.free and a not in s.first]:
                self.wrong(f"stores to the same elements of {name} in all parts of {lost}")
        for e in ir.loads_of(op, but=ir.written(op)) if s.parts else ():
            for dst in (d for d in self.results if d.attr[0] == e.attr[0]):
                own = [i for i, k in enumerate(dst.kids) if k.free & {*s.parts}]
                if any(e.kids[i] is not dst.kids[i] for i in own):
                    self.wrong(f"reads {text(e, SHOWN)}, which other parts store")

    # ---- the end

    def ends(self) -> Iterator[str]:
        """What is wrong with the program as a whole."""
        kernel = self.program.kernel
        for name in sorted(set(kernel.stored) - self.written):
            yield f"{name} is never stored"
        yield from self.accesses.holes()
        for name in kernel.stored:
            roots = [r for r in kernel.roots if r.buffer == name]
            wanted = sum(prod(kernel.extent[a] for a in free(r.index)) for r in roots)
            if name in self.points and self.points[name] < wanted:
                yield f"{self.points[name]} of {wanted} elements of {name} are stored"
        yield from self.memory()

    def unread(self) -> Iterator[str]:
        ops = list(ir.leaves(self.program.body))
        read = {e.attr[0] for o in ops for e in ir.loads_of(o, but=ir.written(o))}
        made = dict.fromkeys(d.attr[0] for o in ops for d in ir.written(o))
        for name in sorted(made.keys() - read - {*self.program.kernel.stored}):
            yield f"nobody reads {name}"

    def memory(self) -> Iterator[str]:
        end = 0
        for name, at in sorted(self.program.scratch.items(), key=lambda x: x[1]):
            place = self.program.places[name]
            if at < end or at % ALIGN:
                yield f"{name} lies at {at}, on another value or on no line"
            end = at + place.nbytes
        if end > self.program.scratch_bytes and self.program.scratch:
            yield f"{self.program.scratch_bytes} bytes of scratch for {end}"
        for name, packing in self.program.packed.items():
            place = self.program.places[name]
            if packing.size != place.size or packing.dtype is not place.stored:
                yield f"{name} is packed in another size or dtype than it is read"
