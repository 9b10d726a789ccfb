"""How fast memory is read: the limit of what is generated, as every token reads all weights."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lumc.peers.pinning import pin
from lumc.process import answers

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

NBYTES, TIMES = 1 << 28, 7  # more than caches hold


def serve(pipe: Connection, threads: int) -> None:
    """The process that measures. The library under numpy, whose dot product it is, is not loaded
    before it knows how many threads there are."""
    pin(threads)
    answers(pipe, read_speed)


def read_speed() -> float:
    """In GB/s."""
    import numpy as np

    a, b = (np.ones(NBYTES // 8, np.float32) for _ in "ab")
    best = 0.0
    for _ in range(TIMES):
        start = time.perf_counter()
        a @ b
        best = max(best, NBYTES / (time.perf_counter() - start) / 1e9)
    return best
