"""Candidates on an NVIDIA GPU: compiled for it, those that spill dropped, the others checked and
timed in a worker process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lumc.codegen.generate import print_source
from lumc.codegen.gpu.words import words_of
from lumc.codegen.text.headers import NAMES, header_of
from lumc.codegen.tile.lower import lower
from lumc.errors import LumcError
from lumc.kernel.codec import to_plain
from lumc.kernel.target import Speeds, Target
from lumc.lab.gpu_worker import GpuLoaded, GpuWorker
from lumc.lab.process import Candidates, Limits
from lumc.link import cuda
from lumc.link.link import Tools
from lumc.link.toolchain import Toolchain
from lumc.oracle.kernel import TF32
from lumc.profile.measure import COMPILER_S, SYMBOL, Bench, Job, _Made, digest_of
from lumc.runtime.nvidia import capability

CACHED = 2.0  # times the bandwidth of the memory: what the second cache gives; a guess


class GpuBench(Bench):
    """The GPU of this machine, with its compiler and its worker process; ``tools`` compile what
    runs whole plans. Raises E0706, exit 7, without a GPU."""

    def __init__(
        self,
        target: Target,
        tools: Toolchain,
        compiler: cuda.Compiler,
        limits: Limits | None = None,
    ) -> None:
        self.compiler, self.arch = compiler, f"sm_{capability()}"
        super().__init__(target, tools, replace(limits or Limits(), nbytes=0))
        self.linkers = Tools(self.linkers.c, compiler)

    def _set_up(self) -> None:
        (self.folder / NAMES["cuda"]).write_text(header_of("cuda"))

    def _start(self) -> Candidates:
        return Candidates(self.limits, GpuWorker, TF32 if "tf32" in self.target.flags else 0.0)

    def _print(self, job: Job) -> _Made:
        program = lower(job.plan.kernel, job.schedule, self.target)
        source, grid = print_source(program, job.schedule.threads, SYMBOL)
        assert grid, "a target without blocks"
        sizes = (grid.blocks, grid.threads, grid.shared_bytes)
        name = digest_of(f"{source} {sizes} {grid.maps}")
        (self.folder / f"{name}.cu").write_text(source)
        words = tuple((buffer, to_plain(p)) for buffer, p in words_of(program.kernel).items())
        where = GpuLoaded(str(self.folder / f"{name}.cubin"), SYMBOL, sizes, words, maps=grid.maps)
        return _Made(name, name, where)

    def _compile_one(self, made: _Made) -> None:
        """An image. Raises LumcError when the compiler refuses, or registers do not suffice."""
        image = f"{made.name}.cubin"
        self.compiler.image(self.folder, f"{made.name}.cu", self.arch, image, COMPILER_S)
        for kernel in cuda.figures(Path(made.loaded.path).read_bytes()).values():
            if kernel.local_bytes:
                said = f"{kernel.local_bytes} bytes of a thread are not in registers"
                raise LumcError("E0702", said)

    def speeds(self) -> Speeds:
        """Of the data sheet."""
        memory = self.target.bandwidth
        return Speeds(self.target.gflops, CACHED * memory, memory)
