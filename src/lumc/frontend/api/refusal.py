"""Errors about the user's model, which say where in the user's code they arose."""

from __future__ import annotations

import sys
from pathlib import Path

from lumc.errors import Exit, LumcError

PACKAGE = str(Path(__file__).resolve().parents[2])


def refuse(code: str, what: str, *, where: str = "", fix: str = "") -> LumcError:
    """An error about the user's model (exit 4)."""
    return LumcError(code, what, where=where or caller(), fix=fix, exit=Exit.UNSUPPORTED)


def caller() -> str:
    """``file.py:line`` of the innermost frame outside lumc."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else ""
