"""The first AMD GPU, from Python: libamdhip64 of ROCm, and hipRTC for what has no image."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any
from weakref import finalize

from lumc.bundle.packing import Array
from lumc.codegen.gpu.grid import Grid
from lumc.disk.artifact import corrupt
from lumc.errors import Exit, LumcError
from lumc.link.hip import LANGUAGE
from lumc.runtime.captured import ALIGN

# numbers of releases of ROCm: 5, 6, 7; without one where its packages for development are
LIBRARIES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so")
COMPILERS = ("libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so")
OUT_OF_MEMORY, NO_DEVICE = 2, 100
NON_BLOCKING = 1  # a stream that does not wait for others
THREAD_LOCAL = 1  # capture: other threads of the process do as they like
# where the properties of a device have the name of its architecture, since HIP 6 and before (LLVM,
# amdgpu-arch)
PROPERTIES = {"hipGetDevicePropertiesR0600": 1160, "hipGetDeviceProperties": 396}
ROOM = 4096  # bytes of properties, and more


def missing(what: str, fix: str) -> LumcError:
    return LumcError("E0706", what, fix=fix, exit=Exit.TOOLCHAIN)


def load(names: Sequence[str]) -> ctypes.CDLL:
    """The first of these libraries that is there. Raises OSError, of the last one."""
    for name in names[:-1]:
        with suppress(OSError):
            return ctypes.CDLL(name)
    return ctypes.CDLL(names[-1])


@cache
def driver() -> ctypes.CDLL:
    """libamdhip64, started. Raises E0706, exit 7: it is not there, or sees no GPU."""
    try:
        hip = load(LIBRARIES)
        hip.hipGetErrorString.restype = ctypes.c_char_p
        _ = hip.hipGraphInstantiateWithFlags, hip.hipModuleLaunchKernel
    except OSError as e:
        fix = "install ROCm's runtime (in a container: start it with /dev/kfd and /dev/dri)"
        raise missing(f"no HIP on this machine: {e}", fix) from None
    except AttributeError as e:
        raise missing(f"the HIP runtime is too old: {e}", "install ROCm 6 or newer") from None
    count = ctypes.c_int()
    code = hip.hipInit(0) or hip.hipGetDeviceCount(ctypes.byref(count))
    fix = "see what rocminfo says, and HIP_VISIBLE_DEVICES; or choose another --device"
    if code and code != NO_DEVICE:
        raise missing(f"the HIP runtime does not start: {said(hip, code)}", fix)
    if code or not count.value:
        raise missing("the HIP runtime sees no GPU", fix)
    return hip


def said(hip: ctypes.CDLL, code: int) -> str:
    return f"{(hip.hipGetErrorString(code) or b'unknown error').decode()} ({code})"


@cache
def architecture() -> str:
    """``gfx942``, of the first GPU. Raises E0706."""
    hip, room = driver(), ctypes.create_string_buffer(ROOM)
    for name, at in PROPERTIES.items():
        if hasattr(hip, name) and not getattr(hip, name)(room, 0):
            return room.raw[at:].split(b"\0")[0].decode(errors="replace").partition(":")[0]
    raise missing("the HIP runtime does not say what its GPU is", "choose another --device")


@cache
def describe() -> str:
    """The GPU and its runtime, in words."""
    hip, name, version = driver(), ctypes.create_string_buffer(256), ctypes.c_int()
    hip.hipDeviceGetName(name, len(name), 0)
    hip.hipRuntimeGetVersion(ctypes.byref(version))
    major, rest = divmod(version.value, 10_000_000)
    words = name.value.decode(errors="replace"), architecture()
    return f"{', '.join(words)}, HIP {major}.{rest // 100_000}"


class Allocation:
    """Memory of the GPU; its number is its address."""

    def __init__(self, gpu: Gpu, address: int) -> None:
        self.address = address
        self._end = finalize(self, gpu.hip.hipFree, ctypes.c_void_p(address))
        self._end.atexit = False

    def __int__(self) -> int:
        return self.address

    def free(self) -> None:
        self._end()


class Gpu:
    """The first GPU, and a stream on which everything happens in order."""

    def __init__(self) -> None:
        self.hip = driver()
        with self.current():
            self.stream = self._made(self.hip.hipStreamCreateWithFlags, NON_BLOCKING)
        self._ends(self.hip.hipStreamDestroy, self.stream)

    @contextmanager
    def current(self) -> Iterator[None]:
        """It is this thread's for the block."""
        before = ctypes.c_int()
        self.check(self.hip.hipGetDevice(ctypes.byref(before)))
        self.check(self.hip.hipSetDevice(0))
        try:
            yield
        finally:
            self.hip.hipSetDevice(before)

    def allocate(self, nbytes: int, what: str) -> Allocation:
        address, size = ctypes.c_void_p(), ctypes.c_size_t(max(nbytes, 1) + ALIGN)
        code = self.hip.hipMalloc(ctypes.byref(address), size)
        if code == OUT_OF_MEMORY:
            what = f"the GPU has no {nbytes / 1e6:.1f} MB left for {what}"
            raise LumcError("E0611", what)
        self.check(code)
        return Allocation(self, address.value or 0)

    def upload(self, to: int, data: Array) -> None:
        self._copy(self.hip.hipMemcpyHtoDAsync, to, data.ctypes.data, data.nbytes)

    def download(self, data: Array, of: int) -> None:
        self._copy(self.hip.hipMemcpyDtoHAsync, data.ctypes.data, of, data.nbytes)

    def _copy(self, call: Any, to: int, of: int, nbytes: int) -> None:
        if nbytes:
            ends = ctypes.c_void_p(to), ctypes.c_void_p(of)
            self.check(call(*ends, ctypes.c_size_t(nbytes), self.stream))
            self.wait()

    def wait(self) -> None:
        self.check(self.hip.hipStreamSynchronize(self.stream))

    def module(self, image: bytes, name: str) -> ctypes.c_void_p:
        """The kernels of a code object. Raises E0706 when the runtime does not take it."""
        module = ctypes.c_void_p()
        if code := self.hip.hipModuleLoadData(ctypes.byref(module), image):
            what = f"the HIP runtime refuses {name}: {said(self.hip, code)}"
            raise missing(what, "update ROCm, or link with an older clang")
        self._ends(self.hip.hipModuleUnload, module)
        return module

    def function(self, module: ctypes.c_void_p, symbol: str, grid: Grid) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        if self.hip.hipModuleGetFunction(ctypes.byref(function), module, symbol.encode()):
            raise corrupt(f"the compiled kernels have no '{symbol}'")
        return function

    def launch(self, function: ctypes.c_void_p, grid: Grid, addresses: Sequence[int]) -> None:
        values = [ctypes.c_void_p(a) for a in addresses]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        sizes = grid.blocks, 1, 1, grid.threads, 1, 1, grid.shared_bytes
        code = self.hip.hipModuleLaunchKernel(function, *sizes, self.stream, pointers, None)
        self.check(code)

    def graph(self, enqueue: Callable[[], None]) -> ctypes.c_void_p:
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.hip.hipStreamBeginCapture(self.stream, THREAD_LOCAL))
        try:
            enqueue()
        finally:
            code = self.hip.hipStreamEndCapture(self.stream, ctypes.byref(graph))
        self.check(code)
        flags = ctypes.c_ulonglong(0)
        code = self.hip.hipGraphInstantiateWithFlags(ctypes.byref(ready), graph, flags)
        self.hip.hipGraphDestroy(graph)
        self.check(code)
        return ready

    def launch_graph(self, graph: ctypes.c_void_p) -> None:
        self.check(self.hip.hipGraphLaunch(graph, self.stream))

    def destroy_graph(self, graph: ctypes.c_void_p) -> None:
        self.hip.hipGraphExecDestroy(graph)

    def mark(self) -> ctypes.c_void_p:
        event = self._made(self.hip.hipEventCreateWithFlags, 0)
        finalize(event, self.hip.hipEventDestroy, ctypes.c_void_p(event.value)).atexit = False
        self.check(self.hip.hipEventRecord(event, self.stream))
        return event

    def between(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        ms = ctypes.c_float()
        self.check(self.hip.hipEventSynchronize(end))
        self.check(self.hip.hipEventElapsedTime(ctypes.byref(ms), start, end))
        return ms.value * 1e3

    def _ends(self, call: Any, handle: ctypes.c_void_p) -> None:
        """What ends with this object."""
        finalize(self, call, ctypes.c_void_p(handle.value)).atexit = False

    def _made(self, call: Any, flags: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.check(call(ctypes.byref(handle), flags))
        return handle

    def check(self, code: int) -> None:
        if code:
            raise LumcError("E0611", f"the HIP runtime says: {said(self.hip, code)}")


# ---- hipRTC


def compiled(source: bytes, headers: Mapping[str, bytes], arch: str) -> bytes:
    """A code object of a text and of the headers that it includes. Raises E0706, exit 7, without
    hipRTC, and E0702, exit 7, when it refuses the text."""
    try:
        rtc = load(COMPILERS)
    except OSError as e:
        what = f"the bundle has no kernels for {arch}, and there is no hipRTC: {e}"
        fix = f"link the model for {arch} where a clang for it is, or install ROCm's hipRTC"
        raise missing(what, fix) from None
    rtc.hiprtcGetErrorString.restype = ctypes.c_char_p
    program, n = ctypes.c_void_p(), len(headers)
    names = (ctypes.c_char_p * n)(*(name.encode() for name in headers))
    texts = (ctypes.c_char_p * n)(*headers.values())
    flags = (*LANGUAGE, f"--offload-arch={arch}")
    words = (ctypes.c_char_p * len(flags))(*(f.encode() for f in flags))
    code = rtc.hiprtcCreateProgram(ctypes.byref(program), source, b"kernels.hip", n, texts, names)
    code = code or rtc.hiprtcCompileProgram(program, len(flags), words)
    if code:
        log = fetch(rtc, program, "ProgramLog").decode(errors="replace") if program else ""
        first = next((s.strip() for s in log.splitlines() if "error" in s), "")
        why = f"{rtc.hiprtcGetErrorString(code).decode()}: {first}"
        what = f"hipRTC refuses the kernels for {arch}: {why}"
        raise LumcError("E0702", what, exit=Exit.TOOLCHAIN)
    return fetch(rtc, program, "Code")


def fetch(rtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    """What hiprtcGetWHATSize and hiprtcGetWHAT give."""
    size = ctypes.c_size_t()
    rtc[f"hiprtcGet{what}Size"](program, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    rtc[f"hiprtcGet{what}"](program, data)
    return data.raw
