"""Axes that everything reads side by side are one axis.

    side-by-side    f[c*(n*i + j)] for all i, j    =    f[c*p] for all p,    p = n*i + j

n is the extent of j. It is for maps with two short axes, where one of them alone fills no vector:
pixels of a small image, rows of a batch, all that a mean goes over. It holds if every load and
every store that has one of the axes has them as n*i + j, in one dim of its buffer or in two that
lie side by side, and nothing else has them: no guard, no iota, no index through // or %, no data.
Buffers keep their rank: of dims (a, b) that become one, the first is 1 and the second a*b. Where i
is live, p has n times its length; j never is, as the values beyond its length lie between.

    by-blocks       f(v[n*i + j], w[i])    =    f(v[p], w[p // n]),    p = n*i + j

is the same for results with a short last axis, n < 16, where all else has both as n*i + j and
w has no other axis: it is read once for all rows, and lanes along p are whole vectors. The channels
of a normalisation by groups are such blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise

from msgspec import UNSET, UnsetType

from lumc.graph.expr import (
    Expr,
    add,
    axis,
    bound_axes,
    floordiv,
    from_linear,
    linear,
    make,
    mod,
    mul,
    num,
    rebuild,
    rewrite,
    simplify,
    substitute,
    subterms,
)
from lumc.kernel.access import access
from lumc.kernel.lengths import Lengths
from lumc.kernel.term import Buffer, Kernel, Root

BLOCK = 16  # values of an axis that fill no vector
LONGEST = 30  # characters of a name that tells what was merged
Index = tuple[Expr, ...]


def merge_axes(kernel: Kernel) -> Kernel:
    """The kernel with every such pair of axes as one. Of a normal form it is one again."""
    while merged := next((m for i, j in _pairs(kernel) if (m := _merged(kernel, i, j))), None):
        kernel = merged
    return _of_blocks(kernel) or kernel


def _accesses(kernel: Kernel) -> list[tuple[str, Index]]:
    """Everything that is stored or read: the buffer and where."""
    loads = [e for e in subterms(*kernel.values) if e.kind == "load"]
    return [(r.buffer, r.index) for r in kernel.roots] + [(e.attr[0], e.kids) for e in loads]


def _pairs(kernel: Kernel) -> list[tuple[str, str]]:
    """Axes that some access has in two dims in a row, or in one."""
    found: dict[tuple[str, str], None] = {}
    for _, index in _accesses(kernel):
        own = [e for e in index if e.kind != "num"]
        for e, f in (*pairwise(own), *((e, e) for e in own if e.kind == "lin")):
            found.update(
                ((i, j), None) for i in access(e).strides for j in access(f).strides if i != j
            )
    return list(found)


def _of_blocks(kernel: Kernel) -> Kernel | None:
    """The kernel with its last two axes as one, or None."""
    if len(kernel.axes) < 2 or not 1 < kernel.extent[kernel.axes[-1]] < BLOCK:
        return None
    *rest, i, j = kernel.axes
    if j in kernel.lengths.of or any(
        s.kind != "red" or not {i, j} <= s.free for s in kernel.stages
    ):
        return None
    n, name = kernel.extent[j], next(a for a in _names(i, j) if a not in kernel.ranges)
    extent = {a: m for a, m in kernel.extent.items() if a not in (i, j)}
    extent[name] = kernel.extent[i] * n
    ranges = {a: (0, n - 1) for a, n in extent.items()} | dict(kernel.lengths.ranges)
    at = {axis(i): floordiv(name, n, ranges), axis(j): mod(name, n, ranges)}

    def joined(e: Expr) -> Expr:
        there = substitute(e, at)
        indices = [x for x in subterms(there) if x.kind in ("lin", "div", "mod")]
        return substitute(there, {x: simplify(x, ranges) for x in indices})

    roots = tuple(
        Root(r.buffer, tuple(map(joined, r.index)), joined(r.value)) for r in kernel.roots
    )
    live = _joined_lengths(kernel, i, name, n)
    made = Kernel(kernel.name, (*rest, name), extent, roots, kernel.buffers, live)
    return made if _are_blocks(made, at[axis(i)]) else None


def _are_blocks(kernel: Kernel, block: Expr) -> bool:
    """Does nothing go along the places in a block of the last axis, and along the blocks only what
    has no other axis?"""
    last = kernel.axes[-1]
    every = subterms(*kernel.values, *(x for r in kernel.roots for x in r.index))
    split = [e for e in every if e.kind in ("div", "mod") and last in e.free]
    alone = (e.free == {last} for e in every if e.kind == "load" and {*e.kids} & {*split})
    once = all(e == block for e in split) and all(alone)
    return once and all(last in r.axes for r in kernel.roots)


def _merged(kernel: Kernel, i: str, j: str) -> Kernel | None:
    """The kernel with these axes as one, or None."""
    if (i in kernel.axes) != (j in kernel.axes) or not _are_free(kernel, {i, j}):
        return None
    if j in kernel.lengths.of:
        return None
    joined = _joined_dims(kernel, i, j)
    if joined is None:
        return None
    pair = _Pair(kernel, i, j, joined)
    roots = tuple(pair.root(r) for r in kernel.roots)
    if pair.refused:
        return None
    extent = {a: n for a, n in kernel.extent.items() if a not in (i, j)}
    return Kernel(
        kernel.name,
        tuple(pair.name if a == j else a for a in kernel.axes if a != i),
        extent | {pair.name: kernel.extent[i] * kernel.extent[j]},
        roots,
        tuple(pair.buffers.values()),
        _joined_lengths(kernel, i, pair.name, kernel.extent[j]),
    )


def _joined_lengths(kernel: Kernel, i: str, name: str, n: int) -> Lengths | UnsetType:
    """Those of the kernel with n times an axis i as one of this name."""
    if not kernel.live:
        return UNSET
    each = ((name, mul(e, n)) if a == i else (a, e) for a, e in kernel.live.live)
    return Lengths(kernel.live.dims, tuple(each))


def _are_free(kernel: Kernel, axes: set[str]) -> bool:
    """Are these axes only walked and used as indices, and bound together or not at all?"""
    for e in subterms(*kernel.values):
        bound = axes.intersection(bound_axes(e))
        if bound and (bound != axes or e.kind == "wsum"):
            return False
        if e.kind in ("guard", "iota", "dyn") and axes & e.kids[0].free:
            return False
    return True


def _joined_dims(kernel: Kernel, i: str, j: str) -> dict[str, tuple[int, int]] | None:
    """For every buffer that has the axes the dims where they are, the same in all its accesses,
    with nothing between them; None if there is another one."""
    out: dict[str, tuple[int, int]] = {}
    for name, index in _accesses(kernel):
        at = [[d for d, e in enumerate(index) if a in e.free] for a in (i, j)]
        if at == [[], []]:
            continue
        if any(len(dims) != 1 for dims in at):
            return None
        (d,), (e,) = at
        between = kernel.buffer(name).shape[d + 1 : e]
        if out.setdefault(name, (d, e)) != (d, e) or d > e or any(n != 1 for n in between):
            return None
    return out


def _names(i: str, j: str) -> Iterator[str]:
    if len(i) + len(j) < LONGEST:
        yield f"{i}_{j}"
    yield from (f"p{n}" for n in count())


@dataclass
class _Pair:
    """The axes i and j of a kernel in the making as one; ``refused`` when an index has them in
    another way."""

    kernel: Kernel
    i: str
    j: str
    joined: Mapping[str, tuple[int, int]]  # dims of buffers that become one
    memo: dict[Expr, Expr] = field(default_factory=dict)
    refused: bool = False

    def __post_init__(self) -> None:
        self.name = next(a for a in _names(self.i, self.j) if a not in self.kernel.ranges)
        self.buffers = {b.name: self._buffer(b) for b in self.kernel.buffers}

    def _buffer(self, b: Buffer) -> Buffer:
        d, e = self.joined.get(b.name, (0, 0))
        if d == e:
            return b
        shape = list(b.shape)
        shape[d], shape[e] = 1, b.shape[d] * b.shape[e]
        return replace(b, shape=tuple(shape))

    def root(self, root: Root) -> Root:
        return Root(root.buffer, self.index(root.buffer, root.index), self.term(root.value))

    def term(self, value: Expr) -> Expr:
        return rewrite(value, self.memo, self._over)

    def _over(self, e: Expr, kids: list[Expr]) -> Expr:
        if e.kind == "load":
            return make("load", e.attr, self.index(e.attr[0], kids))
        if e.kind == "red" and self.j in e.attr[1]:
            axes = tuple(self.name if a == self.j else a for a in e.attr[1] if a != self.i)
            return make("red", (e.attr[0], axes), tuple(kids), axes)
        return rebuild(e, kids)

    def index(self, buffer: str, old: Sequence[Expr]) -> Index:
        """Where an access is, with p for n*i + j."""
        if buffer not in self.joined:
            return tuple(old)
        new, (d, e) = list(old), self.joined[buffer]
        if d != e:
            outer = mul(old[d], self.kernel.buffer(buffer).shape[e])
            new[d], new[e] = num(0), add(outer, old[e])
        constant, coefs = linear(new[e])
        outer_step, step = coefs.pop(axis(self.i), 0), coefs.pop(axis(self.j), 0)
        regular = outer_step == self.kernel.extent[self.j] * step
        self.refused |= not regular or any({self.i, self.j} & a.free for a in coefs)
        new[e] = add(from_linear(constant, coefs), mul(axis(self.name), step))
        return tuple(new)
