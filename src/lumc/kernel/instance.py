"""Who calls kernels: the occurrences of regions in a graph, and what they call their values.

Names of values are the names of graph nodes, or of parts of them: ``t8 1024..2048`` are these
elements of ``t8``. Inside a region ``b0, b1, ..`` are its inputs in order of first use and ``out``
its result, or ``out0, out1, ..`` if it has several.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

Outputs = Mapping[str, tuple[tuple[str, str], ...]]  # entry -> (output name, value name)
PLACE = 64  # bytes: where values begin, and parts of them
PART = re.compile(r"(.+) (\d{1,18})\.\.(\d{1,18})")


def part_of(name: str, start: int, stop: int) -> str:
    """What these elements of a value are called, in the order of memory."""
    return f"{name} {start}..{stop}"


def whole_of(name: str) -> str:
    """The value that this is, or is a part of."""
    return found[1] if (found := PART.fullmatch(name)) else name


def elements_of(name: str) -> range | None:
    """Which elements a part is; None for a value."""
    return range(int(found[2]), int(found[3])) if (found := PART.fullmatch(name)) else None


def results(count: int) -> tuple[str, ...]:
    """What a region calls its results."""
    return ("out",) if count == 1 else tuple(f"out{n}" for n in range(count))


@dataclass(frozen=True)
class Instance:
    """One occurrence of a region in an entry, in execution order."""

    entry: str
    region: str  # key
    inputs: tuple[str, ...]  # names of graph values, or of parts: b0, b1, ..
    outputs: tuple[str, ...]  # names of the graph values (or the state) that it writes

    @property
    def names(self) -> dict[str, str]:
        """The names of graph values by those that the region has for them."""
        read = {f"b{n}": name for n, name in enumerate(self.inputs)}
        return read | dict(zip(results(len(self.outputs)), self.outputs, strict=True))
