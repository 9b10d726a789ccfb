"""A worker of the search that serves every test of a process: one starts in a third of a second,
and most tests search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lumc.process import Process
from lumc.search import worker

_idle = list["Kept"]()


class Kept(Process):
    """It is kept where it would be killed, unless a question has no answer yet."""

    asked = False

    def ask(self, question: tuple[Any, ...], seconds: float) -> Any:
        self.asked = True
        answer = super().ask(question, seconds)
        self.asked = False
        return answer

    def kill(self) -> None:
        if self.asked or self.process.poll() is not None:
            super().kill()
        else:
            _idle.append(self)


def another(serve: Callable[..., None]) -> Process:
    """One that waits, if it still runs, else a new one."""
    while _idle:
        found = _idle.pop()
        if found.process.poll() is None:
            return found
        found.kill()
    return Kept(serve)


def keep_workers() -> None:
    """From now on, in this process."""
    worker.Process = another  # type: ignore[misc, assignment]
