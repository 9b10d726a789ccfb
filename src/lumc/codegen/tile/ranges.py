"""Where the axes of a tile program stand: all of an axis, or the present tile of it; the loops over
tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lumc.graph.expr import Expr, add, dim, floordiv, mul, num


@dataclass(frozen=True)
class Range:
    """Where an axis stands: ``lo <= axis < lo + n``; ``sizes`` are all values that n takes, of
    which live axes have many, ascending."""

    lo: Expr
    n: Expr
    sizes: Sequence[int]

    @property
    def largest(self) -> int:
        """The most values that the axis takes at once."""
        return self.sizes[-1] if isinstance(self.sizes, range) else max(self.sizes)

    def rests(self, by: int) -> list[int]:
        """What may be left of it after pieces of so many values, if something is."""
        some = self.sizes[:by] if isinstance(self.sizes, range) else self.sizes
        return sorted({n % by for n in some} - {0})  # those of a range repeat


@dataclass(frozen=True)
class Span:
    """The steps of a loop that count: none before any of the ``firsts``, none from any of the
    ``ends`` on, which may lie outside of the axis. Tiles without any are left out: ``share`` of
    them, 0 to 1, are done, on average over the tiles of the loops around."""

    firsts: tuple[Expr, ...]
    ends: tuple[Expr, ...]
    share: float


@dataclass(frozen=True)
class Loop:
    """A loop over an axis of so many values, ``tile`` of them at once; of a live one the
    ``length`` says how many there are, and the ``span`` which of them are needed, if not all."""

    axis: str
    tile: int
    extent: int
    length: Expr | None = None
    span: Span | None = None

    @property
    def count(self) -> int:
        """The number of tiles, of a live axis the greatest."""
        return -(-self.extent // self.tile)

    @property
    def turns(self) -> tuple[tuple[str, float], ...]:
        """The axis and how many tiles of it are done, on average."""
        every = ((self.axis, float(self.count)),)
        return (*every, (self.axis, self.span.share)) if self.span else every


def whole(extent: int) -> Range:
    """All values of an axis of this extent."""
    return Range(num(0), num(extent), (extent,))


def tile_sizes(sizes: range, tile: int) -> Sequence[int]:
    """The sizes that tiles of an axis have which may be so long."""
    rests = Range(num(0), num(0), sizes).rests(tile)
    found = [*rests, *([tile] if sizes[-1] >= tile else [])]
    steps = range(found[0], found[-1] + 1, found[1] - found[0]) if found[1:] else range(0)
    return steps if [*steps] == found else tuple(found)


def live_tile(axis: str, sizes: range, tile: int) -> Range:
    """A tile of a live axis of these lengths."""
    found = tile_sizes(sizes, tile)
    return Range(block_start(axis), num(tile) if [*found] == [tile] else block_size(axis), found)


def rounded(r: Range, width: int) -> Range:
    """The range up to a whole number of vectors."""
    n = mul(floordiv(add(r.n, width - 1), width, {}), width)
    return Range(r.lo, n, range(width, r.largest + width, width))


def block_start(axis: str) -> Expr:
    """The first value of the present tile of an axis, as an index."""
    return dim(f"{axis}.0")


def block_size(axis: str) -> Expr:
    """How many values the present tile of an axis has, as an index."""
    return dim(f"{axis}.n")
