"""arm64 programs on this machine: the compiler that makes them, and qemu that runs them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from bundles import compiler
from lumc.errors import LumcError
from lumc.kernel.machines import resolve_target
from lumc.link import cross
from lumc.link.toolchain import Toolchain

ARM = resolve_target("cpu:aarch64")
LOADER = "lib/ld-linux-aarch64.so.1"
PLACES = (os.environ.get("QEMU_LD_PREFIX", ""), "/usr/aarch64-linux-gnu", "/")


def arm_compiler() -> Toolchain:
    """The one that ``link`` takes for cpu:aarch64; without it the test is skipped."""
    try:
        return cross.for_target(compiler(), ARM)
    except LumcError as e:
        pytest.skip(e.what)


def arm_runner() -> Sequence[str]:
    """The start of a command that runs arm64 programs; without one the test is skipped."""
    if cross.made_by(compiler()) == "aarch64":
        return ()
    qemu = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    root = next((p for p in PLACES if p and (Path(p) / LOADER).exists()), None)
    if not qemu or not root:
        pytest.skip("no qemu-aarch64, or no arm64 C library (apt: qemu-user libc6-arm64-cross)")
    return (qemu, "-L", root)
