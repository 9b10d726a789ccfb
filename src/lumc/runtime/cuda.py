"""Runs a bundle on an NVIDIA GPU from Python, through pycuda.

``lumc-run`` of a bundle does the same without Python (link/runner/cuda.c); both read the plan file.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lumc.artifact import corrupt
from lumc.codegen.plan import Grid
from lumc.errors import LumcError
from lumc.link import manifest, planfile
from lumc.link.packing import Array
from lumc.runtime.bundle import (
    Opened,
    Part,
    Say,
    check_inputs,
    entries_of,
    plans_of,
    read_checked,
    specs_of,
    usage,
    weights_of,
)
from lumc.runtime.nvidia import ALIGN, Gpu, capability, missing
from lumc.runtime.planfile import Argument, Plan, PlanEntry, PlanLaunch
from lumc.runtime.unpack import opened

SAMPLE_US = 100.0
MAX_SAMPLES = 100_000


def problem() -> LumcError | None:
    """Why nothing can run on a GPU here; None when it can."""
    try:
        capability()
    except LumcError as e:
        return e
    return None


class Bundle(Opened):
    """A bundle on the GPU: weights, states and the values between launches stay there; every entry
    is one graph. Use ``Bundle.open``."""

    device = "cuda"

    def __init__(
        self, gpu: Gpu, path: Path, plan: Plan, image: tuple[bytes, str], weights: dict[int, Array]
    ) -> None:
        super().__init__(path, entries_of(plan), specs_of(plan.states))
        self.gpu, self.plan, self.closed = gpu, plan, False
        self._graphs: list[ctypes.c_void_p | None] = []
        with gpu.current():
            self._functions = self._load(gpu.module(*image))
            self._weights, self._weight_at = self._store(weights, "the weights")
            zeros = {i: np.zeros(t.nbytes, np.uint8) for i, t in enumerate(plan.states)}
            self._states, self._state_at = self._store(zeros, "the states")
            places = [_places(e) for e in plan.entries]
            self._memory = gpu.allocate(max(p[-1] for p in places), "the values between kernels")
            self._ends = [[int(self._memory) + at for at in p] for p in places]
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
            return Bundle(gpu, Path(path), plan, image, weights_of(folder, files, plan))

    def run(
        self,
        inputs: Mapping[str, Any],
        entry: str = "",
        threads: int = 1,
        say: Say = warnings.warn,
    ) -> dict[str, Array]:
        """Run an entry on arrays by name; ``say`` hears of every conversion that was needed."""
        number = self._begin(inputs, entry, say)
        with self.gpu.current():
            self._launch(number, 1)
            return self._outputs(number)

    def trace(
        self,
        inputs: Mapping[str, Any],
        entry: str = "",
        threads: int = 1,
        say: Say = warnings.warn,
    ) -> tuple[dict[str, Array], list[Part]]:
        """The outputs of a run, and how long every launch of another one took; states are put
        back between. Launches are apart then, so the gaps are longer than in the graph."""
        before = self.state()
        outputs = self.run(inputs, entry, threads, say)
        self.set_state(before)
        number = self._begin(inputs, entry, lambda _: None)
        launches = self.plan.entries[number].launches
        with self.gpu.current():
            events = [self.gpu.drv.Event() for _ in range(len(launches) + 1)]
            events[0].record(self.gpu.stream)
            for launch, event in zip(launches, events[1:], strict=True):
                self._enqueue(number, launch)
                event.record(self.gpu.stream)
            self.gpu.stream.synchronize()
            at = [e.time_since(events[0]) * 1e3 for e in events]
        names = [self.plan.kernels[launch.kernel].symbol for launch in launches]
        parts = [Part(n, i, 0, at[i], at[i + 1] - at[i]) for i, n in enumerate(names)]
        return outputs, parts

    def bench(
        self,
        inputs: Mapping[str, Any],
        entry: str = "",
        threads: int = 1,
        seconds: float = 1.0,
        say: Say = warnings.warn,
    ) -> list[float]:
        """Microseconds of one run, in samples of about 100 us timed by the GPU; inputs and outputs
        stay there, states are put back."""
        before, samples = self.state(), list[float]()
        number = self._begin(inputs, entry, say)
        with self.gpu.current():
            once = min(self._time(number, 1), self._time(number, 1))
            inner = max(1, min(100_000, round(SAMPLE_US / max(once, 1e-3))))
            spent = 0.0
            while len(samples) < 3 or (spent < seconds * 1e6 and len(samples) < MAX_SAMPLES):
                samples.append(self._time(number, inner))
                spent += samples[-1] * inner
        self.set_state(before)
        return samples

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
            for memory in (self._weights, self._states, self._memory):
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
                return self._ends[entry][1 + a.index]
            case planfile.OUTPUT:
                return self._ends[entry][1 + len(self.plan.entries[entry].inputs) + a.index]
            case planfile.ARENA:
                return self._ends[entry][0] + a.offset
            case planfile.WEIGHT:
                return self._weight_at[a.offset]
            case planfile.STATE:
                return self._state_at[a.index]
        return 0  # a buffer that the kernel never touches

    def _enqueue(self, entry: int, launch: PlanLaunch) -> None:
        args = [a for a in launch.args if a.place != planfile.SCRATCH]
        addresses = [self._address(entry, a) for a in args]
        self.gpu.launch(*self._functions[launch.kernel], addresses)

    def _capture(self, entry: int) -> ctypes.c_void_p | None:
        launches = self.plan.entries[entry].launches

        def enqueue() -> None:
            for launch in launches:
                self._enqueue(entry, launch)

        return self.gpu.graph(enqueue) if launches else None

    def _begin(self, inputs: Mapping[str, Any], entry: str, say: Say) -> int:
        """The inputs to the GPU; the number of the entry."""
        spec = self.entry(entry)
        arrays = check_inputs(inputs, spec, say)
        with self._open():
            for at, array in zip(self._ends[spec.number][1:], arrays, strict=False):
                self.gpu.upload(at, array)
        return spec.number

    def _launch(self, entry: int, n: int) -> None:
        graph = self._graphs[entry]
        for _ in range(n if graph else 0):
            assert graph
            self.gpu.launch_graph(graph)

    def _time(self, entry: int, n: int) -> float:
        """Microseconds of one of n runs."""
        start, end = self.gpu.drv.Event(), self.gpu.drv.Event()
        start.record(self.gpu.stream)
        self._launch(entry, n)
        end.record(self.gpu.stream)
        end.synchronize()
        return float(end.time_since(start) * 1e3 / n)

    def _outputs(self, entry: int) -> dict[str, Array]:
        self.gpu.stream.synchronize()
        spec = self.plan.entries[entry]
        out = {t.name: np.empty(t.shape, t.dtype.numpy) for t in spec.outputs}
        for at, value in zip(self._ends[entry][1 + len(spec.inputs) :], out.values(), strict=False):
            self.gpu.download(value, at)
        return out


def _room(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def _places(entry: PlanEntry) -> list[int]:
    """Where the arena, every input and every output begin, and where all ends."""
    at, out = 0, [0]
    for nbytes in (entry.arena_bytes, *(t.nbytes for t in (*entry.inputs, *entry.outputs))):
        at += _room(nbytes)
        out.append(at)
    return out


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
