"""Runs the launches of a bundle for a CPU one at a time, on memory to look at in between.

What no launch wrote, and what lies beyond the lengths of a run, is NaN.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lumc.bundle.packing import Array, pack
from lumc.codegen.code import Code, EntryPlan, Launch, Value
from lumc.codegen.tile.memory import PAGE, aligned
from lumc.kernel.instance import whole_of
from lumc.runtime.cpu import by_descriptor

LINE = 64  # bytes: where values start


class Steps:
    """One entry. ``given`` has its inputs, weights, states and dims by name; inputs may be smaller
    than the memory that launches read them in."""

    def __init__(
        self, kernels: Path, code: Code, entry: EntryPlan, given: Mapping[str, Array], threads: int
    ) -> None:
        self.library = by_descriptor(str(kernels))
        self.kernels = {k.symbol: k for k in code.kernels}
        self.entry, self.threads = entry, threads
        self.states: dict[str, Array] = {}
        self.ends: dict[str, Array] = {}
        self._arena = spoilt(memory((entry.arena_bytes,), np.dtype(np.uint8)))
        self.states = {
            s.name: self._placed(Value(s.name, s.dtype, s.sizes, "state"), code, given)
            for s in code.graph.states
        }
        ends = (*entry.place("input"), *entry.place("output"))
        self.ends = {v.name: self._placed(v, code, given) for v in ends}
        known = self.states | self.ends
        rest = {v.name: self._placed(v, code, given) for v in entry.values if v.name not in known}
        self.values = known | rest
        scratch = max((k.scratch_bytes for k in code.kernels), default=0)
        self._scratch = memory((-(-scratch // PAGE) * PAGE * threads,), np.dtype(np.uint8))

    def _placed(self, v: Value, code: Code, given: Mapping[str, Array]) -> Array:
        if v.place == "arena":
            part = self._arena[v.offset : v.offset + v.nbytes]
            return part.view(v.dtype.numpy).reshape(v.shape)
        if v.place == "state" and whole_of(v.name) in self.states:
            whole = self.states[whole_of(v.name)].reshape(-1).view(np.uint8)
            return whole[v.start : v.start + v.nbytes].view(v.dtype.numpy).reshape(v.shape)
        if v.place in ("input", "output") and whole_of(v.name) in self.ends:
            whole = self.ends[whole_of(v.name)].reshape(-1).view(np.uint8)
            return whole[v.start : v.start + v.nbytes].view(v.dtype.numpy).reshape(v.shape)
        array = memory(v.shape, v.dtype.numpy)
        if v.place == "packed":
            packing = code.packings[v.name]
            dtype = next(w.dtype for w in code.graph.weights if w.name == packing.weight)
            array[...] = pack(given[packing.weight], dtype, packing)
        elif v.place == "output":
            spoilt(array)
        else:
            there = given[v.name]
            spoilt(array)[tuple(map(slice, np.shape(there)))] = there
        return array

    def run(self) -> Iterator[tuple[Launch, bool]]:
        """Every launch twice: before it ran, and after."""
        for launch in self.entry.launches:
            yield launch, False
            self._launch(launch)
            yield launch, True

    def _launch(self, launch: Launch) -> None:
        kernel = self.kernels[launch.kernel]
        places = [self.values[a].ctypes.data if a else 0 for a in launch.args]
        args = (ctypes.c_void_p * (len(places) + 1))(*places, self._scratch.ctypes.data)
        parts = 1 if not kernel.parallel else self.threads
        parts = min(parts, kernel.parallel) if kernel.parallel > 1 else parts
        for part in range(parts):
            self.library[kernel.symbol](args, ctypes.c_long(part), ctypes.c_long(parts))


def memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Zeros that start at a cache line."""
    n = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.zeros(aligned(n) + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + n].view(dtype).reshape(shape)


def spoilt(array: Array) -> Array:
    """The same memory, all bits one."""
    array.reshape(-1).view(np.uint8)[...] = 0xFF
    return array
