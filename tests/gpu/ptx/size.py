"""How long a kernel's text takes a compiler, and the interpreter: lines are counted as often as they
are written, or executed.

NVRTC takes 0.05 s for a kernel of hundreds of lines, 2 s for one of 20,000, and more than 12 s for
some of 60,000: so many become of a text of 100 lines whose loops over registers are unrolled, as
random schedules do who give a thread hundreds of points.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LOOP = re.compile(r"for \(int \w+ = (\d+); \w+ < (\d+); \w+(?:\+\+| \+= (\d+))\)")


class Size(NamedTuple):
    """In lines of the text."""

    written: int  # when the loops that ask for it are unrolled
    executed: int  # by a thread that goes through all loops to their end


def size_of(text: str) -> Size:
    """Loops whose ends are no numbers count once."""
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
            n = -(-(int(m[2]) - int(m[1])) // int(m[3] or 1)) if m else 1
            unrolled = n if "LUMC_UNROLL" in line else 1
            around.append(Size(written * unrolled, executed * n))
        elif opens < 0:
            around.pop()
    return out
