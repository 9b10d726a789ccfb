"""Launches of kernels of PTX text on numpy arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np

from gpu.ptx import arithmetic, bulk, collective, convert, transfer, warpgroup
from gpu.ptx.machine import Machine, Special, narrowest
from gpu.ptx.memory import Again, Array, Fault, Global, Report
from gpu.ptx.text import Entry
from lumc.codegen.gpu.grid import TensorMap

INSTRUCTIONS = (arithmetic, convert, transfer, bulk, collective, warpgroup)  # which fill BUILDERS
TOGETHER = 1 << 13  # lanes of a batch of blocks


def launch(
    entry: Entry,
    grid: int,
    threads: int,
    shared_bytes: int,
    arrays: Sequence[Array],
    counts: Counter[str] | None = None,
    together: int = TOGETHER,
    maps: Sequence[TensorMap] = (),
) -> str:
    """Run a kernel on arrays, which it reads and writes in place: what it did wrong, or nothing.

    ``counts`` gets how many instructions of each opcode the threads executed. Raises PtxError for
    what the interpreter does not know.
    """
    if threads > entry.threads:
        return f"{threads} threads a block, {entry.name} is compiled for {entry.threads}"
    if (len(arrays), len(maps)) != (len(entry.arrays), len(entry.maps)):
        return f"{entry.name} takes {len(entry.arrays)} arrays and {len(entry.maps)} maps"
    if grid % entry.together:
        return f"{grid} blocks, {entry.name} launches {entry.together} together"
    both = set[int]()
    while True:
        try:
            given = Given(arrays, tuple(maps), both)
            said, executed = _launch(entry, grid, threads, shared_bytes, given, together)
        except Again as e:
            both.add(e.number)
            continue
        if counts is not None:
            counts.update(executed)
        return said


class Given(NamedTuple):
    """What a kernel is called with. ``both``: arrays of which it is kept who reads them."""

    arrays: Sequence[Array]
    maps: tuple[TensorMap, ...]
    both: Set[int]


def _launch(
    entry: Entry, grid: int, threads: int, shared_bytes: int, given: Given, together: int
) -> tuple[str, Counter[str]]:
    """A run. Raises Again, before any array is changed."""
    report, counts = Report(), Counter[str]()
    constants = {n: v.data for n, v in entry.variables.items() if v.space in ("global", "const")}
    memory = Global(given.arrays, constants, narrowest(entry, "global"), report, given.both)
    memory.maps = given.maps
    each = max(1, together // threads // entry.together) * entry.together
    with np.errstate(all="ignore"):
        try:
            for first in range(0, grid, each):
                where = Special(first, min(each, grid - first), grid, threads)
                machine = Machine(entry, where, shared_bytes, memory, report)
                machine.run()
                machine.close()
                for i, n in zip(entry.code, machine.executed, strict=True):
                    counts[i.opcode] += n
        except Fault as e:
            report.add("fault", str(e))
    memory.finish()
    return str(report), counts
