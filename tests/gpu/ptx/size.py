"""How long a kernel's text takes a compiler, and the interpreter: lines are counted as often as
they are written, or executed.

NVRTC takes 0.1 s for a kernel of hundreds of lines, and 2 to 14 s for one of 25,000. So many become
of a text of 100 lines whose loops over registers are unrolled: random schedules may give a thread
hundreds of points. Of the first 84 of ``test_gpu_kernels`` four took half of all the time.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LOOP = re.compile(r"for \(int \w+ = ([^;,]+)[^;]*; \w+ < ([^;]+); \w+(?: \+= (\d+))?")


class Size(NamedTuple):
    """In lines of the text."""

    written: int  # when the loops that ask for it are unrolled
    executed: int  # by a thread that goes through all loops to their end


def size_of(text: str, other: int = 1) -> Size:
    """``other``: of a loop of which the text does not say how many values it goes through."""
    around, out = [Size(1, 1)], Size(0, 0)
    for line in text.splitlines():
        opens = line.count("{") - line.count("}")
        if line.lstrip().startswith("}"):
            around.pop()
            opens += 1
        written, executed = around[-1]
        out = Size(out.written + written, out.executed + executed)
        if opens > 0:
            m = LOOP.search(line)
            n = _steps(*m.groups()) if m else 1
            unrolled = n if "LUMC_UNROLL" in line else 1
            around.append(Size(written * (unrolled or 1), executed * (n or other)))
        elif opens < 0:
            around.pop()
    return out


def _steps(lo: str, end: str, by: str | None) -> int:
    """Of ``i = lo; i < end; i += by``; 0 where that is not known."""
    more = end.removeprefix(f"{lo} + ")
    n = int(more) if more.isdecimal() else 0
    n -= int(lo) if end == more and lo.isdecimal() else 0
    return max(0, -(-n // int(by or 1)))
