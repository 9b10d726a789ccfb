"""What a block of a distributed program asks of its processor, counted from the program alone.

Only what no compiler can leave out is counted: products and sums, functions, accesses to shared
memory with their bank conflicts, accesses to memory, barriers. Addresses and conditions are not, so
a bound made of these counts is below the time of any machine code of the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from math import prod
from operator import add

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.distribution import VECTORS, Distribution
from lumc.codegen.gpu.exchange import PAIRS
from lumc.codegen.gpu.program import Bulk, Distributed, Nest, Node, Step, Sync, Tile, reads
from lumc.codegen.gpu.program import writes as stores_of
from lumc.codegen.gpu.roles import GROUP, PANEL
from lumc.codegen.gpu.shared import BANK, ROW
from lumc.codegen.gpu.words import element_bytes, words_of
from lumc.graph.expr import Expr, linear, subterms
from lumc.graph.ops import DType
from lumc.kernel.term import INDEX_KINDS, dtype

BANKS = 32
WAVE = BANKS * BANK  # bytes of shared memory that move at once
SECTOR = 32  # bytes that a cache of a GPU fetches or takes at least; CUDA programming guide
UNIT = (16, 8)  # rows and lanes of the products that ``Roles.counts`` counts
# (sums and products of f32, functions of the hardware) in an operation, at least, as
# lumc_dev/elementary.h spells it: a sum of a product is one. Others compare, in another unit.
SPELLED = {
    **{"add": (1, 0), "mul": (1, 0), "decay": (0, 1), "recip": (2, 1), "sqrt": (2, 1)},
    **{"exp2": (11, 0), "exp2_ftz": (10, 0), "exp": (12, 0), "exp_ftz": (11, 0), "log2": (16, 0)},
}


@dataclass(frozen=True)
class Counts:
    """Of one block; instructions are those of warps."""

    tensor: float = 0.0  # operations of matrix units, as many of 16 bits as take the same time
    shared: float = 0.0  # bytes of shared memory, 128 for each turn of an access
    issue: float = 0.0  # instructions
    f32: float = 0.0  # of these, sums and products of f32
    special: float = 0.0  # and functions of the hardware
    l2: float = 0.0  # bytes from and to memory

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(add, self._each, other._each))

    def __mul__(self, times: float) -> Counts:
        return Counts(*(n * times for n in self._each))

    @property
    def _each(self) -> tuple[float, ...]:
        return self.tensor, self.shared, self.issue, self.f32, self.special, self.l2


NOTHING = Counts()


def count(d: Distributed) -> Counts:
    """The counts of one block, of a loop over a live length those of the greatest, of one that
    leaves tiles out those of the mean block."""
    return Counter(d).body(d.body)


def turns(addresses: Sequence[int], nbytes: int) -> int:
    """How often shared memory has its turn for one access of a warp, whose threads move so many
    bytes each from these addresses: as many threads at once as make 128 bytes, and again for
    every other word in the same bank."""
    together, words, out = max(1, min(BANKS, WAVE // nbytes)), max(1, nbytes // BANK), 0
    for start in range(0, len(addresses), together):
        here = addresses[start : start + together]
        touched = {a // BANK + i for a in here for i in range(words)}
        banks = [w % BANKS for w in touched]
        out += max(banks.count(b) for b in set(banks))
    return out


class Counter:
    """Of one program; it knows the loops around what it counts."""

    def __init__(self, d: Distributed) -> None:
        self.d, self.places, self.extent = d, d.program.places, d.program.kernel.extent
        self.warps = d.threads.count / d.warp
        self.words = words_of(d.program.kernel)
        self.around = dict[str, int]()  # how often the loops over these axes go round
        self.stored = dict[str, set[str]]()  # what is stored in them

    def body(self, nodes: Sequence[Node]) -> Counts:
        total = NOTHING
        for node in nodes:
            match node:
                case Nest(op=ir.Block(loop=loop), slots=slots):
                    waits = Counts(issue=self.warps * (slots > 1))  # the barrier of a ring
                    with self.loop(loop, node):
                        total += (self.body(node.body) + waits) * prod(n for _, n in loop.turns)
                case Nest(op=ir.When(first=first)):
                    total += self.body(node.body) * self.often(first)
                case Nest():
                    total += self.body(node.body)
                case Sync():
                    total += Counts(issue=self.warps)
                case Step():
                    total += self.step(node)
        return total

    def step(self, step: Step) -> Counts:
        """Of one operation, in one round of the loops around."""
        if isinstance(step.op, ir.Contract):
            return self._contract(step, step.op)
        if isinstance(step.op, ir.Map) and step.bulk is not None:
            return self._bulk(step.op, step.bulk)
        return self._pointwise(step, step.op)

    def often(self, first: Iterable[str]) -> float:
        """In what share of the rounds a condition on the first ones of these loops holds."""
        return 1 / prod(self.around.get(a, 1) for a in first)

    @contextmanager
    def loop(self, loop: ir.Loop, nest: Nest) -> Iterator[None]:
        self.around[loop.axis], self.stored[loop.axis] = loop.count, nest.stored
        yield
        del self.around[loop.axis]

    # ---- products

    def _contract(self, step: Step, op: ir.Contract) -> Counts:
        assert step.roles
        roles, product = step.roles, step.roles.product
        if product is None:
            return self._simt(step, op)
        rows, lanes, steps = roles.counts
        others = prod(op.ranges[a].largest for a in op.red if a != roles.along)
        times, (unit_rows, unit_lanes) = self.warps * others * steps, UNIT
        many = times * rows * lanes * 2 * unit_rows * unit_lanes * product.shape[2]
        total = Counts(tensor=many / product.rate)
        if product.fragment == "wgmma":
            return total + self._warpgroups(op, lanes, times)
        total += Counts(issue=times * rows * lanes)
        for ref, role, n in ((op.a, roles.a, rows), (op.b, roles.b, (lanes + 1) // 2)):
            tile = self.d.tiles.get(ref.attr[0])
            if tile and tile.memory == "shared" and product.word > 1:
                total += Counts(shared=WAVE * self._matrices(op, ref, tile), issue=1) * (times * n)
            elif tile is None or tile.memory == "shared":
                total += _repeated(self._access(ref, op, role, 1), others)
        return total

    def _warpgroups(self, op: ir.Contract, lanes: int, times: float) -> Counts:
        """A warpgroup reads both operands from shared memory, for all of its warps."""
        width = ROW * 2  # bytes of 16 steps
        tile = self.d.tiles.get(op.a.attr[0])
        left = GROUP * UNIT[0] if tile and tile.memory == "shared" else 0
        nbytes = (lanes * UNIT[1] + left) * width
        return Counts(issue=times, shared=times / GROUP * nbytes)

    def _matrices(self, op: ir.Contract, ref: Expr, tile: Tile) -> int:
        """Turns of four matrices of eight rows of 16 bytes."""
        dims = zip(tile.strides, self.places[ref.attr[0]].dims, strict=True)
        row = max(s for s, d in dims if d.size > 1)
        return 4 * turns([exchanged(i * row, tile) * tile.dtype.nbytes for i in range(8)], ROW)

    def _simt(self, step: Step, op: ir.Contract) -> Counts:
        """A multiply-add for every element of the registers, and the operands of each step."""
        assert step.roles
        steps, c = prod(self.mean(op, a) for a in op.red), step.roles.c
        adds = self.warps * c.size * steps
        total = Counts(issue=adds, f32=adds * (dtype(op.dst) is DType.F32))
        for ref in (op.a, op.b):
            points = c.on(ref.free.difference(op.red))
            last = points.registers[-1] if points.registers else None
            near = last.extent if last and last.stride == 1 and ref.attr[0] in self.d.tiles else 1
            total += _repeated(self._access(ref, op, points, near), steps)
        return total

    # ---- maps and reductions

    def _bulk(self, op: ir.Map, bulk: Bulk) -> Counts:
        """A whole tile is written; what of it lies in the buffer is fetched, by one block for all
        that share it. One thread asks for a panel at a time."""
        places = zip(op.term.kids, self.places[op.term.attr[0]].dims, strict=True)
        sizes = {i.attr[0]: dim.size for i, dim in places if i.kind == "axis"}
        tile = self.d.tiles[op.dst.attr[0]]
        inner = op.dst.kids[tile.strides.index(1)].attr[0]
        fetched = prod(
            sum(min(bulk.wide if a == inner else bulk.rows, n - start) for start in starts)
            / len(starts)
            for a, n in sizes.items()
            for starts in [range(0, n, op.ranges[a].largest)]
        )
        l2 = fetched * tile.dtype.nbytes / bulk.blocks
        return Counts(shared=bulk.nbytes, issue=bulk.wide / PANEL, l2=l2)

    def _pointwise(self, step: Step, op: ir.Map | ir.Reduce) -> Counts:
        points = step.points
        total = NOTHING
        for ref in [*reads(step), *stores_of(step)]:
            whole = step.vector > 1 and (step.moves or ref in step.wide)
            near = PAIRS if step.stored and ref in stores_of(step) else step.vector
            total += self._access(ref, op, points, near if whole else 1, step.ahead)
        if step.stored:  # one is told for four
            total += Counts(issue=self.warps * points.size / PAIRS)
        if isinstance(op, ir.Map):
            return (total + self._terms([op.term], op, points)) * self.share(points, op.dst)
        common = step.common or (None,) * len(op.outputs)
        terms = [c.rest if c else o.term for o, c in zip(op.outputs, common, strict=True)]
        summed = [t for o, t in zip(op.outputs, terms, strict=True) if o.op == "sum"]
        terms += [c.factor for c in common if c]  # where its axes are: once for neighbours
        total += self._terms([*terms, *(t for _, t in op.stores)], op, points, summed)
        reduced = (t for t in points.threads if t.axis in op.red)
        lanes = prod(min(t.mod, max(1, self.d.warp // t.div)) for t in reduced)
        adds = self.warps * points.size
        meets = self.warps * (lanes.bit_length() - 1) * points.on(op.kept).size
        for o, c in zip(op.outputs, common, strict=True):
            n = adds * (1 + 1 / step.vector) if c else adds
            is_sum = o.op == "sum" and dtype(o.dst).is_float
            total += Counts(issue=n + 2 * meets, f32=(n + meets) * is_sum)
        return total

    def share(self, points: Distribution, dst: Expr) -> float:
        """Of warps that have something to do: those that have the same as others store nothing."""
        tile = self.d.tiles.get(dst.attr[0])
        alike = points.across_warps([None], self.d.warp)
        return 1.0 if tile and tile.memory == "register" else 1 / prod(t.mod for t in alike)

    def _terms(
        self, terms: Iterable[Expr], op: ir.Leaf, points: Distribution, summed: Sequence[Expr] = ()
    ) -> Counts:
        """Operations, each where its axes are; a product that is only added is part of the sum."""
        every = [e for e in subterms(*terms) if e.kind not in INDEX_KINDS]
        kids = [e.kids for e in every if e.kind == "bin" and e.attr[0] == "add"]
        kids += [(e,) for e in summed]
        products = {e for e in every if e.kind == "bin" and e.attr[0] == "mul"}
        fused = {next(filter(products.__contains__, of), None) for of in kids}
        total = NOTHING
        for e in every:
            if e.kind not in ("un", "bin") or e in fused or not dtype(e).is_float:
                continue
            f32, special = SPELLED.get(e.attr[0], (0, 0))
            n = self.warps * points.on(e.free).size / self.outside(e, op)
            total += Counts(issue=max(1, f32 + special), f32=f32, special=special) * n
        return total

    def outside(self, e: Expr, op: ir.Leaf) -> int:
        """How often the innermost loops come to the same value, which a compiler makes once, before
        them, unless it is made of what lies in shared memory."""
        names = {k.attr[0] for k in subterms(e) if k.kind == "load"}
        if any(t.memory == "shared" for n, t in self.d.tiles.items() if n in names):
            return 1
        changed = moving(e, op) | {a for a, made in self.stored.items() if names & made}
        inner = takewhile(lambda a: a not in changed, reversed(self.around))
        return prod(self.around[a] for a in inner)

    # ---- accesses

    def _access(
        self, ref: Expr, op: ir.Leaf, points: Distribution, vector: int, ahead: bool = False
    ) -> Counts:
        """All threads read or write their elements, ``vector`` at once. ``ahead``: to shared memory
        by the instruction that reads memory."""
        tile = self.d.tiles.get(ref.attr[0])
        if tile and tile.memory == "register":
            return NOTHING
        own, nbytes = points.on(ref.free), self.nbytes(ref.attr[0])
        if not tile:
            vector = min(vector, int(VECTORS[-1] / nbytes))  # of several accesses, each
        times = self.warps * max(1.0, own.size / vector)
        if tile:
            moved = WAVE * self._turns(ref, own, tile, vector)
            return Counts(shared=moved, issue=0 if ahead else 1) * times
        # what a loop reads again may be in the first cache, which copies ahead pass by
        again = 1 if ahead else self._again(ref, op)
        return Counts(issue=times, l2=self.touched(ref, op) / again)

    def touched(self, ref: Expr, op: ir.Leaf) -> float:
        """Bytes of the elements in memory that an operation reads or writes."""
        elements = prod(self.mean(op, a) for a in ref.free if a in op.ranges)
        return min(elements, self.places[ref.attr[0]].size) * self.nbytes(ref.attr[0])

    def nbytes(self, name: str) -> float:
        """Of an element in memory."""
        return element_bytes(self.words.get(name), self.places[name].dtype)

    def sectors(self, ref: Expr, step: Step) -> float:
        """Bytes of the sectors that a store of the first warp touches, for each that it stores."""
        place, whole = self.places[ref.attr[0]], step.vector > 1 and ref in step.wide
        near = (PAIRS if step.stored else step.vector) if whole else 1
        nbytes, atoms = place.dtype.nbytes, linear(place.offset(ref.kids))[1]
        if any(a.kind != "axis" for a in atoms):
            return 1.0
        points = (step.stored or step.points).on(ref.free)
        at = {
            sum(n * _coordinate(points, a.attr[0], t) for a, n in atoms.items()) * nbytes
            for t in range(self.d.warp)
        }
        touched = {b // SECTOR for a in at for b in range(a, a + near * nbytes, nbytes)}
        return max(1.0, len(touched) * SECTOR / (len(at) * near * nbytes))

    def _again(self, ref: Expr, op: ir.Leaf) -> int:
        """How often the loops around come to the same elements."""
        moved = moving(ref, op)
        return prod(n for a, n in self.around.items() if a not in moved)

    def _turns(self, ref: Expr, points: Distribution, tile: Tile, vector: int) -> int:
        """Turns of an access of the first warp."""
        out = list[int]()
        for thread in range(self.d.warp):
            at = sum(
                n * stride * _coordinate(points, a.attr[0], thread)
                for i, stride in zip(ref.kids, tile.strides, strict=True)
                for a, n in linear(i)[1].items()
                if a.kind == "axis"
            )
            out.append(exchanged(at, tile) * tile.dtype.nbytes)
        return turns(out, max(1, vector * tile.dtype.nbytes))

    def mean(self, op: ir.Leaf, axis: str) -> float:
        """How many values an axis takes, over all tiles."""
        r = op.ranges[axis]
        if len(r.sizes) == 1 or axis not in self.extent:
            return r.largest
        return self.extent[axis] / -(-self.extent[axis] // r.largest)


def moving(ref: Expr, op: ir.Leaf) -> frozenset[str]:
    """The axes whose loops an access moves with."""
    starts = subterms(*(op.ranges[a].lo for a in ref.free if a in op.ranges))
    return ref.free.union(s.attr[0].removesuffix(".0") for s in starts if s.kind == "dim")


def _repeated(access: Counts, times: float) -> Counts:
    """An access for each of several steps, all of which its elements are of."""
    return replace(access * times, l2=access.l2)


def _coordinate(points: Distribution, axis: str, thread: int) -> int:
    return sum(thread // t.div % t.mod * t.stride for t in points.threads if t.axis == axis)


def exchanged(at: int, tile: Tile) -> int:
    """Where an element lies, in panels as lumc_panel says."""
    if tile.swizzle:
        return tile.swizzle.at(at)
    if not tile.panels:
        return at
    row, column = divmod(at, tile.panels)
    rows = tile.size // tile.panels
    j = column // PANEL * (rows * PANEL) + row * PANEL + column % PANEL
    return j ^ (j >> 3 & 56)
