"""Modules with a line changed, to see that tests notice."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

import pytest


def replace(module: ModuleType, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the source of a module of lumc, for all modules that have something of it."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, old
    changed: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(source.replace(old, new), module.__name__, "exec"), changed)  # noqa: S102
    rooms = [m for name, m in sys.modules.items() if name.startswith("lumc.")]
    for name, value in changed.items():
        if getattr(value, "__module__", "") != module.__name__ or isinstance(value, type):
            continue
        before = getattr(module, name, None)
        for room in rooms:
            if before is not None and vars(room).get(name) is before:
                monkeypatch.setattr(room, name, value)
    for name, cls in changed.items():  # classes stay the same: their methods change
        if isinstance(cls, type) and cls.__module__ == module.__name__:
            for key, method in vars(cls).items():
                if inspect.isfunction(method) and not key.startswith("__"):
                    monkeypatch.setattr(getattr(module, name), key, method)
