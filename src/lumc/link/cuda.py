"""CUDA compilers: NVRTC of its wheel or a toolkit's nvcc; what an image says of its kernels."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lumc.doing import doing
from lumc.errors import Exit, LumcError
from lumc.link import nvrtc, toolchain
from lumc.link.elf import sections, text

# What a bundle holds: an image for every architecture, and text for the GPUs to come.
IMAGES = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
OWN = {"sm_90": "sm_90a"}  # with what no later one has: only sm_90 runs the image anyhow
TEXT = "compute_80"
# Never --use_fast_math: NaN and infinity are values. These are the defaults, but for the first.
FLAGS = ("-std=c++17", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--fmad=true")
TIMEOUT_S = 600
EM_CUDA = 190  # e_machine of a cubin
REGISTERS, FRAME = 0x2F, 0x11  # attributes in .nv.info: (symbol, value)


@dataclass(frozen=True)
class Compiler:
    """Makes images of CUDA text; it is started for every image."""

    command: tuple[str, ...]
    version: str
    kept: Path | None = None  # the folder of compiled objects

    def image(
        self, folder: Path, source: str, arch: str, output: str, seconds: float = TIMEOUT_S
    ) -> None:
        """Compile ``source`` to ``output``, both in ``folder``, where its headers are: a cubin for
        sm_90, PTX for compute_80. Raises E0702."""
        kind = "-ptx" if arch.startswith("compute_") else "-cubin"
        arch = OWN.get(arch, arch)
        command = (*self.command, kind, f"-arch={arch}", *FLAGS)
        made_by = (self.version, arch, *FLAGS)
        toolchain.compile_file(command, folder, source, output, made_by, self.kept, seconds)


def find(nvcc: str | None = None, kept: Path | None = None) -> Compiler:
    """``nvcc`` (a command, may have arguments), else the wheel nvidia-cuda-nvrtc, nvcc of the PATH;
    it reuses the objects in ``kept``. Raises E0705, exit 7."""
    for command in candidates(nvcc):
        if shutil.which(command[0]) and (said := toolchain.output_of([*command, "--version"])):
            lines = [line.strip() for line in said.splitlines() if line.strip()]
            version = next((line for line in lines if "release" in line), lines[-1])
            return Compiler(command, version, kept)
    fix = "pip install nvidia-cuda-nvrtc (or 'lumc[cuda]'), or install a CUDA toolkit with nvcc"
    tried = nvcc or "no nvidia-cuda-nvrtc wheel, and no nvcc in the PATH"
    what = f"no CUDA compiler: {tried}"
    raise LumcError("E0705", what, fix=fix, exit=Exit.TOOLCHAIN)


def candidates(nvcc: str | None = None) -> Iterator[tuple[str, ...]]:
    if nvcc:
        yield tuple(shlex.split(nvcc))
        return
    for library in nvrtc_libraries():
        yield (sys.executable, "-I", "-S", nvrtc.__file__, str(library))
    yield ("nvcc",)


def nvrtc_libraries() -> list[Path]:
    """libnvrtc of the wheels in this environment, the newest first."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(f) for f in spec.submodule_search_locations or ()] if spec else []
    found = [p for f in folders for p in f.glob("*/lib/libnvrtc.so.*") if p.suffix[1:].isdecimal()]
    return sorted(found, key=lambda p: -int(p.suffix[1:]))


def compile_images(compiler: Compiler, folder: Path, source: str, archs: Sequence[str]) -> None:
    """``kernels.sm_80.cubin`` .. and ``kernels.ptx`` of kernels.cu, several at a time."""

    def one(arch: str) -> None:
        end = "ptx" if arch.startswith("compute_") else f"{arch}.cubin"
        compiler.image(folder, source, arch, f"{Path(source).stem}.{end}")

    doing(f"compiling for {', '.join(archs)}, {folder.name}")
    toolchain.side_by_side(one, archs)


# ---- figures of an image


class Figures(NamedTuple):
    """What a kernel takes, as ptxas allotted it."""

    registers: int  # of a thread
    local_bytes: int  # of a thread: spilled registers, and arrays that registers cannot hold
    shared_bytes: int  # of a block, besides what the launch adds


def figures(image: bytes) -> dict[str, Figures]:
    """By kernel symbol, from the ELF file itself; nothing for what is not a cubin."""
    if image[:4] != b"\x7fELF" or struct.unpack_from("<H", image, 18)[0] != EM_CUDA:
        return {}
    found = sections(image)
    symbols = dict(enumerate(_symbols(found)))
    allotted: dict[int, dict[str, int]] = {REGISTERS: {}, FRAME: {}}
    for attribute, symbol, value in _attributes(found.get(".nv.info", b"")):
        if attribute in allotted:
            allotted[attribute][symbols.get(symbol, "")] = value
    kernels = [n.removeprefix(".text.") for n in found if n.startswith(".text.")]
    return {
        name: Figures(
            allotted[REGISTERS].get(name, 0),
            allotted[FRAME].get(name, 0),
            len(found.get(f".nv.shared.{name}", b"")),
        )
        for name in kernels
    }


def _symbols(found: dict[str, bytes]) -> Iterator[str]:
    table = found.get(".symtab", b"")
    for at in range(0, len(table) - 23, 24):
        yield text(found.get(".strtab", b""), struct.unpack_from("<I", table, at)[0])


def _attributes(info: bytes) -> Iterator[tuple[int, int, int]]:
    """(attribute, symbol, value) of the entries of .nv.info that have these."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if form == 4 and size == 8 and at + 12 <= len(info):
            yield attribute, *struct.unpack_from("<II", info, at + 4)
        at += 4 + (size if form == 4 else 0)
