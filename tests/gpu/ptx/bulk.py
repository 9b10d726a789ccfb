"""Copies of whole tiles by tensor maps, barriers that count bytes, clusters: PTX ISA, "mbarrier",
"cp.async.bulk.tensor", "Tensors", "barrier.cluster".

Copies land when all threads wait, and somebody for their bytes, which is as late as allowed; until
then nobody may touch where they land. Who has seen the barrier complete may read it, and who
has passed a barrier of the block with somebody who has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gpu.ptx.machine import Decode, Lanes, Machine, Step, builds
from gpu.ptx.memory import PARAMETERS, Array, Fault
from gpu.ptx.text import MAP_BYTES, split
from lumc.codegen.gpu.grid import TensorMap

LINE = 128  # bytes of a row of a box; to multiples of them boxes are copied
MOST_BYTES = 1 << 20  # that a barrier counts to, and one more
ELEMENT = 2  # bytes


@dataclass(eq=False)
class Barrier:
    """An mbarrier object."""

    pending: int  # threads that have not arrived in this phase
    lane: int  # who made it
    since: int  # barriers of its block that this thread had passed
    seen: Array  # of each lane: phases that it knows to be complete
    count: int = 1  # threads of a phase
    bytes: int = 0  # that are to come
    phases: int = 0  # complete ones
    shown: bool = False  # to the asynchronous proxy, and the cluster
    first: list[int] = field(default_factory=list)  # of each phase: barriers passed by who saw it


@dataclass(eq=False)
class Box:
    """A copy to one block that is under way."""

    barrier: Barrier
    block: int
    to: Array  # i64[bytes]: where they go in shared memory
    cells: Array
    number: int  # of the array
    source: Array  # i64[bytes]: where they come from, -1 for zeros


class Arrivals:
    """The barriers and copies of a batch."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.shared = machine, machine.shared
        self.bars = dict[int, Barrier]()  # by where they are in shared memory
        self.under_way = list[Box]()
        cells = len(self.shared.flying)
        self.owner: list[Barrier] = []  # those by which cells were counted
        self.by = np.full(cells, -1, np.int32)  # of each cell: which of them
        self.phase = np.zeros(cells, np.int32)  # and how many of its phases are complete then
        self.shared.arrivals = self
        self.passed = machine.clock.blocks_passed.copy()  # barriers of blocks and of clusters
        self.came = np.zeros(machine.lanes, bool)  # at the barrier of their cluster
        self.mark = np.zeros(machine.where.blocks, np.int64)  # passed by each block, up to that
        self.wanted = list[Barrier]()  # somebody looks at them
        machine.finishing.append(self.ending)
        machine.arriving.append(self.arrive)

    # ---- barriers

    def at(self, address: int, lane: int) -> int:
        if address % 8:
            raise Fault(f"misaligned: an mbarrier at {address:#x}")
        block = self.machine.block[lane : lane + 1]
        found = self.shared.find(np.array([address & 0xFFFFFFFF]), 8, block, "an mbarrier")
        return int(found[0])

    def make(self, address: int, lane: int, count: int) -> None:
        at, machine = self.at(address, lane), self.machine
        if at in self.bars:
            raise Fault("mbarrier.init of a barrier that is in use")
        mine, clock = np.array([lane]), machine.clock
        self.shared.track(np.array([at]), 8, mine, clock, "write")
        since = int(self.passed[lane])
        self.bars[at] = Barrier(count, lane, since, np.zeros(machine.lanes, np.int32), count)

    def show(self, m: Lanes) -> None:
        """fence.mbarrier_init: of what these threads have made."""
        lanes = set(self.machine.which(m).tolist())
        for b in self.bars.values():
            b.shown |= b.lane in lanes

    def known(self, address: int, lane: int) -> Barrier:
        """One that a thread of its block may use."""
        found = self.bars.get(self.at(address, lane))
        if found is None:
            raise Fault("an mbarrier that nobody has initialised")
        if found.lane != lane and found.since >= self.passed[lane]:
            self.machine.report.add("early", "an mbarrier is used before a barrier of its block")
        return found

    def expect(self, address: int, lane: int, nbytes: int) -> None:
        b = self.known(address, lane)
        b.bytes += nbytes
        if not 0 <= nbytes < MOST_BYTES or b.bytes >= MOST_BYTES or not b.pending:
            raise Fault("an mbarrier counts no further")
        b.pending -= 1
        self.look(b)

    def look(self, b: Barrier) -> None:
        """Is its phase complete?"""
        self.machine.parked[:] = False
        if not b.pending and not b.bytes:
            b.phases += 1
            b.pending = b.count

    def is_over(self, address: int, lanes: Array, parity: int) -> bool:
        """Is the phase of this parity complete, as these lanes of a block see it?"""
        b = self.known(address, int(lanes[0]))
        self.known(address, int(lanes[-1]))
        if b.phases % 2 == parity:
            self.wanted.append(b)
            return False
        passed = self.machine.clock.blocks_passed[lanes]
        b.first += [int(passed.min())] * (b.phases - len(b.first))
        b.seen[lanes] = b.phases
        return True

    # ---- copies

    def arrive(self) -> bool:
        """The copies that are waited for land. Are there some?"""
        found = [x for x in self.under_way if any(x.barrier is b for b in self.wanted)]
        for box in found:
            self.land(box)
        self.wanted.clear()
        return bool(found)

    def issue(
        self, made: TensorMap, to: int, at: list[int], bar: int, who: tuple[int, int]
    ) -> None:
        """A thread asks for a box, for a block of its cluster. Raises Fault."""
        (lane, block), machine, shared = who, self.machine, self.shared
        if to % LINE:
            raise Fault(f"misaligned: a tensor is copied to {to:#x}")
        rows, own = made.box[1], block == machine.block[lane]
        line = to + np.arange(rows)[:, None] * LINE + np.arange(LINE)
        line = (line ^ (line >> 7 & 7) << 4).reshape(-1)  # by the row of the address
        where = shared.find(line, 1, np.full(len(line), block), "a copy of a tensor")
        cells = np.unique(where // shared.cell)
        there = int(self.at(bar, lane) + (block - machine.block[lane]) * shared.nbytes)
        b = self.bars.get(there)
        if b is None or not b.shown:
            raise Fault("a copy of a tensor is counted by no mbarrier that it can know")
        # what the thread knows to have happened in that block
        now = int(self.passed[lane] if own else self.mark[block])
        stored = int(machine.clock.blocks_passed[lane] if own else 0)  # relaxed ones order none
        order = shared.order
        touched = np.where(order.writer[cells] >= 0, order.write_time[cells], -1)
        touched = np.maximum(
            touched, np.where(order.reader[cells] != -1, order.read_time[cells], -1)
        )
        for wrong, said in (
            (shared.flying[cells].any(), "a copy to where another one is under way"),
            ((shared.reading[cells] > 0).any(), "a copy to bytes that products read"),
            (
                (touched >= stored).any() or (shared.multiplied[cells] >= now).any(),
                "a copy to where others are not known to be ready",
            ),
            (b.lane != lane and b.since >= now, "an mbarrier that is not there for sure"),
            (
                ((order.writer[cells] >= 0) & ~shared.fenced[cells]).any(),
                "a copy to what was written, without fence.proxy.async",
            ),
        ):
            if wrong:
                machine.report.add(said, said)
        shared.flying[cells] = True
        machine.memory.constant_read(made.buffer)
        self.under_way.append(Box(b, block, where, cells, made.buffer, sources(made, at)))

    def land(self, box: Box) -> None:
        self.under_way.remove(box)
        b, shared, cells = box.barrier, self.shared, box.cells
        array = self.machine.memory.memory[box.number]
        shared.memory[box.to] = np.where(box.source >= 0, array[box.source], 0)
        shared.flying[cells] = False
        shared.written[cells], shared.fenced[cells] = True, True
        shared.multiplied[cells] = -1
        shared.order.writer[cells] = shared.order.reader[cells] = -1
        if b not in self.owner:
            self.owner.append(b)
        self.by[cells], self.phase[cells] = self.owner.index(b), b.phases + 1
        b.bytes -= len(box.to)
        self.look(b)

    def check(self, cells: Array, lanes: Array) -> None:
        """Each of the lanes reads all of these cells, which are of its block."""
        mine = cells[self.by[cells] >= 0]
        passed = self.machine.clock.blocks_passed[lanes]
        for number, phase in {*zip(self.by[mine].tolist(), self.phase[mine].tolist(), strict=True)}:
            b = self.owner[number]
            after = len(b.first) >= phase and b.first[phase - 1] < passed.min()
            if not after and (b.seen[lanes] < phase).any():
                said = "a read of bytes whose arrival was not waited for"
                self.machine.report.add(said, said)

    def ending(self, lanes: Array) -> None:
        gone = set(self.machine.block[lanes].tolist())
        if any(box.block in gone for box in self.under_way):
            self.machine.report.add("copies left", "a block ends with copies under way to it")


def sources(made: TensorMap, at: list[int]) -> Array:
    """i64[bytes] of a box from element ``at`` on: where they are in memory, -1 outside."""
    (x, y, *others), (width, height, *depth) = at, made.dims
    columns, rows = x + np.arange(made.box[0])[None], y + np.arange(made.box[1])[:, None]
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    offset = columns * ELEMENT + rows * made.strides[0]
    for i, n, stride in zip(others, depth, made.strides[1:], strict=True):
        inside, offset = inside & (0 <= i < n), offset + i * stride
    found = np.where(inside, offset, -1)[..., None]
    return np.where(found >= 0, found + np.arange(ELEMENT), -1).reshape(-1)


def proper(made: TensorMap, nbytes: int) -> None:
    """Raises Fault for what cuTensorMapEncodeTiled refuses (CUDA Driver API), and for a map of more
    than there is."""
    last = sum((n - 1) * s for n, s in zip(made.dims, (ELEMENT, *made.strides), strict=True))
    for wrong in (
        any(s % 16 or not 0 < s < 1 << 40 for s in made.strides),
        any(not 0 < n <= 1 << 32 for n in made.dims),
        any(not 0 < n <= 256 for n in made.box),
        made.box[0] * ELEMENT != LINE,
        last + ELEMENT > nbytes,
    ):
        if wrong:
            raise Fault(f"no driver makes a tensor map of {made}")


# ---- instructions


@builds("mbarrier")
def barriers(d: Decode) -> Step:
    machine, a = d.machine, d.machine.part(Arrivals)
    what = d.flag("init", "arrive", "try_wait")
    d.flag("expect_tx", "parity") if what != "init" else None
    d.expect("shared::cta", "b64")
    if what == "try_wait":
        return _wait(d, a)
    if d.operands[0] == "_":
        address, value = machine.addresses(d.operands[1]), d.source(2, "u32")
    else:
        address, value = machine.addresses(d.operands[0]), d.source(1, "u32")
    do: Callable[[int, int, int], None] = {"init": a.make, "arrive": a.expect}[what]

    def step(m: Lanes) -> None:
        values = machine.full(value(m), m)
        for lane, at, n in zip(machine.which(m), address(m), values, strict=True):
            do(int(at), int(lane), int(n))

    return step


def _wait(d: Decode, a: Arrivals) -> Step:
    """Lanes for which the phase is not over look again when something has happened."""
    machine = d.machine
    put, address, parity = d.result(0, "pred"), machine.addresses(d.operands[1]), d.source(2, "u32")

    def step(m: Lanes) -> None:
        lanes, at = machine.which(m), address(m)
        way = machine.full(parity(m), m).astype(np.int64)
        over = np.zeros(len(lanes), bool)
        keys = np.stack([machine.block[lanes], at, way], 1)
        for key in np.unique(keys, axis=0):
            mine = (keys == key).all(1)
            over[mine] = a.is_over(int(key[1]), lanes[mine], int(key[2]))
        put(m, over)
        machine.parked[lanes[~over]] = True
        machine.yields = not over.all()

    return step


def bulk_copies(d: Decode) -> Step:
    machine, a = d.machine, d.machine.part(Arrivals)
    d.expect("bulk", "tensor")
    rank = int(d.flag("2d", "3d")[0])
    d.expect("shared::cluster", "global", "tile", "mbarrier::complete_tx::bytes")
    several = d.flag("multicast::cluster")
    inner = split(d.operands[1][1:-1])
    which, coordinates = machine.addresses(f"[{inner[0]}]"), split(inner[1][1:-1])
    if len(coordinates) != rank or len(d.operands) != 3 + bool(several):
        raise d.unknown()
    gets = [machine.source(c, np.dtype("i4")) for c in coordinates]
    to, bar = machine.addresses(d.operands[0]), machine.addresses(d.operands[2])
    mask = d.source(3, "u16") if several else None
    size = machine.entry.together

    def step(m: Lanes) -> None:
        lanes, where = machine.which(m), [machine.full(g(m), m) for g in gets]
        masks = machine.full(mask(m), m) if mask else np.zeros(len(lanes), np.int64)
        ends = zip(lanes.tolist(), which(m).tolist(), to(m).tolist(), bar(m).tolist(), strict=True)
        for i, (lane, address, into, by) in enumerate(ends):
            made = _map(machine, address, rank)
            own = int(machine.block[lane])
            first = own - own % size
            blocks = [first + j for j in range(16) if int(masks[i]) >> j & 1] if several else [own]
            if any(b >= first + size for b in blocks):
                raise Fault("a copy to a block that is not of the cluster")
            for block in blocks:
                a.issue(made, into, [int(w[i]) for w in where], by, (lane, block))

    return step


def _map(machine: Machine, address: int, rank: int) -> TensorMap:
    number, rest = divmod(address - PARAMETERS, MAP_BYTES)
    maps = machine.memory.maps
    if rest or not 0 <= number < len(maps):
        raise Fault(f"no tensor map is at {address:#x}")
    made: TensorMap = maps[number]
    if len(made.dims) != rank:
        raise Fault(f"a tensor map of {len(made.dims)} axes is used for {rank}")
    proper(made, machine.memory.sizes[made.buffer])
    return made


def cluster_barrier(d: Decode) -> Step:
    machine, a = d.machine, d.machine.part(Arrivals)
    what = d.flag("arrive", "wait")
    d.expect({"arrive": "relaxed", "wait": "acquire"}[what], "aligned")

    def arrive(m: Lanes) -> None:
        if a.came[m].any():
            raise Fault("threads arrive twice at the barrier of their cluster")
        a.came[m] = True

    def wait(m: Lanes) -> None:
        if not a.came[m].all():
            raise Fault("threads wait for their cluster and have not arrived")
        a.came[m] = False
        a.passed[m] += 1
        lanes = machine.which(m)
        a.mark[machine.block[lanes]] = a.passed[lanes]

    return arrive if what == "arrive" else wait
