"""Searches in tests: one process serves them all, and what a region was found to be equal to in one
test is known in the others.

A process starts in a third of a second, and most tests search; many search the same few graphs. A
test that searches twice is answered twice, so that it sees whether the answers differ."""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lumc.process import Process
from lumc.search import worker
from once import folder_of

ASK = Process.ask
_idle = list["Kept"]()
_asked = set[tuple[str, str]]()  # by which test, what


class Kept(Process):
    """It is kept where it would be killed, unless a question has no answer yet."""

    asked = False

    def ask(self, question: tuple[Any, ...], seconds: float) -> Any:
        known = _place(question) if Process.ask is ASK else None  # a test may exchange it
        if known and known.exists():
            return pickle.loads(known.read_bytes())  # noqa: S301  from ourselves
        self.asked = True
        answer = super().ask(question, seconds)
        self.asked = False
        if known and not isinstance(answer, Exception) and not answer[-1].stop.is_accident:
            _keep(known, answer)
        return answer

    def kill(self) -> None:
        if self.asked or self.process.poll() is not None:
            super().kill()
        else:
            _idle.append(self)


def _place(question: tuple[Any, ...]) -> Path | None:
    """Where the answer is kept; None where this test has heard it already."""
    name = hashlib.sha256(pickle.dumps(question)).hexdigest()
    asked = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0], name
    if asked in _asked:
        return None
    _asked.add(asked)
    return folder_of("answers", lambda folder: None) / name


def _keep(known: Path, answer: Any) -> None:
    """Whole or not at all: another process may read it."""
    with tempfile.NamedTemporaryFile(dir=known.parent, delete=False) as file:
        file.write(pickle.dumps(answer))
    Path(file.name).rename(known)


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
