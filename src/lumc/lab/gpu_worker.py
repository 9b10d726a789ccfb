"""The process that runs candidates on a GPU: one that faults takes only this process with it.

The buffers of a kernel lie in one allocation with marked bytes between; a candidate is run once on
fresh data and all of the allocation is compared before it is timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lumc.bundle.packing import Array, pack
from lumc.codegen.gpu.grid import Grid, TensorMap
from lumc.codegen.tile.packing import Packing
from lumc.kernel.codec import from_plain
from lumc.lab.worker import FENCE, MARK, OUTSIDE, Remembering, Subject, judge
from lumc.runtime.nvidia import Gpu, cache_bytes

FLUSH_BYTES = 64 << 20  # at least; twice the second cache otherwise
MOST_EVENTS = 64  # runs of one cold sample, each with events of its own


class GpuLoaded(NamedTuple):
    """Where a candidate is and how it is launched."""

    path: str  # of its image
    symbol: str
    grid: tuple[int, int, int]  # blocks, threads, shared bytes
    words: tuple[tuple[str, Mapping[str, Any]], ...] = ()  # packings of buffers that it so reads
    dims: tuple[int, ...] = ()  # that it is called with
    maps: tuple[TensorMap, ...] = ()


@dataclass
class GpuCandidate:
    function: Any
    module: Any  # the function lives in it
    grid: Grid
    device: DeviceData


@dataclass
class DeviceData:
    """The buffers of a subject on the GPU, and as they were before a run."""

    memory: Any
    start: int
    image: Array  # bytes: fences and inputs; results are 0xff
    places: dict[str, slice]  # of buffers, then of dims by their numbers
    cold: bool


class GpuWorker(Remembering[GpuCandidate]):
    """Candidates on the first GPU."""

    def __init__(self, rounding: float = 0.0) -> None:
        super().__init__(rounding)
        self.gpu = Gpu()
        self.devices: dict[tuple[str, int, int], DeviceData] = {}
        self.flush: Any = None

    def load(self, subject: Subject, made: GpuLoaded) -> GpuCandidate:
        grid = Grid(*made.grid, made.maps)
        with self.gpu.current():
            key = (
                subject.plan.key,
                subject.spread,
                subject.cold_bytes,
            )  # all that its data depend on
            if key not in self.devices:
                self._drop_others()
                self.devices[key] = self._place(subject, made)
            module = self.gpu.module(Path(made.path).read_bytes(), made.symbol)
            function = self.gpu.function(module, made.symbol, grid)
        return GpuCandidate(function, module, grid, self.devices[key])

    def _drop_others(self) -> None:
        """The memory of subjects that are not known any more, and of which no candidate waits."""
        held = [c.device for c in self.candidates.values()]
        for key, device in list(self.devices.items()):
            if key[0] not in self.subjects and not any(device is d for d in held):
                self.devices.pop(key).memory.free()

    def _place(self, subject: Subject, made: GpuLoaded) -> DeviceData:
        kernel, at, places = subject.plan.kernel, FENCE, dict[str, slice]()
        given = dict(subject.inputs)
        for name, packing in made.words:
            kind = kernel.buffer(name).dtype
            given[name] = pack(given[name], kind, from_plain(Packing, packing))
        given |= {str(i): np.array([value], np.int64) for i, value in enumerate(made.dims)}
        for name in [*(b.name for b in kernel.buffers), *map(str, range(len(made.dims)))]:
            nbytes = (given if name in given else subject.arrays)[name].nbytes
            places[name] = slice(at, at + nbytes)
            at += -(-nbytes // FENCE) * FENCE + FENCE
        image = np.full(at, MARK, np.uint8)
        for name, place in places.items():
            image[place] = _bytes(given[name]) if name in given else 0xFF
        memory = self.gpu.allocate(at, f"kernel {kernel.name}")
        return DeviceData(memory, int(memory), image, places, bool(subject.cold_bytes))

    def problem(self, subject: Subject, candidate: GpuCandidate) -> str:
        """Run once and compare: with numpy at some points, with the first right one at all."""
        device, kernel = candidate.device, subject.plan.kernel
        got = np.empty_like(device.image)
        with self.gpu.current():
            self.gpu.upload(device.start, device.image)
            self._launch(candidate)
            self.gpu.download(got, device.start)
        for name in kernel.stored:
            place = device.places[name]
            _bytes(subject.arrays[name])[...] = got[place]
            got[place] = device.image[place]
        if not np.array_equal(got, device.image):
            return OUTSIDE
        return judge(subject)

    def _launch(self, c: GpuCandidate) -> None:
        at = [c.device.start + place.start for place in c.device.places.values()]
        self.gpu.launch(c.function, c.grid, at)

    def sample(self, number: int, inner: int, n: int, slices: int = 1) -> list[float]:
        """Microseconds of one run, n times. What is cold in the whole program is so here: the
        caches are filled with something else before every run. GPUs are not sliced."""
        candidate = self.candidates[number]
        time = self._cold if candidate.device.cold else self._hot
        with self.gpu.current():
            return [time(candidate, inner) for _ in range(n)]

    def _hot(self, c: GpuCandidate, inner: int) -> float:
        start, end = self.gpu.drv.Event(), self.gpu.drv.Event()
        start.record(self.gpu.stream)
        for _ in range(inner):
            self._launch(c)
        end.record(self.gpu.stream)
        end.synchronize()
        return float(end.time_since(start) * 1e3 / inner)

    def _cold(self, c: GpuCandidate, inner: int) -> float:
        count = min(inner, MOST_EVENTS)
        events = [(self.gpu.drv.Event(), self.gpu.drv.Event()) for _ in range(count)]
        for start, end in events:
            self._flush()
            start.record(self.gpu.stream)
            self._launch(c)
            end.record(self.gpu.stream)
        events[-1][1].synchronize()
        return float(sum(end.time_since(start) for start, end in events) * 1e3 / count)

    def _flush(self) -> None:
        if self.flush is None:
            half = max(FLUSH_BYTES, 2 * cache_bytes())
            self.flush = self.gpu.allocate(2 * half, "clearing the caches"), half
        memory, half = self.flush
        self.gpu.drv.memcpy_dtod_async(int(memory) + half, int(memory), half, self.gpu.stream)


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
