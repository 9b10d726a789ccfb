"""Where the elements of a shared tile lie that matrix units read: pieces of 16 bytes change places,
so that the same piece of eight rows lies in different banks, and rows need no bytes between them.

The pieces of rows of 128 bytes are exchanged by the number of the row (PTX ISA, "Swizzling Modes",
128 bytes). Of an odd number of pieces, eight rows lie in different banks as they are; of other rows
as many low bits of a piece's number as the rows would have in common are exclusive-ored with the
bits above the line of 128 bytes, or above the row's own where it is longer.
"""

from __future__ import annotations

from typing import NamedTuple

PIECE = 16  # bytes
LINE = 3  # bits of the number of a piece in a line of 128 bytes


class Swizzle(NamedTuple):
    """Bits ``mask`` of the index of an element are exclusive-ored with those ``shift`` above."""

    shift: int
    mask: int

    def at(self, index: int) -> int:
        """Where an element of a tile lies."""
        return index ^ (index >> self.shift & self.mask)

    @property
    def period(self) -> int:
        """Elements after which the pieces are exchanged alike."""
        return (self.mask + (self.mask & -self.mask)) << self.shift


def swizzle_of(row: int, nbytes: int) -> Swizzle | None:
    """Of a tile with so many elements of so many bytes in a row; None: as they are."""
    pieces, each = row * nbytes // PIECE, PIECE // nbytes
    twos = max(0, (pieces & -pieces).bit_length() - 1)
    exchanged = min(twos, LINE)
    return Swizzle(max(LINE, twos), ((1 << exchanged) - 1) * each) if exchanged else None
