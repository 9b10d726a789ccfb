"""What a kernel should compute: random inputs, and numpy's results at some points.

Results are compared relative to their greatest value. A kernel that compares computed floats may
differ in a few elements: rounding decides there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from lumc.graph.expr import Expr, bound_axes, subterms
from lumc.graph.ops import UNSIGNED, DType, to_bf16
from lumc.kernel.term import Kernel, Root, dtype
from lumc.oracle.term import Array, evaluate_term, widen

TOLERANCE = {DType.F16: 2e-3, DType.BF16: 1e-2, DType.F64: 1e-11, DType.F32: 5e-5}
# Tensor cores round f32 operands to tf32, 11 bits: by at most 2^-11 of them, evenly spread, so that
# products are off by sqrt(2/3) * 2^-11 of their size on average, each on its own. Of random values
# no sum is off by more than five times that, relative to the greatest one; products one after the
# other add up as slowly. It is about the bound of f16, which has 11 bits, too.
TF32 = 5 * math.sqrt(2 / 3) / 2**11  # 2.0e-3
ROUGH = 2e-3  # the share of elements that rounding may decide
VOLUME = 1 << 18  # elements of the largest value that numpy holds
SHAKES, ROUNDINGS = (
    3,
    8.0,
)  # runs with other roundings; an element may be off by so many times theirs
PLAIN = ("load", "const", "iota", "guard")


@dataclass(frozen=True)
class Expected:
    """The values of every root at some points. Random inputs may lead beyond the range of f32 on
    the way where those of the network do not: what f32 makes of them is right there, too. And they
    may cancel, before a reciprocal say: an element may be off by what rounding moves it."""

    kernel: Kernel
    values: Mapping[str, tuple[tuple[Array, ...], Array]]  # by buffer: where, what
    narrow: Mapping[str, Array]  # at the same points
    share: float  # of elements that may differ
    rounding: float  # of operands, relative to the greatest result
    moved: Callable[[str], Array]  # by buffer: how far rounding moves each element

    def problem(self, got: Mapping[str, Array]) -> str:
        """What is wrong with these results, or nothing."""
        for name, (where, want) in self.values.items():
            kind = self.kernel.buffer(name).dtype
            said = self.compare(name, np.asarray(got[name][where]), want, self.narrow.get(name))
            if said:
                return f"{said} ({kind.value})"
        return ""

    def compare(self, name: str, got: Array, want: Array, narrow: Array | None = None) -> str:
        kind = self.kernel.buffer(name).dtype
        wrong, worst = differences(widen(got, kind), want, kind, self.rounding)
        if narrow is not None and wrong.any():
            wrong &= differences(widen(got, kind), narrow, kind, self.rounding)[0]
        if wrong.sum() > self.share * wrong.size and kind.is_float:
            wrong &= ~(np.abs(widen(got, kind) - want) <= ROUNDINGS * self.moved(name))
        if wrong.sum() <= self.share * wrong.size:
            return ""
        return f"'{name}' differs in {int(wrong.sum())} of {wrong.size} elements, by {worst:.1e}"


def differences(got: Array, want: Array, kind: DType, rounding: float = 0.0) -> tuple[Array, float]:
    """Which elements differ, and the greatest error relative to the greatest value."""
    if not kind.is_float:
        return got != want, float(np.any(got != want))
    with np.errstate(all="ignore"):
        if kind is not DType.F64:  # what overflows there overflows here
            want = want.astype(np.float32).astype(np.float64)
        finite = np.isfinite(want)
        scale = max(float(np.abs(want[finite]).max(initial=0)), 1e-30)
        error = np.abs(got - want) / scale
        allowed = max(TOLERANCE[kind], rounding)
        same = np.where(finite, error <= allowed, (got == want) | (got != got) & (want != want))
    return ~same, float(np.nan_to_num(error[finite], nan=np.inf).max(initial=0))


def expected(
    kernel: Kernel, inputs: Mapping[str, Array], seed: int, rounding: float = 0.0
) -> Expected:
    points = choose_points(kernel, random.Random(seed))
    extent = {**kernel.extent, **{a: len(p) for a, p in points.items()}}
    values, narrow = dict[str, tuple[tuple[Array, ...], Array]](), dict[str, Array]()

    def whole(root: Root, term: Expr, **how: Any) -> Array:
        """The value of a term, at the same points as the root."""
        axes = sorted({a for i in root.index for a in i.free})
        v, names = evaluate_term(term, extent, inputs, points, **how)
        one = v.reshape([extent[a] if a in names else 1 for a in axes])
        return np.broadcast_to(one, [extent[a] for a in axes])

    def moved(name: str) -> Array:
        root, want = {r.buffer: r for r in kernel.roots}[name], values[name][1]
        rngs = map(np.random.default_rng, range(seed, seed + SHAKES))
        off = [np.abs(whole(root, root.value, shaken=r) - want) for r in rngs]
        return np.asarray(np.max(off, axis=0))

    for root in kernel.roots:
        where = tuple(whole(root, i).astype(np.int64) for i in root.index)
        kind = dtype(root.value)
        values[root.buffer] = where, np.array(widen(whole(root, root.value), kind))
        narrow[root.buffer] = np.array(widen(whole(root, root.value, narrow=True), kind))
    rounding = max(rounding, TOLERANCE[DType.F32]) if is_widened(kernel) else rounding
    return Expected(kernel, values, narrow, ROUGH if is_rough(kernel) else 0.0, rounding, moved)


def choose_points(kernel: Kernel, rng: random.Random) -> dict[str, Array]:
    """Positions of the output axes: all of them, or the ends and some others of long axes, so that
    no value of any term is too large."""
    count = {a: kernel.extent[a] for a in kernel.axes}
    over = {frozenset(e.free | set(bound_axes(e))) for v in kernel.values for e in subterms(v)}
    while True:
        sizes = {a: prod(count.get(x, kernel.extent[x]) for x in a) for a in over}
        large = {a for axes, n in sizes.items() if n > VOLUME for a in axes if count.get(a, 0) > 2}
        if not large:
            break
        longest = max(sorted(large), key=lambda a: count[a])
        count[longest] = max(2, count[longest] // 2)
    out = {}
    for a, n in count.items():
        extent = kernel.extent[a]
        inner = rng.sample(range(1, extent - 1), n - 2) if n < extent else []
        out[a] = np.array(sorted([0, *inner, extent - 1]) if n < extent else range(extent))
    return out


def is_rough(kernel: Kernel) -> bool:
    """Whether rounding of computed floats may decide about an element."""
    for e in (e for v in kernel.values for e in subterms(v)):
        decides = e.kind in ("bin", "cast") and (
            e.attr[0] in ("lt", "eq", "mod") or (e.kind == "cast" and not dtype(e).is_float)
        )
        if decides and any(map(_is_computed, e.kids)):
            return True
    return False


def is_widened(kernel: Kernel) -> bool:
    """Whether values become f64 that were computed in f32, as those of 16 bits are, too."""
    every = (e for v in kernel.values for e in subterms(v))
    return any(
        e.kind == "cast" and dtype(e) is DType.F64 and _is_computed(k) and dtype(k) is not dtype(e)
        for e in every
        for k in e.kids
    )


def _is_computed(e: Expr) -> bool:
    return dtype(e).is_float and e.kind not in PLAIN


def inputs_of(kernel: Kernel, seed: int, spread: float) -> dict[str, Array]:
    """Random, distinct values for every buffer that is read; indices lie inside what they index."""
    rng = np.random.default_rng(seed)
    terms = [t for r in kernel.roots for t in (r.value, *r.index)]
    loads = [e for t in terms for e in subterms(t) if e.kind == "load"]
    limits = _index_limits(kernel, terms)
    out = {}
    for b in kernel.buffers:
        reads = [e for e in loads if e.attr[0] == b.name]
        if not reads:
            continue
        if b.dtype.is_float:
            values = rng.standard_normal(b.shape, np.float32) * spread
            out[b.name] = _stored(values * (_scale(kernel, reads) if b.constant else 1.0), b.dtype)
        elif b.dtype is DType.BOOL:
            out[b.name] = rng.integers(0, 2, b.shape).astype(bool)
        else:
            low, high = (0, limits[b.name]) if b.name in limits else (0, 2)
            if b.name not in limits and spread == 1.0:
                low, high = (0 if b.dtype in UNSIGNED else -4), 5
            if b.bits:
                low = 0 if b.dtype is DType.U8 else -(1 << b.bits - 1)
                high = low + (1 << b.bits)
            out[b.name] = rng.integers(low, high, b.shape).astype(b.dtype.numpy)
    return out


def _stored(values: Array, kind: DType) -> Array:
    return to_bf16(values) if kind is DType.BF16 else values.astype(kind.numpy)


def _scale(kernel: Kernel, reads: list[Expr]) -> float:
    """Weights of long sums are small, so that their results are of the order of one."""
    free = frozenset[str]().union(*(e.free for e in reads)) - set(kernel.axes)
    return 1.0 / math.sqrt(kernel.points(free))


def _index_limits(kernel: Kernel, terms: list[Expr]) -> dict[str, int]:
    """The extents that buffers of indices must stay below."""
    out: dict[str, int] = {}
    for e in (e for t in terms for e in subterms(t) if e.kind == "load"):
        for i, n in zip(e.kids, kernel.buffer(e.attr[0]).shape, strict=True):
            for d in (d for d in subterms(i) if d.kind == "dyn"):
                for below in (x for x in subterms(d) if x.kind == "load"):
                    name = below.attr[0]
                    out[name] = max(1, min(out.get(name, n), n))
    return out
