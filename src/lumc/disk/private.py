"""Folders that are this user's alone: what lumc runs again, or locks, is kept there."""

from __future__ import annotations

import os
import stat
import warnings
from functools import cache
from pathlib import Path

OTHERS = stat.S_IWGRP | stat.S_IWOTH


@cache
def warn_once(what: str) -> None:
    warnings.warn(what, stacklevel=2)


def make(folder: Path) -> None:
    """Make a folder that only this user can enter, and every parent that is missing. Raises
    OSError."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    for p in reversed(missing):
        p.mkdir(mode=0o700, exist_ok=True)


def ensure(folder: Path) -> str:
    """Make a private folder unless it is there; what keeps it from being one, or nothing."""
    try:
        make(folder)
        return flaw(folder)
    except OSError as e:
        return f"cannot use {folder}: {e.strerror}"


def flaw(folder: Path) -> str:
    """Who else can change what lies in a folder, or nothing. Parents count when anybody may put
    another folder in its place. Raises OSError."""
    whole = folder.resolve(strict=True)
    found = whole.stat()
    if found.st_uid != os.geteuid():
        return f"{folder} belongs to another user ({found.st_uid})"
    if found.st_mode & OTHERS:
        return f"others can write {folder} (to mend it: chmod go-w {folder})"
    for parent in whole.parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"others can write {parent}, where {folder} lies"
    return ""


def read_own(path: Path) -> bytes | None:
    """The bytes of a file, if it is one, this user's, and only this user can write it. Raises
    OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as f:
        found = os.fstat(handle)
        own = found.st_uid == os.geteuid() and not found.st_mode & OTHERS
        return f.read() if own and stat.S_ISREG(found.st_mode) else None
