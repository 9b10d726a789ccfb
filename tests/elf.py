"""What an ELF file says of itself, for the tests: its processor, its names, the glibc it needs."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import NamedTuple

NEEDED, SONAME = 1, 14  # tags of the dynamic section


class Elf(NamedTuple):
    machine: int
    exports: set[str]  # of the dynamic symbols
    needs: list[str]  # libraries
    soname: str
    glibc: list[tuple[int, ...]]  # versions that it asks for, in order


def read(path: Path) -> Elf:
    """A 64-bit little-endian file that is linked dynamically."""
    data = path.read_bytes()
    assert data[:6] == b"\x7fELF\2\1", path
    (start,) = struct.unpack_from("<Q", data, 40)
    size, n, _ = struct.unpack_from("<HHH", data, 58)
    rows = [struct.unpack_from("<IIQQQQII", data, start + i * size) for i in range(n)]

    def section(kind: int) -> tuple[bytes, bytes]:
        """The contents of the section of a kind, and of its strings."""
        row = next(r for r in rows if r[1] == kind)
        other = rows[row[6]]
        return data[row[4] : row[4] + row[5]], data[other[4] : other[4] + other[5]]

    def text(strings: bytes, at: int) -> str:
        return strings[at : strings.index(b"\0", at)].decode()

    symbols, names = section(11)
    exports = set()
    for at in range(24, len(symbols), 24):
        name, info, _, index = struct.unpack_from("<IBBH", symbols, at)
        if index and info >> 4:  # defined here, and not local
            exports.add(text(names, name))
    dynamic, strings = section(6)
    tags = [struct.unpack_from("<QQ", dynamic, at) for at in range(0, len(dynamic), 16)]
    needs = [text(strings, value) for tag, value in tags if tag == NEEDED]
    soname = next((text(strings, value) for tag, value in tags if tag == SONAME), "")
    found = set(re.findall(rb"\0GLIBC_([0-9.]+)(?=\0)", strings))
    glibc = sorted(tuple(map(int, v.decode().split("."))) for v in found)
    return Elf(struct.unpack_from("<H", data, 18)[0], exports, needs, soname, glibc)
