"""What the environment says: where compiled objects, locks and records of the user are kept."""

from __future__ import annotations

import os
from pathlib import Path

NO_HOME = Path("/nonexistent")  # of a user that the system does not know, without $HOME


def told(name: str) -> str | None:
    """The value of a variable that stands for an option that is not given: CC, NVCC, LUMC_CACHE."""
    return os.environ.get(name) or None


def user_folder() -> Path:
    """Where lumc keeps what is the user's and no project's: where the system keeps caches, or in
    $XDG_CACHE_HOME."""
    from platformdirs import user_cache_path

    try:
        return user_cache_path("lumc", appauthor=False)
    except RuntimeError:
        return NO_HOME / ".cache" / "lumc"


def home() -> Path:
    """The folder of the user."""
    try:
        return Path.home()
    except RuntimeError:
        return NO_HOME


def lock_folders() -> list[Path]:
    """Where a lock may lie that all processes of the user find: the first that can be used."""
    session = os.environ.get("XDG_RUNTIME_DIR")
    return [user_folder(), *([Path(session) / "lumc"] if session else [])]


def objects_folder() -> Path | None:
    """Where compiled objects are kept: with the user, in $LUMC_OBJECTS, or not if that is empty."""
    chosen = os.environ.get("LUMC_OBJECTS", str(user_folder() / "objects"))
    return Path(chosen) if chosen else None
