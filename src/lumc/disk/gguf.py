"""GGUF files: metadata and where the tensors lie. Nothing in them is believed.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Counts and lengths are compared
with what is left of the file before anything is made of them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lumc.disk.once import read_as_it_is, starts_with
from lumc.disk.stored import Stored
from lumc.errors import Exit, LumcError
from lumc.graph.derive import LAYOUTS
from lumc.graph.ops import DType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEAD = 100 << 20  # bytes of metadata and of what is said of tensors
MAX_FIELDS = MAX_TENSORS = 1 << 16
MAX_TEXTS = 1 << 21  # of all arrays: about what a vocabulary of a million tokens has
MAX_NAME = 1 << 10  # bytes; ggml itself takes 63 for a tensor
MAX_RANK = 4
MAX_ALIGNMENT = 1 << 16
TEXT, ARRAY, BOOL = 8, 9, 7
NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", BOOL: "u1"}
NUMBERS |= {10: "<u8", 11: "<i8", 12: "<f8"}
DTYPES = {0: DType.F32, 1: DType.F16, 24: DType.I8, 26: DType.I32, 27: DType.I64}
DTYPES |= {28: DType.F64, 30: DType.BF16}
BLOCKS = {2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0"}
BLOCKS |= {10: "q2_k", 11: "q3_k", 12: "q4_k", 13: "q5_k", 14: "q6_k", 20: "iq4_nl", 23: "iq4_xs"}

Value = Any  # of a field: int, float, bool, str, list[str], or numbers as an array


@dataclass(frozen=True)
class Gguf:
    """What a file says."""

    path: Path
    fields: Mapping[str, Value]
    tensors: Mapping[str, Stored]


def is_gguf(path: Path) -> bool:
    """Whether a file starts as one does; what is no file is none."""
    return starts_with(path, MAGIC)


def read_gguf(path: Path) -> Gguf:
    """Of a file; one process reads it once, as long as it stays as it is. Raises E0340, E0201."""
    return read_as_it_is(path, _read)


@lru_cache(maxsize=2)
def _read(path: Path, _: tuple[int, ...]) -> Gguf:
    size = path.stat().st_size
    with path.open("rb") as f:
        try:
            return _Reader(f, size).whole(path)
        except _Damaged as e:
            fix = "download the file again"
            what = f"not a GGUF file, or a damaged one: {e}"
            raise LumcError("E0340", what, where=str(path), fix=fix, exit=Exit.CORRUPT) from None


class _Damaged(Exception):
    """What is wrong with a file."""


@dataclass
class _Reader:
    """Reads a file from its start; every length is checked before it is read."""

    f: BinaryIO
    size: int
    at: int = 0
    texts: int = 0  # read so far, of all arrays

    def whole(self, path: Path) -> Gguf:
        if self.take(4) != MAGIC:
            raise _Damaged("it does not start with GGUF")
        version = self.number("<I")
        if version not in VERSIONS:
            swapped = " (big-endian files are not read)" if version & 0xFFFF == 0 else ""
            raise _Damaged(f"version {version} is none of {VERSIONS}{swapped}")
        tensors, fields = self.count(MAX_TENSORS, "tensors"), self.count(MAX_FIELDS, "fields")
        values = dict[str, Value]()
        for _ in range(fields):
            name = self.text(MAX_NAME)
            if name in values:
                raise _Damaged(f"field '{name}' stands twice")
            values[name] = self.value(self.number("<I"))
        said = [self.tensor() for _ in range(tensors)]
        step = _alignment(values)
        return Gguf(path, values, self.placed(said, step, -(-self.at // step) * step))

    # ---- parts of the head

    def take(self, n: int) -> bytes:
        if n > self.size - self.at:
            raise _Damaged(f"{n} bytes at {self.at} of {self.size}")
        if self.at + n > MAX_HEAD:
            raise _Damaged(f"more than {MAX_HEAD} bytes before the tensors")
        self.at += n
        data = self.f.read(n)
        if len(data) != n:
            raise _Damaged("it became shorter")
        return data

    def number(self, kind: str) -> int:
        (value,) = struct.unpack(kind, self.take(struct.calcsize(kind)))
        return int(value)

    def count(self, most: int, what: str) -> int:
        n = self.number("<Q")
        if n > most:
            raise _Damaged(f"{n} {what}; at most {most}")
        return n

    def text(self, most: int = MAX_HEAD) -> str:
        n = self.number("<Q")
        if n > most:
            raise _Damaged(f"a text of {n} bytes")
        try:
            return self.take(n).decode()
        except UnicodeDecodeError:
            raise _Damaged(f"no UTF-8 before byte {self.at}") from None

    def value(self, kind: int) -> Value:
        if kind == TEXT:
            return self.text()
        if kind != ARRAY:
            return self.numbers(kind, 1)[0].item()
        kind, n = self.number("<I"), self.number("<Q")
        if kind != TEXT:
            return self.numbers(kind, n)
        self.texts += n
        if self.texts > MAX_TEXTS or n > (self.size - self.at) // 8:
            raise _Damaged(f"an array of {n} texts at byte {self.at} of {self.size}")
        return [self.text() for _ in range(n)]

    def numbers(self, kind: int, n: int) -> np.ndarray[Any, Any]:
        if kind not in NUMBERS:
            raise _Damaged(f"a value of type {kind}{' in an array' * (kind == ARRAY)}")
        dtype = np.dtype(NUMBERS[kind])
        values = np.frombuffer(self.take(n * dtype.itemsize), dtype)
        if kind != BOOL:
            return values
        if values.size and values.max() > 1:
            raise _Damaged("a bool that is neither 0 nor 1")
        return values.astype(bool)

    # ---- tensors

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape (rows first), type, and where its bytes start after the head."""
        name, rank = self.text(MAX_NAME), self.number("<I")
        if rank > MAX_RANK:
            raise _Damaged(f"tensor '{name}' has {rank} dims")
        dims = struct.unpack(f"<{rank}Q", self.take(8 * rank))
        if min(dims, default=1) < 1 or math.prod(dims) >= 1 << 62:
            raise _Damaged(f"tensor '{name}' has the dims {list(dims)}")
        return name, tuple(reversed(dims)), self.number("<I"), self.number("<Q")

    def placed(
        self, said: list[tuple[str, tuple[int, ...], int, int]], step: int, base: int
    ) -> dict[str, Stored]:
        """The tensors by name, each aligned and inside the file, and apart from the others."""
        found = dict[str, Stored]()
        for name, shape, kind, offset in said:
            if name in found:
                raise _Damaged(f"tensor '{name}' stands twice")
            nbytes = _nbytes(name, shape, kind)
            if offset % step or base + offset + nbytes > self.size:
                span = f"bytes {offset}..{offset + nbytes} after byte {base} of {self.size}"
                raise _Damaged(f"tensor '{name}' lies at {span}, aligned by {step}")
            layout = "" if kind in DTYPES else BLOCKS.get(kind, f"type {kind} of ggml")
            start = base + offset
            found[name] = Stored(name, DTYPES.get(kind), shape, start, start + nbytes, layout)
        for a, b in pairwise(sorted(found.values(), key=lambda t: (t.start, t.end))):
            if a.end > b.start:
                raise _Damaged(f"tensors '{a.key}' and '{b.key}' overlap")
        return found


def _alignment(fields: Mapping[str, Value]) -> int:
    step = fields.get("general.alignment", 32)
    if type(step) is not int or not 1 <= step <= MAX_ALIGNMENT or step & (step - 1):
        raise _Damaged(f"general.alignment = {step!r}; expected a power of two")
    return step


def _nbytes(name: str, shape: tuple[int, ...], kind: int) -> int:
    """Of a tensor; 0 where its type is not known."""
    n = math.prod(shape)
    if kind in DTYPES:
        return n * DTYPES[kind].nbytes
    if kind not in BLOCKS:
        return 0
    layout, row = LAYOUTS[BLOCKS[kind]], shape[-1] if shape else 1
    if row % layout.elements:
        raise _Damaged(f"tensor '{name}' has rows of {row} in blocks of {layout.elements}")
    return n // layout.elements * layout.nbytes
