"""Arithmetic on extents: integer arrays whose elements may be expressions over symbolic dims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumc.graph.dim import Dim, Extent, as_expr, dim_ranges, extent
from lumc.graph.expr import Expr, add, bounds, floordiv, linear, mod, mul

Array = np.ndarray[Any, Any]


class Undecided(Exception):
    """The result depends on the value of a symbolic dim."""


@dataclass(frozen=True)
class Symbolic:
    """An integer array known at import up to symbolic dims: elements are ints and expressions."""

    array: Array  # of dtype object
    dtype: np.dtype[Any]  # int64 or int32: what the model thinks it has

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)


def extents(shape: Sequence[Extent]) -> Array | Symbolic:
    """A shape as a value, the result of the operator Shape."""
    return settle(object_array(list(shape), (len(shape),)), np.dtype("int64"))


def object_array(values: Sequence[Any], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array.reshape(shape)


def settle(array: Array, dtype: np.dtype[Any]) -> Array | Symbolic:
    """The numeric array when no element depends on a dim."""
    values = [extent(e) if isinstance(e, Expr) else int(e) for e in array.ravel()]
    if any(isinstance(e, Expr) for e in values):
        return Symbolic(object_array(values, array.shape), dtype)
    return np.array(values, dtype).reshape(array.shape)


@dataclass(frozen=True)
class Arithmetic:
    """Elementwise arithmetic on object arrays of extents, given the bounds of the dims."""

    dims: Mapping[str, Dim]

    def apply(self, name: str, *operands: Array) -> Array:
        """One operator elementwise, with broadcasting. Raises Undecided."""
        function: Callable[..., Any] = getattr(self, name)
        wide = np.broadcast_arrays(*operands)
        values = [function(*elements) for elements in zip(*(w.ravel() for w in wide), strict=True)]
        shape = wide[0].shape
        if name in ("equal", "less"):
            return np.array(values, bool).reshape(shape)
        return object_array(values, shape)

    def span(self, e: Extent) -> tuple[int, int]:
        return (e, e) if isinstance(e, int) else bounds(e, dim_ranges(self.dims))

    def add(self, a: Extent, b: Extent) -> Extent:
        return extent(add(as_expr(a), as_expr(b)))

    def sub(self, a: Extent, b: Extent) -> Extent:
        return self.add(a, self.mul(b, -1))

    def mul(self, a: Extent, b: Extent) -> Extent:
        if isinstance(b, int):
            return extent(mul(as_expr(a), b))
        if isinstance(a, int):
            return extent(mul(b, a))
        raise Undecided(f"the product of {a} and {b}")

    def div(self, a: Extent, b: Extent) -> Extent:
        """Truncating division; by an expression only where it is a factor."""
        if self.span(a)[0] < 0 or self.span(b)[0] <= 0:
            raise Undecided(f"{a} divided by {b}")
        if isinstance(b, int):
            return extent(floordiv(as_expr(a), b, dim_ranges(self.dims)))
        factor = _ratio(as_expr(a), b)
        if factor is None:
            raise Undecided(f"{a} divided by {b}")
        return factor

    def mod(self, a: Extent, b: Extent) -> Extent:
        if self.span(a)[0] < 0 or self.span(b)[0] <= 0:
            raise Undecided(f"{a} modulo {b}")
        if isinstance(b, int):
            return extent(mod(as_expr(a), b, dim_ranges(self.dims)))
        if _ratio(as_expr(a), b) is None:
            raise Undecided(f"{a} modulo {b}")
        return 0

    def less(self, a: Extent, b: Extent) -> bool:
        lo, hi = self.span(self.sub(a, b))
        if hi < 0 or lo >= 0:
            return hi < 0
        raise Undecided(f"whether {a} is less than {b}")

    def equal(self, a: Extent, b: Extent) -> bool:
        lo, hi = self.span(self.sub(a, b))
        if lo == hi == 0 or lo > 0 or hi < 0:
            return lo == hi == 0
        raise Undecided(f"whether {a} equals {b}")

    def max(self, a: Extent, b: Extent) -> Extent:
        return b if self.less(a, b) else a

    def min(self, a: Extent, b: Extent) -> Extent:
        return a if self.less(a, b) else b


def _ratio(a: Expr, b: Expr) -> int | None:
    """The integer k with ``a = k * b``, if there is one."""
    constant, atoms = linear(a)
    other, base = linear(b)
    whole = [(constant, other), *((atoms.get(x, 0), c) for x, c in base.items())]
    factors = {p // q for p, q in whole if q and p % q == 0}
    exact = all(p % q == 0 if q else p == 0 for p, q in whole)
    exact = exact and all(x in base for x in atoms)
    return factors.pop() if exact and len(factors) == 1 else None
