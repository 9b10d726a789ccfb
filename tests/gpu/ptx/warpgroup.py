"""Products of warpgroups: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".

They are done when they are waited for, as late as allowed: until then their sums are NaN, the words
of their left operand are not read, and shared memory that they read may not be written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from gpu.ptx.collective import elements, fragment
from gpu.ptx.machine import Decode, Lanes, Machine, Step, builds
from gpu.ptx.memory import SHARED_BASE, Array, Fault
from gpu.ptx.text import split

GROUP = 128
ROWS, STEPS = 64, 16
SWIZZLE_128 = 1  # bits 62 and 63 of a descriptor


@dataclass
class Product:
    """One instruction of some warpgroups."""

    lanes: Array  # i64[groups, 128]
    number: Array  # i64[groups]: how many groups of products were committed before
    sums: list[Array]  # registers
    first: Array  # bool[groups]: whether the sums begin at zero
    a: Any  # registers, or i64[groups, 64, 16] of bytes in shared memory
    b: Array  # i64[groups, 16, n] of bytes in shared memory
    kind: str
    sign: int  # of the product

    def only(self, groups: Array) -> Product:
        """Of some of its warpgroups."""
        if groups.all():
            return self
        a = self.a if isinstance(self.a, list) else self.a[groups]
        own = self.lanes[groups], self.number[groups], self.sums, self.first[groups]
        return Product(*own, a, self.b[groups], self.kind, self.sign)

    def cells(self, cell: int, group: int | None = None) -> Array:
        """Those that all groups read, or one of them."""
        read = [self.b, *([] if isinstance(self.a, list) else [self.a])]
        read = read if group is None else [r[group] for r in read]
        return np.unique(np.concatenate([r.reshape(-1) for r in read]) // cell)


@cache
def sum_of(i: int) -> tuple[Array, Array]:
    """i64[128] twice: the row and the column of sum ``i`` of each thread; a warp has 16 rows
    ("Register Fragments and Shared Memory Matrix Layouts", matrix D)."""
    rows, columns = (np.tile(x[:, i % 4], 4) for x in fragment("f16", "c"))
    return rows + np.arange(GROUP) // 32 * 16, columns + i // 4 * 8


class Tensor:
    """The products under way of a batch."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.committed = np.zeros(machine.lanes, np.int64)
        self.fenced = np.zeros(machine.lanes, bool)
        self.under_way: list[tuple[Product, Array]] = []  # with the cells that it reads
        self.kept: dict[tuple[int, int], Array] = {}  # sums under way: (register, group)
        machine.finishing.append(self.ending)

    def issue(self, p: Product) -> None:
        shared = self.machine.shared
        cells = p.cells(shared.cell)
        for wrong, said in (
            (shared.flying[cells].any(), "products read bytes that a copy is to write"),
            (not shared.written[cells].all(), "products read shared memory that nobody wrote"),
            (not shared.fenced[cells].all(), "products read what no fence.proxy.async has shown"),
            (not self.fenced[p.lanes].all(), "products without wgmma.fence before them"),
            (self._unordered(cells, p), "products read what is not behind a barrier"),
        ):
            if wrong:
                self.machine.report.add(said, said)
        for i, lanes in enumerate(p.lanes if shared.arrivals else ()):
            shared.arrivals.check(p.cells(shared.cell, i), lanes)
        shared.reading[cells] += 1
        for register in p.sums:
            for lanes in p.lanes:
                key = (id(register), int(lanes[0]))
                if key not in self.kept:
                    self.kept[key] = register[lanes].copy()
                    register[lanes] = 0xFFFFFFFF  # NaN until they are waited for
        self.under_way.append((p, cells))

    def _unordered(self, cells: Array, p: Product) -> bool:
        """Whether a cell was written since the last barrier of its block: by whomever, as every
        warp reads what all have written."""
        order, clock, shared = self.machine.shared.order, self.machine.clock, self.machine.shared
        passed = np.zeros(self.machine.where.blocks, np.int32)
        passed[self.machine.block[p.lanes[:, 0]]] = clock.blocks_passed[p.lanes[:, 0]]
        block = cells * shared.cell // shared.nbytes
        return bool(((order.writer[cells] >= 0) & (order.write_time[cells] == passed[block])).any())

    def wait(self, m: Lanes, groups: int) -> None:
        waits = np.zeros(self.machine.lanes, bool)
        waits[m] = True
        left, shared = [], self.machine.shared
        for p, cells in self.under_way:
            done = waits[p.lanes[:, 0]] & (p.number < self.committed[p.lanes[:, 0]] - groups)
            if done.any() and not done.all():  # they wait apart
                rest = p.only(~done)
                left.append((rest, rest.cells(shared.cell)))
                shared.reading[left[-1][1]] += 1
            if done.any():
                p = p.only(done)
                self.perform(p)
                shared.reading[cells] -= 1
                read = p.cells(shared.cell)
                if shared.arrivals:
                    passed = shared.arrivals.passed[p.lanes].max()
                    shared.multiplied[read] = np.maximum(shared.multiplied[read], passed)
            else:
                left.append((p, cells))
        self.under_way = left
        self.settle()

    def settle(self) -> None:
        """Sums that no product is to change any more are in their registers."""
        busy = {(id(r), int(row[0])) for p, _ in self.under_way for r in p.sums for row in p.lanes}
        registers = {id(r): r for r in self.machine.registers.values()}
        for key in [k for k in self.kept if k not in busy]:
            lanes = np.arange(key[1], key[1] + GROUP)
            registers[key[0]][lanes] = self.kept.pop(key)

    def perform(self, p: Product) -> None:
        n, memory = len(p.lanes), self.machine.shared.memory

        def read(at: Array) -> Array:
            pair = memory[at].astype(np.uint16) | memory[at + 1].astype(np.uint16) << np.uint16(8)
            return elements(np.ascontiguousarray(pair).view(np.uint32), p.kind)

        right = read(p.b)
        if isinstance(p.a, list):
            words = np.stack([r[p.lanes] for r in p.a], 2).reshape(n * 4, 32, 4)
            left = np.zeros((n * 4, 16, STEPS))
            rows, steps = fragment(p.kind, "a")
            left[:, rows, steps] = elements(words, p.kind)
            left = left.reshape(n, ROWS, STEPS)
        else:
            left = read(p.a)
        found = p.sign * left @ right
        for i, register in enumerate(p.sums):
            rows, columns = sum_of(i)
            part = found[:, rows, columns]
            for j, lanes in enumerate(p.lanes):
                key = (id(register), int(lanes[0]))
                before = self.kept[key].view(np.float32).astype(np.float64)
                value = part[j] + np.where(p.first[j], 0.0, before)
                self.kept[key] = value.astype(np.float32).view(register.dtype)

    def ending(self, lanes: Array) -> None:
        if any(np.isin(p.lanes, lanes).any() for p, _ in self.under_way):
            self.machine.report.add("products left", "a thread ends with products under way")


def groups_of(machine: Machine, m: Lanes) -> Array:
    """i64[n, 128]: the lanes of each warpgroup. Raises Fault if one is not whole."""
    lanes = machine.which(m)
    if machine.where.threads % GROUP or lanes.size % GROUP:
        raise Fault("wgmma by a part of a warpgroup")
    rows = lanes.reshape(-1, GROUP)
    if (np.diff(rows) != 1).any() or (machine.thread[rows[:, 0]] % GROUP).any():
        raise Fault("wgmma by a part of a warpgroup")
    return rows


@builds("wgmma")
def group_products(d: Decode) -> Step:
    machine, t = d.machine, d.machine.part(Tensor)
    what = d.flag("fence", "commit_group", "wait_group", "mma_async")
    d.expect("sync", "aligned")

    def fence(m: Lanes) -> None:
        groups_of(machine, m)
        t.fenced[m] = True

    def commit(m: Lanes) -> None:
        groups_of(machine, m)
        t.committed[m] += 1
        t.fenced[m] = False

    if what == "fence":
        return fence
    if what == "commit_group":
        return commit
    if what == "wait_group":
        left = int(d.operands[0], 0)
        return lambda m: t.wait(m, left)
    return _multiply(d, machine, t)


def _multiply(d: Decode, machine: Machine, t: Tensor) -> Step:
    shape, *kinds = d.words
    d.words.clear()
    m_ = re.fullmatch(r"m64n(\d+)k16", shape)
    if not m_ or kinds not in (["f32", "f16", "f16"], ["f32", "bf16", "bf16"]):
        raise d.unknown()
    n, names, words = int(m_[1]), split(d.operands[0][1:-1]), d.operands[1].startswith("{")
    signs, ways = d.operands[4:6], d.operands[6:]
    if n % 8 or n > 256 or len(names) != n // 2 or len(ways) != 2 - words:
        raise d.unknown()
    sign = int(signs[0]) * int(signs[1])
    if sign not in (1, -1):
        raise d.unknown()
    sums = [machine.registers[x] for x in names]
    left = [machine.registers[x] for x in split(d.operands[1][1:-1])] if words else None
    a = None if words else d.source(1, "u64")
    b, adds = d.source(2, "u64"), d.source(3, "pred")

    def step(m: Lanes) -> None:
        rows = groups_of(machine, m)
        blocks, of = machine.block[rows[:, 0]], rows.shape

        def same(get: Any) -> Array:
            value = machine.full(get(m), m).reshape(of)
            if (value != value[:, :1]).any():
                raise Fault("the threads of a warpgroup have different operands")
            return value[:, 0]

        where_a = None if a is None else tile(machine, same(a), blocks, ROWS, ways[0] == "1")
        where_b = tile(machine, same(b), blocks, n, ways[-1] == "1").swapaxes(1, 2)
        product = Product(
            rows, t.committed[rows[:, 0]].copy(), sums, ~same(adds).astype(bool),
            left if where_a is None else where_a, where_b, kinds[1], sign,
        )  # fmt: skip
        t.issue(product)

    return step


def tile(machine: Machine, descriptors: Array, blocks: Array, rows: int, turned: bool) -> Array:
    """i64[groups, rows, 16]: where the elements of an operand are in shared memory, after its
    descriptor ("Matrix Descriptor", "Strides"): with the 128-byte swizzle, eight rows of 128 bytes
    follow one another, and the next eight are the stride offset apart. ``turned``: rows run along
    the 128 bytes, and the next 64 of them are the leading offset apart; eight steps follow one
    another, and the next eight are the stride offset apart."""
    d = descriptors.astype(np.int64)[:, None, None]
    start, leading, stride = ((d >> s & 0x3FFF) << 4 for s in (0, 16, 32))
    if ((descriptors >> np.uint64(62)) != SWIZZLE_128).any() or (d >> 49 & 7).any():
        raise Fault("a descriptor without the 128-byte swizzle, or with a base offset")
    if turned:
        along, other = np.arange(rows)[:, None], np.arange(STEPS)[None]
        at = along // 64 * leading + along % 64 * 2
    else:
        other, along = np.arange(rows)[:, None], np.arange(STEPS)[None]
        at = along * 2 + 0 * other
    at = start + at + other // 8 * stride + other % 8 * 128
    at = at ^ (at >> 7 & 7) << 4  # pieces of 16 bytes, exchanged by the number of the row
    offset = at - SHARED_BASE
    if (offset < 0).any() or (offset + 2 > machine.shared.limit).any():
        raise Fault("products read out of shared memory")
    return offset + blocks[:, None, None] * machine.shared.nbytes
