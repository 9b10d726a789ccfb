"""Limits of what a test may take of the processor."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limited(seconds: float, failure: type[Exception]) -> Iterator[None]:
    """Raises ``failure`` after so many seconds of the processor, in the process itself: others
    may be busy. It is another timer than that of ``lumc.limits``, which may run inside."""

    def over(*_: object) -> None:
        raise failure

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
