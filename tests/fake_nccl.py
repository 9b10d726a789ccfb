"""An NCCL for machines without a GPU: ``tests/gpu/fake_nccl`` as ``libnccl.so.2``, beside the fake
driver of ``fake_gpu``.

It is compiled against the real nccl.h where a package has it (``pip install nvidia-nccl-cu12``, or
LUMC_TEST_NCCL names the folder with include/nccl.h), else against what tests declare of it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
from pathlib import Path

import fake_gpu
from emulator import CXX
from once import folder_of

HERE = Path(__file__).parent / "gpu" / "fake_nccl"
DECLARED, CUDA = HERE / "declared", HERE / "cuda"


@functools.cache
def real_header() -> Path | None:
    """The folder of NVIDIA's nccl.h, if there is one."""
    folders = [Path(named)] if (named := os.environ.get("LUMC_TEST_NCCL")) else []
    if importlib.util.find_spec("nvidia") and (spec := importlib.util.find_spec("nvidia.nccl")):
        folders += map(Path, spec.submodule_search_locations or [])
    found = [f / "include" for f in folders if (f / "include" / "nccl.h").exists()]
    return found[0] if found else None


@functools.cache
def library() -> Path:
    """The folder of ``libnccl.so.2``."""
    return folder_of("fake-nccl", lambda folder: compile_with(real_header() or DECLARED, folder))


def compile_with(header: Path, folder: Path) -> None:
    command = [CXX, "-std=c++17", "-O0", "-Wall", "-fPIC", "-shared", "-fvisibility=hidden"]
    command += [f"-I{CUDA}", f"-I{header}", *map(str, sorted(HERE.glob("*.cpp")))]
    command += ["-Wl,-soname,libnccl.so.2"]
    done = subprocess.run(
        [*command, "-o", str(folder / "libnccl.so.2"), "-ldl"], capture_output=True, text=True
    )
    assert not done.returncode and not done.stderr, done.stderr[:4000]


def environment(devices: int, **settings: object) -> dict[str, str]:
    """The environment of a process that shall find so many GPUs, and NCCL."""
    out = fake_gpu.environment(devices=devices, **settings)
    out["LD_LIBRARY_PATH"] = os.pathsep.join([out["LD_LIBRARY_PATH"], str(library())])
    return out
