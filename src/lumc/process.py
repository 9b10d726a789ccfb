"""A process that answers questions and can be killed: nothing else stops a call that never ends."""

from __future__ import annotations

import atexit
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SERVE = "import sys; sys.path[:] = {}; from lumc.process import serve_at; serve_at({})"

CRASH, HANG = "crash", "hang"  # why there is no answer
GONE = (EOFError, ConnectionError)  # who asks has ended
STOPS = (signal.SIGINT, signal.SIGTERM)  # of the user: Ctrl-C, and what ends a job
SELDOM = 20_000  # objects more than there were, until a collection; a request makes some hundred
AGAIN_S = 0.02  # until a stop that was lost comes again: a finalizer has ended by then


class Lost(Exception):
    """The process did not answer; the argument starts with the reason."""


def resident() -> int:
    """Bytes of memory that this process holds; its peak where the system tells no more. (Linux
    knows more, and must be asked: there a new program begins with the peak of the one before.)"""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak << 10


@contextmanager
def undisturbed() -> Iterator[None]:
    """Processes that start here hear of no Ctrl-C and no SIGTERM; this one hears of them later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_noted: list[int] = []  # of SIGTERM


def note_sigterm() -> None:
    """The exit code will say that somebody ended this process."""
    _noted.append(signal.SIGTERM)


def is_terminated() -> bool:
    return bool(_noted)


class Terminated(BaseException):
    """SIGTERM. (A KeyboardInterrupt that passes an ``exec`` of a text, as in dataclasses, ends
    Python by SIGINT, whoever takes it afterwards.)"""


def terminate(*_: object) -> None:
    """Handles SIGTERM as Ctrl-C, once: what is cleared away on its account is not disturbed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note_sigterm()
    raise Terminated


def hear_again(lost: sys.UnraisableHookArgs) -> None:
    """Of an exception that no caller can hear: the interpreter was in the middle of a finalizer, or
    in the callback of a weak reference. A stop of the user comes again when that is over."""
    again = {Terminated: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}.get(lost.exc_type)
    if again is None:
        sys.__unraisablehook__(lost)
        return
    if again == signal.SIGTERM:
        signal.signal(again, terminate)
    timer = threading.Timer(AGAIN_S, os.kill, (os.getpid(), again))
    timer.daemon = True
    timer.start()


class Process:
    """The side that asks; ``serve`` runs on the other one, with a pipe and these arguments.

    It is a Python of its own that knows nothing of the program here: multiprocessing would run a
    script without a guard, or the cells of a notebook, once more.
    """

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        from multiprocessing import Pipe

        self.pipe, theirs = Pipe()
        what = SERVE.format(sys.path, theirs.fileno())
        how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "pass_fds": [theirs.fileno()]}
        with theirs, undisturbed():  # -P: it starts with nothing of the current folder
            self.process = subprocess.Popen([sys.executable, "-P", "-c", what], **how)
            _running.add(self)
        with suppress(OSError):  # it ended already: whoever asks hears of it
            self.pipe.send((serve, arguments))

    def ask(self, question: tuple[Any, ...], seconds: float) -> Any:
        """The answer; raises Lost when there is none."""
        try:
            self.pipe.send(question)
            if not self.pipe.poll(seconds):
                raise hung(seconds)
            return self.pipe.recv()
        except (EOFError, OSError):
            raise self.crashed() from None

    def crashed(self) -> Lost:
        """Why there is no answer, of a process that ends just now."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        return Lost(f"{CRASH}: exit code {self.process.returncode}")

    def kill(self) -> None:
        _running.discard(self)
        self.process.kill()
        self.process.wait()
        self.pipe.close()


def hung(seconds: float) -> Lost:
    """Why there is no answer, of a process that goes on."""
    return Lost(f"{HANG}: no answer in {seconds:g} s")


_running: set[Process] = set()


@atexit.register
def _end() -> None:
    """Nobody is left who could ask them."""
    for process in list(_running):
        process.kill()


def settle() -> None:
    """What is in memory stays there: from now on, collections of garbage are seldom, and look at
    what was made since. For a process that has opened what it answers with."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(SELDOM)


def serve_at(descriptor: int) -> None:
    """The other side's start: hears what it is to serve."""
    from multiprocessing.connection import Connection

    pipe = Connection(descriptor)
    try:
        serve, arguments = pipe.recv()
    except GONE:
        return
    serve(pipe, *arguments)


def answers(pipe: Connection, answer: Callable[..., Any]) -> None:
    """The side that is asked: questions are arguments of ``answer``, until the pipe closes."""
    while True:
        try:
            question = pipe.recv()
        except GONE:
            return
        said = answer(*question)
        with suppress(ConnectionError):
            pipe.send(said)
