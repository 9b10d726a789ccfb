"""What all processes of a run of the tests share: one of them compiles it, the others wait."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from lumc.disk.objects import name_of
from lumc.link import toolchain

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


def compile_once() -> None:
    """From now on, in this process: what is kept is compiled by one of those that want it now, such
    as the runner by the first test of each worker."""
    compile_file = toolchain.compile_file

    def one(
        command: Sequence[str],
        folder: Path,
        source: str,
        output: str,
        made_by: Sequence[str],
        kept: Path | None,
        *seconds: float,
    ) -> None:
        if not kept:
            return compile_file(command, folder, source, output, made_by, kept, *seconds)
        place = folder_of("locks", lambda _: None) / name_of(folder, source, made_by)
        with place.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return compile_file(command, folder, source, output, made_by, kept, *seconds)

    toolchain.compile_file = one
