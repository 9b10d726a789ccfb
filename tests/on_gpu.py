"""The kernels of the tests on the NVIDIA GPU of this machine, in place of the emulator.

    PYTHONPATH=tests python -m pytest -p on_gpu -n 8 tests/gpu/test_gpu_kernels.py ...

A plugin: ``emulator.build`` compiles for the GPU, with NVRTC or nvcc, and ``launch`` has fences
around every array, so that a write past an end is reported. Races are not: run the tests under
compute-sanitizer for that. Metal and HIP stay on their emulators.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import emulator
from lumc.codegen.gpu.grid import Grid
from lumc.codegen.text.headers import NAMES, header_of
from lumc.errors import LumcError
from lumc.link import cuda
from lumc.runtime.nvidia import ALIGN, Gpu, capability

Array = np.ndarray[Any, Any]
FENCE, MARK = 4096, 0xA5  # bytes around an array, as in the lab
EMULATED = emulator.build
ABOUT_THE_EMULATOR = ("emulator", "checker", "fake_driver", "cuda_runner", "cuda_runtime", "bench")
# What only the emulator says: which barrier is missing, what it refuses, how Metal runs.
SKIPPED = "is_a_race|no_barrier|a_bundle|metal|apple|runner|nvcc|nvrtc"


@dataclass(frozen=True)
class Module:
    """The kernels of one text, loaded by the driver; has the face of ``emulator.Module``."""

    module: Any
    parameters: dict[str, tuple[str, ...]]

    def launch(
        self,
        symbol: str,
        grid: Grid,
        arguments: Sequence[Array],
        order: str = "forward",
        seed: int = 0,
    ) -> str:
        """Run a kernel on arrays in place; which array was written past an end, "" for none. The
        order of threads is the GPU's. A fault ends the process, as it ends the context."""
        names = self.parameters[symbol][len(grid.maps) :]
        places, at = [], FENCE
        for array in arguments:
            places.append(slice(at, at + array.nbytes))
            at += -(-array.nbytes // ALIGN) * ALIGN + FENCE
        image = np.full(at, MARK, np.uint8)
        for place, array in zip(places, arguments, strict=True):
            image[place] = array.reshape(-1).view(np.uint8)
        got = np.empty_like(image)
        gpu = _gpu()
        try:
            with gpu.current():
                memory = gpu.allocate(at, symbol)
                gpu.upload(int(memory), image)
                function = gpu.function(self.module, symbol, grid)
                gpu.launch(function, grid, [int(memory) + p.start for p in places])
                gpu.download(got, int(memory))
                memory.free()
        except LumcError as e:
            print(f"{symbol} {grid}: {e}", file=sys.__stderr__, flush=True)
            os._exit(1)
        for place, array in zip(places, arguments, strict=True):
            array.reshape(-1).view(np.uint8)[...] = got[place]
            got[place] = image[place]
        wrong = np.flatnonzero(got != image)
        if not wrong.size:
            return ""
        near = min(range(len(places)), key=lambda i: abs(places[i].stop - int(wrong[0])))
        return f"out of bounds: {wrong.size} bytes beside {names[near]} are written"


@functools.cache
def _gpu() -> Gpu:
    return Gpu()


@functools.cache
def _compiler() -> Any:
    return cuda.find(os.environ.get("NVCC"))


@functools.cache
def _loaded(source: str) -> Any:
    name = hashlib.sha256(source.encode()).hexdigest()[:16]
    with tempfile.TemporaryDirectory(prefix="lumc-on-gpu-") as folder:
        (Path(folder) / "lumc_dev.h").write_text(header_of("cuda"))
        (Path(folder) / f"{name}.cu").write_text(source)
        arch = f"sm_{capability()}"
        cuda.compile_images(_compiler(), Path(folder), f"{name}.cu", [arch])
        image = (Path(folder) / f"{name}.{arch}.cubin").read_bytes()
    with _gpu().current():
        return _gpu().module(image, name)


def build(
    source: str, folder: Path, checked: bool = False, **other: int
) -> Module | emulator.Module:
    if NAMES["hip"] in source:
        return EMULATED(source, folder, checked, **other)
    return Module(_loaded(source), emulator._parameters(source))


def pytest_configure(config: pytest.Config) -> None:
    emulator.build = build  # type: ignore[assignment]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is about the emulator, and not about kernels, is left out."""
    out = [i for i in items if re.search(SKIPPED, i.nodeid) or about_the_emulator(i.path)]
    config.hook.pytest_deselected(items=out)
    items[:] = [i for i in items if i not in set(out)]


def about_the_emulator(path: Path) -> bool:
    return any(word in path.stem for word in ABOUT_THE_EMULATOR)
