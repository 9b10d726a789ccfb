"""Runs a bundle on an NVIDIA GPU from Python, through pycuda or cuda-bindings.

``lumc-run`` of a bundle does the same without Python (link/runner/cuda.c); both read the plan file.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lumc.bundle import manifest, planfile
from lumc.bundle.packing import Array
from lumc.bundle.reader import Argument, Plan, PlanEntry, PlanLaunch
from lumc.bundle.unpack import opened
from lumc.codegen.gpu.grid import Grid
from lumc.disk.artifact import corrupt
from lumc.errors import LumcError
from lumc.graph.tensor import Tensor
from lumc.runtime.gpu import OnGpu, spread
from lumc.runtime.nvidia import ALIGN, Gpu, capability, missing
from lumc.runtime.opened import (
    NO_DIMS,
    Call,
    Say,
    first_of,
    plans_of,
    read_checked,
    usage,
    weights_of,
)

DIM = 8  # bytes of a dim
MOST_LAUNCHES = 1 << 14  # of a graph, as in runner/cuda_memory.c


def problem() -> LumcError | None:
    """Why nothing can run on a GPU here; None when it can."""
    try:
        capability()
    except LumcError as e:
        return e
    return None


class Bundle(OnGpu):
    """A bundle on the GPU: weights, states and the values between launches stay there; every entry
    is one graph. Use ``Bundle.open``."""

    device, most_runs = "cuda", 100_000

    def __init__(
        self,
        gpu: Gpu,
        path: Path,
        plan: Plan,
        image: tuple[bytes, str],
        weights: dict[int, Array],
        first: Mapping[str, Array],
    ) -> None:
        super().__init__(path, plan, ALIGN, first)
        self.gpu, self.closed = gpu, False
        self.features = tuple(plan.target.split("+")[1:])
        self._graphs: list[ctypes.c_void_p | None] = []
        with gpu.current():
            self._functions = self._load(gpu.module(*image))
            self._weights, self._weight_at = self._store(weights, "the weights")
            begun = {
                i: first.get(t.name, np.zeros(t.nbytes, np.uint8)).reshape(-1).view(np.uint8)
                for i, t in enumerate(plan.states)
            }
            self._states, self._state_at = self._store(begun, "the states")
            most = max(ends[-1] for ends in self._ends)
            self._memory = gpu.allocate(most, "the values between kernels")
            self._dims = gpu.allocate(DIM * len(plan.dims), "the dims")
            self._counts = [self._store_counts(e) for e in plan.entries]
            self._turn = 0  # which repetition is launched
            self._graphs = [self._capture(i) for i in range(len(plan.entries))]

    @staticmethod
    def open(path: str | Path, cache: Path | None = None) -> Bundle:
        """Check and load a bundle, a directory or one file, which is unpacked under ``cache`` or
        into a temporary folder.

        Raises E0706 (exit 7) without a GPU, E0708 (exit 7) for a bundle that has no plan for one,
        E0501 (exit 5) for anything damaged or changed.
        """
        with opened(path, cache) as folder:
            files = manifest.read(folder)["files"]
            plans = plans_of(folder, files, "cuda")
            here, gpu = capability(), Gpu()
            plan = max(plans, key=lambda p: _suits(p, here))
            attribute = gpu.drv.device_attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
            _check_shared(plan, gpu.device.get_attribute(attribute), here)
            name = image_of(files, plan.target, here)
            image = read_checked(folder, files, name), name
            read = weights_of(folder, files, plan), first_of(folder, files, plan)
            return Bundle(gpu, Path(path), plan, image, *read)

    def run(
        self,
        inputs: Mapping[str, Any],
        entry: str = "",
        threads: int = 1,
        say: Say = warnings.warn,
        dims: Mapping[str, int] = NO_DIMS,
    ) -> dict[str, Array]:
        """Run an entry on arrays by name; ``say`` hears of every conversion that was needed."""
        call = self._begin(inputs, entry, say, dims)
        with self.gpu.current():
            self._launch(call.number, 1)
            return self._outputs(call)

    def state(self) -> dict[str, Array]:
        """A copy of every state."""
        out = {t.name: np.empty(t.shape, t.dtype.numpy) for t in self.states}
        with self._open():
            for i, value in enumerate(out.values()):
                self.gpu.download(value, self._state_at[i])
        return out

    def _write_state(self, i: int, value: Array) -> None:
        with self._open():
            self.gpu.upload(self._state_at[i], value)

    def close(self) -> None:
        """Give the memory of the GPU back."""
        if self.closed:
            return
        self.closed = True
        with self.gpu.current():
            for graph in filter(None, self._graphs):
                self.gpu.library.cuGraphExecDestroy(graph)
            counts = filter(None, self._counts)
            for memory in (self._weights, self._states, self._memory, self._dims, *counts):
                memory.free()
            self._functions.clear()

    # ---- parts

    @contextmanager
    def _open(self) -> Iterator[None]:
        if self.closed:
            raise usage("the bundle is closed")
        with self.gpu.current():
            yield

    def _load(self, module: Any) -> list[tuple[Any, Grid]]:
        """The kernels in the order of the plan."""
        out = []
        for kernel in self.plan.kernels:
            if kernel.grid is None:
                raise corrupt(f"corrupt plan: kernel '{kernel.symbol}' has no grid", str(self.path))
            out.append((self.gpu.function(module, kernel.symbol, kernel.grid), kernel.grid))
        return out

    def _store(self, data: Mapping[int, Array], what: str) -> tuple[Any, dict[int, int]]:
        """An allocation with all of these in a row, and the address of each."""
        memory = self.gpu.allocate(sum(map(_room, (d.nbytes for d in data.values()))), what)
        at, addresses = int(memory), dict[int, int]()
        for key, value in data.items():
            addresses[key] = at
            self.gpu.upload(at, value)
            at += _room(value.nbytes)
        return memory, addresses

    def _address(self, entry: int, a: Argument) -> int:
        match a.place:
            case planfile.INPUT:
                return int(self._memory) + self._ends[entry][1 + a.index]
            case planfile.OUTPUT:
                first = 1 + len(self.plan.entries[entry].inputs)
                return int(self._memory) + self._ends[entry][first + a.index]
            case planfile.ARENA:
                return int(self._memory) + a.offset
            case planfile.WEIGHT:
                return self._weight_at[a.offset]
            case planfile.STATE:
                return self._state_at[a.index] + a.offset
            case planfile.DIM:
                counts = self._counts[entry]
                if counts and a.index == self.plan.counter(self.plan.entries[entry]):
                    return int(counts) + DIM * self._turn
                return int(self._dims) + DIM * a.index
        return 0  # a buffer that the kernel never touches

    def _enqueue(self, entry: int, launch: PlanLaunch) -> None:
        args = [a for a in launch.args if a.place != planfile.SCRATCH]
        addresses = [self._address(entry, a) for a in args]
        self.gpu.launch(*self._functions[launch.kernel], addresses)

    def _capture(self, entry: int) -> ctypes.c_void_p | None:
        every = self.plan.entries[entry]
        turns = len(self.plan.turns(every)) if self._counts[entry] else 1

        def enqueue() -> None:
            for self._turn in range(turns):
                self._enqueue_all(entry)

        return self.gpu.graph(enqueue) if every.launches else None

    def _enqueue_all(self, entry: int) -> None:
        for launch in self.plan.entries[entry].launches:
            self._enqueue(entry, launch)

    def _store_counts(self, entry: PlanEntry) -> Any:
        """The values of the counter of an entry whose repetitions are one graph; else None."""
        turns = self.plan.turns(entry)
        if self.plan.counter(entry) is None or len(turns) * len(entry.launches) > MOST_LAUNCHES:
            return None
        memory = self.gpu.allocate(DIM * len(turns), "a counter")
        self.gpu.upload(int(memory), np.array(turns, np.int64))
        return memory

    def _count(self, entry: int, turn: int) -> None:
        """The launches that follow are those of this repetition."""
        self._turn, every = turn, self.plan.entries[entry]
        counter = self.plan.counter(every)
        if counter is not None and not self._counts[entry]:
            value = np.array([self.plan.turns(every)[turn]], np.int64)
            self.gpu.upload(int(self._dims) + DIM * counter, value)

    def _give(self, at: int, t: Tensor, value: Array) -> None:
        if value.shape != t.shape:
            whole, part = spread(t, value.shape)
            part[...] = value
            value = whole
        self.gpu.upload(int(self._memory) + at, value)

    def _set_dims(self, values: Sequence[int]) -> None:
        self.gpu.upload(int(self._dims), np.array(values, np.int64))

    def _launch(self, entry: int, n: int) -> None:
        graph = self._graphs[entry]
        turns = 1 if self._counts[entry] else len(self.plan.turns(self.plan.entries[entry]))
        for _ in range(n if graph else 0):
            for turn in range(turns):
                assert graph
                self._count(entry, turn)
                self.gpu.launch_graph(graph)

    def _times(self, number: int) -> list[tuple[float, float]]:
        launches = self.plan.entries[number].launches
        *before, last = range(len(self.plan.turns(self.plan.entries[number])))
        for turn in before:
            self._count(number, turn)
            self._enqueue_all(number)
        self._count(number, last)
        events = [self.gpu.drv.Event() for _ in range(len(launches) + 1)]
        events[0].record(self.gpu.stream)
        for launch, event in zip(launches, events[1:], strict=True):
            self._enqueue(number, launch)
            event.record(self.gpu.stream)
        self.gpu.stream.synchronize()
        return list(pairwise(e.time_since(events[0]) * 1e3 for e in events))

    def _sample(self, number: int, runs: int) -> float:
        start, end = self.gpu.drv.Event(), self.gpu.drv.Event()
        start.record(self.gpu.stream)
        self._launch(number, runs)
        end.record(self.gpu.stream)
        end.synchronize()
        return float(end.time_since(start) * 1e3 / runs)

    def _outputs(self, call: Call) -> dict[str, Array]:
        self.gpu.stream.synchronize()
        out = dict[str, Array]()
        for most, now, at in self._outputs_at(call):
            whole = part = np.empty(now.shape, now.dtype.numpy)
            if most.shape != now.shape:
                whole, part = spread(most, now.shape)
            self.gpu.download(whole, int(self._memory) + at)
            out[now.name] = part if part is whole else part.copy()
        return out


def _room(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def _suits(plan: Plan, here: int) -> int:
    """The newest plan that was made for this GPU or an older one, else any."""
    arch = plan.arch.removeprefix("sm_")
    number = int(arch) if arch.isdecimal() else 0
    return number if number <= here else -number


def _check_shared(plan: Plan, most: int, here: int) -> None:
    """Raises E0706, exit 7, when a kernel needs more shared memory than the GPU has."""
    for kernel in plan.kernels:
        if kernel.grid and kernel.grid.shared_bytes > most:
            need = f"{kernel.grid.shared_bytes >> 10} KB of shared memory"
            what = f"kernel {kernel.symbol} needs {need}, this GPU (sm_{here}) has {most >> 10} KB"
            raise missing(what, f"link the model for cuda:sm_{here}")


def image_of(files: Mapping[str, str], target: str, here: int) -> str:
    """The image for a GPU: of its own architecture, an older one of the same generation, or text
    that the driver compiles."""
    for arch in range(here, here // 10 * 10 - 1, -1):
        if (name := f"kernels/{target}/kernels.sm_{arch}.cubin") in files:
            return name
    return f"kernels/{target}/kernels.ptx"
