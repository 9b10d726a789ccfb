"""Which glibc the runner needs: the oldest one that has what it calls, not that of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lumc.link.toolchain import Toolchain, output_of

OLDEST = "2.17"  # clock_gettime without librt; the first one for aarch64
ARCHES = ("x86_64", "aarch64")
STUBS = ("libdl.so.2", "libpthread.so.0")  # what glibc 2.34 took into libc.so.6


class Flags(NamedTuple):
    """What is added when the runner is compiled, when all of it is linked, and for lumc-run."""

    compiling: tuple[str, ...] = ()
    linking: tuple[str, ...] = ()
    program: tuple[str, ...] = ()


def oldest(tools: Toolchain) -> Flags:
    """Flags for a compiler that links to this machine's glibc, or to that of another processor;
    none for other systems, and for zig, which takes a version in its target."""
    arch, _, system = tools.machine.partition("-")
    if tools.is_zig or arch not in ARCHES or "linux" not in system or "musl" in system:
        return Flags()
    places = [output_of([*tools.command, f"-print-file-name={name}"]).strip() for name in STUBS]
    if not all(Path(place).is_absolute() for place in places):
        return Flags()
    libraries = tuple(f"-l:{name}" for name in STUBS)
    return Flags(
        ("-DLUMC_OLD_GLIBC",),
        ("-Wl,--push-state,--no-as-needed", *libraries, "-Wl,--pop-state"),
        ("-Wl,--wrap=__libc_start_main",),
    )
