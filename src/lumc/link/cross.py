"""C compilers for the processors of targets: what the one that was found does not make."""

from __future__ import annotations

import shlex
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lumc.errors import Exit, LumcError
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from lumc.link.glibc import OLDEST
from lumc.link.toolchain import Toolchain, find, zigs

SPELLED = {"arm64": "aarch64", "amd64": "x86_64"}
MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}  # e_machine of ELF files


def processor(arch: str) -> str:
    """What kind of processor an architecture of ours is; "" for any: x86_64 of x86-64-v4."""
    if arch == "generic":
        return ""
    return "x86_64" if arch.startswith("x86-64") else arch


def made_by(tools: Toolchain) -> str:
    """The processor that a compiler makes code for."""
    first = tools.machine.partition("-")[0]
    return SPELLED.get(first, first)


def for_target(tools: Toolchain, target: Target) -> Toolchain:
    """The compiler itself where it makes code for the target's processor, else one for Linux that
    does: a cross compiler of the PATH, or zig. Raises E0710, exit 7."""
    wanted = processor(target.arch)
    if target.kind != "cpu" or wanted in ("", made_by(tools)):
        return tools
    tried = []
    for command in _candidates(tools, wanted):
        tried.append(shlex.join(command))
        try:
            found = find(tried[-1], tools.kept)
        except LumcError:
            continue
        if not found.is_zig:
            return found
        triple = f"{command[-1]}.{OLDEST}"  # which zig knows when it compiles only
        return replace(found, command=(*command[:-1], triple))
    what = f"no C compiler for {wanted}, which {target.name} needs: tried {', '.join(tried)}"
    package = f"gcc-{wanted.replace('_', '-')}-linux-gnu"
    fix = f"pip install ziglang, or install gcc for {wanted} (Debian: apt install {package})"
    raise LumcError("E0710", what, fix=fix, exit=Exit.TOOLCHAIN)


def _candidates(tools: Toolchain, wanted: str) -> Iterator[tuple[str, ...]]:
    triple = f"{wanted}-linux-gnu"
    if tools.is_zig:
        yield (*tools.command, "-target", triple)
    yield (f"{triple}-gcc",)
    for zig in zigs():
        yield (*zig, "-target", triple)


def check(made: Path, arch: str, target: Target, tools: Toolchain) -> None:
    """What was linked is for the target's processor, as the compiler's macros say (``arch``) and as
    the file itself does. Raises E0710, exit 7."""
    wanted, head = processor(target.arch), made.read_bytes()[:20]
    is_elf = head[:4] == b"\x7fELF"
    file = MACHINES.get(struct.unpack("<H", head[18:20])[0], "another processor") if is_elf else ""
    got = next((n for n in (arch, file) if wanted and n and n != wanted), "")
    if got:
        what = f"{shlex.join(tools.command)} makes code for {got}, {target.name} needs {wanted}"
        raise LumcError("E0710", what, fix=f"--cc a compiler for {wanted}", exit=Exit.TOOLCHAIN)


def why_not_here(target: Target) -> str:
    """What keeps a CPU target from running on this machine; "" when nothing does."""
    here = resolve_target("cpu:native").arch
    if processor(target.arch) == "" or target.arch == here:
        return ""
    lower = processor(target.arch) == processor(here) == "x86_64" and target.arch <= here
    return "" if lower else f"this machine is {here}"
