"""What the open bundles of GPUs have in common: values stay in the memory of the GPU, and its own
clock times what runs there."""

from __future__ import annotations

import time
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from lumc.bundle.packing import Array
from lumc.bundle.reader import Plan, PlanEntry
from lumc.graph.tensor import Tensor
from lumc.runtime.opened import NO_DIMS, Call, Opened, Part, Say, entries_of

SAMPLE_US = 100.0
MAX_SAMPLES = 100_000


class OnGpu(Opened):
    """An open bundle whose plan a GPU runs."""

    most_runs: int  # in one sample

    def __init__(self, path: Path, plan: Plan, align: int, first: Mapping[str, Array]) -> None:
        super().__init__(path, entries_of(plan), plan.states, first)
        self.plan, self.dims = plan, plan.dims
        self._ends = [places_of(e, align) for e in plan.entries]  # in the memory of values

    def trace(
        self,
        inputs: Mapping[str, Any],
        entry: str = "",
        threads: int = 1,
        say: Say = warnings.warn,
        dims: Mapping[str, int] = NO_DIMS,
    ) -> tuple[dict[str, Array], list[Part]]:
        """The outputs of a run, and how long every launch of another one took; states are put back
        between. Launches are apart then, so the gaps are longer."""
        before = self.state()
        outputs = self.run(inputs, entry, threads, say, dims)
        self.set_state(before)
        number = self._begin(inputs, entry, lambda _: None, dims).number
        with self._open():
            times = self._times(number)
        names = [self.plan.kernels[k.kernel].symbol for k in self.plan.entries[number].launches]
        parts = zip(names, times, strict=True)
        return outputs, [Part(name, i, 0, a, b - a) for i, (name, (a, b)) in enumerate(parts)]

    def bench(
        self,
        inputs: Mapping[str, Any],
        entry: str = "",
        threads: int = 1,
        seconds: float = 1.0,
        say: Say = warnings.warn,
        dims: Mapping[str, int] = NO_DIMS,
    ) -> list[float]:
        """Microseconds of one run, in samples of about 100 us timed by the GPU; inputs and outputs
        stay there, states are put back."""
        before, samples = self.state(), list[float]()
        number = self._begin(inputs, entry, say, dims).number
        with self._open():
            once = min(self._sample(number, 1), self._sample(number, 1))
            runs = max(1, min(self.most_runs, round(SAMPLE_US / max(once, 1e-3))))
            until = time.monotonic() + seconds
            while len(samples) < 3 or (time.monotonic() < until and len(samples) < MAX_SAMPLES):
                samples.append(self._sample(number, runs))
        self.set_state(before)
        return samples

    def _begin(
        self, inputs: Mapping[str, Any], entry: str, say: Say, dims: Mapping[str, int]
    ) -> Call:
        """The inputs and the dims into the memory of the GPU. Whatever was recorded of launches
        stays as it is: kernels read the dims from there."""
        call = self.call(inputs, entry, say, dims)
        tensors = self.plan.entries[call.number].inputs
        with self._open():
            if call.dims:
                self._set_dims(list(call.dims.values()))
            places = self._ends[call.number][1:]
            for at, t, array in zip(places, tensors, call.arrays, strict=False):
                self._give(at, t, array)
        return call

    def _outputs_at(self, call: Call) -> Iterable[tuple[Tensor, Tensor, int]]:
        """The outputs of an entry: the greatest, those that there are, and where they are."""
        entry = self.plan.entries[call.number]
        places = self._ends[call.number][1 + len(entry.inputs) : -1]
        return zip(entry.outputs, call.outputs, places, strict=True)

    @abstractmethod
    def _set_dims(self, values: Sequence[int]) -> None:
        """Write the dims, in their order, where kernels read them."""

    @abstractmethod
    def _open(self) -> AbstractContextManager[None]:
        """The GPU at work; raises E0610, exit 2, when the bundle is closed."""

    @abstractmethod
    def _give(self, at: int, t: Tensor, value: Array) -> None:
        """Write what there is of a tensor at a byte of the memory of values."""

    @abstractmethod
    def _times(self, number: int) -> list[tuple[float, float]]:
        """Start and end of every launch of one run, in microseconds."""

    @abstractmethod
    def _sample(self, number: int, runs: int) -> float:
        """Microseconds of one of so many runs."""


def inside(whole: Array, shape: Sequence[int]) -> Array:
    """The part that there is of a tensor in memory for its greatest shape, without a copy."""
    at: tuple[Any, ...] = (*map(slice, shape), ...)
    part: Array = whole[at]  # of no axes an array too, not a number
    return part


def spread(t: Tensor, shape: Sequence[int]) -> tuple[Array, Array]:
    """Elements of a row-major tensor from the first to the last of those within a smaller shape,
    which has no extent of 0; and a view of the latter."""
    strides = [prod(t.shape[i + 1 :]) for i in range(len(t.shape))]
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    flat = np.zeros(reach, t.dtype.numpy)
    return flat, np.ndarray(shape, flat.dtype, flat, strides=[s * flat.itemsize for s in strides])


def places_of(entry: PlanEntry, align: int) -> list[int]:
    """Where the arena, every input and every output begin, and where all ends."""
    at, out = 0, [0]
    for nbytes in (entry.arena_bytes, *(t.nbytes for t in (*entry.inputs, *entry.outputs))):
        at += -(-nbytes // align) * align
        out.append(at)
    return out
