"""(tile program, threads) -> distributed program: who holds what, where it lies, when to wait.

Contractions fix the distribution of their values; copies are dealt along memory; everything else
takes the distribution of what it touches. A value whose accesses all have the same owners stays in
registers, every other one goes to shared memory: moving data between distributions is no operation
of its own. What does not fit the threads of a block is refused (E0411), never made smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.barriers import with_barriers
from lumc.codegen.gpu.bulk import Maps
from lumc.codegen.gpu.common import common
from lumc.codegen.gpu.dealing import MOVED, Dealing
from lumc.codegen.gpu.distribution import VECTORS, Distribution, RegisterDigit, deal
from lumc.codegen.gpu.exchange import exchange
from lumc.codegen.gpu.program import (
    Combine,
    Distributed,
    Nest,
    Node,
    Step,
    loads_of,
    plain,
    reads,
    steps_of,
    writes,
)
from lumc.codegen.gpu.roles import PACKED, anchor
from lumc.codegen.gpu.shared import lay_out
from lumc.graph.expr import Expr, axis, num, substitute, subterms
from lumc.graph.ops import DType
from lumc.kernel.term import dtype, unguarded
from lumc.schedule.operands import computed
from lumc.schedule.schedule import Threads, power

TURN = 8  # elements along both axes, from which a transpose goes through shared memory
LINE = 128  # bytes of memory that are fetched together


def distribute(program: ir.Program, threads: Threads | None) -> Distributed:
    """The program for the threads of a block. Raises E0411 where they cannot hold it."""
    return Distributor(program, threads or Threads()).run()


class Distributor(Dealing):
    """One run."""

    def __init__(self, program: ir.Program, threads: Threads) -> None:
        super().__init__(program, threads)
        self._check_threads()
        self.maps = Maps(self)
        self.body = self._nodes(program.body)
        self.steps = list(steps_of(self.body))

    def run(self) -> Distributed:
        for step in self.steps:
            if isinstance(step.op, ir.Contract):
                anchor(self, step, step.op)
        for step in self.steps:
            op = step.op
            if isinstance(op, ir.Map) and op.copy and self.name_of(op) not in self.values:
                self._deal_copy(step, op)
        self._propagate()
        for step in self.steps:
            if step.vector == 1 and not isinstance(step.op, ir.Contract):
                self._widen(step, step.op)
                exchange(self, step)
        memory = self._memory()
        body = self._split(self.body, memory)
        if self.threads.ring > 1:
            body = self._rings(body, memory)
        program = replace(self.program, places=self.places)
        tiles, shared_bytes = lay_out(self, body, memory, self.maps.arrivals)
        read = {e.attr[0] for s in self.steps for e in reads(s)}
        updated = {n for n in self.program.kernel.stored if n in read}  # by several threads, maybe
        shared = {n: t for n, t in tiles.items() if t.memory == "shared"}
        touched = {n: {m for m, u in shared.items() if t.overlaps(u)} for n, t in shared.items()}
        body = with_barriers(body, touched | {n: {n} for n in updated})
        return Distributed(program, self.threads, body, tiles, shared_bytes, *self.maps.checked())

    # ---- what is refused

    def _check_threads(self) -> None:
        t = self.threads
        for name, n in (("threads", t.count), ("threads in a row", t.row), ("elements", t.vector)):
            if n != power(n):
                raise self.refuse(f"{n} {name}, not a power of two")
        if not self.gpu.warp <= t.count <= self.gpu.threads:
            raise self.refuse(f"{t.count} threads in a block")
        if self.program.target.kind == "metal" and self._has_f64():
            raise self.refuse("no f64")
        kernel = self.program.kernel
        most = [*kernel.extent.values(), *(d.values[-1] for d in kernel.lengths.dims)]
        if max([*most, self.program.tiles]) >= 1 << 31:
            raise self.refuse("an axis, a dim or a grid of 2^31")

    def _has_f64(self) -> bool:
        """In memory, or on the way."""
        terms = [t for op in ir.leaves(self.program.body) for t in ir.terms_of(op)]
        made = (dtype(t) for t in subterms(*terms) if t.kind in ("cast", "const"))
        return DType.F64 in {*made, *(p.dtype for p in self.places.values())}

    # ---- the operations, with transposes made explicit

    def _nodes(self, body: Sequence[ir.Op]) -> list[Node]:
        out: list[Node] = []
        for op in body:
            assert not isinstance(op, ir.Rows | ir.Case)
            if isinstance(op, ir.NESTS):
                out.append(Nest(replace(op, body=[]), self._nodes(op.body)))
            elif isinstance(op, ir.Map) and not op.copy:
                out += map(Step, self._turned(op))
            else:
                out.append(Step(op))
        return out

    def _turned(self, op: ir.Map) -> list[ir.Map]:
        """A map that loads along one axis and stores along another: a copy into a shared tile, and
        the map from there."""
        lane = self._unit([op.dst], op.axes)
        copies, moved = list[ir.Map](), dict[Expr, Expr]()
        for e in _guarded(op.term):
            place = self.places[loads_of(e)[-1].attr[0]]
            along = place.access(unguarded(e)).transposed(lane)
            units = [a for a in op.axes if a in along]
            if place.kind == "scratch" or not units:
                continue
            if min(op.ranges[a].largest for a in (lane, units[0])) >= TURN:
                axes = tuple(a for a in op.axes if a in e.free)
                dims = tuple(ir.Dim(a, op.ranges[a].lo, op.ranges[a].largest) for a in axes)
                tile = ir.Place(f"turned.{len(self.places)}", place.dtype, dims)
                self.places[tile.name], self.stored[tile.name] = tile, place.dtype
                self.turned.add(tile.name)
                moved[e] = ir.reference(tile, [axis(a) for a in axes])
                copies.append(ir.Map(moved[e], axes, op.ranges, e, copy=True))
        return [*copies, replace(op, term=substitute(op.term, moved))]

    # ---- copies of operands

    def _deal_copy(self, step: Step, op: ir.Map) -> None:
        """Threads along memory; the tile has the same axis innermost, unless a fragment needs
        another one."""
        name = self.name_of(op)
        source = unguarded(op.term)
        loads = source.kind == "load" and not self.inside(source.attr[0])
        if loads:
            self.stored[name] = self.places[name].dtype  # as it is
        place, kind = self.places[name], self.stored[name]
        unit = self._unit(loads_of(op.term), op.axes)
        fast = self._contiguous(name, unit)
        width = MOVED // kind.nbytes
        whole = loads and is_moved(op.term, unit) and self.places[source.attr[0]].dtype is kind
        whole = whole and source.attr[0] not in self.words
        wide = whole and fast == unit and name not in self.turned
        step.vector = width if wide and self.aligned(op, source, unit, width) else 1
        step.along = unit
        labels = [d.label for d in place.dims]
        inner = labels.index(fast)
        self.order[name] = (*(i for i in range(len(labels)) if i != inner), inner)
        sizes = {d.label: d.size for d in place.dims}
        side = step.vector if step.vector > 1 or fast != unit else self._of_words(op, name, unit)
        line = LINE // kind.nbytes if step.vector > 1 else 0
        step.points = self._from_values(step) or deal(
            op.axes, sizes, self.threads.count, unit, side, line=line
        )
        self.known.add(step)

    def _of_words(self, op: ir.Map, name: str, unit: str) -> int:
        """How many neighbours a thread makes of numbers in words: what it can store at once."""
        words = [e for e in loads_of(op.term) if e.attr[0] in self.words]
        n = min(MOVED // self.stored[name].nbytes, *(self.words[e.attr[0]].steps for e in words), 8)
        along = [e for e in words if unit in e.free and self.aligned(op, e, unit, n)]
        return n if along else 1

    def _contiguous(self, name: str, unit: str) -> str:
        """The axis along which a tile lies in memory: fragments load along the reduced axis, or
        transpose on the way along the other one."""
        for step in self.steps:
            op = step.op
            if not isinstance(op, ir.Contract) or op.stage.fragment not in PACKED or not step.roles:
                continue
            for ref, other in ((op.a, op.stage.rows_axis), (op.b, op.stage.lane_axis)):
                labels = self._labels(ref)
                good = [labels[a] for a in step.roles.runs(other) if a in labels]
                if ref.attr[0] == name and good and unit not in good:
                    return good[0]
        return unit

    def _unit(self, loads: Sequence[Expr], axes: Sequence[str]) -> str:
        """The axis along which the largest of these loads runs through memory."""
        places = [(self.places[e.attr[0]], e) for e in loads]
        for place, e in sorted(places, key=lambda f: (f[0].kind == "scratch", -f[0].size)):
            for a in axes:
                if place.access(e).is_contiguous(a):
                    return a
        return axes[-1] if axes else ""

    # ---- everything else

    def _propagate(self) -> None:
        """A map or reduction takes the distribution of a value over exactly its axes; where there
        is none, it is dealt anew, reductions first."""
        while left := [s for s in self.steps if s not in self.known]:
            for step in left:
                if (found := self._from_values(step)) is not None:
                    break
            else:
                step = next((s for s in left if isinstance(s.op, ir.Reduce)), left[0])
                found = self._dealt(step.op)
            step.points = found
            self.known.add(step)
            self._spread(step)

    def _spread(self, step: Step) -> None:
        for dst in writes(step):
            if self.inside(dst.attr[0]) and plain(dst):
                points = self.labelled(dst, step.points.on(dst.free))
                self.values.setdefault(dst.attr[0], points)

    def _from_values(self, step: Step) -> Distribution | None:
        op = step.op
        outputs = [o.dst for o in op.outputs] if isinstance(op, ir.Reduce) else []
        for ref in (e for e in [*reads(step), *writes(step)] if e not in outputs):
            known = ref.attr[0] in self.values and plain(ref)
            if known and {k.attr[0] for k in ref.kids} == set(axes_of(op)):
                return self.by_axis(ref, self.values[ref.attr[0]])
        return None

    def _dealt(self, op: ir.Leaf) -> Distribution:
        axes, size = axes_of(op), {a: op.ranges[a].largest for a in axes_of(op)}
        assert not isinstance(op, ir.Contract)
        t, reduces = self.threads, any(isinstance(s.op, ir.Reduce) for s in self.steps)
        if isinstance(op, ir.Reduce):
            fast = op.kept[-1] if op.lanes == "kept" and op.kept else op.red[-1]
        else:
            fast = self._unit(writes(Step(op)), axes)
        moved = [e for e in self._moved(op) if fast in e.free]
        along = [e for e in moved if e.attr[0] not in self.words]
        width = min([t.vector, *(MOVED // self.places[e.attr[0]].dtype.nbytes for e in along)])
        width = self._whole(op, along, fast, width)
        if isinstance(op, ir.Reduce) and len(along) < len(moved):  # whole words before others
            width = max(width, self._whole(op, moved, fast, t.vector))
        return deal(axes, size, t.count, fast, width, t.row if reduces else None)

    def _whole(self, op: ir.Map | ir.Reduce, loads: Sequence[Expr], unit: str, most: int) -> int:
        """How many elements of all these a thread may have side by side, at most so many."""
        while most > 1 and not all(self.aligned(op, e, unit, most) for e in loads):
            most //= 2
        return most

    def _moved(self, op: ir.Map | ir.Reduce) -> list[Expr]:
        """What an operation reads and writes in memory as it is, but for loads that a guard
        protects."""
        step = Step(op)
        terms = [op.term] if isinstance(op, ir.Map) else [o.term for o in op.outputs]
        guarded = {unguarded(e) for t in terms for e in _guarded(t) if e.kind == "guard"}
        touched = dict.fromkeys([*loads_of(*terms), *writes(step)])
        apart = {n for n in self.places if self.inside(n)}
        return [e for e in touched if e not in guarded and e.attr[0] not in apart]

    def _widen(self, step: Step, op: ir.Map | ir.Reduce) -> None:
        """Neighbours in the registers of a thread are moved at once where memory allows it: those
        of words before others."""
        found = list[tuple[bool, RegisterDigit, tuple[Expr, ...]]]()
        for digit in step.points.registers:
            a, n, _ = digit
            if digit.stride > 1 or n == 1 or (isinstance(op, ir.Reduce) and a not in op.red):
                continue
            sizes = {e: n * self.places[e.attr[0]].dtype.nbytes for e in self._moved(op)}
            words = [e for e in sizes if e.attr[0] in self.words]
            several = words and isinstance(op, ir.Reduce)
            fit = (
                e
                for e, b in sizes.items()
                if b in VECTORS or e in words or (several and b % MOVED == 0)
            )
            if wide := tuple(e for e in fit if self.aligned(op, e, a, n)):
                found.append((set(words).isdisjoint(wide), digit, wide))
        if found:
            _, digit, wide = min(found, key=lambda f: f[0])
            others = tuple(r for r in step.points.registers if r is not digit)
            step.points = replace(step.points, registers=(*others, digit))
            step.along, step.vector, step.wide = digit.axis, digit.extent, wide
            if isinstance(op, ir.Reduce):
                step.common = tuple(common(o, digit.axis) for o in op.outputs)

    # ---- places

    def _memory(self) -> dict[str, str]:
        """Registers where every access is by plain axes, from the start of the value (registers
        have no index at run time) and by the same owners; shared memory otherwise."""
        seen = dict[str, list[tuple[Step, Expr]]]()
        for step in self.steps:
            for ref in [*reads(step), *writes(step)]:
                if self.inside(ref.attr[0]):
                    seen.setdefault(ref.attr[0], []).append((step, ref))
        return {name: self._memory_of(name, uses) for name, uses in seen.items()}

    def _memory_of(self, name: str, uses: Sequence[tuple[Step, Expr]]) -> str:
        if all(plain(ref) and self.still(step.op, ref) for step, ref in uses):
            needs = [self.labelled(ref, self.need(step, ref)) for step, ref in uses]
            value = self.values.setdefault(name, needs[0])
            same = (n.owner() == value.owner() and n.offsets() == value.offsets() for n in needs)
            if all(same):
                return "register"
        if any(isinstance(s.op, ir.Contract) and ref is s.op.dst for s, ref in uses):
            raise self.refuse("an accumulator would have to leave its registers")
        return "shared"

    # ---- reductions across warps, and rings of copies

    def _split(self, body: Sequence[Node], memory: dict[str, str]) -> list[Node]:
        """Partial results of warps meet in shared memory."""
        out: list[Node] = []
        for node in body:
            if isinstance(node, Nest):
                out.append(replace(node, body=self._split(node.body, memory)))
                continue
            out.append(node)
            if isinstance(node, Step) and isinstance(node.op, ir.Reduce):
                op = node.op
                slots = prod(t.mod for t in node.points.across_warps(op.red, self.gpu.warp))
                if slots > 1:
                    node.partials = tuple(self._partial(node, op, o, slots) for o in op.outputs)
                    memory |= dict.fromkeys(node.partials, "shared")
                    out.append(Combine(node, op))
        return out

    def _partial(self, step: Step, op: ir.Reduce, output: ir.Output, slots: int) -> str:
        """A place for one partial result per warp, those of one row side by side."""
        kind = computed(dtype(output.dst))
        dims = [ir.Dim(a, op.ranges[a].lo, step.points.span(a)) for a in op.kept]
        place = ir.Place(f"partial.{len(self.places)}", kind, (*dims, ir.Dim("", num(0), slots)))
        self.places[place.name], self.stored[place.name] = place, kind
        return place.name

    def _rings(self, body: Sequence[Node], memory: Mapping[str, str]) -> list[Node]:
        """The copies of a loop run ahead of it if they move whole vectors of an argument."""
        out: list[Node] = []
        for node in body:
            if isinstance(node, Nest):
                found = [n for n in node.body if isinstance(n, Step) and self._can_run(n, memory)]
                if isinstance(node.op, ir.Block) and found:
                    for step in found:
                        step.ahead = True
                    behind = self.threads.ring > 3 and _only_multiplies(node.body)
                    for step in steps_of(node.body) if behind else ():
                        step.behind = not step.ahead
                    arrivals = self.maps.ring(found)
                    node = replace(node, slots=self.threads.ring, behind=behind, arrivals=arrivals)
                else:
                    node = replace(node, body=self._rings(node.body, memory))
            out.append(node)
        return out

    def _can_run(self, step: Step, memory: Mapping[str, str]) -> bool:
        op, stored = step.op, self.program.kernel.stored
        if not isinstance(op, ir.Map) or not step.moves or unguarded(op.term).attr[0] in stored:
            return False
        return memory[self.name_of(op)] == "shared"


def _only_multiplies(body: Sequence[Node]) -> bool:
    """Is all that a loop does beside its copies one product of warpgroups?"""
    left = [n for n in body if not (isinstance(n, Step) and n.ahead)]
    op = left[0].op if len(left) == 1 and isinstance(left[0], Step) else None
    return isinstance(op, ir.Contract) and op.stage.fragment == "wgmma" and op.overwrite is None


def is_moved(term: Expr, unit: str) -> bool:
    """Is it a load under guards that hold for all of what lies side by side, or for nothing?"""
    while term.kind == "guard" and unit not in term.kids[0].free:
        term = term.kids[1]
    return term.kind == "load"


def axes_of(op: ir.Leaf) -> tuple[str, ...]:
    return op.axes if isinstance(op, ir.Map) else (*op.kept, *op.red)


def _guarded(term: Expr) -> list[Expr]:
    """The loads of a term, each with the guards around it."""
    out, stack = dict[Expr, None](), [term]
    while stack:
        e = stack.pop()
        if unguarded(e).kind == "load":
            out[e] = None
        else:
            stack += reversed(e.kids)
    return list(out)
