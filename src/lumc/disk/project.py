"""Where timing records are: as told, with the project, or with the user."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from lumc.disk import private
from lumc.environment import home, user_folder
from lumc.errors import Exit, LumcError

NAME = "kernels_cache"


def cache_folder(chosen: str | None) -> Path:
    """The folder of the records: the chosen one, that of the project, or that of the user.
    Raises E0203 for a file."""
    if chosen and Path(chosen).exists() and not Path(chosen).is_dir():
        what, fix = (
            f"records lie in a folder, and {chosen} is none",
            "--cache FOLDER, or $LUMC_CACHE",
        )
        raise LumcError("E0203", what, fix=fix, exit=Exit.USAGE)
    return Path(chosen) if chosen else project_folder() or user_folder()


def project_folder() -> Path | None:
    """``kernels_cache`` of the current folder, or of the nearest one above it that has one. Above,
    it must be this user's; the home of the user and what lies above that are not looked at."""
    if Path(NAME).is_dir():
        return Path(NAME)
    for up, folder in enumerate(_above(), 1):
        if (folder / NAME).is_dir():
            if not (why := _foreign(folder / NAME)):
                return Path(*[".."] * up, NAME)
            private.warn_once(
                f"{why}: its records are not used (--cache {folder / NAME} uses them)"
            )
    return None


def looked(folder: Path) -> str:
    """A folder of records in words that say why it is this one."""
    if folder != user_folder():
        return str(folder)
    return f"{folder}, as there is no {NAME}/ of this user in the current folder or above it"


def _above() -> Iterator[Path]:
    try:
        here, top = Path.cwd(), home().resolve()
    except OSError:  # the folder was removed
        return
    for folder in () if here == top else here.parents:
        if folder == top:
            return
        yield folder


def _foreign(folder: Path) -> str:
    """Who else could have put a folder there, or nothing. A group may share a project."""
    for found in (folder.lstat(), folder.stat()):
        if found.st_uid != os.geteuid():
            return f"{folder} belongs to another user ({found.st_uid})"
    return f"others can write {folder}" if found.st_mode & stat.S_IWOTH else ""
