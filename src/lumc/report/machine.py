"""What this machine offers: ``lumc targets`` and ``lumc doctor``."""

from __future__ import annotations

import importlib.util
import json
import platform
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from lumc.disk.artifact import atomic
from lumc.errors import LumcError
from lumc.kernel.machines import CPUS, GPUS, resolve_target
from lumc.kernel.target import Target

OPTIONAL = {
    "pycuda": "run and time on an NVIDIA GPU from Python (needs a CUDA toolkit to install)",
    "cuda-bindings": "the same, as a wheel (pip install lumc[cuda])",
    "onnx": "import ONNX models (pip install lumc[onnx])",
    "onnxruntime": "verify --source model.onnx",
    "torch": "verify --source FOLDER or model.pt2",
    "transformers": "verify --source FOLDER",
    "ziglang": "a C compiler where there is none, and for Macs (pip install lumc[metal])",
}


@dataclass(frozen=True)
class Row:
    """A target, whether bundles for it are made here and whether they run here; ``why`` says what
    is missing."""

    name: str
    arch: str
    runs_here: bool
    why: str = ""
    builds_here: bool = True


class Asked(NamedTuple):
    """Compilers that are asked for by their commands."""

    cc: str | None = None
    nvcc: str | None = None
    hipcc: str | None = None


NOTHING = Asked()


def target_rows(asked: Asked = NOTHING) -> list[Row]:
    from lumc.link import cross

    rows, compiler = [], c_compilers(asked.cc)
    for name in ("cpu:native", *(f"cpu:{arch}" for arch in CPUS)):
        target = resolve_target(name)
        unbuilt, why = compiler(target), cross.why_not_here(target)
        said = ", ".join(filter(None, (unbuilt, why)))
        rows.append(Row(name, target.arch, not why, said, not unbuilt))
    builder, device = cuda_compiler(asked.nvcc), nvidia_gpu()
    for arch in GPUS["cuda"]:
        why = ", ".join(re.split("[:;]", said)[0] for ok, said in (builder, device) if not ok)
        rows.append(Row(f"cuda:{arch}", arch, device[0], why, builder[0]))
    ok, said = amd_gpu()  # without a compiler there is text, which hipRTC compiles
    why = "" if ok else re.split("[:;]", said)[0]
    rows += [Row(f"hip:{arch}", arch, ok, why) for arch in GPUS["hip"]]
    from lumc.runtime.metal import problem

    why = missing.what if (missing := problem()) else ""
    rows += [Row(f"metal:{arch}", arch, not why, why) for arch in GPUS["metal"]]
    return rows


def c_compilers(cc: str | None) -> Callable[[Target], str]:
    """Why no compiler makes code for a CPU target; "" when one does. Each is asked once."""
    from lumc.link import cross, toolchain

    said: dict[str, str] = {}
    found = cache(toolchain.find)

    def lacks(target: Target) -> str:
        try:
            cross.for_target(found(cc), target)
        except LumcError as e:
            return e.what.partition(", which")[0].partition(": tried")[0]
        return ""

    def known(target: Target) -> str:
        processor = cross.processor(target.arch)
        if processor not in said:
            said[processor] = lacks(target)
        return said[processor]

    return known


def cuda_compiler(nvcc: str | None) -> tuple[bool, str]:
    """Whether there is one; which, or what to do."""
    from lumc.link import cuda

    return told(lambda: named(cuda.find(nvcc)))


def hip_compiler(hipcc: str | None) -> tuple[bool, str]:
    """Whether there is one; which, or what to do."""
    from lumc.link import hip

    return told(lambda: named(hip.find(hipcc)))


def nvidia_gpu() -> tuple[bool, str]:
    """Whether there is one that Python can use; which, or what to do."""
    from lumc.runtime.nvidia import describe

    return told(describe)


def amd_gpu() -> tuple[bool, str]:
    """Whether there is one; which, or what to do."""
    from lumc.runtime.amd import describe

    return told(describe)


def told(ask: Callable[[], str]) -> tuple[bool, str]:
    """Whether this can be asked; the answer, or what is wrong and what to do."""
    try:
        return True, ask()
    except LumcError as e:
        return False, f"{e.what}; {e.fix}"


def named(compiler: Any) -> str:
    """A compiler of kernels for GPUs, in words."""
    return f"{compiler.version} ({Path(compiler.command[-1]).name})"


def targets(asked: Asked, as_json: bool) -> None:
    """``lumc targets``."""
    rows = target_rows(asked)
    if as_json:
        print(json.dumps([asdict(r) for r in rows]))
        return
    for r in rows:
        builds = "builds here" if r.builds_here else "does not build here"
        state = "runs here" if r.runs_here else f"{builds}, does not run: {r.why}"
        if r.runs_here and not r.builds_here:
            state = f"{builds} ({r.why}), runs here"
        print(f"{r.name:<16} {r.arch:<12} {state}")
    print("cpu:native+vnni  levels times bytes or digits of f32, by AVX512_VNNI or AVX_VNNI")
    print("cuda:ARCH+tf32   products of f32 on tensor cores, operands rounded to 11 bits")


def doctor(asked: Asked, as_json: bool, report: str | None = None) -> None:
    """``lumc doctor``: Python, compiler, target and optional packages, and what is missing; the
    same as a file to send to somebody."""
    from lumc import __version__

    checks: list[tuple[str, bool, str]] = [
        ("lumc", True, __version__),
        ("python", True, platform.python_version()),
        ("egglog", True, version_of("egglog")),
        ("machine", True, f"{platform.system()} {platform.machine()}"),
    ]
    checks.append(_compiler(asked.cc))
    target = resolve_target("cpu:native")
    checks.append(("cpu:native", True, f"{target.arch}, {target.lanes} f32 lanes"))
    checks += [("CUDA compiler", *cuda_compiler(asked.nvcc)), ("NVIDIA GPU", *nvidia_gpu())]
    checks += [("HIP compiler", *hip_compiler(asked.hipcc)), ("AMD GPU", *amd_gpu())]
    for package, use in OPTIONAL.items():
        said = version_of(package)
        found = said != "installed" or importlib.util.find_spec(package) is not None
        checks.append((package, found, said if found else f"not installed: {use}"))
    if platform.system() == "Darwin":
        from lumc.report import mac

        checks += mac.checks()
    rows = [{"what": w, "ok": ok, "said": said} for w, ok, said in checks]
    if report:
        with atomic(Path(report)) as f:
            f.write(json.dumps(rows, indent=1).encode() + b"\n")
    if as_json:
        print(json.dumps(rows))
        return
    for what, ok, said in checks:
        print(f"{'ok  ' if ok else '-   '} {what:<14} {said}")


def _compiler(cc: str | None) -> tuple[str, bool, str]:
    from lumc.link.toolchain import find

    try:
        tools = find(cc)
    except LumcError as e:
        return "compiler", False, f"{e.what}; {e.fix}"
    return "compiler", True, f"{' '.join(tools.command)} ({tools.version})"


def version_of(package: str) -> str:
    """Of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "installed"
