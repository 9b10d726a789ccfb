"""How a load or a store moves through memory as its axes take a step.

x[2*i + 1, j]  of f32[9, 16]    starts at 16, strides i: 32, j: 1, contiguous along j
x[i, j % 4]                     affine in i only: j moves it through %
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from lumc.graph.expr import Expr, combine, linear, subterms


@dataclass(frozen=True)
class Access:
    """Where a load or a store is, in elements: ``start``, and ``strides`` by axis. Those that are
    ``irregular`` move it in another way too, through //, % or data."""

    start: int
    strides: Mapping[str, int]
    irregular: frozenset[str]

    def stride(self, axis: str | None) -> int:
        """How many elements further a step along an axis is; 0: none, as along no axis."""
        return self.strides.get(axis or "", 0)

    def is_affine(self, *axes: str | None) -> bool:
        """Is every step along each of these axes as far as the others?"""
        return self.irregular.isdisjoint(axes)

    def is_contiguous(self, axis: str | None) -> bool:
        """Is every step along this axis one to the next element?"""
        return self.stride(axis) == 1 and self.is_affine(axis)

    @cached_property
    def contiguous(self) -> tuple[str, ...]:
        """The axes along which it is contiguous."""
        return tuple(filter(self.is_contiguous, self.strides))

    def transposed(self, lane: str | None) -> tuple[str, ...]:
        """The axes along which it is contiguous instead, where it strides over that of the
        lanes."""
        return self.contiguous if self.stride(lane) > 1 and self.is_affine(lane) else ()

    def is_apart(self, lane: str) -> bool:
        """Are the elements of neighbouring lanes no neighbours? Those are loaded one by one."""
        return abs(self.stride(lane)) > 1 or not self.is_affine(lane)


@lru_cache(maxsize=1 << 12)
def access(offset: Expr) -> Access:
    """That of an offset in elements, or of one index."""
    start, atoms = linear(offset)
    strides = {atom.attr[0]: n for atom, n in atoms.items() if atom.kind == "axis"}
    others = (atom.free for atom in atoms if atom.kind != "axis")
    return Access(start, strides, frozenset[str]().union(*others))


@lru_cache(maxsize=1 << 12)
def row_major(index: tuple[Expr, ...], shape: tuple[int, ...]) -> Access:
    """That of indices of a row-major buffer, one for each dim."""
    offset, n = list[tuple[Expr, int]](), 1
    for i, extent in zip(reversed(index), reversed(shape), strict=True):
        offset.append((i, n))
        n *= extent
    return access(combine(offset))


def gathers(*terms: Expr) -> bool:
    """Does an index in these terms depend on data, or on what is known when the kernel runs?"""
    return any(e.kind in ("dyn", "dim") for e in subterms(*terms))
