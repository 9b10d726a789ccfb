"""ELF files, as GPUs have them too: what their sections hold."""

from __future__ import annotations

import struct


def sections(image: bytes) -> dict[str, bytes]:
    """The contents of the sections of a file of 64 bits, by name; zeros for those without any."""
    (start,) = struct.unpack_from("<Q", image, 40)
    size, n, names = struct.unpack_from("<HHH", image, 58)
    rows = [struct.unpack_from("<IIQQQQ", image, start + i * size) for i in range(n)]
    data = [bytes(r[5]) if r[1] == 8 else image[r[4] : r[4] + r[5]] for r in rows]
    return {text(data[names], r[0]): d for r, d in zip(rows, data, strict=True)}


def text(table: bytes, at: int) -> str:
    return table[at : table.find(b"\0", at)].decode(errors="replace")
