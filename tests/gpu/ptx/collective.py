"""What threads do together: barriers, shuffles, votes, and products of warps with their operands
(PTX ISA, "Parallel Synchronization and Communication Instructions", "Warp Level Matrix
Multiply-Accumulate Instructions")."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gpu.ptx.bulk import Arrivals, cluster_barrier
from gpu.ptx.machine import Decode, Lanes, Machine, Step, builds, dtype_of
from gpu.ptx.memory import Array, Fault
from gpu.ptx.text import split
from gpu.ptx.transfer import place

WARP = 32
LANE = np.arange(WARP)
EVERY = 0xFFFFFFFF


def warps(machine: Machine, m: Lanes, what: str) -> Array:
    """i64[n, 32]: the lanes of each warp. Raises Fault if one is not whole."""
    if isinstance(m, slice) and machine.warps is not None:
        return machine.warps
    lanes = machine.which(m)
    if machine.warps is None or lanes.size % WARP:
        raise Fault(f"{what} by a part of a warp")
    rows = lanes.reshape(-1, WARP)
    if (machine.warp[rows] != machine.warp[rows[:, :1]]).any():
        raise Fault(f"{what} by a part of a warp")
    return rows


@builds("bar", "barrier")
def barriers(d: Decode) -> Step:
    machine = d.machine
    if d.flag("warp"):
        d.expect("sync")
        mask = d.source(0, "u32")

        def pass_warp(m: Lanes) -> None:
            _every(mask(m), "bar.warp.sync")
            machine.clock.warps_passed[m] += 1

        return pass_warp
    if d.flag("cluster"):
        return cluster_barrier(d)
    d.flag("cta")
    d.expect("sync")
    d.flag("aligned")
    if d.operands != ("0",):
        raise d.unknown()

    def pass_block(m: Lanes) -> None:
        came = np.bincount(machine.block[m])
        if ((came != 0) & (came != machine.where.threads)).any():
            machine.report.add("divergence", "threads have ended before a barrier of their block")
        machine.clock.blocks_passed[m] += 1
        if machine.shared.arrivals:
            machine.shared.arrivals.passed[m] += 1

    return pass_block


def _every(mask: Any, what: str) -> None:
    if np.any(mask != EVERY):
        raise Fault(f"{what} of a part of a warp by its mask")


@builds("membar", "fence")
def fences(d: Decode) -> Step:
    """Only that of the asynchronous proxy has a meaning here: barriers order the rest."""
    machine = d.machine
    if d.flag("mbarrier_init"):
        d.expect("release", "cluster")
        return machine.part(Arrivals).show
    if d.base == "membar" or not d.flag("proxy"):
        while d.flag("cta", "gl", "sys", "gpu", "acq_rel", "sc"):
            pass
        return lambda m: None
    d.expect("async")
    if not d.flag("shared::cta") and d.words:
        raise d.unknown()
    shared = machine.shared

    def step(m: Lanes) -> None:
        mine = np.zeros(machine.lanes, bool)
        mine[m] = True
        first = machine.where.first * machine.where.threads
        shared.fenced |= (shared.order.writer >= 0) & mine[shared.order.writer - first]

    return step


@builds("shfl")
def shuffles(d: Decode) -> Step:
    machine = d.machine
    d.expect("sync")
    how = d.flag("bfly", "up", "down", "idx")
    d.expect("b32")
    first, _, second = d.operands[0].partition("|")
    put, a = machine.result(first, dtype_of("b32")), d.source(1, "b32")
    told = machine.result(second, np.dtype(bool)) if second else None
    by, bound, mask = (d.source(i, "u32") for i in (2, 3, 4))

    def step(m: Lanes) -> None:
        warps(machine, m, "shfl.sync")
        _every(mask(m), "shfl.sync")
        values, n, c = machine.full(a(m), m).reshape(-1, WARP), by(m), bound(m)
        if np.ndim(n) or np.ndim(c):
            n, c = (machine.full(v, m).reshape(-1, WARP).astype(np.int64) for v in (n, c))
            source, inside = _shuffled(how, n & 31, c)
            moved = np.take_along_axis(values, source, 1)
        else:
            source, inside = _of_all_warps(how, int(n) & 31, int(c))
            moved = values[:, source]
        put(m, moved.reshape(-1))
        if told:
            told(m, np.broadcast_to(inside, values.shape).reshape(-1))

    return step


def _shuffled(how: str, n: Any, c: Any) -> tuple[Array, Array]:
    """The lane that each one reads, and whether it is another segment's (then it reads itself)."""
    segment, clamp = c >> 8 & 31, c & 31
    most = (LANE & segment) | (clamp & ~segment)
    least = LANE & segment
    source = {
        "up": LANE - n,
        "down": LANE + n,
        "bfly": LANE ^ n,
        "idx": least | (n & ~segment),
    }[how]
    inside = source >= most if how == "up" else source <= most
    return np.where(inside, source, LANE), inside


@cache
def _of_all_warps(how: str, n: int, c: int) -> tuple[Array, Array]:
    return _shuffled(how, np.int64(n), np.int64(c))


@builds("vote")
def votes(d: Decode) -> Step:
    machine = d.machine
    d.expect("sync")
    how = d.flag("all", "any", "uni", "ballot")
    d.expect("b32" if how == "ballot" else "pred")
    negated = d.operands[1].startswith("!")
    q, mask = machine.source(d.operands[1].lstrip("!"), np.dtype(bool)), d.source(2, "u32")
    put = d.result(0, "b32" if how == "ballot" else "pred")

    def step(m: Lanes) -> None:
        rows = warps(machine, m, "vote.sync")
        _every(mask(m), "vote.sync")
        votes = (machine.full(q(m), m) ^ negated).reshape(rows.shape)
        if how == "ballot":
            value = (votes.astype(np.uint64) << LANE.astype(np.uint64)).sum(1, dtype=np.uint64)
        else:
            every, some = votes.all(1), votes.any(1)
            value = {"all": every, "any": some, "uni": every | ~some}[how]
        put(m, np.repeat(value, WARP))

    return step


# ---- matrices


@builds("ldmatrix")
def matrix_loads(d: Decode) -> Step:
    """8x8 matrices of 16-bit elements: lane 8i + r gives the address of row r of matrix i. Thread t
    gets elements 2(t%4) and 2(t%4) + 1 of row t/4, or of column t/4 with .trans."""
    machine = d.machine
    d.expect("sync", "aligned", "m8n8")
    n, turned = int(d.flag("x1", "x2", "x4")[1]), bool(d.flag("trans"))
    d.flag("shared", "shared::cta")
    d.expect("b16")
    names = split(d.operands[0][1:-1])
    if len(names) != n:
        raise d.unknown()
    puts, address = [machine.result(x, dtype_of("b32")) for x in names], d.machine.addresses
    at = address(d.operands[1])

    def step(m: Lanes) -> None:
        rows = warps(machine, m, "ldmatrix")
        lanes = rows[:, : 8 * n].reshape(-1)
        a = at(m).reshape(-1, WARP)[:, : 8 * n].reshape(-1)
        p = place(machine, "shared", a, 16, lanes, "ldmatrix")
        for others in (lanes, np.roll(rows, 1, 1)[:, : 8 * n].reshape(-1)):
            # a row goes to lanes beside the one that gives its address
            machine.shared.track(p.at, 16, others, machine.clock, "read", whole=True)
        elements = p.memory[p.at[:, None] + np.arange(16)].view(np.uint16).reshape(-1, n, 8, 8)
        elements = elements.swapaxes(2, 3) if turned else elements
        for i, put in enumerate(puts):
            pairs = elements[:, i].reshape(-1, WARP, 2).astype(np.uint32)
            put(m, (pairs[..., 0] | pairs[..., 1] << np.uint32(16)).reshape(-1))

    return step


def fragment(kind: str, operand: str) -> tuple[Array, Array]:
    """i64[32, elements] twice: the row and the column of each element of a thread, as the figures
    of "Matrix Fragments for mma.m16n8k8, k16, k32" say for ``kind`` f16, bf16, tf32 or s8."""
    g, t = (LANE // 4)[:, None], (LANE % 4)[:, None]
    per = {"s8": 4, "u8": 4, "tf32": 1}.get(kind, 2)  # elements of a word
    if operand == "c":
        i = np.arange(4)
        return g + i // 2 * 8, t * 2 + i % 2
    i = np.arange(per * (4 if operand == "a" else 2))
    word, part = i // per, i % per
    half = word // 2 if operand == "a" else word  # which half of the steps
    k = t * per + part + half * 4 * per
    if operand == "a":
        return np.broadcast_to(g + word % 2 * 8, k.shape), k
    return k, np.broadcast_to(g, k.shape)


def elements(words: Array, kind: str) -> Array:
    """f64[n, 32, elements] of u32[n, 32, words]."""
    if kind == "tf32":  # what is below 10 bits of fraction is not looked at
        return (words & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if kind in ("s8", "u8"):
        return np.ascontiguousarray(words).view({"s8": "i1", "u8": "u1"}[kind]).astype(np.float64)
    bits = np.ascontiguousarray(words).view(np.uint16)
    if kind == "f16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


SHAPES = {
    ("m16n8k16", "f32", "f16", "f16", "f32"): 16,
    ("m16n8k16", "f32", "bf16", "bf16", "f32"): 16,
    ("m16n8k8", "f32", "tf32", "tf32", "f32"): 8,
    ("m16n8k32", "s32", "s8", "s8", "s32"): 32,
    ("m16n8k32", "s32", "u8", "u8", "s32"): 32,
}


@builds("mma")
def products(d: Decode) -> Step:
    machine = d.machine
    d.expect("sync", "aligned")
    shape = d.words.pop(0)
    d.expect("row", "col")
    kinds = tuple(d.words)
    d.words.clear()
    steps = SHAPES.get((shape, *kinds))
    if steps is None:
        raise d.unknown()
    out, kind = dtype_of(kinds[0]), kinds[1]
    names = [split(o[1:-1]) for o in d.operands]
    if [len(n) for n in names] != [4, 4, 2, 4]:
        raise d.unknown()
    puts = [machine.result(n, out) for n in names[0]]
    a, b = ([machine.source(n, dtype_of("b32")) for n in part] for part in names[1:3])
    c = [machine.source(n, out) for n in names[3]]
    where = {o: fragment(kind, o) for o in "abc"}

    def step(m: Lanes) -> None:
        n = len(warps(machine, m, "mma.sync"))

        def operand(which: str, gets: list[Any], shape: tuple[int, int]) -> Array:
            words = np.stack([machine.full(g(m), m).reshape(n, WARP) for g in gets], 2)
            matrix = np.full((n, *shape), np.nan)
            value = words.astype(np.float64) if which == "c" else elements(words, kind)
            matrix[:, where[which][0], where[which][1]] = value
            return matrix

        left, right = operand("a", a, (16, steps)), operand("b", b, (steps, 8))
        result = left @ right + operand("c", c, (16, 8))
        mine = result[:, where["c"][0], where["c"][1]].reshape(-1, 4)
        for i, put in enumerate(puts):
            value = mine[:, i]
            put(m, value.astype(np.int64).astype(np.int32) if out.kind == "i" else value)

    return step
