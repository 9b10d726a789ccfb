"""What a command says while it works, and how it ends early: messages, Ctrl-C, crashes."""

from __future__ import annotations

import errno
import hashlib
import shlex
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lumc.disk import artifact, private
from lumc.disk.scratch import FULL
from lumc.doing import HEARS
from lumc.environment import user_folder
from lumc.errors import LumcError, printable
from lumc.limits import limited
from lumc.process import STOPS, is_terminated, note_sigterm, terminate
from lumc.voice import VOICE

if TYPE_CHECKING:
    from lumc.report.trace import Trace

REFUSED = (*FULL, errno.EIO)  # of a file that is open already
CRASHES = 8  # reports that are kept
EVERY_S = 10.0  # between two lines that say that a step goes on


class Log:
    """Messages of a command; ``level`` is the number of -v."""

    def __init__(self, level: int = 0, trace: Trace | None = None) -> None:
        self.level, self.trace = level, trace
        self.voice = VOICE.get()  # threads that it starts have none of their own
        self.target = ""  # that is compiled for, where there are several
        self.live = False  # whether a bar shows how far it is
        self.says = seconds_of("")  # how far a step is, after so many seconds

    def __call__(self, level: int, message: str) -> None:
        if self.level >= level:
            self.voice.say(level, message)

    @contextmanager
    def step(self, name: str, extra_s: float = 0.0) -> Iterator[None]:
        """Time a step, said with -v, keep it within its limits and so many seconds more, and say
        now and then that it goes on."""
        start, span = time.perf_counter(), self.trace.span(name, "pass") if self.trace else None
        with limited(name, extra_s), span or nullcontext(), self._ticking(name):
            yield
        self(1, f"{name:<8} {time.perf_counter() - start:6.2f} s")

    @contextmanager
    def _ticking(self, name: str) -> Iterator[None]:
        start, done = time.monotonic(), threading.Event()

        def tick() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # they are the main thread's
            while not done.wait(EVERY_S):
                if not self.live:
                    self(0, f"{self.named(name)}: {self.says(time.monotonic() - start)}")

        def hear(what: str) -> None:
            self.says = seconds_of(what)

        self.says = seconds_of("")
        thread, token = threading.Thread(target=tick, daemon=True), HEARS.set(hear)
        thread.start()
        try:
            yield
        finally:
            HEARS.reset(token)
            done.set()
            thread.join()

    def named(self, what: str) -> str:
        """What a line begins with."""
        return f"{what} {self.target}".rstrip()


def seconds_of(what: str) -> Callable[[float], str]:
    """How far something is of which only this is known."""
    return lambda seconds: f"{seconds:.0f} s" + (f", {what}" if what else "")


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
    """The first Ctrl-C or SIGTERM only sets a flag, one more Ctrl-C interrupts. (SIGTERM may come
    twice: ``timeout`` sends it to a process, and to its group.) A program that imports lumc keeps
    its SIGTERM: only the command line knows how to end with it."""
    pressed: list[int] = []

    def press(number: int, _: object) -> None:
        pressed.append(number)
        if number == signal.SIGTERM:
            note_sigterm()
        elif len(pressed) > 1:
            raise KeyboardInterrupt
        if len(pressed) == 1:
            log(0, "stopping: the best plan so far will be written (one more Ctrl-C: abort)")

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    ours = [n for n in STOPS if n == signal.SIGINT or signal.getsignal(n) is terminate]
    before = [(number, signal.signal(number, press)) for number in ours]
    try:
        yield lambda: bool(pressed) or is_terminated()  # of a target before, perhaps
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def unexpected(error: Exception, command: list[str]) -> LumcError | str:
    """What to say of an exception that nothing else took: a line if the file system refused
    something, else that there is a report about an internal error."""
    if isinstance(error, OSError) and error.filename is not None:
        fix = "look at its owner and permissions" if isinstance(error, PermissionError) else ""
        return LumcError("E0202", f"cannot use {error.filename}: {error.strerror}", fix=fix)
    if isinstance(error, OSError) and error.errno in REFUSED:
        return LumcError("E0202", f"cannot read or write: {error.strerror}")
    return crash_report(error, command)


def crash_report(error: Exception, command: list[str]) -> str:
    """Write a report about an internal error, which is a script that runs the command again, where
    lumc keeps what is the user's or among the temporary files; and say so."""
    from lumc import __version__

    trace = "".join(traceback.format_exception(error))
    head = f"lumc {__version__} · python {sys.version.split()[0]} · {sys.platform}\n{trace}"
    again = shlex.join([sys.executable, "-m", "lumc", *command[1:]])
    comment = "".join(f"# {line}\n" for line in printable(head).splitlines())
    text = f"{comment}cd {shlex.quote(str(Path.cwd()))} && {again}\n"
    name = f"lumc-crash-{hashlib.sha256(text.encode()).hexdigest()[:8]}.sh"
    said = f"internal error: {type(error).__name__}: {error}"
    ours = user_folder() / "crashes"
    for folder in (ours, Path(tempfile.gettempdir())):
        try:
            private.make(folder)
            artifact.write_text(str(folder / name), text)
            drop_oldest(ours)
        except (OSError, LumcError):
            continue
        return (
            f"{said}\n  report: {folder / name} (please send it: the command and the traceback)\n"
            f"  again:  sh {shlex.quote(str(folder / name))}"
        )
    return f"{said}\n{text}"


def drop_oldest(folder: Path) -> None:
    """Of the crash reports in the user's folder; another process may do the same."""
    with suppress(OSError):
        reports = sorted(folder.glob("lumc-crash-*.sh"), key=lambda p: p.stat().st_mtime)
        for old in reports[:-CRASHES]:
            old.unlink(missing_ok=True)
