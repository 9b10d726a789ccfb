"""The names and the behaviour of ``pycuda.driver`` that ``lumc.runtime.nvidia`` relies on.

Errors have the classes of pycuda; an allocation is freed with its object; a context that is popped
once more than it was pushed is an error, as there.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np


class Error(Exception):
    pass


class LogicError(Error):
    pass


class MemoryError(Error):  # its name in pycuda
    pass


_library = ctypes.CDLL("libcuda.so.1")  # ImportError in pycuda
OUT_OF_MEMORY = 2


def _call(name: str, *arguments: Any) -> None:
    numbers = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]
    code = getattr(_library, name)(*numbers)
    if code:
        text = ctypes.c_char_p()
        _library.cuGetErrorString(code, ctypes.byref(text))
        said = f"{name} failed: {(text.value or b'?').decode()}"
        raise MemoryError(said) if code == OUT_OF_MEMORY else LogicError(said)


def _make(name: str, *arguments: Any) -> int:
    out = ctypes.c_uint64()
    _call(name, ctypes.byref(out), *arguments)
    return out.value


def init() -> None:
    _call("cuInit", 0)


def get_driver_version() -> int:
    return _make("cuDriverGetVersion")


class device_attribute:
    COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76
    L2_CACHE_SIZE, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 38, 97


class function_attribute:
    MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


class Device:
    def __init__(self, number: int) -> None:
        self.number = _make("cuDeviceGet", number)

    @staticmethod
    def count() -> int:
        return _make("cuDeviceGetCount")

    def name(self) -> str:
        text = ctypes.create_string_buffer(256)
        _call("cuDeviceGetName", text, len(text), self.number)
        return text.value.decode()

    def get_attribute(self, attribute: int) -> int:
        return _make("cuDeviceGetAttribute", attribute, self.number)

    def compute_capability(self) -> tuple[int, int]:
        kinds = device_attribute
        numbers = (kinds.COMPUTE_CAPABILITY_MAJOR, kinds.COMPUTE_CAPABILITY_MINOR)
        return self.get_attribute(numbers[0]), self.get_attribute(numbers[1])

    def retain_primary_context(self) -> Context:
        return Context(_make("cuDevicePrimaryCtxRetain", self.number))


class Context:
    pushed = 0

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def push(self) -> None:
        _call("cuCtxPushCurrent_v2", self.handle)
        Context.pushed += 1

    @staticmethod
    def pop() -> None:
        if not Context.pushed:
            raise LogicError("context::pop failed: invalid device context")
        Context.pushed -= 1
        _make("cuCtxPopCurrent_v2")


class DeviceAllocation:
    def __init__(self, nbytes: int) -> None:
        self.address: int | None = _make("cuMemAlloc_v2", nbytes)

    def __int__(self) -> int:
        assert self.address is not None
        return self.address

    def free(self) -> None:
        _call("cuMemFree_v2", int(self))
        self.address = None


def mem_alloc(nbytes: int) -> DeviceAllocation:
    return DeviceAllocation(nbytes)


def _pointer(array: np.ndarray[Any, Any]) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data


class Stream:
    def __init__(self, flags: int = 0) -> None:
        self.handle = _make("cuStreamCreate", flags)

    def synchronize(self) -> None:
        _call("cuStreamSynchronize", self.handle)


def memcpy_htod_async(to: int, array: Any, stream: Stream) -> None:
    _call("cuMemcpyHtoDAsync_v2", int(to), _pointer(array), array.nbytes, stream.handle)


def memcpy_dtoh_async(array: Any, of: int, stream: Stream) -> None:
    _call("cuMemcpyDtoHAsync_v2", _pointer(array), int(of), array.nbytes, stream.handle)


def memcpy_dtod_async(to: int, of: int, nbytes: int, stream: Stream) -> None:
    _call("cuMemcpyDtoDAsync_v2", int(to), int(of), nbytes, stream.handle)


class Event:
    def __init__(self) -> None:
        self.handle = _make("cuEventCreate", 0)

    def record(self, stream: Stream) -> None:
        _call("cuEventRecord", self.handle, stream.handle)

    def synchronize(self) -> None:
        _call("cuEventSynchronize", self.handle)

    def time_since(self, start: Event) -> float:
        ms = ctypes.c_float()
        _call("cuEventElapsedTime_v2", ctypes.byref(ms), start.handle, self.handle)
        return ms.value


class Function:
    def __init__(self, module: Module, symbol: str) -> None:
        self.module, self.handle = (
            module,
            _make("cuModuleGetFunction", module.handle, symbol.encode()),
        )

    def set_attribute(self, attribute: int, value: int) -> None:
        _call("cuFuncSetAttribute", self.handle, attribute, value)

    def __call__(
        self, *arguments: np.generic, grid: Any, block: Any, shared: int, stream: Stream
    ) -> None:
        """As there, numbers are numpy's, so that their size is known, and lie packed, one behind
        the other."""
        assert all(type(a) in (np.uint64, np.void) for a in arguments)
        packed = b"".join(a.tobytes() for a in arguments)
        size, data = ctypes.c_size_t(len(packed)), ctypes.create_string_buffer(packed)
        ends = ctypes.addressof(data), 2, ctypes.addressof(size), 0
        extra = (ctypes.c_void_p * 5)(1, *ends)
        sizes = (*grid, *(1 for _ in range(3 - len(grid))), *block)
        _call("cuLaunchKernel", self.handle, *sizes, shared, stream.handle, None, extra)


class Module:
    def __init__(self, image: bytes) -> None:
        self.handle = _make("cuModuleLoadData", image)

    def get_function(self, symbol: str) -> Function:
        return Function(self, symbol)


def module_from_buffer(image: bytes) -> Module:
    return Module(image)
