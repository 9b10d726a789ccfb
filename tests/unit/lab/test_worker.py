"""The memory that candidates are timed in is like that of bundles."""

import re
from pathlib import Path

import numpy as np
import pytest

from lumc.lab.worker import Memory


@pytest.mark.parametrize("huge", [True, False])
def test_weights_are_on_huge_pages_and_what_callers_own_is_not(huge: bool) -> None:
    """Linux gives them to private memory only: shared memory, mmap's default, takes small ones."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[madvise]" not in setting.read_text():
        pytest.skip("this system has no huge pages, or gives them to everybody")
    memory = Memory(huge)
    place = memory.array((1 << 20,), np.float32).ctypes.data
    entries = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    (own,) = (e for e in entries if e and _holds(e, place))
    assert ("hg" in re.search(r"VmFlags:(.*)", own)[1].split()) == huge  # what madvise asked for
    assert bool(re.search(r"THPeligible: +1", own)) == huge, own


def _holds(entry: str, place: int) -> bool:
    start, end = (int(n, 16) for n in entry.split()[0].split("-"))
    return start <= place < end
