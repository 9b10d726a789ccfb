"""Tensors in a file that lumc writes, and reads back as a stranger's: the states of bundles.

The format: https://github.com/huggingface/safetensors. ``lumc-run`` writes the same bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lumc.disk.artifact import atomic
from lumc.disk.weights import read_safetensors
from lumc.graph.ops import DType
from lumc.graph.tensor import Tensor

Array = np.ndarray[Any, np.dtype[Any]]
MAX_HEADER = 1 << 24  # bytes, of what is read back


class Misfit(ValueError):
    """A sound file, but of other tensors than are wanted."""


def write_safetensors(
    path: str | Path,
    tensors: Sequence[tuple[str, DType, Array]],
    notes: Mapping[str, str] | None = None,
) -> None:
    """A safetensors file, whole or not at all; its data start at a multiple of 64 bytes. ``notes``
    are its metadata."""
    entries, offset = dict[str, Any](), 0
    if notes:
        entries["__metadata__"] = dict(notes)
    for name, dtype, array in tensors:
        span = [offset, offset + array.size * dtype.nbytes]
        kind = dtype.value.upper()
        entries[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": span}
        offset = span[1]
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with atomic(path) as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, dtype, array in tensors:
            f.write(np.ascontiguousarray(array, dtype.numpy).tobytes())


def read_tensors(path: str | Path, wanted: Sequence[Tensor], what: str) -> dict[str, Array]:
    """The arrays of a file that has all of these tensors, as they are wanted, and no others;
    ``what`` they are: state. Raises ValueError with what is wrong, ``Misfit`` where the file is as
    it should be but has other tensors, OSError where it cannot be read."""
    stored = read_safetensors(Path(path), MAX_HEADER)
    known = {t.name: t for t in wanted}
    if unknown := [key for key in stored if key not in known]:
        raise Misfit(f"the bundle has no {what} {unknown[0]!r}")
    if missing := [name for name in known if name not in stored]:
        raise Misfit(f"{what} '{missing[0]}' is missing")
    out = dict[str, Array]()
    with Path(path).open("rb") as f:
        for name, t in known.items():
            s = stored[name]
            if s.dtype is not t.dtype or s.shape != t.shape:
                raise Misfit(f"tensor '{name}' is {s}, the {what} is {t}")
            f.seek(s.start)
            data = f.read(t.nbytes)
            if len(data) != t.nbytes:
                raise ValueError(f"tensor '{name}' is not whole")
            array = np.frombuffer(bytearray(data), np.uint8)
            if t.dtype is DType.BOOL and array.size and array.max() > 1:
                raise ValueError(f"tensor '{name}' has a bool that is neither 0 nor 1")
            out[name] = array.view(t.dtype.numpy).reshape(t.shape)
    return out
