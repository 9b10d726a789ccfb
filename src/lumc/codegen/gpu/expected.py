"""What a kernel is expected to take on a GPU whose rates are known, from its distributed program.

A processor holds as many blocks as its registers, threads and shared memory allow. They take as
long as the unit that they keep busiest (tensor cores, schedulers, banks, ..), or, if that is
longer, as one of them would take alone: what follows from each other, with the latency of memory
where nothing was copied ahead. Memory serves all processors together. (Hong and Kim, "An analytical
model for a GPU architecture with memory-level and thread-level parallelism awareness", ISCA 2009.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, prod
from typing import NamedTuple

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.counts import NOTHING, SECTOR, Counter, Counts, moving
from lumc.codegen.gpu.distribute import distribute
from lumc.codegen.gpu.instructions import STARTED, beside, copied, per_round, prologue
from lumc.codegen.gpu.occupancy import resident
from lumc.codegen.gpu.program import Combine, Distributed, Nest, Node, Step, Sync, reads, writes
from lumc.codegen.tile.program import Program
from lumc.errors import LumcError
from lumc.graph.expr import Expr
from lumc.kernel.machines import processor
from lumc.kernel.target import Attained, Gpu, Processor, Rates, Target
from lumc.schedule.schedule import Threads

ROUND = 8  # of the norm of what goes on side by side: almost the longest; a guess
READY = 2  # warps of a scheduler that keep it busy; derived: 4 cycles of a sum, two sums each
CACHED = (
    4.0  # bandwidth of the second cache in that of memory; derived: of A100 and H200 3.5 and 1.5
)
KEPT = 0.5  # of a cache, for what is not read once; a guess
FIRST = 12  # counted: matrices that a warp loads before its first product, 8 to 14 in 35 kernels
EACH = Counts(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)


@dataclass
class Block:
    """What a block asks of its processor, and how long it takes alone."""

    counts: Counts = NOTHING
    chain: float = 0.0  # cycles


@dataclass
class _Traffic:
    """Of a buffer, by blocks."""

    each: float  # bytes that a block fetches
    axes: frozenset[str]  # whose loops it moves with
    waste: float  # what a cache fetches for every byte
    plain: bool  # through the first cache
    blocks: int = 1  # that one copy is for
    stored: float = 1.0  # what the second cache takes for every byte that is stored


class Expected(NamedTuple):
    """Microseconds of a launch; ``full``: less than if all processors were always busy."""

    us: float
    full: float


def expected(program: Program, threads: Threads | None) -> Expected:
    """Of a program; infinite where the threads of a block cannot run it."""
    try:
        return _Pricer(distribute(program, threads), EACH).expected()
    except LumcError:
        return Expected(inf, inf)


def distributed_us(d: Distributed, scale: Counts | None = None) -> float:
    """Microseconds of a distributed program; ``scale``: of each count, where others are known."""
    return _Pricer(d, scale or EACH).expected().us


def block_of(d: Distributed) -> Block:
    """What a block is expected to do, and to take where memory is as fast as the second cache."""
    return _Pricer(d, EACH).block()


class _Pricer:
    def __init__(self, d: Distributed, scale: Counts) -> None:
        self.d, self.counter, self.scale = d, Counter(d), scale
        self.target: Target = d.program.target
        own = processor(self.target)
        assert self.target.gpu and self.target.gpu.rates and own
        self.own: Processor = own
        self.gpu: Gpu = self.target.gpu
        self.rates: Rates = self.target.gpu.rates
        self.attained = self.own.attained or Attained()
        cached = CACHED * self.target.bandwidth * 1e3 / self.rates.mhz  # where nothing is published
        self.second = self.rates.l2 * self.attained.l2 if self.rates.l2 else cached
        self.resident = resident(d)
        self.traffic = dict[tuple[str, object, bool], _Traffic]()
        self.latency = float(self.own.l2_cycles)  # until the traffic is known

    def expected(self) -> Expected:
        program, gpu, mhz = self.d.program, self.gpu, self.rates.mhz
        loops = [x for op in program.body if isinstance(op, ir.Par) for x in op.loops]
        tiles = max(1, program.tiles)
        self._look(self.d.body, 1.0)
        far, fetched = self._memory(loops, tiles)
        ratio = min(1.0, far / fetched) if fetched else 0.0
        self.latency = self.own.l2_cycles + ratio * (self.own.memory_cycles - self.own.l2_cycles)
        block = self.block()
        busy = max(self._busy(replace(block.counts, l2=fetched / tiles)).values())
        cycles = self._waves(tiles, busy, block.chain)
        memory = far / (self.target.bandwidth * self.attained.memory * 1e3)
        launch, least = self.target.launch_us, busy * tiles / gpu.processors
        us = launch + _norm(cycles / mhz, memory)
        return Expected(us, launch + _norm(least / mhz, memory))

    def _waves(self, tiles: int, busy: float, chain: float) -> float:
        whole, rest = divmod(tiles, self.gpu.processors * self.resident)
        cycles = whole * max(self.resident * busy, chain)
        if rest:
            cycles += max(ceil(rest / self.gpu.processors) * busy, chain)
        return cycles

    def _busy(self, counts: Counts) -> dict[str, float]:
        """Cycles of every unit of a processor."""
        r, gpu, s = self.rates, self.gpu, self.scale
        return {
            "tensor": s.tensor * counts.tensor / (r.tensor * self.attained.tensor),
            "shared": s.shared * counts.shared / r.shared,
            "issue": s.issue * counts.issue / r.issue,
            "f32": s.f32 * counts.f32 * gpu.warp / r.f32,
            "special": s.special * counts.special * gpu.warp / r.special,
            "l2": counts.l2 / self.second * gpu.processors,
        }

    # ---- what a block does, in order

    def block(self) -> Block:
        first = Counts(issue=prologue(self.d) * self.counter.warps)
        found = self._body(self.d.body)
        return Block(found.counts + first, found.chain + self._alone(first))

    def _body(self, nodes: Sequence[Node]) -> Block:
        out = Block()
        for node in nodes:
            found = self._node(node)
            out.counts, out.chain = out.counts + found.counts, out.chain + found.chain
        return out

    def _node(self, node: Node) -> Block:
        match node:
            case Nest(op=ir.Block()):
                return self._loop(node)
            case Nest(op=ir.When(first=first)):
                often, inner = self.counter.often(first), self._body(node.body)
                return Block(inner.counts * often, inner.chain * often)
            case Nest():
                return self._body(node.body)
            case Sync():
                return Block(Counts(issue=self.counter.warps), self.own.shared_cycles)
            case Combine():
                own = Counts(issue=beside(self.counter, node))
                return Block(own, self._alone(own) + self.own.shared_cycles)
            case Step():
                return self._step(node)

    def _step(self, step: Step) -> Block:
        own = self.counter.step(step) + Counts(issue=beside(self.counter, step))
        chain = self._alone(own)
        if not step.ahead:
            chain += self._waited(step)
        product = step.roles and step.roles.product
        if product and product.fragment != "wgmma":
            chain = max(chain, self._multiplied(step, own) + self.own.shared_cycles)
        return Block(own, chain)

    def _alone(self, counts: Counts) -> float:
        """Cycles of one block whose warps have only each other to wait for."""
        busy = self._busy(replace(counts, l2=0.0))
        few = READY * self.rates.issue / self.counter.warps
        busy["issue"] *= max(1.0, few)
        return max(busy.values())

    def _multiplied(self, step: Step, counts: Counts) -> float:
        """Of products of single warps, which wait for what these load first. The rest is loaded
        while others of the same scheduler multiply, if there are any."""
        assert step.roles
        (rows, lanes, steps), busy = step.roles.counts, self._busy(counts)
        several = self.counter.warps > self.rates.issue
        first = min(1.0, FIRST / (steps * (rows + (lanes + 1) // 2))) if several else 1.0
        return busy["shared"] * first + max(busy["tensor"], busy["shared"] * (1 - first))

    def _waited(self, step: Step) -> float:
        """Cycles for what it reads to arrive, and for what threads tell each other."""
        cycles, op = 0.0, step.op
        memories = {self._kept_in(e) for e in reads(step)}
        if "memory" in memories:
            cycles += self.latency
        elif "shared" in memories:
            cycles += self.own.shared_cycles
        if isinstance(op, ir.Reduce):
            lanes = prod(t.mod for t in step.points.threads if t.axis in op.red)
            cycles += (min(lanes, self.d.warp).bit_length() - 1) * self.own.shared_cycles
        return cycles

    def _kept_in(self, ref: Expr) -> str:
        tile = self.d.tiles.get(ref.attr[0])
        return tile.memory if tile else "memory"

    def _loop(self, nest: Nest) -> Block:
        assert isinstance(nest.op, ir.Block)
        times = prod(n for _, n in nest.op.loop.turns)
        with self.counter.loop(nest.op.loop, nest):
            found = [(n, self._node(n)) for n in nest.body]
        total = Counts(issue=per_round(nest) * self.counter.warps)
        for _, f in found:
            total += f.counts
        behind = sum(f.chain for n, f in found if isinstance(n, Step) and n.behind)
        others = sum(f.chain for n, f in found if not (isinstance(n, Step) and n.behind))
        chain, start = max(behind, others), 0.0
        if nest.slots > 1:
            ahead = max(1, nest.slots - 1 - nest.behind)
            chain, start = max(chain + self.own.shared_cycles, self.latency / ahead), self.latency
            ahead_of = (n for n in nest.body if isinstance(n, Step) and n.ahead)
            copies = sum(copied(self.counter, n, STARTED) for n in ahead_of)
            first = Counts(issue=copies * (nest.slots - 1))
            return Block(total * times + first, chain * times + start + self._alone(first))
        return Block(total * times, chain * times)

    # ---- memory

    def _look(self, nodes: Sequence[Node], times: float) -> None:
        """What is fetched and stored, by buffer."""
        for node in nodes:
            match node:
                case Nest(op=ir.Block(loop=loop)):
                    with self.counter.loop(loop, node):
                        self._look(node.body, times * prod(n for _, n in loop.turns))
                case Nest(op=ir.When(first=first)):
                    self._look(node.body, times * self.counter.often(first))
                case Nest():
                    self._look(node.body, times)
                case Step():
                    for ref in dict.fromkeys([*reads(node), *writes(node)]):
                        if ref.attr[0] not in self.d.tiles:
                            self._see(ref, node, times)

    def _see(self, ref: Expr, step: Step, times: float) -> None:
        op = step.op
        moved = moving(ref, op)
        again = prod(n for a, n in self.counter.around.items() if a not in moved)
        each = self.counter.touched(ref, op) * (times if step.ahead else times / again)
        name, place = ref.attr[0], self.d.program.places[ref.attr[0]]
        run = prod(self.counter.mean(op, a) for a in place.access(ref).contiguous if a in op.ranges)
        waste = max(1.0, SECTOR / max(1.0, run * place.dtype.nbytes)) if ref.kids else 1.0
        key = name, ref.kids, ref in writes(step)
        before = self.traffic.get(key)
        if before is None or before.each < each:
            blocks = step.bulk.blocks if step.bulk else 1
            taken = self.counter.sectors(ref, step) if key[-1] else 1.0
            self.traffic[key] = _Traffic(each, moved, waste, not step.ahead, blocks, taken)

    def _memory(self, loops: Sequence[ir.Loop], tiles: int) -> tuple[float, float]:
        """Bytes of memory, and of the second cache."""
        far, near = 0.0, 0.0
        cache, blocks = self.own.l2_bytes * KEPT, self.gpu.processors * self.resident
        constant = {b.name for b in self.d.program.kernel.buffers if b.constant}
        by_name = dict[tuple[str, bool], list[_Traffic]]()
        for (name, _, stored), t in self.traffic.items():
            by_name.setdefault((name, stored), []).append(t)
        for (name, _), each in by_name.items():
            size = self.d.program.places[name].size * self.counter.nbytes(name)
            own = _own(each, size, loops)
            fetched = _own([replace(t, each=t.each / t.blocks) for t in each], size, loops)
            taken = max(t.stored for t in each)
            near += self._second(each, fetched, loops, tiles) * taken
            if size > cache:
                once = min(size * max(t.waste for t in each), own * _pieces(loops, each))
                again = own * _covered(loops, each, blocks) * tiles / blocks
                far += max(once, min(again, own * tiles))
            elif name in constant:
                far += size
        return far, near

    def _second(
        self, each: Sequence[_Traffic], own: float, loops: Sequence[ir.Loop], tiles: int
    ) -> float:
        """Bytes that all blocks fetch of a buffer. Of what all of them have in common the first
        cache of a processor keeps some."""
        together = _pieces(loops, each) == 1 and all(t.plain for t in each) and own <= self._first()
        return own * (min(tiles, self.gpu.processors) if together else tiles)

    def _first(self) -> float:
        return max(0.0, (self.own.l1_bytes - self.resident * self.d.shared_bytes) * KEPT)


def _own(each: Sequence[_Traffic], size: float, loops: Sequence[ir.Loop]) -> float:
    """Bytes that a block fetches of a buffer: what it reads several times the first cache keeps,
    unless copies pass by it."""
    ahead = sum(t.each * t.waste for t in each if not t.plain)
    plain = [t.each * t.waste for t in each if t.plain]
    if len(plain) > 1:
        return ahead + min(sum(plain), max(*plain, size / _pieces(loops, each)))
    return ahead + sum(plain)


def _pieces(loops: Sequence[ir.Loop], each: Sequence[_Traffic]) -> int:
    """Into how many pieces the blocks share a buffer."""
    return prod(x.count for x in loops if any(x.axis in t.axes for t in each))


def _covered(loops: Sequence[ir.Loop], each: Sequence[_Traffic], blocks: int) -> float:
    """How many different pieces of a buffer so many blocks read that follow one another."""
    out, left = 1.0, float(blocks)
    for loop in reversed(loops):
        if any(loop.axis in t.axes for t in each):
            out *= min(float(loop.count), ceil(left))
        left = max(1.0, left / loop.count)
    return out


def _norm(*us: float) -> float:
    longest = max(us)
    return longest * sum((u / longest) ** ROUND for u in us) ** (1 / ROUND) if longest else 0.0
