"""A target: what the code is generated for. It is found once, by name, and travels as data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple


class Rates(NamedTuple):
    """What a processor of a GPU does in a cycle at most."""

    mhz: int  # cycles, in millions a second
    tensor: int  # operations of the matrix units on 16-bit operands, with sums in f32
    f32: int  # additions, products or both at once, of a thread each
    special: int  # powers, reciprocals and roots of the hardware, of a thread each
    l2: int | None = None  # bytes of the second cache, for all processors; None: not published
    issue: int = 4  # instructions of warps
    shared: int = 128  # bytes of shared memory: 4 of every bank


class Resident(NamedTuple):
    """What the blocks of a processor of a GPU have together, at most."""

    threads: int
    blocks: int
    shared: int  # bytes


class Attained(NamedTuple):
    """The shares of its rates that a GPU was seen to attain."""

    tensor: float = 1.0
    l2: float = 1.0
    memory: float = 1.0


class Processor(NamedTuple):
    """What prices know of a GPU's processors and caches beside its rates. No file has it."""

    resident: Resident
    l1_bytes: int  # the first cache of a processor, with its shared memory
    l2_bytes: int  # the second cache
    attained: Attained | None = None  # None: not measured
    # cycles until something is there, under load: of memory, of the second cache; of shared memory,
    # another thread's register or a barrier
    memory_cycles: int = 2000
    l2_cycles: int = 400
    shared_cycles: int = 30


@dataclass(frozen=True)
class Gpu:
    """What the blocks of a GPU may use; sizes in bytes, rates in GFLOP/s."""

    processors: int  # that run blocks side by side
    shared: int  # memory that the threads of one block share
    tensor_gflops: float  # of the matrix units, 16-bit operands, sums in f32
    warp: int = 32  # threads that run in step
    threads: int = 1024  # of a block
    registers: int = 1 << 16  # of a processor, 4 bytes each
    values: int = 220  # registers of a thread that may hold values
    rates: Rates | None = None  # None: not known


@dataclass(frozen=True)
class Target:
    """A machine that kernels are generated for; all sizes in bytes, rates in GB/s and GFLOP/s."""

    name: str  # as the user wrote it: cpu:native
    arch: str  # x86-64-v4, x86-64-v3, x86-64-v2, aarch64, generic; sm_90; gfx942; apple9
    flags: tuple[str, ...]  # that select the instruction set; of a GPU: the features asked for
    lanes: int  # f32 lanes of a vector register; 1 on a GPU
    registers: int  # vector registers
    l1: int = 32 << 10
    l2: int = 1 << 20
    gflops: float = 50.0  # one thread, f32 FMA peak; only ranks estimates
    bandwidth: float = 20.0  # one thread, memory
    launch_us: float = 0.1  # cost of one more kernel
    threads: int = 1
    fmas: int = 1  # vectors of multiply-adds that a core ends in a cycle: 1 or 2
    gpu: Gpu | None = None

    @property
    def kind(self) -> str:
        """cpu, cuda, hip or metal."""
        return self.name.partition(":")[0]

    @property
    def machine(self) -> str:
        """The kind of machine, which tables have rows for: cpu or gpu."""
        return "gpu" if self.gpu else "cpu"

    @property
    def ends_early(self) -> bool:
        """Do its loops over tiles end where a mask leaves no step of a reduction?"""
        return self.machine == "gpu"

    @property
    def features(self) -> tuple[str, ...]:
        """What was asked for beside an architecture."""
        return tuple(self.name.split("+")[1:])

    @property
    def units(self) -> int:
        """What it does side by side: threads, or blocks of a GPU."""
        return self.gpu.processors if self.gpu else self.threads

    @property
    def largest(self) -> int:
        """The greatest index that its kernels count to: in 64 bits, on a GPU in 32."""
        return (1 << (31 if self.gpu else 63)) - 1

    @property
    def generation(self) -> int:
        """The number in the name of a GPU's architecture: 90 of sm_90, of gfx90a 0x90a."""
        if self.arch.startswith("gfx"):
            return int(self.arch.removeprefix("gfx"), 16)
        return int(re.sub(r"\D", "", self.arch))


class Speeds(NamedTuple):
    """What one thread of a machine was seen to reach."""

    gflops: float  # multiply-adds on registers
    cached: float  # GB/s of reading from the second cache
    memory: float  # GB/s of a copy in memory, both ways together
