"""Compiled objects, kept for the next time: the same source, headers, flags and compiler give the
same bytes, so they need not be made again.

A file is named by what it was made from and by what it holds, ``MADE-HOLDS.o``; one that does not
hold what its name says is not used. Objects are native code, so they are kept with the user only,
never in the folder of a project that may come from somebody else, and used only if nobody else
could have put them there.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from lumc.disk import private
from lumc.disk.artifact import atomic
from lumc.errors import LumcError

DIGITS = 32  # of each sha256
UNUSED_S = 30 * 24 * 3600.0


def name_of(folder: Path, source: str, compiler: Sequence[str]) -> str:
    """What an object is made from: the source, every header beside it, and the compiler."""
    parts = [repr(tuple(compiler)).encode(), source.encode()]
    parts += [p.read_bytes() for p in (folder / source, *sorted(folder.glob("*.h")))]
    return hashlib.sha256(b"".join(hashlib.sha256(p).digest() for p in parts)).hexdigest()[:DIGITS]


def fetch(kept: Path, name: str) -> bytes | None:
    """The object, if it is there, whole, and the user's."""
    for path in sorted(kept.glob(f"{name}-*.o")) if is_own(kept) else ():
        with suppress(OSError):
            data = private.read_own(path)
            if data is not None and is_whole(path, data):
                os.utime(path)
                return data
    return None


def keep(kept: Path, name: str, data: bytes) -> None:
    """Keep an object, in a folder that can be written, and by this user only."""
    if not private.ensure(kept):
        with suppress(LumcError), atomic(kept / f"{name}-{_sha(data)}.o") as f:
            f.write(data)


def is_own(kept: Path) -> bool:
    """Whether a folder is there and this user's alone; says once why it is not."""
    try:
        flaw = private.flaw(kept)
    except OSError:  # it is not there yet
        return False
    if flaw:
        private.warn_once(f"compiled objects are neither used nor kept: {flaw}")
    return not flaw


def is_whole(path: Path, data: bytes) -> bool:
    return path.stem.partition("-")[2] == _sha(data)


def every(kept: Path) -> Iterator[Path]:
    yield from sorted(kept.glob("*-*.o"))


def prune(kept: Path) -> tuple[int, int]:
    """Drop what is damaged or was not used for a month; how many were dropped, and are left."""
    dropped = left = 0
    for path in every(kept):
        if is_whole(path, path.read_bytes()) and time.time() - path.stat().st_mtime < UNUSED_S:
            left += 1
        else:
            path.unlink(missing_ok=True)
            dropped += 1
    return dropped, left


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]
