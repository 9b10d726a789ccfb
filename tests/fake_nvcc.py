"""A CUDA compiler for machines without a GPU: its images are run by the fake driver.

    NVCC="python tests/fake_nvcc.py" lumc compile model.lg --target cuda

Takes the words that lumc gives nvcc: -cubin|-ptx -arch=sm_90 [flags] SOURCE -o OUTPUT.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fake_gpu import fake_fatbin


def main(*words: str) -> None:
    if "--version" in words:
        print("emulator, release 0.0")
        return
    *_, source, _, output = words
    Path(output).write_bytes(fake_fatbin([Path(source).read_text()]))


if __name__ == "__main__":
    main(*sys.argv[1:])
