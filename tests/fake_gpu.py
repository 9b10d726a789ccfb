"""A driver of NVIDIA for machines without a GPU: ``tests/gpu/fake_cuda`` as ``libcuda.so.1``.

A process that runs in ``environment()`` loads it as it would load the real one, pycuda included.
The images of its modules come from ``fake_fatbin``: kernels compiled for the emulator.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from emulator import CXX, compile_shared
from once import folder_of

SOURCES = Path(__file__).parent / "gpu" / "fake_cuda"


@functools.cache
def driver() -> Path:
    """The folder of ``libcuda.so.1``."""
    return folder_of("fake-gpu", _compile)


def _compile(folder: Path) -> None:
    text, stubs = folder / "fake_cuda.cpp", folder / "stubs.cpp"
    text.write_text("".join(f'#include "{f}"\n' for f in sorted(SOURCES.glob("*.cpp"))))
    names = (SOURCES / "symbols.txt").read_text().split()
    start = "#pragma GCC visibility push(default)\n"
    stubs.write_text(start + "".join(f'extern "C" int {n}() {{ return 801; }}\n' for n in names))
    command = [CXX, "-std=c++17", "-O0", "-fPIC", "-shared", str(text)]
    command += [str(stubs), "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1", "-ldl"]
    done = subprocess.run(
        [*command, "-o", str(folder / "libcuda.so.1")], capture_output=True, text=True
    )
    assert not done.returncode and not done.stderr, done.stderr[:4000]


def environment(**settings: object) -> dict[str, str]:
    """The environment of a process that shall find the driver.

    ``settings``: ``sm`` (80, 89, 90 or 100), ``memory`` (bytes), ``driver`` (a version: 13000),
    ``missing`` (a machine without a device).
    """
    paths = [str(driver()), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    variables = {f"LUMC_FAKE_{name.upper()}": str(value) for name, value in settings.items()}
    return {**os.environ, **variables, "LD_LIBRARY_PATH": os.pathsep.join(paths)}


def fake_fatbin(sources: Sequence[str], checked: bool = False) -> bytes:
    """What ``nvcc -fatbin`` makes of these texts, for this driver: one image of all kernels.

    ``checked``: a race or an access out of bounds fails the launch.
    """
    image = compile_shared(sources, driver() / "images", checked).read_bytes()
    return b"LUMCFAKE" + len(image).to_bytes(8, "little") + image
