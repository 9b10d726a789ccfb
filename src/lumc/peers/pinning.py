"""Where the threads of a process run."""

from __future__ import annotations

import os

NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def pin(threads: int) -> None:
    """Keep this process on as many CPUs as it has threads, before a library counts them."""
    os.environ |= dict.fromkeys(NAMES, str(threads))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
