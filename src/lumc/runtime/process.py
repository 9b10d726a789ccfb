"""A process that runs candidates, seen from outside: asked, timed out, killed."""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from multiprocessing import get_context, resource_tracker
from pathlib import Path
from typing import Any

from lumc.link.toolchain import RUNNER_FLAGS, Toolchain, compile_objects, link_objects
from lumc.runtime.worker import serve

CRASH, HANG, MEMORY = "crash", "hang", "memory"  # why there is no answer


@dataclass(frozen=True)
class Limits:
    """Of the worker process: seconds of one answer, bytes beyond what an empty one needs."""

    seconds: float = 20.0
    nbytes: int = 6 << 30


class Lost(Exception):
    """The worker did not answer; the reason is the argument."""


@contextmanager
def device_lock() -> Iterator[None]:
    """One timing at a time on this machine."""
    path = Path(tempfile.gettempdir()) / f"lumc-device-{os.getuid()}.lock"
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Processes that start here do not hear of Ctrl-C; this one hears of it afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Process:
    """A worker, and the kernels that it knows."""

    def __init__(self, timer: str, threads: int, limits: Limits) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, timer, threads, limits.nbytes)
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        resource_tracker.ensure_running()  # it would unblock signals on its way
        with undisturbed():
            self.process.start()
        theirs.close()
        self.known: list[str] = []

    def ask(self, question: tuple[Any, ...], seconds: float) -> Any:
        """The answer; raises Lost when there is none."""
        try:
            self.pipe.send(question)
            if not self.pipe.poll(seconds):
                raise Lost(f"{HANG}: no answer in {seconds:g} s")
            fine, answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(1)
            raise Lost(f"{CRASH}: exit code {self.process.exitcode}") from None
        if not fine:
            raise Lost(MEMORY if answer == "memory" else f"{CRASH}: {answer}")
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def build_timer(tools: Toolchain, folder: Path) -> str:
    """The shared object that runs and times: the pool of the bundle's runner, and timer.c."""
    runner = files("lumc.link") / "runner"
    sources = [runner / n for n in ("internal.h", "lumc.h", "pool.c")]
    for source in (*sources, files("lumc.runtime") / "timer.c"):
        (folder / source.name).write_bytes(source.read_bytes())
    objects = compile_objects(tools, folder, ["pool.c", "timer.c"], RUNNER_FLAGS, 2)
    link_objects(tools, folder, objects, "timer.so", ("-shared", "-pthread"))
    return str(folder / "timer.so")
