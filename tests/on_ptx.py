"""The kernels of the tests as PTX of a compiler of NVIDIA, on an interpreter, not on the emulator.

    PYTHONPATH=tests python -m pytest -p on_ptx tests/gpu/test_gpu_kernels.py ...

A plugin, as ``on_gpu``: ``emulator.build`` compiles for sm_80, and for sm_90a what multiplies by
warpgroups. LUMC_PTX takes one of them for everything; LUMC_PTX_FUSED=1 makes every multiply-add
that an assembler may make of a product and a sum. Metal and HIP stay on their emulators.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import emulator
from gpu.ptx import module
from lumc.codegen.text.headers import NAMES
from on_gpu import about_the_emulator

SKIPPED = r"bundle|mistakes|metal|apple|runner|nvcc|nvrtc|test_functions\[decay|mutant_dies"
COUNTS: Counter[str] = Counter()
EMULATED = emulator.build


def build(
    source: str, folder: Path, checked: bool = False, **other: int
) -> module.Module | emulator.Module:
    if NAMES["hip"] in source:
        return EMULATED(source, folder, checked, **other)
    arch = os.environ.get("LUMC_PTX", module.newest(source))
    return replace(module.build(source, arch, fused="LUMC_PTX_FUSED" in os.environ), counts=COUNTS)


def pytest_configure(config: pytest.Config) -> None:
    emulator.build = build  # type: ignore[assignment]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is about the emulator is left out, and the test whose bound is that of a polynomial:
    approximations are at theirs. Races are found as the emulator finds them."""
    out = [i for i in items if re.search(SKIPPED, i.nodeid) or about_the_emulator(i.path)]
    config.hook.pytest_deselected(items=out)
    items[:] = [i for i in items if i not in set(out)]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    opcodes = len(COUNTS) - ("launches" in COUNTS)
    total = sum(COUNTS.values()) - COUNTS["launches"]
    said = f"PTX: {COUNTS['launches']} launches, {total / 1e6:.1f} M thread instructions"
    terminalreporter.write_line(f"{said}, {opcodes} opcodes")
