"""The targets by name: what is known of the machines, and which of them this one is."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

from lumc.errors import Exit, LumcError
from lumc.kernel.target import Attained, Gpu, Processor, Rates, Resident, Target

_X86 = ("-mprefer-vector-width=512",)
CPUS = {
    t.arch: t
    for t in (
        Target("", "x86-64-v4", ("-march=x86-64-v4", *_X86), 16, 32, gflops=115.0),
        Target("", "x86-64-v3", ("-march=x86-64-v3",), 8, 16, gflops=100.0),
        Target("", "x86-64-v2", ("-march=x86-64-v2",), 4, 16, gflops=30.0),
        Target("", "aarch64", ("-march=armv8-a",), 4, 32, gflops=50.0),
        Target("", "generic", (), 4, 16, gflops=25.0),
    )
}


def _amd(processors: int, tensor_gflops: float, warp: int) -> Gpu:
    return Gpu(processors, 64 << 10, tensor_gflops, warp, registers=1 << 17)


# data sheets: A100 80 GB, RTX 4090, H200, B200, RTX 5090; one die of MI250X, MI300X, RX 7900 XTX,
# RX 9070 XT; M1, M2, M3 (8, 10 and 10 cores). Matrix units with sums in f32: of an RTX 4090 the Ada
# white paper says 165.2 TFLOP/s, 330.3 with sums in f16. Registers: four units of 512 for each of
# 64 lanes (CDNA 3 instruction set, section 3.6), or of 1024 and more for each of 32.
GPUS = {
    "cuda": {
        "sm_80": (Gpu(108, 163 << 10, 312e3), 19.5e3, 2039.0),
        "sm_89": (Gpu(128, 99 << 10, 165.2e3), 82.6e3, 1008.0),
        "sm_90": (Gpu(132, 227 << 10, 989e3), 67e3, 4800.0),
        "sm_100": (Gpu(148, 227 << 10, 2250e3), 80e3, 8000.0),
        "sm_120": (Gpu(170, 99 << 10, 209.5e3), 104.8e3, 1792.0),
    },
    "hip": {
        "gfx90a": (_amd(110, 191.5e3, 64), 23.9e3, 1638.0),
        "gfx942": (_amd(304, 1307.4e3, 64), 163.4e3, 5300.0),
        "gfx1100": (_amd(96, 122.8e3, 32), 61.4e3, 960.0),
        "gfx1201": (_amd(64, 194.6e3, 32), 48.7e3, 640.0),
    },
    "metal": {
        "apple7": (Gpu(8, 32 << 10, 2.6e3), 2.6e3, 68.0),
        "apple8": (Gpu(10, 32 << 10, 3.6e3), 3.6e3, 100.0),
        "apple9": (Gpu(10, 32 << 10, 4.1e3), 4.1e3, 100.0),
    },
}
# Of the same machines; where each figure is from: docs/gpu-bounds.md. Nothing is published of the
# products of single warps on sm_100.
RATES = {
    "sm_80": Rates(1410, tensor=2048, f32=64, special=16, l2=5120),
    "sm_89": Rates(2520, tensor=512, f32=128, special=16),
    "sm_90": Rates(1980, tensor=4096, f32=128, special=16, l2=5120),
    "sm_120": Rates(2407, tensor=512, f32=128, special=16),
}
# Of those with rates; where each figure is from: docs/gpu-price.md.
PROCESSORS = {
    "sm_80": Processor(Resident(2048, 32, 164 << 10), 192 << 10, 40 << 20),
    "sm_89": Processor(Resident(1536, 24, 100 << 10), 128 << 10, 72 << 20),
    "sm_90": Processor(
        *(Resident(2048, 32, 228 << 10), 256 << 10, 50 << 20),
        attained=Attained(tensor=0.8, l2=0.71, memory=0.9),
    ),
    "sm_120": Processor(Resident(1536, 24, 100 << 10), 128 << 10, 96 << 20),
}
# what changes results, or not all machines of an architecture have, and so must be asked for:
# cuda:sm_90+tf32, cpu:native+vnni
FEATURES = {"cuda": ("tf32",), "cpu": ("vnni",)}
INSTRUCTIONS = {  # flags by architecture
    "vnni": {"x86-64-v4": ("-mavx512vnni",), "x86-64-v3": ("-mavxvnni",)},
}
_SAID = {"-mavx512vnni": "avx512_vnni", "-mavxvnni": "avx_vnni"}  # of these, in /proc/cpuinfo
DEFAULTS = {"cpu": "cpu:native", "cuda": "cuda:sm_90", "hip": "hip:gfx942"}
DEFAULTS |= {"metal": "metal:apple7"}  # if none is named
LAUNCH_US = {"cuda": 2.0, "hip": 4.0, "metal": 4.0}  # of HIP and Metal not measured: twice CUDA's
# what a level asks of /proc/cpuinfo, best level first (x86-64 psABI, section 3.1.1)
_LEVELS = (
    ("x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl avx2 fma f16c bmi1 bmi2 movbe"),
    ("x86-64-v3", "avx2 fma f16c bmi1 bmi2 movbe abm"),
    ("x86-64-v2", "sse4_2 ssse3 popcnt cx16 lahf_lm"),
)


def resolve_target(name: str, cpuinfo: str | None = None) -> Target:
    """The target of a name like ``cpu:native`` or ``cuda:sm_90+tf32``; raises E0401 (no such target
    or feature).

    ``cpu:native`` is the best architecture level of this machine, so that the same name on a
    similar machine gives the same code. ``cpuinfo`` replaces the text of /proc/cpuinfo.
    """
    base, *wanted = name.split("+")
    name = DEFAULTS.get(base, base)
    kind, _, arch = name.partition(":")
    features = tuple(f for f in FEATURES.get(kind, ()) if f in wanted)
    if unknown := [f for f in wanted if f not in features]:
        what = f"target '{base}' has no feature '{unknown[0]}'"
        have = (f"{k} has {', '.join(f)}: {DEFAULTS[k]}+{f[0]}" for k, f in FEATURES.items())
        fix = "; ".join(have)
        raise LumcError("E0401", what, fix=fix, exit=Exit.USAGE)
    if kind == "cpu" and arch in CPUS:
        return _with(replace(CPUS[arch], name=name), features)
    if name == "cpu:native":
        text = _cpuinfo() if cpuinfo is None else cpuinfo
        return _with(replace(CPUS[_native(text)], name=name, fmas=_fmas(text)), features)
    if arch in GPUS.get(kind, {}):
        gpu, gflops, bandwidth = GPUS[kind][arch]
        gpu = replace(gpu, rates=RATES.get(arch))
        name = "+".join((f"{kind}:{arch}", *features))
        machine = Target(name, arch, features, 1, gpu.values, gpu.shared, 32 << 20, gpu=gpu)
        launch_us = LAUNCH_US[kind]
        return replace(machine, gflops=gflops, bandwidth=bandwidth, launch_us=launch_us)
    families = {"cpu": ("native", *CPUS), **GPUS}
    known = ", ".join(f"{kind}:{a}" for kind, archs in families.items() for a in archs)
    raise LumcError("E0401", f"unknown target '{name}'", fix=f"one of: {known}", exit=Exit.USAGE)


def processor(target: Target) -> Processor | None:
    """What is known of the processors of a GPU, or None."""
    return PROCESSORS.get(target.arch) if target.kind == "cuda" else None


def _with(target: Target, features: tuple[str, ...]) -> Target:
    """A CPU with more instructions than its architecture asks for. Raises E0401."""
    for f in features:
        flags = INSTRUCTIONS[f].get(target.arch)
        if flags is None:
            with_it = " and ".join(INSTRUCTIONS[f])
            what = f"target '{target.name}' has no feature '{f}', which goes with {with_it}"
            raise LumcError("E0401", what, exit=Exit.USAGE)
        target = replace(target, flags=(*target.flags, *flags))
    return replace(target, name="+".join((target.name, *features)))


def _cpuinfo() -> str:
    """The text of /proc/cpuinfo, or what stands for it on other systems."""
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        return "Features : asimd"
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        needs = dict(_LEVELS)["x86-64-v3"] if machine in ("x86_64", "amd64") else ""
        return f"flags : {needs}"


def unasked(target: Target, cpuinfo: str | None = None) -> tuple[str, ...]:
    """Features of this machine that ``cpu:native`` does not have, since not all machines of its
    level have them."""
    have = _flags(_cpuinfo() if cpuinfo is None else cpuinfo)
    flags = {f: archs.get(target.arch, ("",)) for f, archs in INSTRUCTIONS.items()}
    offered = (f for f, needs in flags.items() if have.issuperset(_SAID.get(n, n) for n in needs))
    return tuple(offered) if target.name == "cpu:native" else ()


def _flags(cpuinfo: str) -> set[str]:
    lines = [line for line in cpuinfo.splitlines() if line.startswith(("flags", "Features"))]
    return set(lines[0].split()) if lines else set()


def _native(cpuinfo: str) -> str:
    have = _flags(cpuinfo)
    for level, needs in _LEVELS:
        if have.issuperset(needs.split()):
            return level
    return "aarch64" if "asimd" in have else "generic"


def _fmas(cpuinfo: str) -> int:
    """Vectors of multiply-adds that a core ends in a cycle. Zen 4 takes 512 bits in two halves
    (family 25); servers of Intel with AVX-512, and Zen 5, have two units for them."""
    rows = (line.partition(":") for line in cpuinfo.splitlines())
    known = {key.strip(): value.strip() for key, _, value in rows}
    if _native(cpuinfo) != "x86-64-v4" or "vendor_id" not in known:
        return 1
    return 1 if known["vendor_id"] == "AuthenticAMD" and known.get("cpu family") == "25" else 2
