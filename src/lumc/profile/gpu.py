"""Candidates on an NVIDIA GPU: compiled for it, those that spill dropped, the others checked and
timed in a worker process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lumc.codegen.plan import Grid
from lumc.errors import LumcError
from lumc.kernel.schedule import Schedule
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.link import cuda
from lumc.link.bundle import Tools
from lumc.link.toolchain import Toolchain
from lumc.profile.measure import COMPILER_S, Bench, Job, _Made, digest_of
from lumc.runtime.gpu_worker import GpuLoaded, GpuWorker
from lumc.runtime.nvidia import capability
from lumc.runtime.process import Candidates, Limits

# The text of a kernel under a schedule, for a target, under a symbol; and how it is launched.
Emit = Callable[[Kernel, Schedule, Target, str], tuple[str, Grid]]


class GpuBench(Bench):
    """The GPU of this machine, with its compiler and its worker process. ``tools`` compile what
    runs the whole plans; raises E0706, exit 7, without a GPU."""

    def __init__(
        self,
        target: Target,
        tools: Toolchain,
        compiler: cuda.Compiler,
        emit: Emit,
        header: str,
        limits: Limits | None = None,
        jobs: int = 0,
    ) -> None:
        self.compiler, self.emit, self.header = compiler, emit, header
        self.arch = f"sm_{capability()}"
        super().__init__(target, tools, replace(limits or Limits(), nbytes=0), jobs)

    def _set_up(self) -> None:
        (self.folder / "lumc_dev.h").write_text(self.header)

    def _linkers(self) -> Tools:
        return Tools(self.tools, self.compiler)

    def _start(self) -> Candidates:
        return Candidates(self.limits, GpuWorker)

    def _print(self, job: Job, symbol: str, name: str) -> _Made:
        source, grid = self.emit(job.plan.kernel, job.schedule, self.target, symbol)
        (self.folder / f"{name}.cu").write_text(source)
        where = GpuLoaded(
            str(self.folder / f"{name}.cubin"),
            symbol,
            (grid.blocks, grid.threads, grid.shared_bytes),
        )
        said = source.replace(f"{symbol}(", "k(") + str(where.grid)
        return _Made(digest_of(said), name, where)

    def _compile_one(self, made: _Made) -> None:
        """An image. Raises LumcError when the compiler refuses, or registers do not suffice."""
        image = f"{made.name}.cubin"
        self.compiler.image(self.folder, f"{made.name}.cu", self.arch, image, COMPILER_S)
        for kernel in cuda.figures(Path(made.loaded.path).read_bytes()).values():
            if kernel.local_bytes:
                what = f"{kernel.local_bytes} bytes of a thread are not in registers"
                raise LumcError("E0702", what)

    def peak(self) -> float:
        """GFLOP/s, of the data sheet."""
        return self.target.gflops

    def cached(self) -> float:
        """GB/s that no kernel exceeds, of the data sheet: of the memory, twice for its cache."""
        return 2 * self.target.bandwidth
