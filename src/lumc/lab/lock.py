"""One timing at a time on this machine: a lock with the user's cache, which says who holds it.

Waiting for it is no search: whoever counts the time leaves it out.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lumc.disk import private
from lumc.environment import lock_folders

SAY_S = 0.5  # of waiting, before it is said for whom
AGAIN_S = 10.0  # and again
LOOK_S = 0.02  # between two looks
TURN_S = 60.0  # that a holder which runs may take at least: it will let go; a guess
SAID = 200  # bytes of who holds it


class Busy(Exception):
    """Another process keeps the device, for longer than this one waits."""


class DeviceLock:
    """The lock as one search sees it: it waits ``patience_s`` at most each time, and knows how long
    it has waited so far."""

    def __init__(self, patience_s: float = TURN_S) -> None:
        self.patience_s, self.waited_s = patience_s, 0.0
        self.stopped: Callable[[], bool] = lambda: False  # whether the user wants no more
        self._told = set[str]()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else times anything in this block. Raises Busy."""
        handle = _open()
        try:
            if handle is not None:
                self._take(handle)
                said = f"{os.getpid()} {shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])}"
                os.ftruncate(handle, 0)
                os.pwrite(handle, said.encode()[:SAID], 0)
            yield
        finally:
            if handle is not None:
                os.close(handle)

    def _take(self, handle: int) -> None:
        start, due = time.monotonic(), SAY_S
        try:
            while not _taken(handle):
                holder, waited = _holder(handle), time.monotonic() - start
                if self.stopped():
                    raise Busy
                if waited >= self._patience(holder):
                    _say(f"{_named(holder)} did not let go in {waited:.1f} s: the search ends")
                    raise Busy
                if waited >= due:
                    due += AGAIN_S
                    if waited >= AGAIN_S or holder not in self._told:
                        self._told.add(holder)
                        _say(f"waiting for {_named(holder)}: one search at a time is timed")
                time.sleep(LOOK_S)
        finally:
            self.waited_s += time.monotonic() - start

    def _patience(self, holder: str) -> float:
        """Who is stopped (Ctrl-Z) does not let go; who runs may need a turn."""
        return self.patience_s if _is_stopped(holder) else max(self.patience_s, TURN_S)


def _open() -> int | None:
    """The lock's file, in the user's cache, else in the folder of the session; without either
    nobody is kept away. A home may be one for several machines: each has a lock of its own."""
    whys = []
    for place in lock_folders():
        if why := private.ensure(place):
            whys.append(why)
            continue
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(place / f"device-{platform.node()}.lock", flags, 0o600)
        except OSError as e:
            whys.append(f"cannot use {place}: {e.strerror}")
    said = "; ".join(whys)
    private.warn_once(f"other searches may time at the same moments: no lock: {said}")
    return None


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(handle: int) -> str:
    """Its process and its command, as it wrote them."""
    return os.pread(handle, SAID, 0).decode(errors="replace")


def _named(holder: str) -> str:
    pid, _, command = holder.partition(" ")
    stopped = "; it is stopped" if _is_stopped(holder) else ""
    return f"process {pid} ({command}{stopped})" if pid else "another process"


def _is_stopped(holder: str) -> bool:
    pid = holder.partition(" ")[0]
    try:
        text = Path(f"/proc/{int(pid)}/stat").read_text()
    except (OSError, ValueError):  # it ended, or this system does not say
        return False
    return text.rpartition(")")[2].split()[:1] in (["T"], ["t"])


def _say(what: str) -> None:
    print(f"profile: {what}", file=sys.stderr, flush=True)
