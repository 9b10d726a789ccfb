"""Fibres: at which points of its loops a read takes a given element.

A read takes the element ``index(l)`` of its source at the point ``l``. Its fibre over ``j`` is the
solution of ``index(l) = j`` for ``l``: every loop as an index expression of ``j`` and of axes that
are left free, and bounds that say where there is such a point. Every point of the fibre is met
once, so a sum over the free axes where the bounds hold is the sum over the fibre. What no step can
solve stays as a bound: the result is exact for every index map, and may only walk over more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

from lumc.frontend.api.view import place
from lumc.graph.dim import Dim, Extent, as_expr, dim_ranges, extent, largest
from lumc.graph.expr import (
    Expr,
    Range,
    add,
    axis,
    combine,
    floordiv,
    from_linear,
    linear,
    mod,
    mul,
    num,
    simplify,
    substitute,
    subterms,
)
from lumc.graph.graph import Bound, Read, map_indices
from lumc.graph.index import interval, is_inside, loop_ranges

QUOTIENTS = 64  # of one read that become unknowns; of others the equations stay as bounds


@dataclass(frozen=True)
class Fibre:
    """``loops`` and ``bounds`` over the places of the source, ``_0``, ``_1``, .., and behind these
    over the places of the ``free`` axes, of these extents."""

    loops: tuple[Expr, ...]
    free: tuple[Extent, ...]
    bounds: tuple[Bound, ...]


def fibre(read: Read, shape: Sequence[Extent], dims: Mapping[str, Dim]) -> Fibre:
    """The fibre of a read that is written over the places of ``shape``. Bounds of the read that
    leave one value are solved with it; that all of them hold is not among the result's bounds."""
    system = _system(read, shape, dims)
    system.divide()
    while system.equations:
        system.equations.sort(key=lambda e: len(system.unknowns(e)))
        system.solve(system.equations.pop(0))
    return system.fibre(len(read.source.shape))


def _system(read: Read, shape: Sequence[Extent], dims: Mapping[str, Dim]) -> _System:
    """Names with a space in them are no axes of a user, and no dims."""
    mine = {f"l {i}": n for i, n in enumerate(shape)}
    loops = [num(0) if n == 1 else axis(a) for a, n in mine.items()]
    over = {place(i): e for i, e in enumerate(loops)}
    (moved,) = map_indices([read], lambda e: substitute(e, over), lambda e: e)
    assert isinstance(moved, Read)
    given = {f"j {d}": n for d, n in enumerate(read.source.shape)}
    places = [num(0) if n == 1 else axis(a) for a, n in given.items()]
    equations = [add(e, mul(j, -1)) for e, j in zip(moved.index, places, strict=True)]
    equations += [add(b.index, -b.lo) for b in moved.bounds if b.hi == b.lo + 1]
    system = _System(dims, mine | given, {a: None for a, n in mine.items() if n != 1}, loops)
    system.equations = [system.simple(e) for e in equations]
    return system


@dataclass
class _System:
    """Equations ``e = 0`` in unknown axes; others are the places of the element that is taken."""

    dims: Mapping[str, Dim]
    extents: dict[str, Extent]  # of all axes
    unknown: dict[str, None]  # in order
    loops: list[Expr]  # what every loop is
    equations: list[Expr] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)

    def fibre(self, rank: int) -> Fibre:
        """What is found, over places."""
        names = [*(f"j {d}" for d in range(rank)), *self.unknown]
        over = {axis(a): place(i) for i, a in enumerate(names)}
        loops = tuple(substitute(e, over) for e in self.loops)
        bounds = tuple(Bound(substitute(b.index, over), b.lo, b.hi) for b in self.bounds)
        return Fibre(loops, tuple(self.extents[a] for a in self.unknown), bounds)

    # ---- axes and bounds

    @property
    def ranges(self) -> dict[str, Range]:
        return loop_ranges(self.extents, self.dims)

    def simple(self, e: Expr) -> Expr:
        return simplify(e, self.ranges)

    def unknowns(self, e: Expr) -> frozenset[str]:
        return e.free & self.unknown.keys()

    def most(self, name: str) -> int:
        return largest(self.extents[name], self.dims)

    def fresh(self, n: Extent) -> Expr:
        """A new unknown, in ``0 .. n - 1``."""
        if n == 1:
            return num(0)
        name = f"f {len(self.extents)}"
        self.extents[name], self.unknown[name] = n, None
        return axis(name)

    def put(self, name: str, value: Expr) -> None:
        """An unknown is known now, or made of others."""
        del self.unknown[name]
        self.require(value, self.extents[name])
        self.replace({axis(name): value})

    def replace(self, new: Mapping[Expr, Expr]) -> None:
        def over(e: Expr) -> Expr:
            return self.simple(substitute(e, new))

        self.loops, self.equations = [*map(over, self.loops)], [*map(over, self.equations)]
        self.bounds = [Bound(over(b.index), b.lo, b.hi) for b in self.bounds]

    def require(self, e: Expr, n: Extent) -> None:
        """``0 <= e < n``."""
        e = self.simple(e)
        if not is_inside(e, n, (), self.extents, self.dims):
            self.bounds.append(Bound(e, 0, n))

    # ---- quotients and remainders

    def divide(self) -> None:
        """What ``x // c`` and ``x % c`` are of becomes one axis x, and that ``c q + r``."""
        for _ in range(QUOTIENTS):
            found = self.quotient()
            if found is None:
                return
            x, c = found.kids[0], found.attr[0]
            constant, coefs = linear(x)
            if [*coefs.values()] != [1]:
                self.name(x)
                continue
            (whole,) = coefs  # and 0 <= constant < c, in normal form
            most = floordiv(self.span(x)[1], c, self.ranges)
            q, r = self.fresh(extent(add(most, 1))), self.fresh(c)
            self.put(whole.attr[0], add(mul(q, c), r, -constant))

    def name(self, x: Expr) -> None:
        """A sum becomes an unknown of its own, wherever it stands, also beside other constants."""
        constant, coefs = linear(x)
        low, high = self.span(x)
        value = add(self.fresh(extent(add(high, mul(low, -1), 1))), low)
        alike = [t for t in subterms(*self.equations) if linear(t)[1] == coefs]
        self.replace({t: add(value, linear(t)[0] - constant) for t in alike})
        self.equations.append(self.simple(add(x, mul(value, -1))))

    def span(self, x: Expr) -> tuple[Expr, Expr]:
        """The least and the greatest value of an index, over dims."""
        spans = {a: (num(0), add(as_expr(n), -1)) for a, n in self.extents.items()}
        return interval(x, spans, dim_ranges(self.dims))

    def quotient(self) -> Expr | None:
        """An innermost quotient or remainder of unknowns."""
        divided = (t for t in subterms(*self.equations) if t.kind in ("div", "mod"))
        mine = (t for t in divided if self.unknowns(t))
        plain = ("axis", "dim")
        return next((t for t in mine if all(a.kind in plain for a in linear(t.kids[0])[1])), None)

    # ---- linear equations

    def solve(self, e: Expr) -> None:
        """``e = 0``."""
        constant, coefs = linear(self.simple(e))
        mine = {a: c for a, c in coefs.items() if self.unknowns(a)}
        if not mine or any(a.kind != "axis" for a in mine):
            self.require(e, 1)
            return
        value = from_linear(-constant, {a: -c for a, c in coefs.items() if a not in mine})
        parts = dict[str, int]()
        for a, c in mine.items():
            name, n = a.attr[0], self.extents[a.attr[0]]
            if c > 0:
                parts[name] = c
                continue
            turned, last = self.fresh(n), add(as_expr(n), -1)  # counted from the end
            self.put(name, add(last, mul(turned, -1)))
            parts[turned.attr[0]] = -c
            value = add(value, mul(last, -c))
        self.sum_is(parts, value)

    def sum_is(self, parts: dict[str, int], value: Expr) -> None:
        """``sum of c * axis = value``, with all c > 0 and a value of known axes."""
        common, value = gcd(*parts.values()), self.simple(value)
        if common > 1:
            self.require(mod(value, common, self.ranges), 1)
            value = floordiv(value, common, self.ranges)
            parts = {a: c // common for a, c in parts.items()}
        order = sorted(parts, key=lambda a: (parts[a], self.most(a)))
        step, reach = 1, 0
        for i, a in enumerate(order[:-1], 1):
            reach += parts[a] * (self.most(a) - 1)
            step = gcd(*(parts[b] for b in order[i:]))
            if reach < step:  # the first ones are the digits below the step
                below, above = value, {b: parts[b] // step for b in order[i:]}
                self.sum_is(above, floordiv(value, step, self.ranges))
                self.sum_is({b: parts[b] for b in order[:i]}, mod(below, step, self.ranges))
                return
        small = [a for a in order if parts[a] % parts[order[-1]]]
        if len(small) == 1 and parts[small[0]] == 1:
            self.phases(parts, value, small[0])
        else:
            self.eliminate(parts, value)

    def phases(self, parts: dict[str, int], value: Expr, u: str) -> None:
        """``s y + u``: the axis of a window is its phase and its steps of s, ``u = s u1 + u0``."""
        step, n = max(parts.values()), self.extents[u]
        steps = extent(add(floordiv(add(as_expr(n), -1), step, self.ranges), 1))
        high, low = self.fresh(steps), self.fresh(step)
        self.put(u, add(mul(high, step), low))
        rest = {a: c for a, c in parts.items() if a != u}
        self.sum_is(rest | {low.attr[0]: 1, high.attr[0]: step}, value)

    def eliminate(self, parts: dict[str, int], value: Expr) -> None:
        """The axis with most values follows from the others, which stay free."""
        name = max(parts, key=lambda a: (self.most(a), -parts[a]))
        others = ((axis(a), -c) for a, c in parts.items() if a != name)
        rest = self.simple(combine([(value, 1), *others]))
        if parts[name] > 1:
            self.require(mod(rest, parts[name], self.ranges), 1)
            rest = floordiv(rest, parts[name], self.ranges)
        self.put(name, rest)
