"""The process that runs candidates: it may crash, hang or run out of memory; the search goes on.

It holds the data of the kernels that are being measured: random inputs, and what numpy makes of
them at some points of every result. A candidate is run once and compared before it is timed.
"""

from __future__ import annotations

import ctypes
import mmap
import resource
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from lumc.bundle.packing import pack
from lumc.codegen.tile.memory import PAGE, aligned
from lumc.codegen.tile.packing import Packing
from lumc.kernel.codec import from_plain
from lumc.oracle.kernel import Expected, expected, inputs_of
from lumc.oracle.term import Array, widen
from lumc.process import answers
from lumc.schedule.plan import KernelPlan

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

CHUNK = 32 << 20  # memory is taken from the system in pieces of at least this size
FENCE = 4096  # bytes before and after what a kernel may write
MARK = 0xA5
HUGE_PAGE = 2 << 20
HUGE_FROM = 4 << 20  # bytes: numpy asks for huge pages itself
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory has no huge pages
KEPT = 6  # kernels whose data stays in memory
SPREADS = (1.0, 0.1)  # of random inputs: smaller ones where the default already overflows
MAX_COPIES = 64
OUTSIDE = "wrote outside of its buffers"


class Loaded(NamedTuple):
    """Where a candidate is and how it is called."""

    path: str
    symbol: str
    raw: tuple[str, ...]  # buffers that it reads as they are
    packings: tuple[Mapping[str, Any], ...]  # of codegen.code, by buffer name
    scratch_bytes: int
    parallel: int  # 0: one part; 1: one for every thread; n: at most n
    tiles: int  # that are dealt to the parts
    dims: tuple[int, ...] = ()  # that it is called with


class Memory:
    """Arrays on huge pages, as weights are in a bundle, or on small ones, as most callers have;
    all are given back at once."""

    def __init__(self, huge: bool = True) -> None:
        self.huge = huge
        self.chunks: list[Array] = []
        self.free = 0

    def array(self, shape: Sequence[int], dtype: Any) -> Array:
        """Zeros on a cache line, with a fence on both sides."""
        size = prod(shape) * np.dtype(dtype).itemsize
        need = -(-size // 64) * 64 + 2 * FENCE
        if need > self.free:
            self.free = max(CHUNK, -(-need // CHUNK) * CHUNK)
            try:
                block = mmap.mmap(-1, self.free + HUGE_PAGE, PRIVATE)
            except OSError as e:
                raise MemoryError from e
            if self.huge and hasattr(mmap, "MADV_HUGEPAGE"):
                block.madvise(mmap.MADV_HUGEPAGE)
            whole = np.frombuffer(block, np.uint8)
            skip = -whole.ctypes.data % HUGE_PAGE
            self.chunks.append(whole[skip : skip + self.free])
        start = len(self.chunks[-1]) - self.free + FENCE
        self.free -= need
        self.chunks[-1][start - FENCE : start + need - FENCE] = MARK
        out: Array = self.chunks[-1][start : start + size].view(dtype).reshape(shape)
        out[...] = 0
        return out


def is_fenced(array: Array) -> bool:
    """Whether nothing was written beside the array."""
    size = -(-array.nbytes // 64) * 64
    for start in (array.ctypes.data - FENCE, array.ctypes.data + size):
        fence = (ctypes.c_uint8 * FENCE).from_address(start)
        if bytes(fence) != bytes([MARK]) * FENCE:
            return False
    return True


@dataclass
class Subject:
    """A kernel under measurement: its arguments and what it should compute."""

    plan: KernelPlan
    cold_bytes: int  # cycle through copies of constant operands of at least this size; 0: no
    seed: int
    memory: Memory
    inputs: Mapping[str, Array]
    arrays: dict[str, Array]
    want: Expected
    reference: dict[str, Array] | None = None  # the results of the first candidate that was right
    spread: int = 0

    def __post_init__(self) -> None:
        self.weights: dict[tuple[str, int], list[Array]] = {}  # by name and size

    def copies(self, name: str, values: Array) -> list[Array]:
        """A weight once, or so often that one round of the copies is not in any cache. Layouts of
        the same size share them: only the first copy has the values in their places."""
        key = name, values.nbytes
        if key not in self.weights:
            cold = self.cold_bytes and values.nbytes
            n = min(MAX_COPIES, -(-self.cold_bytes // values.nbytes)) if cold else 1
            self.weights[key] = [self.memory.array(values.shape, values.dtype) for _ in range(n)]
            for array in self.weights[key][1:]:
                array[...] = values
        self.weights[key][0][...] = values
        return self.weights[key]


def prepare(
    plan: KernelPlan, seed: int, cold_bytes: int, spread: int = 0, rounding: float = 0.0
) -> Subject:
    """Random inputs, arguments and expectations of a kernel."""
    kernel, memory, callers = plan.kernel, Memory(), Memory(huge=False)
    inputs = inputs_of(kernel, seed, SPREADS[spread])
    arrays = {}
    for b in kernel.buffers:
        large = prod(b.shape) * b.dtype.nbytes >= HUGE_FROM
        own = memory if b.constant or large else callers
        arrays[b.name] = own.array(b.shape, b.dtype.numpy)
    want = expected(kernel, inputs, seed, rounding)
    subject = Subject(plan, cold_bytes, seed, memory, inputs, arrays, want, spread=spread)
    _reset(subject)
    return subject


def _reset(subject: Subject) -> None:
    """Inputs as at the start, results full of what no kernel computes."""
    kernel = subject.plan.kernel
    for b in kernel.buffers:
        array = subject.arrays[b.name]
        if b.name in subject.inputs:
            array[...] = subject.inputs[b.name]
        else:
            array.reshape(-1).view(np.uint8)[...] = 0xFF


@dataclass
class Candidate:
    """A loaded candidate: its function and a set of arguments for every copy of its weights."""

    function: Any
    sets: Any  # void ***
    n_sets: int
    parallel: int
    tiles: int
    kept: list[Any]
    written: list[Array]


def load(subject: Subject, made: Loaded, threads: int) -> Candidate:
    kernel = subject.plan.kernel
    library = ctypes.CDLL(str(Path(made.path)))
    function = ctypes.cast(library[made.symbol], ctypes.c_void_p)
    columns, memory = [[subject.arrays[b.name]] for b in kernel.buffers], Memory()
    for i, b in enumerate(kernel.buffers):
        if b.constant and b.name in made.raw and b.name not in kernel.stored:
            columns[i] = subject.copies(b.name, subject.inputs[b.name])
    for i, data in enumerate(made.packings):
        packing = from_plain(Packing, data)
        source = kernel.buffer(packing.weight)
        values = pack(subject.inputs[source.name], source.dtype, packing)
        columns.append(subject.copies(f"{source.name}@{packing.dtype.value} {i}", values))
    columns += [[np.array([value], np.int64)] for value in made.dims]
    scratch = aligned(made.scratch_bytes, PAGE) * threads
    columns.append([memory.array((scratch,), np.uint8)])
    n = max(len(c) for c in columns)
    rows = [
        (ctypes.c_void_p * len(columns))(*(c[i % len(c)].ctypes.data for c in columns))
        for i in range(n)
    ]
    sets = (ctypes.c_void_p * n)(*(ctypes.addressof(row) for row in rows))
    written = [subject.arrays[name] for name in kernel.stored] + columns[-1]
    return Candidate(
        function, sets, n, made.parallel, made.tiles, [library, rows, columns], written
    )


class Timer:
    """The native side: a pool of threads and a clock."""

    def __init__(self, path: str, threads: int) -> None:
        self.library, self.threads = ctypes.CDLL(path), threads
        self.library.timer_pool.restype = ctypes.c_void_p
        self.pool = ctypes.c_void_p(self.library.timer_pool(threads))
        if not self.pool:
            raise MemoryError

    def sample(self, c: Candidate, inner: int, n: int, slices: int = 1) -> list[float]:
        """Microseconds of one run, n times; of a slice what it says of the whole."""
        parts = 1 if not c.parallel else self.threads
        parts = min(parts, c.parallel) if c.parallel > 1 else parts
        slices = max(1, min(slices, c.tiles // parts if c.parallel else 1))
        us = (ctypes.c_double * n)()
        where = self.pool, c.function, c.sets, ctypes.c_long(c.n_sets)
        counts = (ctypes.c_long(v) for v in (c.parallel, slices, inner, n))
        if self.library.timer_sample(*where, *counts, us):
            raise MemoryError
        cut = [(p * c.tiles // (parts * slices)) for p in range(parts + 1)]
        most = max((b - a for a, b in pairwise(cut)), default=1)
        scale = -(-c.tiles // parts) / max(1, most) if slices > 1 else 1.0
        return [t * scale for t in us]


def problem(subject: Subject, c: Candidate, timer: Timer) -> str:
    """Run once and compare: with numpy at some points, with the first right candidate at all."""
    _reset(subject)
    timer.sample(c, 1, 1)
    if not all(is_fenced(a) for a in c.written if a.size):
        return OUTSIDE
    return judge(subject)


def judge(subject: Subject) -> str:
    """What is wrong with the results in the subject's arrays; the first right ones are kept."""
    kernel = subject.plan.kernel
    got = {name: subject.arrays[name] for name in kernel.stored}
    said = subject.want.problem(got)
    if not said and subject.reference is not None:
        for name, array in subject.reference.items():
            kind = kernel.buffer(name).dtype
            said = said or subject.want.compare(name, got[name], widen(array, kind))
    if not said and subject.reference is None:
        subject.reference = {name: a.copy() for name, a in got.items()}
    return said


C = TypeVar("C")


class Remembering(ABC, Generic[C]):
    """What a worker process remembers between questions: kernels, and candidates for them."""

    def __init__(self, rounding: float = 0.0) -> None:
        self.rounding = rounding
        self.subjects: dict[str, Subject] = {}
        self.candidates: dict[int, C] = {}

    @abstractmethod
    def load(self, subject: Subject, made: Any) -> C:
        """A candidate where it can run."""

    @abstractmethod
    def problem(self, subject: Subject, candidate: C) -> str:
        """Run it; what is wrong with its results, or nothing."""

    def kernel(self, data: Mapping[str, Any], seed: int, cold_bytes: int) -> None:
        """Make a kernel known; the oldest is forgotten."""
        plan = from_plain(KernelPlan, data)
        while len(self.subjects) >= KEPT:
            del self.subjects[next(iter(self.subjects))]
        self.subjects[plan.key] = prepare(plan, seed, cold_bytes, rounding=self.rounding)

    def check(self, key: str, number: int, made: Any) -> str:
        """Load a candidate and compare; what is wrong with it, or nothing."""
        subject = self.subjects[key]
        self.candidates[number] = self.load(subject, made)
        said = self.problem(subject, self.candidates[number])
        if said and subject.reference is None and subject.spread + 1 < len(SPREADS):
            spread = subject.spread + 1
            new = prepare(subject.plan, subject.seed, subject.cold_bytes, spread, self.rounding)
            self.subjects[key] = new
            self.candidates[number] = self.load(new, made)
            said = self.problem(new, self.candidates[number]) and said
        return said

    def forget(self) -> None:
        """Drop all candidates, and what only they needed."""
        self.candidates.clear()


class Worker(Remembering[Candidate]):
    """Candidates on the CPU."""

    def __init__(self, timer: str, threads: int) -> None:
        super().__init__()
        self.timer, self.threads = Timer(timer, threads), threads

    def load(self, subject: Subject, made: Loaded) -> Candidate:
        return load(subject, made, self.threads)

    def problem(self, subject: Subject, candidate: Candidate) -> str:
        return problem(subject, candidate, self.timer)

    def sample(self, number: int, inner: int, n: int, slices: int = 1) -> list[float]:
        return self.timer.sample(self.candidates[number], inner, n, slices)


def serve(pipe: Connection, nbytes: int, make: Callable[..., Any], *arguments: Any) -> None:
    """The worker's side: answers questions until the pipe closes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if nbytes:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (used + nbytes, used + nbytes))
    worker = make(*arguments)

    def answer(name: str, *args: Any) -> tuple[bool, Any]:
        try:
            return True, getattr(worker, name)(*args)
        except MemoryError:
            return False, "memory"
        except Exception as e:  # told where it is asked for
            return False, f"{type(e).__name__}: {e}"

    answers(pipe, answer)
