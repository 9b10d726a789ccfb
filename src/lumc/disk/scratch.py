"""Temporary files and folders, which their process holds a lock on: the next one that makes any in
the same place removes those of processes that were killed.

A lock says nothing of the processes of another machine, on a disk that both use. So names hold a
mark of this one since it started, and others are left alone.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from lumc.errors import LumcError

# a full disk; the share of a user, or the size that a file may have
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MORE = "make room there, or name another place: TMPDIR=FOLDER"
LOST = 100  # times that a file is swept before it is locked; /proc takes none at all
BOOT = Path("/proc/sys/kernel/random/boot_id")
OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@cache
def prefix() -> str:
    """What the names of all temporaries start with."""
    try:
        said = BOOT.read_text()
    except OSError:
        said = platform.node()
    return f".lumc-{hashlib.sha256(said.encode()).hexdigest()[:8]}-"


@contextmanager
def scratch(where: Path | None = None) -> Iterator[Path]:
    """A folder for the block: in this one, or else among the temporary files of the system. Raises
    OSError; E0202 when these cannot be written."""
    try:
        name, handle = _locked(where or Path(tempfile.gettempdir()), _folder)
    except OSError as e:
        if where:
            raise
        raise LumcError("E0202", f"no temporary folder can be made: {e.strerror}") from None
    try:
        yield Path(name)
    except OSError as e:
        if where or e.errno not in FULL:
            raise
        what = f"cannot write temporary files in {Path(name).parent}: {e.strerror}"
        raise LumcError("E0202", what, fix=MORE) from None
    finally:
        shutil.rmtree(name, ignore_errors=True)
        os.close(handle)


def temporary(where: Path) -> tuple[str, int]:
    """The name of a new file in a folder, and its handle: as long as that is open, the file stays.
    Raises OSError."""
    return _locked(where, _file)


def _folder(where: Path) -> tuple[str, int]:
    name = tempfile.mkdtemp(prefix=prefix(), dir=where)
    return name, os.open(name, OPEN)


def _file(where: Path) -> tuple[str, int]:
    handle, name = tempfile.mkstemp(prefix=prefix(), dir=where)
    return name, handle


def _locked(where: Path, make: Callable[[Path], tuple[str, int]]) -> tuple[str, int]:
    """What ``make`` makes in a swept folder."""
    sweep(where)
    lost = 0
    while True:
        try:
            name, handle = make(where)
        except FileNotFoundError:  # swept between making and opening it, or it cannot be made there
            lost += 1
            if lost < LOST and where.is_dir():
                continue
            raise
        with suppress(OSError):  # a file system without locks: nobody sweeps there
            fcntl.flock(handle, fcntl.LOCK_EX)
        if Path(name).exists():  # else it was swept before it was locked
            return name, handle
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove the temporaries of this user in a folder whose processes are dead."""
    with suppress(OSError), os.scandir(folder) as found:
        for name in [entry.path for entry in found if entry.name.startswith(prefix())]:
            with suppress(OSError):
                _remove_dead(name)


def _remove_dead(name: str) -> None:
    handle = os.open(name, OPEN)
    try:
        if os.fstat(handle).st_uid == os.geteuid():
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if Path(name).is_dir():
                shutil.rmtree(name, ignore_errors=True)
            else:
                Path(name).unlink()
    finally:
        os.close(handle)
