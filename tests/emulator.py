"""CUDA and HIP kernels on the CPU: the text that a GPU would get, compiled with g++ and
``tests/gpu/emu``.

``build`` compiles a text, ``Module.launch`` runs one of its kernels on numpy arrays. A fault that
the processor notices ends the kernel and not the test, so no process of its own is needed; a
kernel that writes elsewhere than it may, but into memory that exists, is found when it is checked.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import lumc.codegen.gpu
from lumc.codegen.gpu.grid import Grid
from lumc.codegen.text.headers import header_of
from once import folder_of

Array = np.ndarray[Any, Any]
CXX = "g++"
EMULATOR = Path(__file__).parent / "gpu" / "emu"
DEVICE_HEADER = Path(lumc.codegen.gpu.__file__).parent / "lumc_dev.h"
# without the library's checks of longjmp, which know one stack
COMMON = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-DLUMC_EMU", "-U_FORTIFY_SOURCE"]
COMMON += [f"-I{EMULATOR}", f"-I{DEVICE_HEADER.parent}"]
# a quarter of the time of -O1, of which running a kernel is less than a tenth; the checker sees
# accesses that an optimisation leaves out
KERNEL = ["-O0", "-fno-math-errno", "-Wall", "-Wno-unused", "-Wno-sign-compare"]
KERNEL += ["-Wno-unknown-pragmas", "-Wno-maybe-uninitialized", "-Wno-tautological-compare"]
# calls of tsan.cpp before every access; its library is not linked
CHECKED = ["-fsanitize=thread"]
LANES = 32  # of a warp, unless a test says another number
ORDERS = ("forward", "reverse", "random")


class LaunchError(Exception):
    """A launch that a GPU would refuse."""


class _Range(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("begin", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("element", ctypes.c_size_t),
    )


@dataclass(frozen=True)
class Module:
    """The kernels of one text."""

    path: Path  # a shared object
    parameters: dict[str, tuple[str, ...]]  # of each kernel
    bounds: dict[str, int] = field(default_factory=dict)  # most threads, where the text says it

    def launch(
        self,
        symbol: str,
        grid: Grid,
        arguments: Sequence[Array],
        order: str = "forward",
        seed: int = 0,
    ) -> str:
        """Run a kernel on arrays, one for each parameter, which it reads and writes in place.

        Returns what the kernel did wrong, "" for nothing: threads that wait for each other and
        faults of the processor always, everything else (races, accesses outside of arrays, reads
        of shared memory before a write) of a checked build.

        ``order``: which thread of a block runs first. Raises LaunchError for a launch that a GPU
        refuses.
        """
        library = _library(self.path)
        arguments = [*(np.zeros(16, np.uint64) for _ in grid.maps), *arguments]  # not looked at
        count = library.lumc_emu_parameters(symbol.encode())
        if count < 0:
            raise LaunchError(f"there is no kernel {symbol}; kernels: {', '.join(self.parameters)}")
        if count != len(arguments):
            raise LaunchError(f"{symbol} takes {count} arrays, not {len(arguments)}")
        if not library.lumc_emu_fits(grid.threads, grid.shared_bytes):
            raise LaunchError(f"{symbol}: no GPU has room for a block of {grid}")
        if grid.threads > self.bounds.get(symbol, 1024):
            raise LaunchError(f"{symbol} is compiled for {self.bounds[symbol]} threads a block")
        ranges = (_Range * count)()
        for name, array, r in zip(self.parameters[symbol], arguments, ranges, strict=True):
            if not array.flags.c_contiguous:
                raise LaunchError(f"{symbol}: {name} is not contiguous")
            r.name, r.begin = name.encode(), array.ctypes.data
            r.bytes, r.element = array.nbytes, array.itemsize
        said = library.lumc_emu_run_on(
            symbol.encode(), grid.blocks, grid.threads, grid.shared_bytes, count, ranges,
            ORDERS.index(order), seed,
        )  # fmt: skip
        return bytes(said).decode()


def build(source: str, folder: Path, checked: bool = False, lanes: int = LANES) -> Module:
    """The kernels of a text, compiled once into ``folder``; a warning of the compiler fails.

    ``checked``: with the checker for races, bounds and uninitialised shared memory; slower.
    ``lanes``: of a warp.
    """
    path = compile_shared([source], folder, checked, lanes)
    bounds = re.findall(r"__launch_bounds__\((\d+)[^)]*\)\s+(\w+)", source)
    return Module(path, _parameters(source), {symbol: int(n) for n, symbol in bounds})


def compile_shared(
    sources: Sequence[str], folder: Path, checked: bool = False, lanes: int = LANES
) -> Path:
    """A shared object of the kernels of several texts, and of the emulator."""
    flags = [*COMMON, *KERNEL, *(CHECKED if checked else []), f"-DLUMC_LANES={lanes}"]
    path = folder / f"emu_{_digest([*sources, _emulator_text(), *flags])}.so"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        objects = []
        for i, source in enumerate(sources):
            text, out = Path(name, f"kernel{i}.cu"), Path(name, f"kernel{i}.o")
            text.write_text(source)
            _run([CXX, *flags, "-x", "c++", "-c", str(text), "-o", str(out)])
            objects.append(str(out))
        built = Path(name, "kernels.so")
        _run([CXX, "-shared", "-Wl,-Bsymbolic", *objects, _runtime(lanes), "-o", str(built)])
        built.rename(path)
    return path


def _parameters(source: str) -> dict[str, tuple[str, ...]]:
    """The names of the parameters of every kernel in a text."""
    found = {}
    for symbol in re.findall(r"LUMC_EXPORT\((\w+)\)", source):
        signature = re.search(rf"\b{symbol}\s*\(([^)]*)\)\s*{{", source)
        assert signature, f"{symbol} is exported and not defined"
        found[symbol] = tuple(re.findall(r"(\w+)\s*(?:,|$)", signature[1].strip()))
    return found


@functools.cache
def _library(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    library.lumc_emu_run_on.restype = ctypes.c_char_p
    library.lumc_emu_run_on.argtypes = [
        ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_size_t, ctypes.c_uint,
        ctypes.c_void_p, ctypes.c_int, ctypes.c_uint,
    ]  # fmt: skip
    library.lumc_emu_fits.argtypes = [ctypes.c_uint, ctypes.c_size_t]
    return library


@functools.cache
def _runtime(lanes: int) -> str:
    """The object file of the emulator of warps of so many threads."""

    def make(folder: Path) -> None:
        text = folder / "emulator.cpp"
        text.write_text("".join(f'#include "{f.name}"\n' for f in sorted(EMULATOR.glob("*.cpp"))))
        command = [CXX, *COMMON, f"-DLUMC_LANES={lanes}", "-O2", "-c", str(text)]
        _run([*command, "-o", str(folder / "emulator.o")])

    return str(folder_of(f"emulator of {lanes}", make) / "emulator.o")


@functools.cache
def _emulator_text() -> str:
    headers = header_of("cuda") + header_of("hip")
    return headers + "".join(f.read_text() for f in sorted(EMULATOR.iterdir()))


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode and not done.stderr, f"{' '.join(command)}:\n{done.stderr[:4000]}"
