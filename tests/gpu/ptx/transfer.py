"""Loads, stores and asynchronous copies: PTX ISA, ld, st, cp.async. Every access is checked: it is
a multiple of its own size, inside one array, and ordered against other threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from gpu.ptx.bulk import bulk_copies
from gpu.ptx.machine import Decode, Lanes, Machine, Step, builds, dtype_of
from gpu.ptx.memory import (
    APART,
    LOCAL_WINDOW,
    SHARED_WINDOW,
    Array,
    Fault,
    cells_of,
    gather,
    scatter,
)
from gpu.ptx.text import PtxError, split

SPACES = ("shared", "global", "local", "param", "const")
CACHE = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "L1::evict_first", "L1::no_allocate")
WINDOW = 40  # addresses of a window have the same bits above these


@dataclass(frozen=True)
class Place:
    """Where the lanes of an access are, in one memory."""

    memory: Array
    at: Array  # of each lane
    space: str  # shared, global or local
    number: int = 0  # of the array


def place(machine: Machine, space: str, a: Array, nbytes: int, m: Lanes, what: str) -> Place:
    """The bytes of an access. Raises Fault for an address that is none, or no multiple."""
    if (a & nbytes - 1).any():
        raise Fault(f"misaligned: {what} of {nbytes} bytes at {int(a[a % nbytes != 0][0]):#x}")
    if not space:
        space, a = _generic(a)
    if space == "shared":
        at = machine.shared.find(a & 0xFFFFFFFF, nbytes, machine.block[m], what)
        return Place(machine.shared.memory, at, "shared")
    if space == "local":
        if ((a < 0) | (a + nbytes > machine.local_bytes)).any():
            raise Fault(f"{what} out of the local memory of a thread")
        return Place(machine.local, a + machine.which(m) * machine.local_bytes, "local")
    number, at = machine.memory.find(a, nbytes, what)
    return Place(machine.memory.memory[number], at, "global", number)


def _generic(a: Array) -> tuple[str, Array]:
    for window, space in ((SHARED_WINDOW, "shared"), (LOCAL_WINDOW, "local")):
        inside = a >> WINDOW == window >> WINDOW
        if inside.all() and inside.size:
            return space, a - window
        if inside.any():
            raise Fault("one access to memory of several spaces")
    return "global", a


def apart(machine: Machine, space: str, m: Lanes, a: Array) -> Iterator[tuple[Lanes, Array]]:
    """The lanes of each array, and their addresses: an access may be of several."""
    number = a >> APART
    if space not in ("", "global") or a.size == 0 or (number == number[0]).all():
        yield m, a
        return
    lanes = machine.which(m)
    for n in np.unique(number):
        yield lanes[number == n], a[number == n]


def _shape(d: Decode) -> tuple[str, int]:
    """The space, "" for generic addresses, and how many elements."""
    d.flag("weak", "volatile")
    space = "shared" if d.flag("shared::cta") else d.flag(*SPACES)
    d.flag(*CACHE)
    return space, int((d.flag("v2", "v4") or "v1")[1])


def _names(operand: str, n: int) -> list[str]:
    names = split(operand[1:-1]) if operand.startswith("{") else [operand]
    if len(names) != n:
        raise PtxError(f"{len(names)} elements, not {n}")
    return names


@builds("ld", "ldu")
def loads(d: Decode) -> Step:
    machine, kind = d.machine, d.kind()
    dtype, constant = dtype_of(kind), bool(d.flag("nc"))
    space, n = _shape(d)
    puts = [machine.result(x, dtype) for x in _names(d.operands[0], n)]
    if space == "param":
        if parameter := _parameter(d, dtype.itemsize):
            return parameter
        space = "local"
    address, width = machine.addresses(d.operands[1]), dtype.itemsize

    def access(m: Lanes, a: Array) -> None:
        p = place(machine, space, a, width * n, m, "a read")
        if p.space == "shared":
            machine.shared.track(p.at, width * n, machine.which(m), machine.clock, "read")
        elif p.space == "global" and constant:
            machine.memory.constant_read(p.number)
        elif p.space == "global":
            lanes = machine.which(m)
            machine.memory.track(p.number, p.at, width * n, lanes, machine.clock, False)
        for i, put in enumerate(puts):
            put(m, gather(p.memory, p.at + i * width, width).view(dtype))

    return _of_each(machine, space, address, access)


def _of_each(
    machine: Machine,
    space: str,
    address: Callable[[Lanes], Array],
    access: Callable[[Lanes, Array], None],
) -> Step:
    def step(m: Lanes) -> None:
        for lanes, a in apart(machine, space, m, address(m)):
            access(lanes, a)

    return step


def _parameter(d: Decode, nbytes: int) -> Step | None:
    """The address of an array, which the launch passes; None for a parameter of a call."""
    name = d.operands[1][1:-1].strip()
    if name not in d.machine.entry.params:
        return None
    if nbytes != 8 or d.machine.entry.params[name] != 8:
        raise d.unknown()
    address = np.uint64(d.machine.memory.base(d.machine.entry.arrays.index(name)))
    put = d.result(0, "u64")
    return lambda m: put(m, address)


@builds("st")
def stores(d: Decode) -> Step:
    machine, kind = d.machine, d.kind()
    bits = np.dtype(f"u{dtype_of(kind).itemsize}")
    space, n = _shape(d)
    gets = [machine.source(x, _as_stored(x, kind)) for x in _names(d.operands[1], n)]
    space = "local" if space == "param" else space
    address, width = machine.addresses(d.operands[0]), bits.itemsize

    def access(m: Lanes, a: Array) -> None:
        p = place(machine, space, a, width * n, m, "a write")
        lanes = machine.which(m)
        if p.space == "shared":
            machine.shared.track(p.at, width * n, lanes, machine.clock, "write")
        elif p.space == "global":
            machine.memory.store(p.number)
            machine.memory.track(p.number, p.at, width * n, lanes, machine.clock, True)
        for i, get in enumerate(gets):
            value = np.ascontiguousarray(machine.full(get(m), m)).view(bits)
            scatter(p.memory, p.at + i * width, width, value)

    return _of_each(machine, space, address, access)


def _as_stored(operand: str, kind: str) -> np.dtype[np.generic]:
    """Constants are of the type of the store; registers are read as bits."""
    return dtype_of(kind if operand[:2] in ("0f", "0d", "0F", "0D") else f"u{kind[1:]}")


# ---- asynchronous copies


@dataclass
class Copies:
    """Copies of one instruction that are under way."""

    lanes: Array
    group: Array  # of each lane: how many groups it had committed before
    to: Array  # where in shared memory
    source: Array  # addresses
    valid: Array  # bytes that are copied; the rest is zero
    size: int

    def only(self, which: Array) -> Copies:
        parts = (v[which] for v in (self.lanes, self.group, self.to, self.source, self.valid))
        return Copies(*parts, self.size)


class Flight:
    """The copies of a batch: each lands when its thread waits for its group, which is as late as
    the manual allows."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.committed = np.zeros(machine.lanes, np.int64)
        self.under_way: list[Copies] = []
        machine.finishing.append(self.ending)

    def land(self, m: Lanes, groups: int) -> None:
        """All but the last ``groups`` groups of these lanes; -1: also what is not committed."""
        waits = np.zeros(self.machine.lanes, bool)
        waits[m] = True
        left = []
        for c in self.under_way:
            done = waits[c.lanes] & (c.group < self.committed[c.lanes] - groups)
            if done.any():
                self.arrive(c.only(done))
            if not done.all():
                left.append(c.only(~done))
        self.under_way = left

    def arrive(self, c: Copies) -> None:
        machine, shared = self.machine, self.machine.shared
        value = np.zeros((len(c.lanes), c.size), np.uint8)
        some = c.valid > 0
        if some.any():
            for n in np.unique(c.valid[some]):
                rows = c.valid == n
                value[rows, :n] = self.read(c.lanes[rows], c.source[rows], int(n))
        shared.memory[c.to[:, None] + np.arange(c.size)] = value
        cells, each = cells_of(c.to, c.size, shared.cell, c.lanes)
        shared.flying[cells] = False
        shared.order.write(cells, each, machine.clock)
        shared.written[cells], shared.fenced[cells] = True, False

    def read(self, lanes: Array, a: Array, n: int) -> Array:
        """u8[lanes, n] of global memory, as it is now."""
        memory, out = self.machine.memory, np.zeros((len(lanes), n), np.uint8)
        rows = np.arange(len(lanes))
        for part, where in apart(self.machine, "global", rows, a):
            number, at = memory.find(where, n, "an asynchronous copy")
            out[part] = memory.memory[number][at[:, None] + np.arange(n)]
            whole = -(-n // memory.cell) * memory.cell
            memory.track(number, at, whole, lanes[part], self.machine.clock, False)
        return out

    def ending(self, lanes: Array) -> None:
        if any(np.isin(c.lanes, lanes).any() for c in self.under_way):
            self.machine.report.add("copies left", "a thread ends with copies under way")


@builds("cp")
def copies(d: Decode) -> Step:
    d.expect("async")
    if d.words[0] == "bulk":
        return bulk_copies(d)
    machine, f = d.machine, d.machine.part(Flight)
    if d.flag("commit_group"):

        def commit(m: Lanes) -> None:
            f.committed[m] += 1

        return commit
    if d.flag("wait_all"):
        return lambda m: f.land(m, -1)
    if d.flag("wait_group"):
        groups = int(d.operands[0], 0)
        return lambda m: f.land(m, groups)
    return _copy(d, machine, f)


def _copy(d: Decode, machine: Machine, f: Flight) -> Step:
    cache = d.flag("cg", "ca")
    d.flag("shared::cta")
    if not d.words or d.words.pop(0) not in ("shared", "global"):
        raise d.unknown()
    d.flag("global")
    size = int(d.operands[2], 0)
    if size not in (4, 8, 16) or (cache == "cg" and size != 16) or not cache:
        raise d.unknown()
    to, source = machine.addresses(d.operands[0]), machine.addresses(d.operands[1])
    valid: Callable[[Lanes], object]
    valid = d.source(3, "u32") if len(d.operands) > 3 else lambda m: np.uint32(size)

    def step(m: Lanes) -> None:
        lanes, a = machine.which(m), source(m)
        n = np.array(machine.full(valid(m), m), np.int64)
        if (n > size).any():
            raise Fault(f"an asynchronous copy of {int(n.max())} of {size} bytes")
        if (a % size).any():
            raise Fault(f"misaligned: an asynchronous copy of {size} bytes from {int(a[0]):#x}")
        p = place(machine, "shared", to(m), size, m, "an asynchronous copy")
        what = "an asynchronous copy"
        cells = machine.shared.track(p.at, size, lanes, machine.clock, what)
        machine.shared.flying[cells] = True
        f.under_way.append(Copies(lanes, f.committed[lanes], p.at, a, n, size))

    return step
