"""Archives of torch.export (``.pt2``): a zip, of which the JSON and the raw tensors are read.

Nothing in them is believed, and nothing is unpickled: samples of inputs, custom objects and
weights that are pickled are left alone. Format: torch.export.pt2_archive, whose schema is
torch/_export/serde/schema.py. Entries of the zip are stored, not compressed, so tensors are read
where they lie.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO

from lumc.disk.once import read_as_it_is, starts_with
from lumc.disk.stored import Stored
from lumc.errors import Exit, LumcError
from lumc.graph.ops import DType

MAGIC = b"PK\3\4"
MAX_ENTRIES = 1 << 17
MAX_DIRECTORY = 64 << 20  # bytes
MAX_JSON = 100 << 20  # bytes of one entry
MAX_NAME = 1 << 10  # bytes
MAX_RANK = 32
END, END64, LOCATOR, CENTRAL, LOCAL = b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\1\2", MAGIC
STORED, STRIDED = 0, 7  # how an entry is packed, how a tensor lies
# torch's ScalarType by its number in the schema; the others have no counterpart in lumc
DTYPES = {
    1: DType.U8,
    2: DType.I8,
    3: DType.I16,
    4: DType.I32,
    5: DType.I64,
    6: DType.F16,
    7: DType.F32,
    8: DType.F64,
    12: DType.BOOL,
    13: DType.BF16,
    28: DType.U16,
    34: DType.U32,
    35: DType.U64,
}


@dataclass(frozen=True)
class Placed:
    """A tensor of a model: element ``i, j, ..`` is that at ``offset + i * strides[0] + ..`` of what
    is stored under ``key``, taken as one row."""

    key: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Pt2:
    """What an archive says: its ``tensors``, as they lie, by key; and of the parameters, buffers
    and constants of the model, by name, which elements of these they are."""

    path: Path
    program: tuple[int, int]  # where the JSON of the program lies
    tensors: Mapping[str, Stored]
    weights: Mapping[str, Placed]
    constants: Mapping[str, Placed]


def is_pt2(path: Path) -> bool:
    """Whether a file starts as a zip does; what is no file is none."""
    return starts_with(path, MAGIC)


def read_pt2(path: Path) -> Pt2:
    """Of a file; one process reads it once, as long as it stays as it is. Raises E0350 when it is
    damaged, E0351 for what is not read, E0201."""
    return read_as_it_is(path, _read)


def read_program(archive: Pt2) -> Any:
    """The JSON of the program. Raises E0350."""
    with archive.path.open("rb") as f:
        try:
            return parsed(_bytes(f, *archive.program), "the program")
        except Damaged as e:
            raise malformed(str(e), str(archive.path)) from None


class Damaged(Exception):
    """What is wrong with an archive."""


def malformed(what: str, where: str) -> LumcError:
    """The archive is damaged, or none."""
    fix = "save it again: torch.export.save(program, 'model.pt2')"
    what = f"not an archive of torch.export, or a damaged one: {what}"
    return LumcError("E0350", what, where=where, fix=fix, exit=Exit.CORRUPT)


def parsed(data: bytes, what: str) -> Any:
    """A JSON text of strangers."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as e:
        raise Damaged(f"{what} is no JSON: {e}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


@lru_cache(maxsize=2)
def _read(path: Path, _: tuple[int, ...]) -> Pt2:
    if not S_ISREG(path.stat().st_mode):
        raise malformed("no regular file", str(path))
    with path.open("rb") as f:
        try:
            return _archive(f, path)
        except Damaged as e:
            raise malformed(str(e), str(path)) from None


def _archive(f: BinaryIO, path: Path) -> Pt2:
    entries = _entries(f, path.stat().st_size)
    heads = [n for n in entries if n.count("/") == 1 and n.endswith("/archive_format")]
    if not heads:
        raise _other(entries, path)
    if len(heads) > 1 or _text(f, entries, heads[0]) != b"pt2":
        raise Damaged("its archive_format is not pt2")
    root = heads[0].removesuffix("archive_format")
    if _text(f, entries, f"{root}byteorder", b"little") != b"little":
        raise Damaged("its tensors are not little-endian")
    said = [n for n in entries if n.startswith(f"{root}models/") and n.endswith(".json")]
    if len(said) != 1:
        raise Damaged(f"it has {len(said)} models; expected one")
    model = said[0].removeprefix(f"{root}models/").removesuffix(".json")
    place = _Payloads(f, entries, root, {})
    weights = place.read("weights", model, "")
    constants = place.read("constants", model, "constants/")
    return Pt2(path, entries[said[0]], place.tensors, weights, constants)


def _other(entries: Mapping[str, Any], path: Path) -> Exception:
    """The error of a zip that is not such an archive."""
    names = {n.rpartition("/")[2] for n in entries}
    if "serialized_exported_program.json" in names:
        what, fix = "an archive of torch 2.8 or older, whose weights are pickled", "torch 2.9"
    elif "data.pkl" in names:
        what, fix = "a pickled file of torch.save", "torch.export.export"
    else:
        return Damaged("it has no archive_format")
    fix = f"save the model with {fix}: torch.export.save(torch.export.export(model, args), FILE)"
    return LumcError(
        "E0351", f"{what}, is not read", where=str(path), fix=fix, exit=Exit.UNSUPPORTED
    )


# ---- tensors


@dataclass(frozen=True)
class _Payloads:
    """What the configs of an archive say about its raw tensors."""

    f: BinaryIO
    entries: Mapping[str, tuple[int, int]]
    root: str
    tensors: dict[str, Stored]  # made here

    def read(self, folder: str, model: str, prefix: str) -> dict[str, Placed]:
        """The tensors of ``data/FOLDER`` by their names in the model, without those that are
        pickled."""
        base = f"{self.root}data/{folder}/"
        text = _text(self.f, self.entries, f"{base}{model}_{folder}_config.json", b'{"config": {}}')
        config = field(parsed(text, f"the config of {folder}"), "config", dict)
        found = dict[str, Placed]()
        for name, meta in config.items():
            if field(meta, "use_pickle", bool) or meta.get("tensor_meta") is None:
                continue
            file = field(meta, "path_name", str)
            if f"{base}{file}" not in self.entries:
                raise Damaged(f"tensor '{name}' is in {file!r}, which the archive lacks")
            found[name] = self._placed(prefix + name, meta["tensor_meta"], f"{base}{file}")
        return found

    def _placed(self, key: str, meta: Any, file: str) -> Placed:
        shape, strides = numbers(meta, "sizes"), numbers(meta, "strides")
        (offset,) = numbers({"offset": [field(meta, "storage_offset", dict)]}, "offset")
        dtype, at = DTYPES.get(field(meta, "dtype", int)), self.entries[file]
        if len(shape) != len(strides) or len(shape) > MAX_RANK:
            raise Damaged(f"tensor '{key}' has {len(shape)} sizes and {len(strides)} strides")
        if field(meta, "layout", int) != STRIDED:
            raise Damaged(f"tensor '{key}' has a layout of number {meta['layout']}")
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        whole = dtype and 0 not in shape and (last + 1) * dtype.nbytes > at[1]
        if whole or math.prod(shape) >= 1 << 62:
            raise Damaged(f"tensor '{key}' {list(shape)} is not inside its {at[1]} bytes")
        real = sorted((i for i, n in enumerate(shape) if n != 1), key=lambda i: -strides[i])
        packed = tuple(shape[i] for i in real)
        size = dtype.nbytes if dtype else 1
        if tuple(strides[i] for i in real) == dense(packed) or 0 in shape:
            start = at[0] + (0 if 0 in shape else offset * size)
            end, placed = start + math.prod(packed) * size, Placed(key, shape, strides, 0)
        else:
            start, end = at[0], at[0] + at[1] // size * size
            packed, placed = (at[1] // size,), Placed(key, shape, strides, offset)
        layout = "" if dtype else f"dtype {meta['dtype']} of torch"
        self.tensors[key] = Stored(key, dtype, packed, start, end, layout)
        return placed


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a row-major tensor."""
    strides, step = list[int](), 1
    for n in reversed(shape):
        strides.insert(0, step)
        step *= n
    return tuple(strides)


def field(said: Any, name: str, kind: type) -> Any:
    """A field of a JSON object. Raises Damaged."""
    value = said.get(name) if isinstance(said, dict) else None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Damaged(f"'{name}' is {_brief(value)}, no {kind.__name__}")
    return value


def numbers(said: Any, name: str) -> tuple[int, ...]:
    """A list of whole numbers, none negative. Raises Damaged."""
    found = [field(n, "as_int", int) for n in field(said, name, list)]
    if any(not 0 <= n < 1 << 62 for n in found):
        raise Damaged(f"'{name}' is {_brief(found)}")
    return tuple(found)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}.."


# ---- the zip


def _text(
    f: BinaryIO, entries: Mapping[str, tuple[int, int]], name: str, default: bytes | None = None
) -> bytes:
    """The bytes of a small entry."""
    if name not in entries:
        if default is None:
            raise Damaged(f"it has no {name!r}")
        return default
    return _bytes(f, *entries[name])


def _bytes(f: BinaryIO, start: int, size: int) -> bytes:
    if size > MAX_JSON:
        raise Damaged(f"a text of {size} bytes")
    f.seek(start)
    data = f.read(size)
    if len(data) != size:
        raise Damaged("it became shorter")
    return data


def _entries(f: BinaryIO, size: int) -> dict[str, tuple[int, int]]:
    """Where the bytes of every entry lie: start and size, by name."""
    start, nbytes, count = _directory(f, size)
    if count > MAX_ENTRIES or nbytes > MAX_DIRECTORY or start + nbytes > size:
        raise Damaged(f"a directory of {count} entries in {nbytes} bytes at byte {start} of {size}")
    f.seek(start)
    data, at, found = f.read(nbytes), 0, dict[str, tuple[int, int]]()
    for _ in range(count):
        if len(data) < at + 46 or data[at : at + 4] != CENTRAL:
            raise Damaged("its directory is damaged")
        flags, method = struct.unpack_from("<HH", data, at + 8)
        crc, packed, full, n, m, k = struct.unpack_from("<IIIHHH", data, at + 16)
        (offset,) = struct.unpack_from("<I", data, at + 42)
        name, extra = data[at + 46 : at + 46 + n], data[at + 46 + n : at + 46 + n + m]
        full, packed, offset = _wide(extra, full, packed, offset)
        at += 46 + n + m + k
        try:
            title = name.decode()
        except UnicodeDecodeError:
            raise Damaged(f"an entry of the name {name[:60]!r}") from None
        if n > MAX_NAME or title in found:
            raise Damaged(f"entry {title[:60]!r} stands twice" if n <= MAX_NAME else "a long name")
        if method != STORED or flags & 1 or packed != full:
            raise Damaged(f"entry {title!r} is compressed or encrypted")
        found[title] = _checked(f, title, (offset, full, start), crc)
    for (a, b), (c, d) in pairwise(sorted((s, s + n) for s, n in found.values() if n)):
        if b > c:
            raise Damaged(f"entries at bytes {a} and {c} overlap, to {d}")
    return found


def _checked(f: BinaryIO, title: str, at: tuple[int, int, int], crc: int) -> tuple[int, int]:
    """Start and size of an entry whose own head says the same as the directory."""
    offset, size, end = at
    f.seek(offset)
    head = f.read(30)
    if len(head) != 30 or head[:4] != LOCAL:
        raise Damaged(f"entry {title!r} is not at byte {offset}")
    n, m = struct.unpack_from("<HH", head, 26)
    start = offset + 30 + n + m
    if f.read(n) != title.encode() or start + size > end:
        raise Damaged(f"entry {title!r} is not at byte {offset}, or leaves the file")
    if title.endswith(".json") and zlib.crc32(_bytes(f, start, size)) != crc:
        raise Damaged(f"entry {title!r} has another checksum")
    return start, size


def _wide(extra: bytes, *sizes: int) -> list[int]:
    """Sizes and an offset, of which those that do not fit 32 bits stand in a field of 64."""
    at, out = 0, list(sizes)
    while at + 4 <= len(extra):
        kind, n = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            body = extra[at + 4 : at + 4 + n]
            for i in (i for i, s in enumerate(sizes) if s == 0xFFFFFFFF):
                if len(body) < 8:
                    raise Damaged("its directory is damaged")
                out[i], body = struct.unpack_from("<Q", body)[0], body[8:]
        at += 4 + n
    return out


def _directory(f: BinaryIO, size: int) -> tuple[int, int, int]:
    """Where the directory starts, its bytes, and how many entries it has."""
    tail = min(size, 22 + 0xFFFF)
    f.seek(size - tail)
    data = f.read(tail)
    at = data.rfind(END)
    if at < 0 or len(data) < at + 22:
        raise Damaged("it is no zip, or cut off")
    count, nbytes, start = struct.unpack_from("<HII", data, at + 10)
    if at >= 20 and data[at - 20 : at - 16] == LOCATOR:
        (where,) = struct.unpack_from("<Q", data, at - 12)
        if where > size:
            raise Damaged("its directory is damaged")
        f.seek(where)
        wide = f.read(56)
        if len(wide) != 56 or wide[:4] != END64:
            raise Damaged("its directory is damaged")
        count, nbytes, start = struct.unpack_from("<QQQ", wide, 32)
    return start, nbytes, count
