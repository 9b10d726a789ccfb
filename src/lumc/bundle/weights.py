"""weights.safetensors of a bundle: 64-byte aligned tensors, written one at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lumc.bundle.packing import Array
from lumc.codegen.code import Value
from lumc.codegen.tile.memory import PAGE, aligned
from lumc.doing import doing


@dataclass(frozen=True)
class Layout:
    """Where everything lies: the data starts at byte ``start`` of the file."""

    offsets: Mapping[str, int]  # of every tensor, from the start of the data
    start: int
    nbytes: int


def write(path: Path, tensors: Sequence[Value], read: Callable[[Value], Array]) -> Layout:
    """Write tensors in the given order; ``read`` gives the elements of one, dropped at once.

    The format allows no holes, so padding has entries of its own.
    """
    offsets, header, at = dict[str, int](), dict[str, object](), 0
    for t in tensors:
        offsets[t.name], end = at, at + t.nbytes
        header[t.name] = _entry(t.dtype.value.upper(), t.shape, at, end)
        at = aligned(end)
        if at > end:
            header[f"__pad{len(header)}"] = _entry("U8", (at - end,), end, at)
    text = json.dumps(header, separators=(",", ":")).encode()
    start = aligned(8 + len(text), PAGE)
    doing(f"writing {at >> 20} MB of weights")
    with path.open("wb") as f:
        f.write((start - 8).to_bytes(8, "little") + text.ljust(start - 8))
        for t in tensors:
            data = read(t).astype(t.dtype.numpy, order="C", casting="no", copy=False)
            if data.nbytes != t.nbytes:
                raise ValueError(f"weight '{t.name}' has {data.nbytes} bytes, not {t.nbytes}")
            f.write(data.reshape(-1).view("u1").data if data.nbytes else b"")
            f.write(bytes(aligned(t.nbytes) - t.nbytes))
    return Layout(offsets, start, at)


def _entry(dtype: str, shape: tuple[int, ...], start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
