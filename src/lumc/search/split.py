"""Laws that do a long reduction in two steps, for targets that do more side by side than it offers.

With j = step*j1 + j2, where step divides the extent of j:

    split-sum   Sum_j f = Sum_j1 Sum_j2 f
    split-max   Max_j f = Max_j1 Max_j2 f
    split-wsum  WSum_j (s, v) = WSum_j1 (m, WSum_j2 (sel(-inf < m, s), v)),  m = Max_j2 s

    split-block    Red_(r, k) f(r, n*i + k) = Red_k v(n*i + k),  v(p) = Red_r f(r, p)

That is for lanes: where rows r hold blocks of n values of which each has a result i, as groups of
channels have, the inner step goes along whole rows.

The third one shows a part of nothing but -inf as zeros: its own maximum would make it NaN, while
its weight in the whole is zero. Nothing is gained unless the inner steps are a kernel of their
own, so these laws split kernels and are not in the e-graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from lumc.graph.expr import (
    Expr,
    Range,
    add,
    axis,
    bound_axes,
    floordiv,
    mul,
    simplify,
    substitute,
    subterms,
)
from lumc.graph.ops import DType
from lumc.kernel.inside import escape
from lumc.kernel.merge import BLOCK
from lumc.kernel.normal import identity
from lumc.kernel.target import Target
from lumc.kernel.term import (
    Buffer,
    Kernel,
    Root,
    binary,
    cast,
    const,
    dtype,
    guard,
    load,
    reduce,
    where,
    wsum,
)
from lumc.schedule.operands import computed
from lumc.search.cuts import assemble

PARTS = (1, 8, 64)  # of a reduction, for each of the units of a target
NEAR = 4  # times so many parts, where these do not divide it
SHORTER = 4  # of a length, what is left of it still has a part for all units; a guess
PART = 32  # values that such a part has, at least; a guess


@dataclass(frozen=True)
class End:
    """Of a live axis: how many values are ``left``, this one included: 1 to ``most`` where there is
    one. Beyond it nothing is read, or with ``read`` what changes no result."""

    left: Expr
    most: int
    read: bool

    def applied(self, stage: Expr, kids: Sequence[Expr]) -> list[Expr]:
        """What is reduced, and beyond the end what changes no result."""
        if stage.attr[0] == "sum":
            return [self.guarded(e) for e in kids]
        least = identity(stage) if stage.kind == "red" else const(-inf, dtype(kids[0]))
        first = where(self.guarded(const(True, DType.BOOL)), self._first(kids[0]), least)
        return [first, *map(self.guarded, kids[1:])]

    def guarded(self, e: Expr) -> Expr:
        """The same, not read beyond the end, where it is 0."""
        return guard(self.left, 1, self.most + 1, e)

    def _first(self, e: Expr) -> Expr:
        return e if self.read else self.guarded(e)


def inner(
    stage: Expr,
    j: str,
    at: Expr,
    j2: str,
    ranges: Mapping[str, Range],
    end: End | None = None,
) -> tuple[Expr, ...]:
    """What a part of a reduction gives: its axis j is ``at``, an index of the axes j1 and j2. Of a
    weighted sum that is the part and its maximum. The last part may have an ``end``."""
    there = [substitute(k, {axis(j): at}) for k in stage.kids]
    indices = [e for e in subterms(*there) if e.kind in ("lin", "div", "mod")]
    here = [substitute(k, {e: simplify(e, ranges) for e in indices}) for k in there]
    here = end.applied(stage, here) if end else here
    if stage.kind == "red":
        axes = [j2 if a == j else a for a in bound_axes(stage)]
        return (reduce(stage.attr[0], axes, here[0]),)
    top = reduce("max", [j2], here[0])
    some = binary("lt", const(-inf, dtype(top)), top)
    return wsum(j2, binary("sel", some, here[0]), here[1]), top


def outer(stage: Expr, j1: str, parts: Sequence[Expr]) -> Expr:
    """The reduction over j1 of what its parts give, as ``inner`` does."""
    if stage.kind == "red":
        return reduce(stage.attr[0], [j1], parts[0])
    return wsum(j1, parts[1], parts[0])


def splits(kernel: Kernel, target: Target) -> Iterator[list[Kernel]]:
    """A kernel as two, in execution order, the first of which has something to do for all of the
    target: the longest reductions in parts, few of them first. Parts of a live axis need not divide
    it, but the last one ends where it does."""
    j, stages = _longest(kernel)
    n, is_live = kernel.extent[j] if stages else 0, j in kernel.lengths.of
    wanted = [target.units * k for k in PARTS]
    if stages and is_live:  # every result has parts: these need not be as many
        fewest = -(-target.units // min(kernel.points(s.free) for s in stages))
        some = min(SHORTER * fewest, n // PART)
        wanted = [*([some] if some > fewest > 1 else []), fewest, *wanted]
    for least in dict.fromkeys(wanted):
        near = range(least, min(NEAR * least, n // 2 + 1))
        count = next((p for p in near if n % p == 0), 0)
        if is_live:
            count = count or next(iter(near), 0)
            count = count if count > 1 else 0  # of one part there is always one
        if count:
            yield split(kernel, stages, j, count)


def blocks_apart(kernel: Kernel) -> Iterator[list[Kernel]]:
    """A reduction over blocks of rows as one over the rows, and one over the blocks: in execution
    order."""
    stages, last = kernel.stages, kernel.axes[-1:]
    if not last or len(stages) != 1 or stages[0].kind != "red" or last[0] not in stages[0].free:
        return
    if kernel.live:  # blocks of which not all are there
        return
    (stage,), (i,) = stages, last
    over = bound_axes(stage)
    found = [k for k in over if kernel.extent[k] < BLOCK and _walks_blocks(kernel, stage, i, k)]
    if len(found) != 1 or len(over) < 2:
        return
    rest, n = [a for a in over if a not in found], kernel.extent[found[0]]
    outer, kind = [a for a in kernel.axes[:-1] if a in stage.free], computed(dtype(stage))
    name, value = f"{kernel.roots[0].buffer}_0", reduce(stage.attr[0], rest, stage.kids[0])
    place = (*map(axis, outer), add(mul(axis(i), n), axis(found[0])))
    buffer = Buffer(name, kind, (*(kernel.extent[a] for a in outer), kernel.extent[i] * n))
    whole = reduce(stage.attr[0], found, load(name, kind, *place))
    whole = whole if kind is dtype(stage) else cast(dtype(stage), whole)
    made = tuple(Root(r.buffer, r.index, substitute(r.value, {stage: whole})) for r in kernel.roots)
    out = tuple(kernel.buffer(name) for name in kernel.stored)
    own, axes = (Root(name, place, value),), (*outer, i, *found)
    known, extent = kernel.buffers, kernel.extent
    yield [
        assemble("rows", axes, own, extent, known, (buffer,)),
        assemble(kernel.name, kernel.axes, made, extent, (*known, buffer), out),
    ]


def _walks_blocks(kernel: Kernel, stage: Expr, i: str, k: str) -> bool:
    """Does something that is reduced lie in memory along i and k as n*i + k?"""
    loads = (kernel.access(e) for e in subterms(stage) if e.kind == "load")
    return any(e.stride(k) and e.stride(i) == kernel.extent[k] * e.stride(k) for e in loads)


def laws_of(kernel: Kernel) -> list[str]:
    """The laws that split a kernel."""
    kinds = [s.attr[0] if s.kind == "red" else "wsum" for s in _longest(kernel)[1]]
    return [f"split-{kind}" for kind in dict.fromkeys(kinds)]


def _longest(kernel: Kernel) -> tuple[str, list[Expr]]:
    """The longest reduced axis, and the reductions over it if none needs another one."""
    axes = [a for s in kernel.stages for a in bound_axes(s)]
    j = max(axes, key=lambda a: kernel.extent[a], default="")
    found = [s for s in kernel.stages if j in bound_axes(s)]
    nested = any(t is not s and t in found for s in found for t in subterms(s))
    alone = not nested and all(s.free <= set(kernel.axes) for s in found)
    return j, found if alone else []


def split(kernel: Kernel, stages: Sequence[Expr], j: str, count: int) -> list[Kernel]:
    """``count`` parts of these reductions over j, which divide the extent unless j is live, and the
    kernel that reads them. The parts lie along the first dim of what is stored between them."""
    parts = _split(kernel, stages, j, count, read=True)
    if j in kernel.lengths.of and any(map(escape, parts)):
        return _split(kernel, stages, j, count, read=False)
    return parts


def _split(kernel: Kernel, stages: Sequence[Expr], j: str, count: int, read: bool) -> list[Kernel]:
    """With ``read``, loads of scores and maxima may go on behind the end of a live axis."""
    j1, j2, n = f"{j}_part", f"{j}_in", kernel.extent[j]
    step, lengths, end = -(-n // count), kernel.lengths, None
    extent = {**kernel.extent, j1: -(-n // step), j2: step}
    at = add(mul(axis(j1), step), axis(j2))
    if length := lengths.of.get(j):
        ends = floordiv(add(length, step - 1), step, lengths.ranges)
        lengths = replace(lengths, live=(*lengths.live, (j1, ends)))
        end = End(add(length, mul(at, -1)), n, read)
    ranges = {a: (0, n - 1) for a, n in extent.items()} | dict(lengths.ranges)
    parts = {s: inner(s, j, at, j2, ranges, end) for s in stages}
    stored: dict[Expr, Expr] = {}
    roots, buffers = list[Root](), list[Buffer]()
    values = dict.fromkeys(e for found in parts.values() for e in found)
    for e in sorted(values, key=lambda e: -len(e.free)):
        axes = (j1, *(a for a in kernel.axes if a in e.free))
        name, kind = f"{kernel.roots[0].buffer}_{len(stored)}", computed(dtype(e))
        stored[e] = load(name, kind, *axes)
        roots.append(Root(name, tuple(map(axis, axes)), e))
        buffers.append(Buffer(name, kind, tuple(extent[a] for a in axes)))
    whole = {s: outer(s, j1, [stored[e] for e in found]) for s, found in parts.items()}
    whole = {s: e if dtype(e) is dtype(s) else cast(dtype(s), e) for s, e in whole.items()}
    last = tuple(Root(r.buffer, r.index, substitute(r.value, whole)) for r in kernel.roots)
    widest = (j1, *(a for a in kernel.axes if any(a in r.axes for r in roots)))
    known, out = kernel.buffers, tuple(kernel.buffer(name) for name in kernel.stored)
    return [
        assemble("parts", widest, tuple(roots), extent, known, tuple(buffers), lengths),
        assemble(kernel.name, kernel.axes, last, extent, (*known, *buffers), out, lengths),
    ]
