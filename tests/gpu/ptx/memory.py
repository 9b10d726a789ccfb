"""The memory of a launch: arrays in global memory, shared and local memory, and who touched what.

Addresses: array ``i`` begins at ``GLOBAL + (i << 36)``, so that no array is near another one. The
windows of shared and local memory are where generic addresses reach them (PTX ISA, "Generic
Addressing").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
GLOBAL, APART = 0x7F0000000000, 36
SHARED_WINDOW, LOCAL_WINDOW = 0x7D0000000000, 0x7E0000000000
PARAMETERS = 0x7C0000000000  # where tensor maps are, which are parameters
SHARED_BASE = 1024  # the system keeps as much of every block from sm_80 on
POISON = 0xFF  # bytes that nobody wrote: NaN as a float
NONE, MANY = -1, -2
NO_ARRAYS: Set[int] = frozenset()


class Again(Exception):
    """A launch has to be run once more: an array is read and written, and who read it before was
    not kept."""

    def __init__(self, number: int) -> None:
        self.number = number


class Fault(Exception):
    """An access that ends the kernel, as it would end the context of a process."""


@dataclass
class Report:
    """What a kernel did wrong: the first of each kind, and how many there are."""

    first: dict[str, str] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, said: str, n: int = 1) -> None:
        self.first.setdefault(kind, said)
        self.count[kind] = self.count.get(kind, 0) + n

    def __str__(self) -> str:
        return "\n".join(f"{k}: {s} ({self.count[k]} in all)" for k, s in self.first.items())


@dataclass
class Clock:
    """When the lanes of a batch are: barriers passed by their block, and by their warp alone."""

    lane: Array  # number of a thread in the grid, i64[lanes]
    block: Array  # its block in the grid
    warp: Array  # its warp in the grid
    blocks_passed: Array  # i32[lanes]
    warps_passed: Array  # i32[lanes]


class Order:
    """Who wrote and who read each cell of a memory last. Two accesses of a cell by two threads, one
    of them a write, are ordered by a barrier of their block between them, in one warp also by one
    of the warp. A cell has as many bytes as the narrowest access."""

    def __init__(self, cells: int) -> None:
        def table() -> Array:
            return np.full(cells, NONE, np.int32)

        self.writer, self.write_block, self.write_warp = table(), table(), table()
        self.write_time, self.write_warp_time = table(), table()
        self.reader, self.read_block, self.read_warp = table(), table(), table()
        self.read_time, self.read_warp_time = table(), table()

    def _unordered(self, what: str, cells: Array, lanes: Array, now: Clock) -> Array:
        """Of each cell: whether its last write or read is another thread's, and not before now."""
        who, block, warp, time, warp_time = (
            (self.writer, self.write_block, self.write_warp, self.write_time, self.write_warp_time)
            if what == "write"
            else (self.reader, self.read_block, self.read_warp, self.read_time, self.read_warp_time)
        )
        other = who[cells]
        apart = (other != NONE) & (other != now.lane[lanes])
        if not apart.any():
            return apart
        before = (block[cells] == now.block[lanes]) & (time[cells] < now.blocks_passed[lanes])
        before |= (warp[cells] == now.warp[lanes]) & (warp_time[cells] < now.warps_passed[lanes])
        return apart & ~before

    def write(self, cells: Array, lanes: Array, now: Clock) -> str:
        """What else was done to these cells without a barrier between, "" for nothing."""
        after_write = self._unordered("write", cells, lanes, now).any()
        after_read = self._unordered("read", cells, lanes, now).any()
        self.writer[cells] = now.lane[lanes]
        together = (self.writer[cells] != now.lane[lanes]).any()
        self.write_block[cells], self.write_warp[cells] = now.block[lanes], now.warp[lanes]
        self.write_time[cells] = now.blocks_passed[lanes]
        self.write_warp_time[cells] = now.warps_passed[lanes]
        self.reader[cells] = NONE
        if together:
            return "at the same time as"
        return "after a write of" if after_write else "after a read of" if after_read else ""

    def read(self, cells: Array, lanes: Array, now: Clock) -> str:
        found = self._unordered("write", cells, lanes, now).any()
        before = self.reader[cells]
        block, warp = self.read_block[cells], self.read_warp[cells]
        gone = (block == now.block[lanes]) & (self.read_time[cells] < now.blocks_passed[lanes])
        kept = (before != NONE) & ~gone
        for table, was, is_now in (
            (self.reader, before, now.lane[lanes]),
            (self.read_block, block, now.block[lanes]),
            (self.read_warp, warp, now.warp[lanes]),
        ):
            value = np.where(kept & (was != is_now), MANY, is_now)
            table[cells] = value
            table[cells[table[cells] != value]] = MANY
        self.read_time[cells] = now.blocks_passed[lanes]
        self.read_warp_time[cells] = now.warps_passed[lanes]
        return "after a write of" if found else ""


class Global:
    """Arrays that a kernel reads and writes; it outlives the batches of blocks of a launch. Who
    read a cell is kept of the arrays ``both`` only, which are written too: most are not."""

    def __init__(
        self,
        arrays: Sequence[Array],
        constants: Mapping[str, bytes],
        cell: int,
        report: Report,
        both: Set[int] = NO_ARRAYS,
    ) -> None:
        raw = [a.reshape(-1).view(np.uint8) for a in arrays]
        raw += [np.frombuffer(data, np.uint8) for data in constants.values()]
        self.arrays, self.sizes = arrays, [len(r) for r in raw]
        self.places = {name: len(arrays) + i for i, name in enumerate(constants)}
        self.memory = [np.zeros(-(-len(r) // 16) * 16, np.uint8) for r in raw]
        for m, r in zip(self.memory, raw, strict=True):
            m[: len(r)] = r
        self.cell, self.report = cell, report
        self.orders: dict[int, Order] = {}
        self.constant: set[int] = set()  # read by loads that may not see writes
        self.written: set[int] = set()
        self.read: set[int] = set()
        self.both = both
        self.maps: Sequence[Any] = ()  # tensor maps, which copies of whole tiles go by

    def base(self, i: int) -> int:
        return GLOBAL + (i << APART)

    def find(self, addresses: Array, nbytes: int, what: str) -> tuple[int, Array]:
        """The array of an access, and the offset of each lane in it. Raises Fault."""
        number, offset = (addresses - GLOBAL) >> APART, addresses & ((1 << APART) - 1)
        i = int(number[0]) if number.size else 0
        if (number != i).any():
            raise Fault(f"{what} of several arrays at once")
        if not 0 <= i < len(self.sizes):
            raise Fault(f"{what} at {int(addresses[0]):#x}, where no array is")
        wrong = offset + nbytes > self.sizes[i]
        if wrong.any():
            at = int(offset[wrong][0])
            raise Fault(f"{what} out of bounds: {nbytes} bytes at {at} of {self.sizes[i]} in {i}")
        return i, offset

    def track(self, i: int, at: Array, nbytes: int, lanes: Array, now: Clock, store: bool) -> None:
        """Races between the threads of the grid. Raises Again."""
        if i not in self.both:
            if not store:
                self.read.add(i)
            if i in self.written and i in self.read:
                raise Again(i)
            if not store:
                return
        order = self.orders.setdefault(i, Order(-(-len(self.memory[i]) // self.cell)))
        cells, each = cells_of(at, nbytes, self.cell, lanes)
        said = (order.write if store else order.read)(cells, each, now)
        if said:
            what = "write" if store else "read"
            self.report.add(f"race {what} global", f"a {what} of array {i} {said} another thread")

    def constant_read(self, i: int) -> None:
        self.constant.add(i)
        if i in self.written:
            self.report.add("ld.global.nc", f"array {i} is read as constant, and written")

    def store(self, i: int) -> Array:
        if i >= len(self.arrays):
            raise Fault("a write of a constant")
        self.written.add(i)
        if i in self.constant:
            self.report.add("ld.global.nc", f"array {i} is read as constant, and written")
        return self.memory[i]

    def finish(self) -> None:
        """Written arrays get what is in memory."""
        for i in sorted(self.written):
            self.arrays[i].reshape(-1).view(np.uint8)[...] = self.memory[i][: self.sizes[i]]


def cells_of(at: Array, nbytes: int, cell: int, lanes: Array) -> tuple[Array, Array]:
    """The cells of ``nbytes`` bytes from each offset on, and the lane of each."""
    n = max(1, nbytes // cell)
    if n == 1:
        return at // cell, lanes
    return (at[:, None] // cell + np.arange(n)).reshape(-1), np.repeat(lanes, n)


class Shared:
    """The shared memory of the blocks of a batch, one after another."""

    def __init__(self, blocks: int, nbytes: int, cell: int, report: Report) -> None:
        self.nbytes = -(-max(nbytes, 1) // 16) * 16
        self.limit, self.cell, self.report = nbytes, cell, report
        self.memory = np.full(blocks * self.nbytes, POISON, np.uint8)
        cells = len(self.memory) // cell
        self.order = Order(cells)
        self.written = np.zeros(cells, bool)
        self.flying = np.zeros(cells, bool)  # an asynchronous copy has not landed
        self.fenced = np.zeros(cells, bool)  # seen by the asynchronous proxy
        self.reading = np.zeros(cells, np.int16)  # products under way that read it
        self.multiplied = np.full(cells, -1, np.int32)  # barriers passed by who did, last
        self.arrivals: Any = None  # copies of whole tiles, where there are some

    def find(self, addresses: Array, nbytes: int, blocks: Array, what: str) -> Array:
        """Where each access is in ``memory``. Raises Fault."""
        offset = addresses - SHARED_BASE
        wrong = (offset < 0) | (offset + nbytes > self.limit)
        if wrong.any():
            at = int(offset[wrong][0])
            raise Fault(f"{what} out of bounds: {nbytes} bytes at {at} of {self.limit} shared ones")
        return offset + blocks * self.nbytes

    def track(
        self, at: Array, nbytes: int, lanes: Array, now: Clock, what: str, whole: bool = False
    ) -> Array:
        """Races, bytes in flight, with ``whole`` also bytes that nobody wrote; the cells."""
        cells, each = cells_of(at, nbytes, self.cell, lanes)
        if self.flying[cells].any():
            self.report.add(f"in flight {what}", f"{what} of bytes that a copy is to write")
        if self.arrivals and what == "read":
            block = now.block[each - now.lane[0]]
            for b in np.unique(block):
                self.arrivals.check(cells[block == b], each[block == b] - now.lane[0])
        elif self.arrivals:
            self.arrivals.by[cells] = -1
        if what == "read":
            said = self.order.read(cells, each, now)
            if whole and not self.written[cells].all():
                self.report.add("uninitialised", "a read of shared memory that nobody wrote")
        else:
            said = self.order.write(cells, each, now)
            if self.reading[cells].any():
                self.report.add("under products", f"{what} of bytes that products read")
            self.written[cells], self.fenced[cells] = True, False
        if said:
            self.report.add(f"race {what} shared", f"{what} of shared memory {said} another thread")
        return cells


def gather(memory: Array, at: Array, width: int) -> Array:
    """The words of ``width`` bytes at multiples of it."""
    return memory.view(f"u{width}")[at // width]


def scatter(memory: Array, at: Array, width: int, values: Array) -> None:
    memory.view(f"u{width}")[at // width] = values
