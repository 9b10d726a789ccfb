"""What all processes of a run of the tests share: one of them compiles it, the others wait."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

SHARED = "LUMC_TESTS_SHARED"  # the folder of this run, made and removed by ``conftest``


@cache
def _own() -> tempfile.TemporaryDirectory[str]:
    """Where there is none; removed at exit."""
    return tempfile.TemporaryDirectory(prefix="lumc-shared-")


def folder_of(name: str, make: Callable[[Path], object]) -> Path:
    """The folder of this name, which ``make`` fills if no process has."""
    folder = Path(os.environ.get(SHARED) or _own().name, name)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            make(folder)
            (folder / "made").touch()
    return folder
