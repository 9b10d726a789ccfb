"""Metal by messages to its objects: the Objective-C runtime through ctypes, no package of Apple's.

A message is a call of ``objc_msgSend`` as a function of exactly the types of the method, which the
calling convention of Apple's ARM processors asks for; ``METHODS`` has them all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from lumc.errors import Exit, LumcError

OBJC = "/usr/lib/libobjc.A.dylib"
METAL = "/System/Library/Frameworks/Metal.framework/Metal"
# without it a program on the command line has no default device
GRAPHICS = "/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics"
FAMILY = 1000  # MTLGPUFamilyApple1 is 1001
NEWEST_FAMILY = 20


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
