"""HIP for machines without a GPU: ``tests/gpu/fake_hip`` as ``libamdhip64`` and ``libhiprtc``.

A process that runs in ``environment()`` loads them as it would load those of ROCm. Images come from
``fake_image``: kernels compiled for the emulator, with the waves of an architecture.
"""

from __future__ import annotations

import functools
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from emulator import CXX, compile_shared
from fake_gpu import SOURCES as CUDA
from lumc.kernel.machines import GPUS
from once import folder_of

TESTS = Path(__file__).parent
SOURCES = TESTS / "gpu" / "fake_hip"
CLANG = shlex.join(["env", f"PYTHONPATH={os.pathsep.join(sys.path)}", sys.executable])
CLANG += f" {shlex.quote(str(TESTS / 'fake_clang.py'))}"


@functools.cache
def runtime(old: bool = False) -> Path:
    """The folder of both libraries; ``old``: as before HIP 6."""
    return folder_of("fake-hip-old" if old else "fake-hip", functools.partial(_compile, old))


def _compile(old: bool, folder: Path) -> None:
    text = folder / "fake_hip.cpp"
    every = [*sorted(CUDA.glob("*.cpp")), SOURCES / "hip.cpp"]
    text.write_text("".join(f'#include "{f}"\n' for f in every))
    release = 5 if old else 6
    _library(folder, text, f"libamdhip64.so.{release}", ["-DLUMC_FAKE_OLD"][: int(old)])
    _library(folder, SOURCES / "rtc.cpp", f"libhiprtc.so.{release}")


def _library(folder: Path, source: Path, name: str, flags: Sequence[str] = ()) -> None:
    command = [CXX, "-std=c++17", "-O0", "-Wall", "-fPIC", "-shared", "-fvisibility=hidden", *flags]
    command += [str(source), f"-Wl,-soname,{name}", "-ldl", "-o", str(folder / name)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode and not done.stderr, done.stderr[:4000]


def environment(old: bool = False, **settings: object) -> dict[str, str]:
    """The environment of a process that shall find the runtime.

    ``settings``: ``gfx`` (an architecture), ``memory`` (bytes), ``missing`` (a machine without a
    device).
    """
    paths = [str(runtime(old)), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    variables = {f"LUMC_FAKE_{name.upper()}": str(value) for name, value in settings.items()}
    variables |= {"LUMC_FAKE_HIPRTC": CLANG, "PYTHONPATH": os.pathsep.join(sys.path)}
    return {**os.environ, **variables, "LD_LIBRARY_PATH": os.pathsep.join(paths)}


def waves(arch: str) -> int:
    """Threads that run in step on an architecture: those of its family."""
    return next(g.warp for name, (g, *_) in GPUS["hip"].items() if name[:-2] == arch[:-2])


def fake_image(sources: Sequence[str], arch: str, checked: bool = False) -> bytes:
    """What clang makes of these texts, for this runtime: one image of all kernels."""
    folder = runtime() / "images"
    image = compile_shared(sources, folder, checked, waves(arch)).read_bytes()
    name = arch.encode().ljust(16, b"\0")
    return b"LUMCGFX " + name + b"LUMCFAKE" + len(image).to_bytes(8, "little") + image
