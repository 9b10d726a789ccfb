"""The address spaces of Metal text, checked by clang as C++ for OpenCL: device is __global,
threadgroup __local, constant __constant and thread __private."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from gpu.msl_text import ATTRIBUTE, CONSTANT, without_comments

PRELUDE = Path(__file__).parent / "metal" / "address_spaces.cl"
CLANGS = ("clang", *(f"clang-{n}" for n in range(30, 13, -1)))
FLAGS = (
    *("-x", "cl", "-cl-std=clc++2021", "-target", "spir64", "-fsyntax-only", "-ferror-limit=20"),
    *("-Xclang", "-finclude-default-header", "-Xclang", "-fdeclare-opencl-builtins", "-w"),
)


@cache
def clang() -> str | None:
    """A clang that reads C++ for OpenCL (14 or later), or None."""
    for name in CLANGS:
        if shutil.which(name):
            command = [name, *FLAGS, "-include", str(PRELUDE), "-"]
            if not subprocess.run(command, input=b"", capture_output=True).returncode:
                return name
    return None


def check(source: str) -> list[str]:
    """What is wrong: ``kernels.metal:12: message``. Needs ``clang()``."""
    text = re.sub(r"#include\s*<metal\w*>", "", without_comments(source))
    text = CONSTANT.sub(lambda m: f"constant {m[1]} {m[2]} = 1", text)
    text = ATTRIBUTE.sub("", text)
    command = [clang() or "clang", *FLAGS, "-include", str(PRELUDE), "-"]
    numbered = f'#line 1 "kernels.metal"\n{text}'
    done = subprocess.run(command, input=numbered, capture_output=True, text=True)
    errors = re.findall(r"^(.*?):(\d+):\d+: (?:fatal )?error: (.*)", done.stderr, re.M)
    if done.returncode and not errors:
        return [done.stderr]
    return [f"{file}:{line}: {message}" for file, line, message in errors]
