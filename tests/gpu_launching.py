"""Plans for GPUs on the emulators: the kernels of many graphs in one text, launched on arrays."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import emulator
import msl
from gpu import address_spaces
from gpu.msl_lint import lint
from launching import Leaf, Memory
from lumc.codegen.code import Code, EntryPlan

Array = np.ndarray[Any, Any]
NOTHING = np.zeros(0, np.uint8)  # in the place of a buffer that a kernel never touches


def module(
    folder: Path, codes: Sequence[Code], checked: bool = False
) -> emulator.Module | msl.Module:
    """The kernels of several codes; those of code ``i`` are ``g{i}_symbol``. Metal text is checked
    as far as that is possible without its compiler."""
    texts = [
        re.sub(rf"\b{k.symbol}\b", f"g{i}_{k.symbol}", k.source)
        for i, code in enumerate(codes)
        for k in code.kernels
    ]
    if codes[0].target.kind == "metal":
        text = "\n".join([codes[0].header, *texts])
        said = lint(text, codes[0].target.arch)
        assert not said, "\n".join(map(str, said))
        if address_spaces.clang():
            assert address_spaces.check(text) == []
        return msl.build(text, folder, checked)
    gpu = codes[0].target.gpu
    assert gpu
    other = {"lanes": gpu.warp} if gpu.warp != emulator.LANES else {}
    return emulator.build("\n".join(texts), folder, checked, **other)


def run(
    kernels: emulator.Module | msl.Module,
    prefix: str,
    code: Code,
    name: str,
    leaf: Leaf,
    order: str = "forward",
) -> dict[str, Array]:
    """Outputs and written states of an entry; what the checker reports is a failure."""
    (entry,) = (e for e in code.entries if e.name == name)
    return launched(kernels, prefix, code, entry, Memory(code, entry, leaf, 1), order)


def launched(
    kernels: emulator.Module | msl.Module,
    prefix: str,
    code: Code,
    entry: EntryPlan,
    memory: Memory,
    order: str = "forward",
) -> dict[str, Array]:
    """The same in memory that is given."""
    grids = {k.symbol: k.grid for k in code.kernels}
    for step in entry.launches:
        grid = grids[step.kernel]
        assert grid, f"{step.kernel} has no grid"
        args = [memory.arrays[n] if n else NOTHING for n in step.args]
        said = kernels.launch(prefix + step.kernel, grid, args, order)
        assert not said, said
    return memory.after()
