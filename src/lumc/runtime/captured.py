"""Bundles on GPUs whose drivers capture launches into graphs: weights, states and the values
between launches stay on the GPU, every entry is one graph.

The native runner does the same without Python (link/runner/gpu.c); both read the plan file.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lumc.bundle import planfile
from lumc.bundle.packing import Array
from lumc.bundle.reader import Argument, Plan, PlanEntry, PlanLaunch
from lumc.codegen.gpu.grid import Grid
from lumc.disk.artifact import corrupt
from lumc.graph.tensor import Tensor
from lumc.runtime.gpu import OnGpu, spread
from lumc.runtime.opened import NO_DIMS, Call, Say, usage

ALIGN = 256
DIM = 8  # bytes of a dim
MOST_LAUNCHES = 1 << 14  # of a graph, as in runner/gpu_memory.c


class Memory(Protocol):
    """An allocation; its number is its address."""

    def __int__(self) -> int: ...

    def free(self) -> None: ...


class Gpu(Protocol):
    """A GPU with one stream, on which everything happens in order."""

    def current(self) -> AbstractContextManager[None]:
        """It is this thread's for the block; what its driver says becomes E0611."""

    def allocate(self, nbytes: int, what: str) -> Any:
        """``Memory``. Raises E0611 where there is too little."""

    def upload(self, to: int, data: Array) -> None:
        """Bytes to an address; ``data`` may change afterwards."""

    def download(self, data: Array, of: int) -> None: ...

    def wait(self) -> None:
        """Until everything has happened."""

    def module(self, image: bytes, name: str) -> Any: ...

    def function(self, module: Any, symbol: str, grid: Grid) -> Any:
        """A kernel that may have the shared memory of its grid. Raises E0501, exit 5."""

    def launch(self, function: Any, grid: Grid, addresses: Sequence[int]) -> None: ...

    def graph(self, enqueue: Callable[[], None]) -> Any:
        """What ``enqueue`` launches, as one graph to launch again."""

    def launch_graph(self, graph: Any) -> None: ...

    def destroy_graph(self, graph: Any) -> None: ...

    def mark(self) -> Any:
        """This moment of the stream."""

    def between(self, start: Any, end: Any) -> float:
        """Microseconds from one moment to another one, which is waited for."""


class Captured(OnGpu):
    """An open bundle on such a GPU."""

    most_runs = 100_000

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
        self._graphs: list[Any] = []
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
                self.gpu.destroy_graph(graph)
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
                return int(self._memory) + self._ends[entry][1 + a.index] + a.offset
            case planfile.OUTPUT:
                first = 1 + len(self.plan.entries[entry].inputs)
                return int(self._memory) + self._ends[entry][first + a.index] + a.offset
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

    def _capture(self, entry: int) -> Any:
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
        moments = [self.gpu.mark()]
        for launch in launches:
            self._enqueue(number, launch)
            moments.append(self.gpu.mark())
        self.gpu.wait()
        return list(pairwise(self.gpu.between(moments[0], m) for m in moments))

    def _sample(self, number: int, runs: int) -> float:
        start = self.gpu.mark()
        self._launch(number, runs)
        return self.gpu.between(start, self.gpu.mark()) / runs

    def _outputs(self, call: Call) -> dict[str, Array]:
        self.gpu.wait()
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
