"""The memory that candidates are timed in is like that of bundles."""

import re
from pathlib import Path

import numpy as np
import pytest

from lumc.runtime.worker import Memory


def test_candidates_run_on_huge_pages() -> None:
    """Linux gives them to private memory only: shared memory, mmap's default, takes small ones."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this system has no huge pages")
    memory = Memory()
    place = memory.array((1 << 20,), np.float32).ctypes.data
    entries = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    (own,) = (e for e in entries if e and _holds(e, place))
    assert "hg" in re.search(r"VmFlags:(.*)", own)[1].split()  # what madvise asked for
    assert re.search(r"THPeligible: +1", own), own


def _holds(entry: str, place: int) -> bool:
    start, end = (int(n, 16) for n in entry.split()[0].split("-"))
    return start <= place < end
