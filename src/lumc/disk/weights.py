"""Weights: tensors in safetensors, GGUF and .pt2 files, read where they lie, if they are the same.

A reference holds the size and the sha256 of the file (as ``sha256sum`` prints it; format:
https://github.com/huggingface/safetensors), so other values are another model, and a graph cannot
pull in a file that its author did not have. Data is mapped, not copied.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
import numpy.typing as npt

from lumc.disk.blocks import part_of
from lumc.disk.gguf import is_gguf, read_gguf
from lumc.disk.pt2 import is_pt2, read_pt2
from lumc.disk.stored import Stored, unusable
from lumc.errors import LumcError
from lumc.graph.derive import LAYOUTS, WORDS
from lumc.graph.graph import Derivation, Graph, Node, WeightFile, fail
from lumc.graph.ops import DType, from_bf16, to_bf16

Array = npt.NDArray[Any]
MAX_HEADER = 100 << 20  # bytes
LARGEST = 127  # of the levels of quantised weights
SAFETENSORS = {d.value.upper(): d for d in DType}


def weight_file(path: Path, base: Path) -> WeightFile:
    """A reference to a file, relative to ``base`` when it lies beside or below it."""
    full, base = path.resolve(), base.resolve()
    name = full.relative_to(base).as_posix() if full.is_relative_to(base) else str(full)
    read_header(full)
    return WeightFile(name, full.stat().st_size, sha256_of(full))


def plain_file(path: Path) -> WeightFile:
    """A reference to a whole file, whatever is in it, by its absolute path."""
    full = path.resolve()
    return WeightFile(full.as_posix(), full.stat().st_size, sha256_of(full))


def sha256_of(path: Path) -> str:
    """Of a whole file; one process hashes it once, as long as it stays as it is. Raises E0503."""
    try:
        s = path.stat()
        return _hashed(
            path.resolve(), (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
        )
    except OSError as e:
        raise unusable("E0503", f"cannot read the weights: {e}", path) from None


@lru_cache(maxsize=1 << 10)
def _hashed(path: Path, _: tuple[int, ...]) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def read_header(path: Path) -> dict[str, Stored]:
    """The tensors of a file by name, each inside the file; E0340, E0350, E0351, E0503, E0504 when
    it is damaged or not read."""
    if is_gguf(path):
        return dict(read_gguf(path).tensors)
    return dict(read_pt2(path).tensors) if is_pt2(path) else _parse(path, *_open(path))


def read_safetensors(path: Path, most: int) -> dict[str, Stored]:
    """The same of a safetensors file whose header has at most so many bytes. Raises ValueError with
    what is wrong, OSError where it cannot be read."""
    with path.open("rb") as f:
        if int.from_bytes(f.read(8), "little") > most:
            raise ValueError(f"not a safetensors file: a header of more than {most} bytes")
    try:
        return _parse(path, *_open(path))
    except LumcError as e:
        raise ValueError(e.what) from None


def read_weight(node: Node, base: Path) -> Array:
    """The values of a weight, or what a state begins with (bf16: the bits as uint16), read-only;
    paths start at ``base``.

    Raises E0503 for a missing or changed file, E0504 for a damaged one or another tensor.
    """
    path, how = _unchanged(node, base), node.how
    if how is None:
        return read_tensor(node, path)
    if how.layout:
        return _read_part(node, how, path)
    return derive(node, how, read_tensor(as_stored(node), path))


def _unchanged(node: Node, base: Path) -> Path:
    """The file of a weight, which is the one that was imported; E0503."""
    file = node.file
    if file is None:
        raise unusable("E0503", f"{node.op} '{node.name}' is in no file", "")
    if not Path(file.path).is_absolute() and ".." in Path(file.path).parts:
        what = f"{node.op} '{node.name}': a relative path may not leave the folder of the graph"
        raise unusable("E0503", what, file.path)
    path = base / file.path
    size = path.stat().st_size if is_gguf(path) or is_pt2(path) else _open(path)[0]
    if size != file.size or sha256_of(path) != file.sha256:
        what = f"{node.op} '{node.name}': the file is not the one that was imported"
        raise unusable("E0503", what, path)
    return path


def read_tensor(node: Node, path: Path) -> Array:
    """The values of a weight as they are stored in a file that is known to be the right one,
    read-only. Raises E0503, E0504."""
    stored = read_header(path).get(node.key)
    if stored is None or stored.dtype is not node.dtype or stored.shape != node.shape:
        raise _another(node, stored, f"{node.dtype}{list(node.shape)}", path)
    if 0 in stored.shape:
        return np.zeros(stored.shape, node.dtype.numpy)
    raw = np.dtype(np.uint8) if node.dtype is DType.BOOL else node.dtype.numpy
    data = np.memmap(path, raw, "r", stored.start, stored.shape)
    if node.dtype is DType.BOOL and data.max() > 1:
        raise unusable("E0504", f"tensor '{node.key}' has a bool that is neither 0 nor 1", path)
    return (data if data.flags.aligned else data.copy()).view(node.dtype.numpy)


def _another(node: Node, stored: Stored | None, want: str, path: Path) -> LumcError:
    found = f"is {stored}" if stored else "does not exist"
    return unusable(
        "E0504", f"tensor '{node.key}' {found}, {node.op} '{node.name}' is {want}", path
    )


def overflowing(graph: Graph, base: Path) -> Iterator[tuple[str, int]]:
    """The weights that are rounded to f16 and how many of their values become infinite."""
    for w in graph.weights:
        if w.how and not w.how.layout and w.dtype is DType.F16:
            count = int(np.isinf(read_weight(w.whole, base)).sum())
            if count:
                yield w.name, count


# ---- weights that are not read as they are stored


def as_stored(node: Node) -> Node:
    """A weight as the tensor that its file has of it."""
    how = node.how
    if how is None or how.layout:
        return node
    return replace(node, dtype=how.dtype, shape=source_shape(node, how), how=None)


def source_shape(node: Node, how: Derivation) -> tuple[int, ...]:
    """The shape of the tensor in the file."""
    shape = list(node.sizes)
    if how.part == "scales":
        shape[how.axis] *= how.block
    elif how.part in WORDS:
        shape[how.axis] //= how.block
    return tuple(shape)


def derive(node: Node, how: Derivation, stored: Array) -> Array:
    """The values of a weight (bf16: bits) from the tensor in the file; E0101 for inf and NaN in
    what is quantised. Values beyond the range of f16 become inf, as in numpy."""
    if how.part in WORDS:
        shifts = np.array(WORDS[how.part], np.uint32) * 4
        numbers = stored.view(np.uint32)[..., None] >> shifts & 15
        return np.moveaxis(numbers, -1, how.axis + 1).reshape(node.sizes).astype(np.uint8)
    values = from_bf16(stored) if how.dtype is DType.BF16 else stored
    if not how.part:
        with np.errstate(over="ignore"):
            return to_bf16(values) if node.dtype is DType.BF16 else values.astype(node.dtype.numpy)
    shape = (*values.shape[: how.axis], -1, how.block, *values.shape[how.axis + 1 :])
    blocks = np.asarray(values, np.float32).reshape(shape)
    if not np.isfinite(blocks).all():
        fail(node, "cannot be quantised: it has values that are inf or NaN")
    scales = np.abs(blocks).max(axis=how.axis + 1, keepdims=True) / np.float32(LARGEST)
    if how.part == "scales":
        return np.asarray(scales.squeeze(how.axis + 1))
    with np.errstate(all="ignore"):  # 0 / 0; the largest of a block of denormals
        levels = np.rint(blocks / np.where(scales > 0, scales, 1))
    return levels.clip(-LARGEST, LARGEST).astype(np.int8).reshape(values.shape)


def words(numbers: Array) -> Array:
    """Numbers below 16 [.., n] as words i32 [.., n / 8] in the order of ``nibbles``."""
    eight = numbers.reshape(*numbers.shape[:-1], -1, 8).astype(np.uint32)
    shifted: Array = eight << np.array(WORDS["nibbles"], np.uint32) * 4
    return np.asarray(np.bitwise_or.reduce(shifted, -1)).view(np.int32)


def _read_part(node: Node, how: Derivation, path: Path) -> Array:
    """A part of a tensor that is quantised in its file."""
    layout, stored = LAYOUTS[how.layout], read_header(path).get(node.key)
    *rows, n = node.sizes
    shape = *rows, n * layout.parts[how.part].each
    if stored is None or stored.layout != how.layout or stored.shape != shape:
        raise _another(node, stored, f"the {how.part} of {how.layout}{list(shape)}", path)
    width = shape[-1] // layout.elements * layout.nbytes
    data = np.memmap(path, np.uint8, "r", stored.start, (*rows, width))
    made = part_of(how.layout, how.part, data)
    made.flags.writeable = False
    return made


# ---- the file


def _open(path: Path) -> tuple[int, bytes]:
    """The size of a file and its head: 8 bytes of length and the header."""
    try:
        stat = path.stat()
        if not S_ISREG(stat.st_mode):
            raise unusable("E0504", "not a safetensors file", path)
        with path.open("rb") as f:
            length = int.from_bytes(f.read(8), "little")
            if not 2 <= length <= min(stat.st_size - 8, MAX_HEADER):
                what = f"not a safetensors file: a header of {length} bytes in {stat.st_size}"
                raise unusable("E0504", what, path)
            f.seek(0)
            return stat.st_size, f.read(8 + length)
    except (OSError, ValueError) as e:  # ValueError: a zero byte in the path
        raise unusable("E0503", f"cannot read the weights: {e}", path) from None


def _parse(path: Path, size: int, head: bytes) -> dict[str, Stored]:
    try:
        header = json.loads(head[8:], object_pairs_hook=_unique)
        if any(type(v) is not str for v in header.pop("__metadata__", {}).values()):
            raise ValueError("its metadata are no texts")
        tensors = {key: _stored(key, e, len(head)) for key, e in header.items()}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as e:
        raise unusable("E0504", f"not a safetensors file: bad header: {e}", path) from None
    for t in tensors.values():
        nbytes = t.end - t.start
        fits = len(head) <= t.start <= t.end <= size and min(t.shape, default=0) >= 0
        if not fits or (t.dtype and math.prod(t.shape) * t.dtype.nbytes != nbytes):
            what = f"tensor '{t.key}' {list(t.shape)} lies at bytes {t.start}..{t.end} of {size}"
            raise unusable("E0504", what, path)
    return tensors


def _stored(key: str, e: Any, base: int) -> Stored:
    (start, end), shape = e["data_offsets"], tuple(e["shape"])
    if any(type(n) is not int for n in (start, end, *shape)) or len(shape) > 32:
        raise ValueError(f"the entry of '{key}' has no shape and data_offsets")
    return Stored(key, SAFETENSORS.get(e["dtype"]), shape, base + start, base + end)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)
