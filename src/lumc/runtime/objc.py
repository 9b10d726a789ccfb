"""Metal by messages to its objects: the Objective-C runtime through ctypes, no package of Apple's.

A message is a call of ``objc_msgSend`` as a function of exactly the types of the method, which the
calling convention of Apple's ARM processors asks for; ``METHODS`` has them all.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from lumc.bundle.packing import Array
from lumc.codegen.gpu.grid import Grid
from lumc.disk.artifact import corrupt
from lumc.errors import Exit, LumcError

OBJC = "/usr/lib/libobjc.A.dylib"
METAL = "/System/Library/Frameworks/Metal.framework/Metal"
# without it a program on the command line has no default device
GRAPHICS = "/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics"
FAMILY = 1000  # MTLGPUFamilyApple1 is 1001
NEWEST_FAMILY = 20
METAL_3_0, METAL_3_1 = 3 << 16, 3 << 16 | 1  # bfloat needs 3.1
FAILED = 5  # MTLCommandBufferStatusError
Place = tuple[int, int]  # a buffer, and an offset in it


class Size(ctypes.Structure):
    """MTLSize, passed by value."""

    _fields_ = (("width", ctypes.c_uint64), ("height", ctypes.c_uint64), ("depth", ctypes.c_uint64))


_P, _U, _D, _B = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_double, ctypes.c_bool
# selector -> the type of its result, then those of its arguments
METHODS: dict[str, tuple[Any, ...]] = {
    "stringWithUTF8String:": (_P, ctypes.c_char_p),
    "UTF8String": (ctypes.c_char_p,),
    "localizedDescription": (_P,),
    "new": (_P,),
    "release": (None,),
    "name": (_P,),
    "supportsFamily:": (_B, ctypes.c_long),
    "recommendedMaxWorkingSetSize": (_U,),
    "maxBufferLength": (_U,),
    "hasUnifiedMemory": (_B,),
    "newCommandQueue": (_P,),
    "setFastMathEnabled:": (None, _B),
    "setLanguageVersion:": (None, _U),
    "newLibraryWithSource:options:error:": (_P, _P, _P, _P),
    "newFunctionWithName:": (_P, _P),
    "newComputePipelineStateWithFunction:error:": (_P, _P, _P),
    "maxTotalThreadsPerThreadgroup": (_U,),
    "threadExecutionWidth": (_U,),
    "staticThreadgroupMemoryLength": (_U,),
    "newBufferWithLength:options:": (_P, _U, _U),
    "newBufferWithBytesNoCopy:length:options:deallocator:": (_P, _P, _U, _U, _P),
    "contents": (_P,),
    "commandBuffer": (_P,),
    "computeCommandEncoder": (_P,),
    "setComputePipelineState:": (None, _P),
    "setBuffer:offset:atIndex:": (None, _P, _U, _U),
    "setBytes:length:atIndex:": (None, _P, _U, _U),
    "dispatchThreadgroups:threadsPerThreadgroup:": (None, Size, Size),
    "endEncoding": (None,),
    "commit": (None,),
    "waitUntilCompleted": (None,),
    "status": (_U,),
    "error": (_P,),
    "GPUStartTime": (_D,),
    "GPUEndTime": (_D,),
}


@dataclass(frozen=True)
class Gpu:
    """What Metal says of the GPU; sizes in bytes."""

    name: str
    family: int  # 7 of Apple7, which M1 has
    memory: int  # that it may use at a time
    largest_buffer: int
    unified: bool  # CPU and GPU share the memory


class Metal:
    """The default GPU of this machine. Raises E0706, exit 7, where there is none."""

    def __init__(self, library: str = "") -> None:
        try:
            self._objc = ctypes.CDLL(library or OBJC)
            framework = ctypes.CDLL(library or METAL)
            if not library:
                ctypes.CDLL(GRAPHICS)
        except OSError:
            raise unavailable("no Metal on this machine: it is for Macs") from None
        for name in ("objc_getClass", "sel_registerName"):
            function = getattr(self._objc, name)
            function.restype, function.argtypes = _P, [ctypes.c_char_p]
        self._objc.objc_autoreleasePoolPush.restype = _P
        self._objc.objc_autoreleasePoolPop.argtypes = [_P]
        address = ctypes.cast(self._objc.objc_msgSend, _P).value
        assert address
        self._methods = {
            name: (ctypes.CFUNCTYPE(types[0], _P, _P, *types[1:])(address), self._selector(name))
            for name, types in METHODS.items()
        }
        framework.MTLCreateSystemDefaultDevice.restype = _P
        with self.pool():
            self.device = framework.MTLCreateSystemDefaultDevice()
        if not self.device:
            raise unavailable("Metal sees no GPU")

    def _selector(self, name: str) -> int:
        return int(self._objc.sel_registerName(name.encode()))

    def send(self, target: int, name: str, *arguments: Any) -> Any:
        """Send a message to an object; what it answers."""
        method, selector = self._methods[name]
        return method(target, selector, *arguments)

    def new(self, name: str) -> int:
        """An object of a class; to be released."""
        return int(self.send(self._objc.objc_getClass(name.encode()), "new"))

    @contextmanager
    def pool(self) -> Iterator[None]:
        """Where objects live that nobody releases; every message that makes one needs a pool."""
        pool = self._objc.objc_autoreleasePoolPush()
        try:
            yield
        finally:
            self._objc.objc_autoreleasePoolPop(pool)

    def string(self, text: str) -> int:
        string = self._objc.objc_getClass(b"NSString")
        return int(self.send(string, "stringWithUTF8String:", text.encode()))

    def text(self, string: int | None) -> str:
        return self.send(string, "UTF8String").decode(errors="replace") if string else ""

    def said(self, error: int | None) -> str:
        """The text of an NSError."""
        return self.text(self.send(error, "localizedDescription")) if error else "unknown error"

    def gpu(self) -> Gpu:
        with self.pool():
            families = [
                n
                for n in range(1, NEWEST_FAMILY + 1)
                if self.send(self.device, "supportsFamily:", FAMILY + n)
            ]
            return Gpu(
                self.text(self.send(self.device, "name")),
                max(families, default=0),
                self.send(self.device, "recommendedMaxWorkingSetSize"),
                self.send(self.device, "maxBufferLength"),
                self.send(self.device, "hasUnifiedMemory"),
            )


@cache
def metal(library: str = "") -> Metal:
    """The GPU of this process; ``library`` stands for libobjc and Metal together."""
    return Metal(library)


def unavailable(what: str) -> LumcError:
    fix = "run on another device: --device cpu, if the bundle has a plan for it"
    return LumcError("E0706", what, fix=fix, exit=Exit.TOOLCHAIN)


# ---- kernels


def compile_text(gpu: Metal, text: str, name: str) -> int:
    """A library of kernels. Raises E0706 with what the compiler said, and the lines of the text."""
    options, error = gpu.new("MTLCompileOptions"), ctypes.c_void_p()
    gpu.send(options, "setFastMathEnabled:", False)
    gpu.send(options, "setLanguageVersion:", METAL_3_1 if "bfloat" in text else METAL_3_0)
    make, where = "newLibraryWithSource:options:error:", ctypes.addressof(error)
    library = gpu.send(gpu.device, make, gpu.string(text), options, where)
    gpu.send(options, "release")
    if library:
        return int(library)
    said = gpu.said(error.value)
    first, *others = complaints(said, text) or [said]
    fix = "report it with this message; other devices may run the bundle: --device cpu"
    more = f" (and {len(others)} more)" if others else ""
    what = f"Metal refuses {name}: {first}{more}"
    raise LumcError("E0706", what, where="\n         ".join(others), fix=fix, exit=Exit.TOOLCHAIN)


def complaints(said: str, text: str) -> list[str]:
    """The errors in what the compiler said, each with the line of the text that it is about."""
    lines = text.splitlines()
    out = []
    for m in re.finditer(r"program_source:(\d+):(?:\d+:)? (?:fatal )?error: (.*)", said):
        line = int(m[1])
        source = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        out.append(f"line {line}: {m[2]}: {source}")
    return out


def pipeline(gpu: Metal, library: int, symbol: str, threads: int) -> int:
    """A kernel that can be launched with so many threads in a group. Raises E0501 when there is no
    such kernel, E0706 when the GPU cannot run it like that."""
    function = gpu.send(library, "newFunctionWithName:", gpu.string(symbol))
    if not function:
        raise corrupt(f"the compiled kernels have no '{symbol}'")
    error = ctypes.c_void_p()
    make = "newComputePipelineStateWithFunction:error:"
    made = gpu.send(gpu.device, make, function, ctypes.addressof(error))
    gpu.send(function, "release")
    if not made:
        raise unavailable(f"Metal refuses kernel '{symbol}': {gpu.said(error.value)}")
    most = gpu.send(made, "maxTotalThreadsPerThreadgroup")
    if threads > most:
        gpu.send(made, "release")
        what = f"kernel '{symbol}' has {threads} threads, this GPU runs at most {most} of them"
        raise unavailable(what)
    return int(made)


@dataclass(frozen=True)
class Step:
    """A launch: where each of its buffers lies, None for those that it never touches; which of its
    arguments is the counter of repetitions, if one is."""

    pipeline: int
    grid: Grid
    places: Sequence[Place | None]
    counter: int | None = None


def execute(
    gpu: Metal, queue: int, steps: Sequence[Step], turns: Iterable[int] = (0,)
) -> tuple[float, float]:
    """Run launches in order, for each of these values of the counter, as one command buffer with
    one encoder; when it began and ended on the GPU, in seconds. Raises E0611 when it failed. Needs
    a pool."""
    if not steps:
        return 0.0, 0.0
    send = gpu.send
    commands = send(queue, "commandBuffer")
    encoder = send(commands, "computeCommandEncoder")
    for turn, step in product(turns, steps):
        send(encoder, "setComputePipelineState:", step.pipeline)
        if step.counter is not None:
            value = ctypes.c_int64(turn)
            where = ctypes.addressof(value), ctypes.sizeof(value), step.counter
            send(encoder, "setBytes:length:atIndex:", *where)
        for i, place in enumerate(step.places):
            if place:
                send(encoder, "setBuffer:offset:atIndex:", *place, i)
        sizes = Size(step.grid.blocks, 1, 1), Size(step.grid.threads, 1, 1)
        send(encoder, "dispatchThreadgroups:threadsPerThreadgroup:", *sizes)
    send(encoder, "endEncoding")
    send(commands, "commit")
    send(commands, "waitUntilCompleted")
    if send(commands, "status") == FAILED:
        raise LumcError("E0611", f"the GPU failed: {gpu.said(send(commands, 'error'))}")
    return send(commands, "GPUStartTime"), send(commands, "GPUEndTime")


def launch(
    gpu: Metal, text: str, symbol: str, grid: Grid, arrays: Sequence[Array], runs: int = 1
) -> float:
    """Compile a text and run one of its kernels on arrays, which are read and written in place;
    the seconds of one run on the GPU."""
    made = list[int]()
    with gpu.pool():
        try:
            made += [gpu.send(gpu.device, "newCommandQueue"), compile_text(gpu, text, symbol)]
            made.append(pipeline(gpu, made[1], symbol, grid.threads))
            for array in arrays:
                size = max(array.nbytes, 4)
                buffer = gpu.send(gpu.device, "newBufferWithLength:options:", size, 0)
                made.append(buffer)
                ctypes.memmove(gpu.send(buffer, "contents"), array.ctypes.data, array.nbytes)
            step = Step(made[2], grid, [(buffer, 0) for buffer in made[3:]])
            start, end = execute(gpu, made[0], [step] * runs)
            for array, buffer in zip(arrays, made[3:], strict=True):
                ctypes.memmove(array.ctypes.data, gpu.send(buffer, "contents"), array.nbytes)
        finally:
            for one in made:
                gpu.send(one, "release")
    return (end - start) / runs
