"""The machine that is measured: what records belong to, its caches, how fast it is."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
from importlib.resources import files
from pathlib import Path

import numpy as np

from lumc.errors import LumcError
from lumc.kernel.target import Speeds, Target
from lumc.lab.worker import Memory
from lumc.link.toolchain import KERNEL_FLAGS, Toolchain, compile_objects, link_objects
from lumc.schedule.applies import PIECE

PEAK_SAMPLES = 100  # of about 100 us
CACHE_SAMPLES = 20
MEMORY_SAMPLES = 10
MOST_BYTES = 256 << 20  # of an array that is copied
PEAK_SUMS = 12  # vectors that peak.c adds up side by side
CACHE_BYTES = 32 << 20  # where the system does not say
KNOWN = ("model name", "cpu family", "model", "stepping", "cache size", "CPU part")


def fingerprint() -> str:
    """Identifies the kind of machine: its CPU, and how many of it there are."""
    text = json.dumps([_cpuinfo(), os.cpu_count()])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def described() -> dict[str, str | int]:
    """The same in words; two machines that differ say different words."""
    said = dict[str, str]()
    for name, value in _cpuinfo():
        said[name] = f"{said[name]} and {value}" if name in said else value
    model = "/".join(said.get(name, "") for name in KNOWN[1:4])
    name = said.get("model name") or said.get("CPU part", "")
    known = {"cpu": name, "model": model.strip("/"), "cache": said.get("cache size", "")}
    return {**known, "cores": os.cpu_count() or 0, "cache_bytes": cache_bytes()}


def _cpuinfo() -> list[tuple[str, str]]:
    """What the system says of its CPUs, each line once."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = f"model name: {platform.processor() or platform.machine()}"
    lines = (line.partition(":") for line in text.splitlines())
    return sorted({(k.strip(), v.strip()) for k, _, v in lines if k.strip() in KNOWN})


def cache_bytes() -> int:
    """The size of the largest cache of the first CPU."""
    sizes = []
    for path in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")):
        text = path.read_text().strip()
        if text.endswith("K") and text[:-1].isdecimal():
            sizes.append(int(text[:-1]) << 10)
    return max(sizes, default=CACHE_BYTES)


def measure_speeds(target: Target, tools: Toolchain, folder: Path) -> Speeds:
    """By peak.c, compiled like a kernel in this folder, where the header of kernels lies."""
    (folder / "peak.c").write_bytes((files("lumc.lab") / "peak.c").read_bytes())
    flags = (*KERNEL_FLAGS, *target.flags, f"-DLANES={target.lanes}")
    compile_objects(tools, folder, ["peak.c"], flags)
    link_objects(tools, folder, ["peak.o"], "peak.so", ("-shared",))
    try:
        library = ctypes.CDLL(str(folder / "peak.so"))
    except OSError as e:
        what = f"what the compiler made of peak.c cannot be loaded: {e}"
        raise LumcError("E0702", what, fix="try another compiler (--cc)") from None
    for function in (library.peak_gflops, library.cached_gbps, library.memory_gbps):
        function.restype = ctypes.c_double
    step = PEAK_SUMS * target.lanes
    near = target.l2 // 8 // step * step
    far = max(target.l2, min(2 * cache_bytes(), MOST_BYTES)) // PIECE * PIECE
    memory = Memory()
    x, y = (ctypes.c_void_p(memory.array([far], np.uint8).ctypes.data) for _ in range(2))
    gflops = max(library.peak_gflops() for _ in range(PEAK_SAMPLES))
    cached = max(library.cached_gbps(x, ctypes.c_long(near)) for _ in range(CACHE_SAMPLES))
    n = ctypes.c_long(far // 4)
    copied = max(library.memory_gbps(x, y, n) for _ in range(MEMORY_SAMPLES))
    return Speeds(*(float(round(rate, 1)) for rate in (gflops, cached, copied)))
