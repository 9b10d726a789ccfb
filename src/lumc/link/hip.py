"""Compilers of HIP: clang, of ROCm or not; what a code object says of its kernels.

Nothing of ROCm is needed: the header of the kernels asks for builtins of clang only.
"""

from __future__ import annotations

import shlex
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from lumc.disk.scratch import scratch
from lumc.doing import doing
from lumc.errors import Exit, LumcError
from lumc.link import toolchain
from lumc.link.elf import sections

# Which GPUs run the kernels for a target: those with its waves and its matrix units. What a bundle
# has no image for is compiled from its text, by hipRTC.
IMAGES = {
    "gfx90a": ("gfx90a", "gfx942"),
    "gfx942": ("gfx90a", "gfx942"),
    "gfx1100": ("gfx1100", "gfx1101", "gfx1102"),
    "gfx1201": ("gfx1200", "gfx1201"),
}
# For hipRTC as well; never -ffast-math: NaN and infinity are values.
LANGUAGE = ("-std=c++17", "-O3", "-ffp-contract=fast-honor-pragmas", "-fno-unroll-loops")
FLAGS = (
    *("-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib"),
    *LANGUAGE,
    *("-mcode-object-version=5", "-Wno-unused-command-line-argument"),  # which ROCm 6 loads
)
# clang from 17 knows gfx942, from 18 gfx1201 as well
NAMES = ("amdclang++", "/opt/rocm/llvm/bin/clang++", "clang++")
NUMBERED = range(24, 17, -1)  # clang++-19, as distributions call it
NEWEST = "gfx1201"  # which a compiler must know
TEXT = "kernels.hip"
LEFT_OUT = (
    "without images for HIP: there is no clang 18 or newer with lld, so hipRTC compiles the "
    "kernels when the bundle is opened"
)
TIMEOUT_S = 600
EM_AMDGPU = 224  # e_machine of a code object
METADATA = 32  # the note of a code object that describes its kernels, as MessagePack


@dataclass(frozen=True)
class Compiler:
    """Makes images of HIP text; it is started for every image."""

    command: tuple[str, ...]
    version: str
    kept: Path | None = None  # the folder of compiled objects

    def image(
        self, folder: Path, source: str, arch: str, output: str, seconds: float = TIMEOUT_S
    ) -> None:
        """Compile ``source`` to the code object ``output``, both in ``folder``, where its headers
        are. Raises E0702."""
        command = (*self.command, *FLAGS, f"--offload-arch={arch}")
        made_by = (self.version, arch, *FLAGS)
        toolchain.compile_file(command, folder, source, output, made_by, self.kept, seconds)


def find(hipcc: str | None = None, kept: Path | None = None) -> Compiler:
    """``hipcc`` (a command, may have arguments), else clang of ROCm or of the PATH, if it makes
    images for GPUs of AMD; it reuses the objects in ``kept``. Raises E0713, exit 7."""
    failed = ""
    for command in candidates(hipcc):
        if not shutil.which(command[0]):
            continue
        lines = toolchain.output_of([*command, "--version"]).splitlines()
        version = next((line.strip() for line in lines if "version" in line), "")
        compiler = Compiler(command, version, kept)
        if version and not (said := _fails(compiler)):
            return compiler
        failed = failed or f"{shlex.join(command)}: {said if version else 'does not start'}"
    fix = "install clang 18 or newer and lld (Debian: apt install clang-19 lld-19), or ROCm"
    tried = hipcc or "no clang 18 or newer in the PATH"
    what = f"no HIP compiler: {tried}"
    raise LumcError("E0713", what, where=failed, fix=fix, exit=Exit.TOOLCHAIN)


def found(hipcc: str | None = None, kept: Path | None = None) -> Compiler | None:
    """The same, and nothing where none is asked for by name. Raises E0713 where one is."""
    try:
        return find(hipcc, kept)
    except LumcError:
        if hipcc:
            raise
        return None


def candidates(hipcc: str | None = None) -> Iterator[tuple[str, ...]]:
    if hipcc:
        yield tuple(shlex.split(hipcc))
        return
    yield from ((name,) for name in NAMES)
    yield from ((f"clang++-{number}",) for number in NUMBERED)


def _fails(compiler: Compiler) -> str:
    """Why it makes no images: one without GPUs of AMD, an old one, one without a linker."""
    with scratch() as folder:
        (folder / "empty.hip").touch()
        try:
            compiler.image(folder, "empty.hip", NEWEST, "empty.hsaco", seconds=60)
        except LumcError as e:
            return e.what
    return ""


def compile_images(compiler: Compiler, folder: Path, source: str, archs: Sequence[str]) -> None:
    """``kernels.gfx942.hsaco`` .. of kernels.hip, several at a time."""

    def one(arch: str) -> None:
        compiler.image(folder, source, arch, f"{Path(source).stem}.{arch}.hsaco")

    doing(f"compiling for {', '.join(archs)}, {folder.name}")
    toolchain.side_by_side(one, archs)


# ---- figures of an image


class Figures(NamedTuple):
    """What a kernel takes, as clang allotted it."""

    registers: int  # of a thread, those of the matrix units included
    spilled: int  # registers that lie in memory, of threads and of waves
    local_bytes: int  # of a thread: spilled registers, and arrays that registers cannot hold
    wave: int  # threads that run in step


def figures(image: bytes) -> dict[str, Figures]:
    """By kernel symbol, from the notes of the ELF file itself (LLVM, "User Guide for AMDGPU
    Backend", section "Code Object Metadata"); nothing for what is not a code object."""
    if image[:4] != b"\x7fELF" or struct.unpack_from("<H", image, 18)[0] != EM_AMDGPU:
        return {}
    return {k[".name"]: _figures_of(k) for k in _kernels(sections(image).get(".note", b""))}


def _kernels(notes: bytes) -> list[dict[str, Any]]:
    at = 0
    while at + 12 <= len(notes):
        name, size, kind = struct.unpack_from("<III", notes, at)
        begin = at + 12 + -(-name // 4) * 4
        if kind == METADATA:
            said: dict[str, Any] = msgspec.msgpack.decode(notes[begin : begin + size])
            return list(said.get("amdhsa.kernels", []))
        at = begin + -(-size // 4) * 4
    return []


def _figures_of(kernel: dict[str, Any]) -> Figures:
    registers = kernel[".vgpr_count"]  # where there is one file of them, all of both kinds
    spilled = kernel.get(".vgpr_spill_count", 0) + kernel.get(".sgpr_spill_count", 0)
    local = kernel[".private_segment_fixed_size"]
    return Figures(registers, spilled, local, kernel[".wavefront_size"])
