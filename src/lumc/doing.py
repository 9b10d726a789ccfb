"""What takes time just now, for whoever waits: said where it is known, heard by the step around."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

HEARS = ContextVar[Callable[[str], None] | None]("hears", default=None)


def doing(what: str) -> None:
    """The step around is at this now."""
    if hears := HEARS.get():
        hears(what)
