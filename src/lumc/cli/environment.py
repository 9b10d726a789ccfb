"""What the environment says: where records and compiled objects are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(chosen: str | None) -> Path:
    """Where timing records are: as told, with the project, or with the user."""
    if chosen:
        return Path(chosen)
    return Path("kernels_cache") if Path("kernels_cache").is_dir() else user_folder()


def user_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "lumc"


def objects_folder() -> Path | None:
    """Where compiled objects are kept: with the user, in $LUMC_OBJECTS, or not if that is empty."""
    chosen = os.environ.get("LUMC_OBJECTS", str(user_folder() / "objects"))
    return Path(chosen) if chosen else None
