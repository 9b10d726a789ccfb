"""Which thread and which register of it holds which element of a tile.

A coordinate along an axis is the sum of ``stride * digit`` over the digits of the thread index and
of the register index that belong to the axis. The fragments of matrix units, the tiles of plain
threads and the way a copy is dealt are all distributions of this one form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from lumc.schedule.fragment import SIXTEENS, Product
from lumc.schedule.schedule import power

WARP = 32  # threads of a warp on NVIDIA, of a simdgroup on Apple
VECTORS = (4, 8, 16)  # bytes that a thread loads or stores at once


class ThreadDigit(NamedTuple):
    """``index // div % mod``, powers of two; without an axis the threads hold the same."""

    div: int
    mod: int
    axis: str | None
    stride: int


class RegisterDigit(NamedTuple):
    axis: str
    extent: int
    stride: int


@dataclass(frozen=True)
class Distribution:
    """``registers`` run from the slowest to the fastest digit of the register index."""

    threads: tuple[ThreadDigit, ...]
    registers: tuple[RegisterDigit, ...] = ()

    def on(self, axes: Iterable[str]) -> Distribution:
        """For a value over these axes only: threads along the others hold the same."""
        kept = set(axes)
        threads = (
            t if t.axis in kept else ThreadDigit(t.div, t.mod, None, 0) for t in self.threads
        )
        return Distribution(tuple(threads), tuple(r for r in self.registers if r.axis in kept))

    def renamed(self, names: Mapping[str, str]) -> Distribution:
        threads = (t._replace(axis=names.get(t.axis or "", t.axis)) for t in self.threads)
        registers = (r._replace(axis=names.get(r.axis, r.axis)) for r in self.registers)
        return Distribution(tuple(threads), tuple(registers))

    def owner(self) -> frozenset[tuple[int, str, int]]:
        """(bit of the thread index, axis, stride): with equal owners no element has to move."""
        bits = (
            (t.div << i, t.axis, t.stride << i)
            for t in self.threads
            if t.axis
            for i in range(t.mod.bit_length() - 1)
        )
        return frozenset(bits)

    def offsets(self) -> dict[str, frozenset[int]]:
        """What the registers add to each coordinate."""
        out = dict[str, frozenset[int]]()
        for axis, extent, stride in self.registers:
            steps = range(0, extent * stride, stride)
            out[axis] = frozenset(o + i for o in out.get(axis, {0}) for i in steps)
        return {a: o for a, o in out.items() if len(o) > 1}

    def span(self, axis: str) -> int:
        """One more than the greatest offset along an axis."""
        threads = sum((t.mod - 1) * t.stride for t in self.threads if t.axis == axis)
        return (
            1 + threads + sum((r.extent - 1) * r.stride for r in self.registers if r.axis == axis)
        )

    def across_warps(self, axes: Iterable[str | None], warp: int) -> list[ThreadDigit]:
        """The digits along these axes that tell warps of so many threads apart."""
        out, along = list[ThreadDigit](), set[str | None](axes)
        for t in self.threads:
            end, div = t.div * t.mod, max(t.div, warp)
            if t.axis in along and end > div:
                out.append(t._replace(div=div, mod=end // div))
        return out

    @property
    def size(self) -> int:
        """Registers of one thread."""
        return prod(r.extent for r in self.registers)


EVERYWHERE = Distribution(())  # every thread has all of it


def deal(
    axes: Sequence[str],
    size: Mapping[str, int],
    threads: int,
    fast: str | None,
    vector: int = 1,
    row: int | None = None,
    line: int = 0,
) -> Distribution:
    """Threads along ``fast`` first (at most ``row``, ``vector`` elements each), then along the
    other axes, the last one first; what remains of the tile goes to registers. Where threads that
    are a power of two cannot share ``fast`` evenly, fewer do, if they have a ``line`` at least."""
    digits, registers, left, div = list[ThreadDigit](), list[RegisterDigit](), threads, 1
    for a in ([fast] if fast else []) + [a for a in reversed(axes) if a != fast]:
        n, unit = size[a], vector if a == fast and size[a] >= vector else 1
        along = min(left if a != fast or row is None else min(row, left), power(-(-n // unit)))
        even = n // unit & -(n // unit)
        if a == fast and line and n % unit == 0 and even * unit >= line:
            along = min(along, even)
        if along > 1:
            digits.append(ThreadDigit(div, along, a, unit))
        if (rest := -(-n // (along * unit))) > 1:
            registers.append(RegisterDigit(a, rest, along * unit))
        if unit > 1:
            registers.append(RegisterDigit(a, unit, 1))
        div, left = div * along, left // along
    if left > 1:
        digits.append(ThreadDigit(div, left, None, 0))
    registers.sort(key=lambda r: (axes.index(r.axis), -r.stride))
    return Distribution(tuple(digits), tuple(registers))


# ---- contractions: distributions of the result and of both operands


@dataclass(frozen=True)
class Roles:
    """How a contraction sees its three tiles. ``along`` is the reduced axis of the fragments, and
    ``counts`` says how many of them lie along the rows, the lanes and that axis."""

    c: Distribution
    a: Distribution
    b: Distribution
    along: str = ""
    counts: tuple[int, int, int] = (0, 0, 0)
    product: Product | None = None

    def runs(self, other: str | None) -> tuple[str | None, ...]:
        """The axes along which an operand with this one may lie in memory: bytes are loaded four
        steps at a time, and AMD has no instruction that transposes on the way."""
        p = self.product
        return (self.along, other)[: 1 if p and (p.word > 2 or p.fragment in SIXTEENS) else 2]


def simt(
    rows: str | None,
    lane: str,
    size: Mapping[str, int],
    grid: tuple[int, int],
    batch: Sequence[str],
    reduced: Sequence[str],
    axes: tuple[frozenset[str], frozenset[str]],
) -> Roles:
    """A register tile per thread: lanes in groups of 4, rows strided over the threads."""
    ty, tx = grid
    each = -(-size[lane] // tx)
    group = 4 if each % 4 == 0 else 1
    digits = [(a, size[a], 1) for a in batch]
    digits += [(rows, -(-size[rows] // ty), ty)] if rows else []
    digits += [(lane, each // group, tx * group), (lane, group, 1)]
    registers = tuple(RegisterDigit(*d) for d in digits if d[1] > 1)
    threads = (ThreadDigit(1, tx, lane, group), ThreadDigit(tx, ty, rows, 1 if rows else 0))
    c = Distribution(tuple(t for t in threads if t.mod > 1), registers)
    steps = tuple(RegisterDigit(a, size[a], 1) for a in reduced if size[a] > 1)
    a, b = (
        Distribution(c.on(f).threads, c.on(f).registers + tuple(k for k in steps if k.axis in f))
        for f in axes
    )
    return Roles(c, a, b)


def _warps(
    rows: str,
    lane: str,
    size: Mapping[str, int],
    grid: tuple[int, int],
    units: tuple[int, int],
    warp: int = WARP,
) -> tuple[int, int, list[ThreadDigit]]:
    """The tile of a block in fragments of so many rows and lanes, dealt to ``grid`` warps: how
    many fragments a warp has along both, and the digits of the warps."""
    (wm, wn), (high, wide) = grid, units
    mi, ni = -(-size[rows] // (high * wm)), -(-size[lane] // (wide * wn))
    down = ThreadDigit(warp, wm, rows, mi * high)
    return mi, ni, [down, ThreadDigit(warp * wm, wn, lane, ni * wide)]


def _spread(digits: Sequence[ThreadDigit], *registers: tuple[str, int, int]) -> Distribution:
    """Of a tile over the axes of these registers; threads along another one hold the same."""
    kept = tuple(d for d in digits if d.mod > 1)
    own = tuple(RegisterDigit(*r) for r in registers)
    return Distribution(kept, own).on(r.axis for r in own)


def mma(
    rows: str,
    lane: str,
    along: str,
    size: Mapping[str, int],
    grid: tuple[int, int],
    steps: int = 16,
    paired: bool = True,
) -> Roles:
    """Fragments of mma.m16n8k16 with 16-bit operands, m16n8k32 with bytes, m16n8k8 with tf32 (PTX
    ISA, sections on these instructions). A thread has ``near`` neighbours of the reduced axis; in
    m16n8k8 both operands have steps 2t and 2t + 1 where the table has t and t + 4: a sum has no
    order, and so results are left operands of the next product. These have ``paired`` lanes, a
    multiple of 16; right operands are loaded so in any case."""
    mi, ni, warps = _warps(rows, lane, size, grid, (16, 16 if paired else 8))
    ni *= 2 if paired else 1
    ki, near = -(-size[along] // steps), max(2, steps // 8)
    parts = (along, ki, steps), (along, steps // (4 * near), 4 * near)

    def quads(outer: str, inner: str, each: int = near) -> list[ThreadDigit]:
        return [ThreadDigit(1, 4, inner, each), ThreadDigit(4, 8, outer, 1)]

    return Roles(
        c=_spread(
            [*quads(rows, lane, 2), *warps],
            *((rows, mi, 16), (lane, ni, 8), (rows, 2, 8), (lane, 2, 1)),
        ),
        a=_spread(
            [*quads(rows, along), *warps],
            *((rows, mi, 16), *parts, (rows, 2, 8), (along, near, 1)),
        ),
        b=_spread(
            [*quads(lane, along), *warps],
            *((lane, ni + ni % 2, 8), *parts, (along, near, 1)),
        ),
        along=along,
        counts=(mi, ni, ki),
    )


def sixteen(
    rows: str,
    lane: str,
    along: str,
    size: Mapping[str, int],
    grid: tuple[int, int],
    warp: int,
    near: int,
) -> Roles:
    """The 16x16 matrices of AMD, as lumc_hip/matrices.h has them: a thread has ``near`` steps of an
    operand, 16 where 16 threads have all, and a row of the sums."""
    mi, ni, warps = _warps(rows, lane, size, grid, (16, 16), warp)
    ki, groups, each = -(-size[along] // 16), warp // 16, 256 // warp
    alone = near == 16

    def part(outer: str, inner: str | None, stride: int) -> list[ThreadDigit]:
        return [ThreadDigit(1, 16, outer, 1), ThreadDigit(16, groups, inner, stride)]

    def operand(outer: str) -> list[ThreadDigit]:
        return part(outer, None, 0) if alone else part(outer, along, near)

    step = groups if alone else 1  # between the columns of a thread
    return Roles(
        c=_spread(
            [*part(rows, lane, 1 if alone else each), *warps],
            *((rows, mi, 16), (lane, ni, 16), (lane, each, step)),
        ),
        a=_spread([*operand(rows), *warps], (rows, mi, 16), (along, ki, 16), (along, near, 1)),
        b=_spread([*operand(lane), *warps], (lane, ni, 16), (along, ki, 16), (along, near, 1)),
        along=along,
        counts=(mi, ni, ki),
    )


def simdgroup(
    rows: str, lane: str, along: str, size: Mapping[str, int], grid: tuple[int, int]
) -> Roles:
    """Metal's 8x8 matrices: one layout for the three roles (as in MLX, steel/gemm/mma.h)."""
    mi, ni, warps = _warps(rows, lane, size, grid, (8, 8))
    ki = -(-size[along] // 8)

    def square(x: str, y: str) -> list[ThreadDigit]:
        pairs = (1, 2, y, 2), (2, 4, x, 1), (8, 2, y, 4), (16, 2, x, 4)
        return [ThreadDigit(*p) for p in pairs]

    return Roles(
        c=_spread(
            [*square(rows, lane), *warps],
            *((rows, mi, 8), (lane, ni, 8), (lane, 2, 1)),
        ),
        a=_spread(
            [*square(rows, along), *warps],
            *((rows, mi, 8), (along, ki, 8), (along, 2, 1)),
        ),
        b=_spread(
            [*square(along, lane), *warps],
            *((along, ki, 8), (lane, ni, 8), (lane, 2, 1)),
        ),
        along=along,
        counts=(mi, ni, ki),
    )
