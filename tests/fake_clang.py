"""A HIP compiler for machines without a GPU: its images are run by the fake runtime.

    lumc compile model.lg --target hip --hipcc "python tests/fake_clang.py"

Takes the words that lumc gives clang and hipRTC: [flags] --offload-arch=gfx942 SOURCE -o OUTPUT.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from fake_hip import fake_image

compiling = Lock()  # the second image of a text is that of the first


@dataclass(frozen=True)
class Emulator:
    """The same without a process."""

    version: str = "emulator"

    def image(self, folder: Path, source: str, arch: str, output: str, seconds: float = 0) -> None:
        text = (folder / source).read_text()
        if "ARCH" in text:
            text = f"#define ARCH 0x{arch.removeprefix('gfx')}\n{text}"
        with compiling:
            (folder / output).write_bytes(fake_image([text], arch))


def main(*words: str) -> None:
    if "--version" in words:
        print("emulator version 0.0")
        return
    *flags, source, _, output = words
    arch = next(f.partition("=")[2] for f in flags if f.startswith("--offload-arch="))
    text = Path(source).read_text()
    if "#error" in text:
        sys.exit(f"{source}:1:2: error: {text.partition('#error')[2].strip()}")
    Path(output).write_bytes(fake_image([text], arch))


if __name__ == "__main__":
    main(*sys.argv[1:])
