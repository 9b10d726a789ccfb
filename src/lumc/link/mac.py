"""The native runner for Macs, made on any machine: the ziglang wheel compiles it, and its linker
signs it (ad hoc, as arm64 asks for)."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path

from lumc.link.toolchain import Toolchain, find

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
