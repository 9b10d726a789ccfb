"""What a pass may take, so that a hostile file costs a message and not the machine."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from lumc.errors import LumcError
from lumc.process import resident

MOST_NODES = 30_000  # e-nodes of a region
MOST_THREADS = 1024
MOST_SEQUENCES = 1024  # texts whose keys and values one model keeps
ENOUGH = 0.95  # of the roofline: no more is searched for
# Operations per element: what takes more is stored, not made in several regions. The first where
# nothing is said, later ones where memory is short; above 640 little changes (HEAVY of the search).
LEVELS = tuple(4 << i for i in range(9))
AGAIN = LEVELS[0]
LOOK_S = 0.2  # of the processor, between two looks at what was taken, at most


class Limits(NamedTuple):
    """Of one pass: seconds of the processor, without those of compilers and of workers, which have
    limits of their own; and memory, by default all that the machine has."""

    seconds: float = 600.0
    nbytes: int = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


LIMITS = ContextVar[Limits]("limits")


class _Exceeded(BaseException):
    """No error: who looks for failed candidates on the way must not take it for one."""


@contextmanager
def limited(what: str, extra_s: float = 0.0) -> Iterator[None]:
    """A block within the limits, and so many seconds more. Raises E0206 when it exceeds them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    limits = LIMITS.get(Limits())
    seconds, start_s = limits.seconds + extra_s, time.process_time()
    look_s = min(LOOK_S, seconds)

    def look(*_: object) -> None:
        if time.process_time() - start_s > seconds:
            raise _Exceeded(f"takes more than {seconds:g} s of the processor", "--max-seconds")
        if resident() > limits.nbytes:
            gigabytes = f"{limits.nbytes / (1 << 30):.3g} GB"
            raise _Exceeded(f"needs more than {gigabytes} of memory", "--max-gb")

    before = signal.signal(signal.SIGPROF, look)
    try:
        signal.setitimer(signal.ITIMER_PROF, look_s, look_s)
        yield
    except _Exceeded as e:
        raise exceeded(what, *e.args) from None
    except MemoryError:
        raise exceeded(what, "needs more memory than there is", "--max-gb") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)  # forgets what no thread has heard yet
        signal.signal(signal.SIGPROF, before)


def exceeded(what: str, said: str, option: str) -> LumcError:
    return LumcError("E0206", f"{what} {said}", fix=f"lumc {option} N, if it is worth that")
