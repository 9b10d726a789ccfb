"""The work of a program: operations, and bytes of memory and of caches.

Unlike the bound this charges what a schedule does: values made again in every tile, copies of
operands, empty lanes, register tiles that wait for loads, operands that fall out of the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, inf, log2, prod

from lumc.codegen.tile.abreast import stores
from lumc.codegen.tile.execution import EXECUTION, Execution
from lumc.codegen.tile.program import (
    Block,
    Case,
    Contract,
    Map,
    Op,
    Par,
    Program,
    Reduce,
    Rows,
    When,
    selection,
    terms_of,
)
from lumc.graph.expr import Expr, subterms
from lumc.graph.ops import DType
from lumc.kernel.bound import COST
from lumc.kernel.term import INDEX_KINDS, dtype, factors
from lumc.profile.reads import Alike, Spent, phases, starts, walked
from lumc.schedule.fragment import speed
from lumc.schedule.levels import OF_BYTES
from lumc.schedule.operands import lanes
from lumc.schedule.registers import ABREAST, LINE

OPERATION = 2.0  # of one lane; derived: as long as a multiply-add, which counts as two
STRIDED = 16.0  # times a load of neighbouring lanes; derived: AVX-512 has so many, one by one
SHUFFLED = 2.0  # the same, of each vector of which a few lanes are picked; derived: load, shuffle
TURN = 4.0  # operations to turn one element; derived: blocks of 16 x 16 take log2(16) shuffles
WAIT = 4.0  # operations while one addition waits for another; data sheets: 3 (Zen 4) or 4 cycles
IN_FLIGHT = 8  # sums that hide the latency of additions; derived: WAIT of two adders
HALVING = 2 * OPERATION  # of the lanes of a sum; derived: a shuffle and an addition
SECTOR = 32.0  # bytes that the memory of a GPU gives at least; data sheet

Sizes = Mapping[str, float]
Axes = Sequence[str]
Nest = tuple[tuple[str, float], ...]  # axes of the loops around, outer first, and iterations


@dataclass
class Tally:
    """Operations of a program, and bytes read and written by place."""

    program: Program
    spent: Spent
    flops: float = 0.0
    traffic: dict[str, float] = field(default_factory=dict)
    shared: dict[str, float] = field(default_factory=dict)  # bytes that every thread reads all of
    dealt: frozenset[str] = frozenset()  # axes of which a thread has a part

    @property
    def execution(self) -> Execution:
        """How its tiles run."""
        return EXECUTION[self.program.target.machine]

    @cached_property
    def constants(self) -> set[str]:
        """The buffers that never change."""
        return {b.name for b in self.program.kernel.buffers if b.constant}

    def crossing(self) -> float:
        """Bytes that threads get from each other. Who reads a part of the rows mostly
        made them as well; who reads all of what kernels made gets the others' parts from where
        they were made, no sooner than from memory."""
        threads = self.program.target.threads
        return (threads - 1) * sum(n for k, n in self.shared.items() if not self._is_constant(k))

    def bytes(self, large: bool) -> float:
        """Traffic of memory, or of the caches: what other kernels made and read is still there if
        small, but the arithmetic waits for it."""
        far = {name: self._is_large(name) or self._is_constant(name) for name in self.traffic}
        return sum(n for name, n in self.traffic.items() if far[name] == large)

    def _is_constant(self, name: str) -> bool:
        return name in self.constants

    def _is_large(self, name: str) -> bool:
        p = self.program.places[name]
        return p.kind == "packed" or p.size * p.dtype.nbytes > self.program.target.l2 / 2

    def walk(self, body: Sequence[Op], nest: Nest, share: float) -> None:
        """Count these operations; ``share``: in how many threads' time everything is done."""
        threads = self.program.target.threads
        for op in body:
            match op:
                case Par():
                    tiles = prod(loop.count for loop in op.loops)
                    inner = tuple((loop.axis, float(loop.count)) for loop in op.loops)
                    before = [prod(n for _, n in inner[:i]) for i in range(len(inner))]
                    dealt = (a for (a, _), n in zip(inner, before, strict=True) if n < threads)
                    self.dealt = frozenset(dealt)
                    self.walk(op.body, nest + inner, threads * ceil(tiles / threads) / tiles)
                    self.dealt = frozenset()
                case Block():
                    self.walk(op.body, (*nest, *op.loop.turns), share)
                case Rows():
                    self.walk(op.body, (*nest, (op.axis, self._mean(op, op.axis))), share)
                case Case():
                    self.walk(op.body, (*nest, (op.axis, op.share)), share)
                case When():
                    self.walk(op.body, tuple(n for n in nest if n[0] not in op.first), share)
                case _:
                    self._leaf(op, nest, share)

    def _leaf(self, op: Map | Reduce | Contract, nest: Nest, share: float) -> None:
        axes = op.axes if isinstance(op, Map) else op.kept + op.red
        own = {a: self._mean(op, a) for a in axes}
        if id(op) not in self.spent.operations:
            self.spent.operations[id(op)] = self._operations(op, own)
        once = self.spent.operations[id(op)]
        wide = self.program.target.lanes / lanes(self.program.target, dtype(terms_of(op)[0]))
        self.flops += once * prod(n for _, n in nest) * share * max(1.0, wide)
        around = nest if isinstance(op, Contract) else (*nest, *own.items())
        walk = (*nest, *((a, own[a]) for a in walked(op))) if isinstance(op, Reduce) else around
        read: dict[str, float] = {}
        tiles = {a: float(r.largest) for a, r in op.ranges.items()}
        pieces = {a: n for a, n in tiles.items() if op.ranges[a].lo.kind == "num"}
        extent = {**tiles, **own, **self.program.kernel.extent, **pieces}
        known = dict[Alike, tuple[float, float | None]]()
        for e, alike in self.spent.reads_of(op, self.program.places):
            if alike not in known:
                over = {a: float(extent[a]) for a in e.free}
                over |= {a: n for a, n in nest if a not in over and a in starts(e, op)}
                far = self._traffic(e, around, over) * self._unused(e, op, walk, over)
                known[alike] = far, self._by_all(e, over)
            (far, whole), name = known[alike], e.attr[0]
            read[name] = max(read.get(name, 0.0), far)
            if whole is not None:
                self.shared[name] = whole
        for name, n in read.items():
            seen = self.traffic.get(name, 0.0)
            self.traffic[name] = seen + n if self._is_large(name) else max(seen, n)

    def _by_all(self, e: Expr, over: Sizes) -> float | None:
        """The bytes of an argument of which every thread reads all, as no axis of it is dealt."""
        place = self.program.places[e.attr[0]]
        if place.kind != "argument" or self.dealt.intersection(over):
            return None
        return float(min(prod(over.values()), place.size) * place.dtype.nbytes)

    def _tiles(self, op: Rows | Map | Reduce | Contract, axis: str) -> dict[int, int]:
        """How many values an axis takes in its tiles, and how many tiles take so many."""
        r = op.range if isinstance(op, Rows) else op.ranges[axis]
        # a copy has axes of its own
        extent = r.largest if len(r.sizes) == 1 else self.program.kernel.extent.get(axis, r.largest)
        full, rest = divmod(extent, r.largest or 1)
        return {r.largest: full, rest: 1} if rest else {r.largest: full or 1}

    def _mean(self, op: Rows | Map | Reduce | Contract, axis: str) -> float:
        tiles = self._tiles(op, axis)
        return sum(n * count for n, count in tiles.items()) / sum(tiles.values())

    def _padding(self, op: Map | Reduce | Contract, lane: str, most: float = inf) -> float:
        """Lanes computed for every one that is used, with at most ``most`` side by side."""
        width = self.program.target.lanes
        tiles = [(min(n, most), count) for n, count in self._tiles(op, lane).items()]
        used = sum(n * count for n, count in tiles)
        return sum(ceil(n / width) * width * count for n, count in tiles) / used if used else 0.0

    # ---- bytes

    def _traffic(self, e: Expr, nest: Nest, extent: Sizes) -> float:
        """All elements once, and again for every turn of a loop in which they do not fit.
        ``extent``: of all axes that the elements depend on."""
        place, over = self.program.places[e.attr[0]], dict(extent)
        size = place.dtype.nbytes
        total = min(prod(over.values()), place.size) * size
        for axis, count in nest:
            if count < 1:  # some values of an axis
                total *= count
            elif axis in over:
                over[axis] = max(1.0, over[axis] / count)
            elif min(prod(over.values()), place.size) * size > self.program.target.l2 / 2:
                total *= count
        return total

    def _unused(self, e: Expr, op: Op, nest: Nest, extent: Sizes) -> float:
        """What memory gives for every byte that is asked of it: whole lines, as often as they are
        looked for again when all that was read between has thrown them out; of a GPU the sectors
        that a block touches."""
        place = self.program.places[e.attr[0]]
        along = place.access(e).contiguous
        if self.execution.by_vectors:
            turned = isinstance(op, Map) and op.turn in along
            return 1.0 if turned or place.panel else self._again(e, along, nest, extent)
        assert isinstance(op, Map | Reduce | Contract)
        run = prod(self._mean(op, a) for a in along if a in op.ranges) * place.dtype.nbytes
        return 1.0 if not e.kids or isinstance(op, Contract) else max(1.0, SECTOR / run)

    def _again(self, e: Expr, along: Axes, nest: Nest, extent: Sizes) -> float:
        """How often lines are read in which axes lie ``along``, by loops around others."""
        nbytes, large = self.program.places[e.attr[0]].dtype.nbytes, self._is_large(e.attr[0])
        room = self.program.target.l2 / 2 if large else self.program.target.l1
        # where every second element is read, a copy of the other phase reads those between
        over, again = dict(extent), 1.0
        for axis, count in nest:
            if axis in over and count > 1:
                before = prod(over[a] for a in along)
                over[axis] = max(1.0, over[axis] / count)
                run = prod(over[a] for a in along)
                lines = phases(e.kids) * prod(over.values()) / run
                if axis in along and run * nbytes < LINE and lines * LINE > room:
                    again *= min(before, LINE / nbytes) / run
        return again

    # ---- operations, for one turn of the loops around

    def _operations(self, op: Map | Reduce | Contract, own: Sizes) -> float:
        if isinstance(op, Map):
            return self._map(op, own)
        return self._reduce(op, own) if isinstance(op, Reduce) else self._contract(op, own)

    def _terms(
        self, terms: Iterable[Expr], own: Sizes, pad: float, turned: bool = False, red: Axes = ()
    ) -> float:
        """Every value where its last axis is open; those without lanes take a vector's time. What
        is the same for all of ``red``, reduced within a vector of lanes, is computed before."""
        order, width, total = list(own), self.program.target.lanes, 0.0
        for e in subterms(*terms):
            if e.kind in INDEX_KINDS or e.kind == "const":
                continue
            inner = max((order.index(a) + 1 for a in e.free if a in own), default=0)
            before = () if e.free.intersection(red) else red
            points = prod(own[a] for a in order[:inner] if a not in before)
            points *= pad if inner == len(order) and order else width
            price = float(COST.get(e.attr[0], 1)) if e.kind in ("un", "bin") else 1.0
            if e.kind == "load" and order and not turned:
                price = self._apart(e, order[-1])
            total += OPERATION * price * points
        return total

    def _apart(self, e: Expr, lane: str) -> float:
        """Of a load: in vectors of neighbours; one in a few of them; or each lane for itself."""
        access = self.program.places[e.attr[0]].access(e)
        if not access.is_apart(lane):
            return 1.0
        shuffled = SHUFFLED * abs(access.stride(lane))
        return min(STRIDED, shuffled) if access.is_affine(lane) else STRIDED

    def _map(self, op: Map, own: Sizes) -> float:
        panel = self.program.places[op.dst.attr[0]].panel
        axes, values = stores(op)
        padding = self._padding(op, axes[-1], panel[1] if panel else inf) if axes else 1.0
        turned, walked = op.turn is not None, {a: own[a] for a in axes}
        terms = dict.fromkeys(t for each in values for t in each)
        spent = sum(self._terms([t], walked, padding, turned) for t in terms)
        return spent + turned * OPERATION * TURN * prod(own.values())

    def _halved(self, points: float) -> float:
        width = self.program.target.lanes
        return points * width * HALVING * log2(width)

    def _reduce(self, op: Reduce, own: Sizes) -> float:
        width = self.program.target.lanes  # 1: other threads run while sums wait
        kept = prod(own[a] for a in op.kept)
        if op.lanes == "windows":
            return self._windows(op, own) + (self._map(op.then, own) if op.then else 0.0)
        if op.runs:
            return self._running(op, own)
        if op.lanes == "scattered" and (found := selection(op)):
            begun = self._map(Map(op.outputs[0].dst, op.kept, op.ranges, op.outputs[0].init), own)
            lanes_of = {a: own[a] for a in op.kept if a != found.axis}
            steps = {a: own[a] for a in op.red} | lanes_of
            padding = self._padding(op, list(steps)[-1])
            spent = OPERATION * prod(steps.values())
            return begun + spent + self._terms([found.place, found.value], steps, padding)
        own, waits, sums = {a: own[a] for a in walked(op)}, 0.0, 0.0
        if op.lanes == "reduced":
            waits = OPERATION * IN_FLIGHT / op.streams * prod(own.values()) * (width > 1)
            sums = self._halved(kept) * len(op.outputs)
        padding, red = self._padding(op, list(own)[-1]), op.red if op.lanes == "strips" else ()
        spent = OPERATION * len(op.outputs) * prod(own.values())
        spent += sum(self._terms([dst], own, padding) for dst, _ in op.stores)
        terms = [*(o.term for o in op.outputs), *(term for _, term in op.stores)]
        spent += self._terms(terms, own, padding, red=red)
        return max(spent, waits) + sums

    def _running(self, op: Reduce, own: Sizes) -> float:
        """Rows of lanes are loaded and stored; within a vector, lanes are added to others above
        them, and of other dtypes than f32 one after the other."""
        width, points = self.program.target.lanes, prod(own.values())
        own = {a: own[a] for a in walked(op)}
        total = 0.0
        for o in op.outputs:
            fast = o.op == "sum" and dtype(o.dst) is DType.F32
            joined = 2 * log2(width) if fast else WAIT * width
            total += OPERATION * points * (joined if op.lanes == "reduced" else 2.0)
        terms = [t for o in op.outputs for t in (o.dst, o.term)]
        return total + self._terms(terms, own, self._padding(op, list(own)[-1]))

    def _windows(self, op: Reduce, own: Sizes) -> float:
        """Products are added as they are made; what rows share is loaded once for all of them."""
        lane, row = op.kept[-1], op.kept[-2:][0]
        points, total = prod(own.values()) * self._padding(op, lane), 0.0
        for o in op.outputs:
            parts = factors(o.term)
            loads = [e for f in parts for e in subterms(f) if e.kind == "load"]
            shared = [ABREAST if row not in e.free else 1.0 for e in loads]
            ports = sum(self._apart(e, lane) / n for e, n in zip(loads, shared, strict=True))
            total += OPERATION * points * max(1.0, len(parts) - 1.0, ports / 2)
        return total

    def _contract(self, op: Contract, own: Sizes) -> float:
        p, target = op.stage, self.program.target
        own = {**own, **op.means}
        if not self.execution.by_vectors:
            kinds = {self.program.places[e.attr[0]].dtype for e in (op.a, op.b)}
            times = speed(target, p.fragment, kinds, dtype(op.dst))
            return OPERATION * prod(own.values()) / times
        lane = op.red[-1] if p.form == "dot" else p.lane_axis
        assert lane
        sums, times = OF_BYTES.get(p.stage_b, (1, 1.0))
        slots, points = p.mr * p.nv * sums, times * prod(own.values()) * self._padding(op, lane)
        spent = OPERATION * points * max(1.0, (p.mr * sums + p.nv) / slots, IN_FLIGHT / slots)
        if p.form == "dot":
            spent += self._halved(prod(own[a] for a in op.kept))
        return spent
