"""Axes whose length is known when a kernel runs only.

Such an axis is *live*. Its extent is the most values that it may have: memory, strides, bounds and
keys are made for these. How many there are is its length, an expression over symbolic dims, which
loops and indices read when the kernel runs. Nothing beyond it is read into a result, or written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

from msgspec import UNSET, UnsetType

from lumc.graph.dim import Dim
from lumc.graph.expr import Expr, Range, bounds, linear, subterms

Live = tuple[tuple[str, Expr], ...]


@dataclass(frozen=True)
class Lengths:
    """The lengths of live axes, by name, and the dims that these and indices are made of."""

    dims: tuple[Dim, ...] = ()
    live: Live = ()

    @cached_property
    def of(self) -> Mapping[str, Expr]:
        """The length of every live axis."""
        return dict(self.live)

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """The same as text."""
        return {a: str(e) for a, e in self.live}

    @cached_property
    def ranges(self) -> Mapping[str, Range]:
        """The least and the greatest value of every dim."""
        return {d.name: (d.values[0], d.values[-1]) for d in self.dims}

    def sizes(self, axis: str) -> range:
        """All lengths that a live axis may have; it may have no others."""
        return values(self.of[axis], self.dims)

    def told(self, extent: Mapping[str, int]) -> Mapping[str, int | str]:
        """What tells axes apart: extents, and the lengths of live axes as text."""
        return {**extent, **self.texts} if self.live else extent

    def renamed(self, names: Mapping[str, str]) -> Lengths:
        """Of axes with other names; those without a new one keep theirs."""
        return replace(self, live=tuple((names.get(a, a), e) for a, e in self.live))

    def with_alike(self, alike: Mapping[str, str]) -> Lengths:
        """Also of new axes, each of which is as long as another one."""
        more = ((a, self.of[b]) for a, b in alike.items() if b in self.of)
        return replace(self, live=tuple({**self.of, **dict(more)}.items()))

    def joined(self, other: Lengths) -> Lengths:
        """Those of two kernels of one graph, whose live axes of one name have one length."""
        dims = {d.name: d for d in (*self.dims, *other.dims)}
        return Lengths(tuple(dims.values()), tuple({**other.of, **self.of}.items()))

    def within(self, axes: Iterable[str], terms: Iterable[Expr]) -> Lengths:
        """Those of some axes, and the dims that they or these terms name."""
        if not self.dims:
            return self
        own = {*axes}
        live = tuple((a, e) for a, e in self.live if a in own)
        named = {t.attr[0] for t in subterms(*terms, *(e for _, e in live)) if t.kind == "dim"}
        return Lengths(tuple(d for d in self.dims if d.name in named), live)

    def problems(self, extent: Mapping[str, int]) -> Iterator[str]:
        """What is wrong with them for a kernel with these axes."""
        names = [d.name for d in self.dims]
        if len({*names, *extent}) < len(names) + len(extent):
            yield "two axes or dims have one name"
        for d in self.dims:
            if not d.is_possible:
                yield f"dim {d.name} has no values"
                return
        if len(self.of) < len(self.live) or not self.of.keys() <= extent.keys():
            yield "a length of no axis, or two of one"
            return
        for a, e in self.live:
            unknown = {t.attr[0] for t in subterms(e) if t.kind == "dim"}.difference(names)
            if e.free or unknown:
                yield f"the length {e} of axis {a} is not made of dims"
            elif (sizes := self.sizes(a))[0] < 1 or sizes[-1] != extent[a] or len(sizes) < 2:
                yield f"axis {a} of extent {extent[a]} has {sizes[0]} to {sizes[-1]} values"


STATIC = Lengths()


def points(dims: Sequence[Dim]) -> tuple[Mapping[str, int], ...]:
    """Values of dims at which code is looked at: the least, some between, and the greatest last.
    None of no dims."""
    if not dims:
        return ()
    least, most = ({d.name: d.values[i] for d in dims} for i in (0, -1))
    turned = enumerate(dims)
    between = {d.name: d.values[len(d.values) * (1 + i % 2) // 3] for i, d in turned}
    return tuple(dict(p) for p in dict.fromkeys(tuple(q.items()) for q in (least, between, most)))


def stated(lengths: Lengths) -> Lengths | UnsetType:
    """Lengths as kernels have them: none where nothing is known at run time only."""
    return lengths if lengths.dims else UNSET


def values(e: Expr, dims: Iterable[Dim]) -> range:
    """All values of an expression over dims, and some more where several of them step apart."""
    known, (constant, coefs) = {d.name: d for d in dims}, linear(e)
    if any(t.kind != "dim" for t in coefs):
        lo, hi = bounds(e, {n: (d.values[0], d.values[-1]) for n, d in known.items()})
        return range(lo, hi + 1)
    least, most, step = constant, constant, 0
    for t, c in coefs.items():
        own = known[t.attr[0]].values
        ends = sorted((own[0] * c, own[-1] * c))
        least, most = least + ends[0], most + ends[1]
        step = gcd(step, (own.step if own[0] < own[-1] else 0) * c)
    return range(least, most + 1, step or 1)
