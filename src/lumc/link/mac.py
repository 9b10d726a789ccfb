"""The native runner for Macs, made on any machine: the ziglang wheel compiles it, and its linker
signs it (ad hoc, as arm64 asks for)."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
import tempfile
from functools import cache
from pathlib import Path

from lumc.link.toolchain import RUNNER_FLAGS, Toolchain, compile_objects, find, link_objects

NAME = "bin/lumc-run-macos-arm64"
TARGET = "aarch64-macos.13.0"  # Metal 3 came with macOS 13
LEFT_OUT = (
    f"without {NAME}: it is compiled by the ziglang wheel, which is not installed; "
    "pip install 'lumc[metal]' and link again, or use lumc run on the Mac"
)


def compiler(kept: Path | None = None) -> Toolchain | None:
    """The C compiler for Macs; None without the wheel."""
    if not importlib.util.find_spec("ziglang"):
        return None
    return find(shlex.join([sys.executable, "-m", "ziglang", "cc", "-target", TARGET]), kept)


@cache
def runner(tools: Toolchain, sources: tuple[tuple[str, bytes], ...]) -> bytes:
    """The program of these files, by name and content."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, data in sources:
            (folder / name).write_bytes(data)
        names = [name for name, _ in sources if name.endswith(".c")]
        objects = compile_objects(tools, folder, names, RUNNER_FLAGS, os.cpu_count() or 1)
        link_objects(tools, folder, objects, "lumc-run", ())
        return (folder / "lumc-run").read_bytes()
