"""Text of CUDA by NVIDIA's compiler, on the interpreter: the face of ``emulator.Module``."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emulator import Array, LaunchError, _parameters
from gpu.ptx.contract import contracted
from gpu.ptx.launch import launch
from gpu.ptx.text import Program, parse
from lumc.codegen.gpu.grid import Grid
from lumc.codegen.text.headers import header_of
from lumc.errors import LumcError
from lumc.link import cuda
from once import folder_of


@functools.cache
def compiler() -> cuda.Compiler | None:
    """$NVCC, NVRTC of a wheel, or nvcc; None where there is none of them."""
    try:
        return cuda.find(os.environ.get("NVCC"))
    except LumcError:
        return None


WHY = "needs NVIDIA's compiler: pip install '.[gputest]'"


def ptx_of(source: str, arch: str, header: str | None = None) -> str:
    """PTX of a text for ``compute_80`` or ``compute_90a``, as the compiler of images makes it.
    Equal texts are compiled once for all processes of a run of tests."""
    header = header_of("cuda") if header is None else header
    named = hashlib.sha256("\0".join((source, arch, header)).encode()).hexdigest()[:20]

    def make(folder: Path) -> None:
        found = compiler()
        assert found, WHY
        with tempfile.TemporaryDirectory(dir=folder) as name:
            (Path(name) / "lumc_dev.h").write_text(header)
            (Path(name) / "kernels.cu").write_text(source)
            found.image(Path(name), "kernels.cu", arch, "kernels.ptx")
            (Path(name) / "kernels.ptx").rename(folder / "kernels.ptx")

    return (folder_of(f"ptx-{named}", make) / "kernels.ptx").read_text()


@dataclass(frozen=True)
class Module:
    """The kernels of one text."""

    program: Program
    parameters: dict[str, tuple[str, ...]]
    fused: bool = False  # with the multiply-adds that an assembler may make
    counts: Counter[str] = field(default_factory=Counter)  # thread instructions by opcode

    def launch(
        self,
        symbol: str,
        grid: Grid,
        arguments: Sequence[Array],
        order: str = "forward",
        seed: int = 0,
    ) -> str:
        """Run a kernel on arrays in place; what it did wrong, "" for nothing. Raises LaunchError,
        and PtxError for an instruction that the interpreter does not know."""
        entry = self.program.entries.get(symbol)
        if entry is None:
            names = ", ".join(self.parameters)
            raise LaunchError(f"there is no kernel {symbol}; kernels: {names}")
        if len(arguments) != len(entry.arrays):
            raise LaunchError(f"{symbol} takes {len(entry.arrays)} arrays, not {len(arguments)}")
        if grid.threads > entry.threads:
            raise LaunchError(f"{symbol} is compiled for {entry.threads} threads a block")
        self.counts["launches"] += 1
        entry = contracted(entry) if self.fused else entry
        sizes = grid.blocks, grid.threads, grid.shared_bytes
        return launch(entry, *sizes, arguments, self.counts, maps=grid.maps)


def build(
    source: str, arch: str = "compute_80", header: str | None = None, fused: bool = False
) -> Module:
    """The kernels of a text of lumc. Raises LumcError where the compiler refuses it."""
    return Module(parse(ptx_of(source, arch, header)), _parameters(source), fused)


def newest(text: str) -> str:
    """The newest architecture that a text asks for by what it uses."""
    return "compute_90a" if re.search(r"\blumc_wgmma\b", text) else "compute_80"
