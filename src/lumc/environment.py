"""What the environment says: where records, compiled objects and locks are kept."""

from __future__ import annotations

import os
from pathlib import Path


def told(name: str) -> str | None:
    """The value of a variable that stands for an option that is not given: CC, NVCC, LUMC_CACHE."""
    return os.environ.get(name) or None


def cache_folder(chosen: str | None) -> Path:
    """Where timing records are: as told, with the project, or with the user."""
    if chosen:
        return Path(chosen)
    return Path("kernels_cache") if Path("kernels_cache").is_dir() else user_folder()


def user_folder() -> Path:
    """Where lumc keeps what is the user's and no project's."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else _home() / ".cache") / "lumc"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user that the system does not know, without $HOME
        return Path("/nonexistent")


def lock_folders() -> list[Path]:
    """Where a lock may lie that all processes of the user find: the first that can be used."""
    session = os.environ.get("XDG_RUNTIME_DIR")
    return [user_folder(), *([Path(session) / "lumc"] if session else [])]


def objects_folder() -> Path | None:
    """Where compiled objects are kept: with the user, in $LUMC_OBJECTS, or not if that is empty."""
    chosen = os.environ.get("LUMC_OBJECTS", str(user_folder() / "objects"))
    return Path(chosen) if chosen else None
