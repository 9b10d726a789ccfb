"""A kernel for every phase of its result, and one that puts them together.

    polyphase    f[u, i]  =  p[u, i],    p[c, i] = f_c[i] for each c < n,    u < n
    narrow       Sum_r [lo <= r < hi] f(r)  =  Sum_q f(lo + q),    q < hi - lo    [finite]

f_c is f where the short axis u is the number c. It is for phases that need different steps of a
sum, as those of a transposed convolution whose kernel has no multiple of its stride: as one kernel
all of them take the steps of the longest and multiply with zeros. Values that are multiplied with
these zeros are not read, so an infinite one gives no NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from lumc.graph.expr import Expr, Range, add, axis, bounds, num, rebuild, rewrite, subterms
from lumc.graph.index import narrowed
from lumc.kernel.normal import identity
from lumc.kernel.term import Buffer, Kernel, Root, load, reduce
from lumc.search.cuts import assemble
from lumc.search.phases import at, guards_of

LONGEST = 4  # phases of one axis
MOST = 9  # kernels


def polyphases(kernel: Kernel) -> Iterator[list[Kernel]]:
    """A kernel as one for every value of the short axes that decide which steps of reductions
    count, and the last one: in execution order."""
    axes = _deciding(kernel)
    if len(kernel.roots) == 1 and not kernel.live and 1 < kernel.points(axes) <= MOST:
        yield separated(kernel, axes)


def _deciding(kernel: Kernel) -> tuple[str, ...]:
    """The short axes of the result that stand in a guard with a reduced one."""
    own = {*kernel.axes}
    guards = [e.kids[0].free for e in subterms(*kernel.values) if e.kind == "guard"]
    found = frozenset[str]().union(*(free for free in guards if not free <= own))
    return tuple(a for a in kernel.axes if a in found and kernel.extent[a] <= LONGEST)


def separated(kernel: Kernel, axes: tuple[str, ...]) -> list[Kernel]:
    """The parts with these axes of the result as numbers, and the kernel that reads them; between
    them lies one buffer, on whose first dims these axes are."""
    (root,), left = kernel.roots, tuple(a for a in kernel.axes if a not in axes)
    out, shape = kernel.buffer(root.buffer), tuple(kernel.extent[a] for a in (*axes, *left))
    every = Buffer(f"{out.name}_0", out.dtype, shape)
    points = product(*(range(kernel.extent[a]) for a in axes))
    parts = [_phase(kernel, dict(zip(axes, p, strict=True)), left, every) for p in points]
    whole = Root(out.name, root.index, load(every.name, every.dtype, *axes, *left))
    return [*parts, assemble("phases", kernel.axes, (whole,), kernel.extent, (every,), (out,))]


def _phase(kernel: Kernel, phase: Mapping[str, int], left: tuple[str, ...], to: Buffer) -> Kernel:
    """``to[phase, left] = value``, where the axes of the phase are numbers."""
    extent, value = dict(kernel.extent), kernel.roots[0].value
    for a, n in phase.items():
        value = at(value, a, num(n), _ranges(extent))
    value = narrow(value, extent)
    index = (*map(num, phase.values()), *map(axis, left))
    root = Root(to.name, index, value)
    return assemble(kernel.name, left, (root,), extent, kernel.buffers, (to,))


def narrow(value: Expr, extent: dict[str, int]) -> Expr:
    """The value with sums over those steps only that may count; adds their axes to ``extent``."""

    def narrowed_sum(e: Expr, kids: list[Expr]) -> Expr:
        new = rebuild(e, kids)
        return _narrow(new, extent) if e.kind == "red" and e.attr[0] == "sum" else new

    return rewrite(value, {}, narrowed_sum)


def _narrow(total: Expr, extent: dict[str, int]) -> Expr:
    body, left = total.kids[0], list[str]()
    for a, (first, last) in _counting(total, _ranges(extent)).items():
        if last < first:
            return identity(total)
        if last + 1 - first == extent[a]:
            left.append(a)
            continue
        name, start = f"{a}_{first}to{last}", num(first)
        extent[name] = last + 1 - first
        if last > first:
            left.append(name)
            start = add(axis(name), first)
        body = at(body, a, start, _ranges(extent))
    return reduce("sum", left, body) if left else body


def _counting(total: Expr, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """For every axis of a sum the steps outside of which its terms are zero, as far as guards of
    one axis say; none of any axis where they never hold."""
    spans = {a: ranges[a] for a in total.attr[1]}
    for guard in guards_of(total.kids[0]):
        index, (lo, hi) = guard.kids[0], guard.attr
        least, most = bounds(index, ranges)
        if most < lo or hi <= least:
            return dict.fromkeys(spans, (0, -1))
        if index.free <= spans.keys():
            spans = narrowed(spans, index, lo, hi)
    return spans


def _ranges(extent: Mapping[str, int]) -> dict[str, Range]:
    return {a: (0, n - 1) for a, n in extent.items()}
