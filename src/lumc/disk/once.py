"""Files of others that are read once, as long as they stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from stat import S_ISREG
from typing import TypeVar

from lumc.errors import Exit, LumcError

T = TypeVar("T")


def starts_with(path: Path, magic: bytes) -> bool:
    """Whether a file does; what is no file is none."""
    try:
        if not S_ISREG(path.stat().st_mode):
            return False
        with path.open("rb") as f:
            return f.read(len(magic)) == magic
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return False


def read_as_it_is(path: Path, read: Callable[[Path, tuple[int, ...]], T]) -> T:
    """What ``read`` makes of a path and of what tells whether its file changed, which it may keep.
    Raises E0201 and what it raises."""
    try:
        s = path.stat()
        return read(path, (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns))
    except OSError as e:
        what = f"cannot read {path}: {e.strerror or e}"
        raise LumcError("E0201", what, exit=Exit.USAGE) from None
