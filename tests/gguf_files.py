"""GGUF files for tests, right ones and wrong ones, by a writer of our own that checks nothing."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ENDS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
F32, Q4_1 = 0, 3


@dataclass(frozen=True)
class Array:
    """A field of several values of one type."""

    kind: int
    values: Sequence[Any]


@dataclass(frozen=True)
class Number:
    """A field of a type that Python's int and float do not name."""

    kind: int
    value: Any


@dataclass(frozen=True)
class Tensor:
    """Rows first, as numpy has them; ``offset`` after the head, or None: behind the one before."""

    shape: Sequence[int]
    data: bytes
    kind: int = F32
    offset: int | None = None


def tensor(values: Any) -> Tensor:
    array = np.asarray(values, np.float32)
    return Tensor(array.shape, array.tobytes())


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw


def field(value: Any) -> bytes:
    """A type and a value."""
    match value:
        case Array(kind, values):
            head = struct.pack("<IIQ", 9, kind, len(values))
            return head + b"".join(map(text, values) if kind == 8 else _packed(kind, values))
        case Number(kind, one):
            return struct.pack("<I", kind) + b"".join(_packed(kind, [one]))
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
    return struct.pack("<I", 8) + text(value)


def _packed(kind: int, values: Sequence[Any]) -> list[bytes]:
    return [struct.pack("<" + ENDS[kind], v) for v in values]


def gguf(
    fields: Mapping[str, Any] | Sequence[tuple[str, Any]],
    tensors: Mapping[str, Tensor] | Sequence[tuple[str, Tensor]] = (),
    step: int = 32,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """The bytes of a file; ``counts`` says how many tensors and fields it claims to have."""
    said = list(fields.items() if isinstance(fields, Mapping) else fields)
    whole = list(tensors.items() if isinstance(tensors, Mapping) else tensors)
    n, m = counts or (len(whole), len(said))
    head = b"GGUF" + struct.pack("<IQQ", version, n, m)
    head += b"".join(text(name) + field(value) for name, value in said)
    data = b""
    for name, t in whole:
        dims = tuple(reversed(t.shape))
        at = len(data) if t.offset is None else t.offset
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, t.kind, at)
        data += t.data + bytes(-len(t.data) % step)
    return head + bytes(-len(head) % step) + data
