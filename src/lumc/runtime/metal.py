"""Runs a bundle on the GPU of a Mac from Python, with nothing but what macOS has.

``lumc-run-macos-arm64`` of a bundle does the same without Python (link/runner/metal.c); both read
the plan file. CPU and GPU share the memory: kernels read the weights where the file is mapped.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lumc.bundle import manifest, planfile
from lumc.bundle.packing import Array
from lumc.bundle.reader import Argument, Plan, PlanKernel, PlanLaunch
from lumc.bundle.unpack import opened
from lumc.disk.artifact import corrupt
from lumc.errors import LumcError
from lumc.graph.ops import DType
from lumc.graph.tensor import Tensor
from lumc.runtime.gpu import OnGpu, inside
from lumc.runtime.objc import (
    Metal,
    Place,
    Step,
    compile_text,
    execute,
    metal,
    pipeline,
    unavailable,
)
from lumc.runtime.opened import NO_DIMS, Say, first_of, plans_of, read_checked, usage

WEIGHTS = "weights.safetensors"
ALIGN = 256
MOST_LAUNCHES = 1 << 14  # of a command buffer, as in runner/metal.c
PAGE = 16384  # of Apple's processors
OLDEST = 7  # M1: the first family with simdgroup matrices


class Bundle(OnGpu):
    """A bundle on the GPU: a run is one command buffer with one encoder. Use ``Bundle.open``."""

    device, most_runs = "metal", 64

    def __init__(
        self,
        gpu: Metal,
        path: Path,
        plan: Plan,
        source: tuple[str, str],
        weights: mmap.mmap,
        first: Mapping[str, Array],
    ) -> None:
        super().__init__(path, plan, ALIGN, first)
        self.gpu = gpu
        self._objects: list[int] = []
        self._close = weakref.finalize(self, _release, gpu, self._objects, weights)
        with gpu.pool():
            self._queue = self._keep(gpu.send(gpu.device, "newCommandQueue"), "a command queue")
            library = self._keep(compile_text(gpu, *source), "a library")
            self._pipelines = [self._pipeline(library, k) for k in plan.kernels]
            self._weights = self._wrap(weights)
            self._states = [self._allocate(t.nbytes, "a state") for t in plan.states]
            for state, t in zip(self._states, plan.states, strict=True):
                self._view(state, 0, t)[...] = first.get(t.name, 0)
            most = max((ends[-1] for ends in self._ends), default=0)
            self._memory = self._allocate(most, "the values between kernels")
            self._dims = self._allocate(ALIGN * len(plan.dims), "the dims")
            self._steps = [
                [self._step(i, launch) for launch in e.launches] for i, e in enumerate(plan.entries)
            ]

    @staticmethod
    def open(path: str | Path, cache: Path | None = None, library: str = "") -> Bundle:
        """Check and load a bundle, a directory or one file, which is unpacked under ``cache`` or
        into a temporary folder. ``library`` stands for Apple's libraries.

        Raises E0706 (exit 7) without a GPU that can run it, E0708 (exit 7) for a bundle that has
        no plan for one, E0501 (exit 5) for anything damaged or changed.
        """
        with opened(path, cache) as folder:
            files = manifest.read(folder)["files"]
            plans = plans_of(folder, files, "metal")
            gpu = metal(library)
            plan = choose(plans, gpu.gpu().family)
            name = f"kernels/{plan.target}/kernels.metal"
            text = read_checked(folder, files, name).decode()
            read = map_weights(folder, files, plan), first_of(folder, files, plan)
            return Bundle(gpu, Path(path), plan, (text, name), *read)

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
        with self._open():
            self._execute(call.number)
        found = self._outputs_at(call)
        views = ((self._view(self._memory, at, most), now) for most, now, at in found)
        return {now.name: inside(view, now.shape).copy() for view, now in views}

    def state(self) -> dict[str, Array]:
        """A copy of every state."""
        with self._open():
            pairs = zip(self._states, self.plan.states, strict=True)
            return {t.name: self._view(state, 0, t).copy() for state, t in pairs}

    def _write_state(self, i: int, value: Array) -> None:
        with self._open():
            self._view(self._states[i], 0, self.plan.states[i])[...] = value

    def close(self) -> None:
        """Give the memory back."""
        self._close()

    # ---- making the parts

    def _keep(self, made: int | None, what: str) -> int:
        """An object that ``close`` releases."""
        if not made:
            raise LumcError("E0611", f"Metal gives no {what}", where=str(self.path))
        self._objects.append(made)
        return made

    def _allocate(self, nbytes: int, what: str) -> int:
        """A buffer that CPU and GPU share (options 0)."""
        size = nbytes + ALIGN
        made = self.gpu.send(self.gpu.device, "newBufferWithLength:options:", size, 0)
        return self._keep(made, f"{nbytes / 1e6:.1f} MB for {what}")

    def _wrap(self, mapped: mmap.mmap) -> int:
        """The buffer of the mapped weights, in whole pages; nothing is copied."""
        address = np.frombuffer(mapped, np.uint8).ctypes.data
        size = -(-len(mapped) // PAGE) * PAGE
        wrap = "newBufferWithBytesNoCopy:length:options:deallocator:"
        made = self.gpu.send(self.gpu.device, wrap, address, size, 0, None)
        return self._keep(made, f"buffer of {size / 1e6:.1f} MB for the weights")

    def _pipeline(self, library: int, kernel: PlanKernel) -> int:
        if kernel.grid is None:
            raise corrupt(f"corrupt plan: kernel '{kernel.symbol}' has no grid", str(self.path))
        made = pipeline(self.gpu, library, kernel.symbol, kernel.grid.threads)
        return self._keep(made, "a pipeline")

    def _view(self, buffer: int, at: int, t: Tensor) -> Array:
        """A tensor in the memory of a buffer."""
        address = self.gpu.send(buffer, "contents") + at
        memory = (ctypes.c_uint8 * t.nbytes).from_address(address)
        return np.ndarray(t.shape, t.dtype.numpy, memoryview(memory))

    # ---- running

    @contextmanager
    def _open(self) -> Iterator[None]:
        if not self._close.alive:
            raise usage("the bundle is closed")
        with self.gpu.pool():
            yield

    def _give(self, at: int, t: Tensor, value: Array) -> None:
        inside(self._view(self._memory, at, t), value.shape)[...] = value

    def _set_dims(self, values: Sequence[int]) -> None:
        """Each where a buffer of constants may begin."""
        for i, value in enumerate(values):
            self._view(self._dims, ALIGN * i, Tensor("", DType.I64, ()))[...] = value

    def _times(self, number: int) -> list[tuple[float, float]]:
        """Every launch is a command buffer of its own."""
        *before, last = self.plan.turns(self.plan.entries[number])
        self._execute(number, before)
        times = [execute(self.gpu, self._queue, [step], [last]) for step in self._steps[number]]
        return [((a - times[0][0]) * 1e6, (b - times[0][0]) * 1e6) for a, b in times]

    def _sample(self, number: int, runs: int) -> float:
        times = [self._execute(number) for _ in range(runs)]
        return (times[-1][1] - times[0][0]) * 1e6 / runs

    def _execute(self, number: int, turns: Sequence[int] | None = None) -> tuple[float, float]:
        """A run, or some repetitions of one, in command buffers of not too many launches each; when
        it began and ended on the GPU, in seconds."""
        turns = self.plan.turns(self.plan.entries[number]) if turns is None else turns
        steps, start, end = self._steps[number], 0.0, 0.0
        most = max(1, MOST_LAUNCHES // max(1, len(steps)))
        for first in range(0, len(turns), most):
            began, end = execute(self.gpu, self._queue, steps, turns[first : first + most])
            start = start if first else began
        return start, end

    def _place(self, entry: int, a: Argument) -> Place | None:
        """Where an argument lies; nowhere for what a kernel does not have or never touches."""
        match a.place:
            case planfile.INPUT:
                return self._memory, self._ends[entry][1 + a.index] + a.offset
            case planfile.OUTPUT:
                first = 1 + len(self.plan.entries[entry].inputs)
                return self._memory, self._ends[entry][first + a.index] + a.offset
            case planfile.ARENA:
                return self._memory, a.offset
            case planfile.WEIGHT:
                return self._weights, self.plan.weights_start + a.offset
            case planfile.STATE:
                return self._states[a.index], a.offset
            case planfile.DIM:
                return self._dims, ALIGN * a.index
        return None

    def _step(self, entry: int, launch: PlanLaunch) -> Step:
        grid = self.plan.kernels[launch.kernel].grid
        assert grid  # _pipeline has looked
        places = [self._place(entry, a) for a in launch.args]
        counter = self.plan.counter(self.plan.entries[entry])
        counts = [a.place == planfile.DIM and a.index == counter for a in launch.args]
        places = [None if own else place for own, place in zip(counts, places, strict=True)]
        at = counts.index(True) if any(counts) else None
        return Step(self._pipelines[launch.kernel], grid, places, at)


def _release(gpu: Metal, objects: list[int], weights: mmap.mmap) -> None:
    """Release the last made first; the weights stay mapped until then."""
    while objects:
        gpu.send(objects.pop(), "release")


# ---- opening


def problem() -> LumcError | None:
    """Why nothing can run on a GPU here; None when it can."""
    try:
        family = metal().gpu().family
        return None if family >= OLDEST else too_old(OLDEST, family)
    except LumcError as e:
        return e


def too_old(least: int, family: int) -> LumcError:
    what = f"it needs a GPU of family Apple{least} (an M1 has Apple7), this is Apple{family}"
    return unavailable(what)


def choose(plans: Sequence[Plan], family: int) -> Plan:
    """The plan for the newest family that this GPU belongs to. Raises E0706, exit 7."""
    needs = {int(p.arch.removeprefix("apple")): p for p in plans if p.arch[5:].isdecimal()}
    fitting = [n for n in needs if OLDEST <= n <= family]
    if fitting:
        return needs[max(fitting)]
    raise too_old(min(needs, default=OLDEST), family)


def map_weights(folder: Path, files: Mapping[str, str], plan: Plan) -> mmap.mmap:
    """weights.safetensors, mapped and checked against its hash. Raises E0501, exit 5."""
    path = folder / WEIGHTS
    if WEIGHTS not in files or not path.is_file() or path.resolve() != folder.resolve() / WEIGHTS:
        raise corrupt(f"{WEIGHTS} is missing or not a regular file", str(folder))
    if path.stat().st_size != plan.weights_start + plan.weights_bytes or not path.stat().st_size:
        raise corrupt(f"{WEIGHTS} does not have the size that the plan says", str(folder))
    with path.open("rb") as f:
        mapped = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    if hashlib.sha256(mapped).hexdigest() != files[WEIGHTS]:
        raise corrupt(f"{WEIGHTS} does not match its hash in the manifest", str(folder))
    return mapped
