"""What a command says while it works, and how it ends early: messages, Ctrl-C, crashes."""

from __future__ import annotations

import errno
import hashlib
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from lumc.disk import artifact
from lumc.disk.scratch import FULL
from lumc.errors import LumcError
from lumc.limits import limited

if TYPE_CHECKING:
    from lumc.report.trace import Trace

REFUSED = (*FULL, errno.EIO)  # of a file that is open already


class Log:
    """Messages of a command on stderr; ``level`` is the number of -v."""

    def __init__(self, level: int = 0, trace: Trace | None = None) -> None:
        self.level, self.trace = level, trace

    def __call__(self, level: int, message: str) -> None:
        if self.level >= level:
            print(message, file=sys.stderr, flush=True)

    @contextmanager
    def step(self, name: str, extra_s: float = 0.0) -> Iterator[None]:
        """Time a step, said with -v, and keep it within its limits and so many seconds more."""
        start = time.perf_counter()
        with limited(name, extra_s), self.trace.span(name, "pass") if self.trace else nullcontext():
            yield
        self(1, f"{name:<8} {time.perf_counter() - start:6.2f} s")


@contextmanager
def traced(command: str, level: int, file: str | None) -> Iterator[Log]:
    """A log; what took how long is written to ``file``, also when the command fails."""
    if not file:
        yield Log(level)
        return
    from lumc.report.trace import Trace

    trace = Trace(f"lumc {command}")
    try:
        yield Log(level, trace)
    finally:
        trace.write(file)


@contextmanager
def interruptible(log: Log) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C only sets a flag, the second one interrupts."""
    pressed: list[int] = []

    def press(number: int, _: object) -> None:
        pressed.append(number)
        if len(pressed) > 1:
            raise KeyboardInterrupt
        log(0, "stopping: the best plan so far will be written (again: abort)")

    try:
        before = signal.signal(signal.SIGINT, press)
    except ValueError:  # not the main thread
        yield lambda: False
        return
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def unexpected(error: Exception, command: list[str]) -> str:
    """What to say of an exception that nothing else took: a line if the file system refused
    something, else that there is a report about an internal error."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"E0202 cannot use {error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.errno in REFUSED:
        return f"E0202 cannot read or write: {error.strerror}"
    return crash_report(error, command)


def crash_report(error: Exception, command: list[str]) -> str:
    """Write a report about an internal error beside the user's files, and say so."""
    from lumc import __version__

    trace = "".join(traceback.format_exception(error))
    head = f"lumc {__version__} · python {sys.version.split()[0]} · {sys.platform}"
    text = f"{head}\n$ {' '.join(command)}\n\n{trace}"
    name = f"lumc-crash-{hashlib.sha256(trace.encode()).hexdigest()[:8]}.txt"
    said = f"internal error: {type(error).__name__}: {error}"
    try:
        artifact.write_text(name, text)
    except LumcError:
        return f"{said}\n{text}"
    return f"{said}\n  report: {name} (please send it; it holds the command and the traceback)"
