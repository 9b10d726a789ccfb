"""What lumc asks of ``pycuda.driver``, by NVIDIA's ``cuda-bindings``: a wheel, where pycuda is
built with a CUDA toolkit.

Names and behaviour are pycuda's: errors are exceptions, an allocation ends with its object.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from weakref import finalize

from cuda.bindings import driver as cu

from lumc.bundle.packing import Array


class Error(Exception):
    """What the driver refuses."""


class MemoryError(Error):  # its name in pycuda
    """There is not enough of it."""


def _done(result: tuple[Any, ...]) -> Any:
    """What a call gives: the first element says whether it worked."""
    code, *values = result
    if code != cu.CUresult.CUDA_SUCCESS:
        _, text = cu.cuGetErrorString(code)
        said = f"{(text or b'unknown error').decode()} ({int(code)})"
        raise MemoryError(said) if code == cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY else Error(said)
    return values[0] if values else None


try:
    cu.cuDriverGetVersion()
except RuntimeError as e:  # as pycuda says it
    raise ImportError(f"libcuda.so.1: {e}") from None
_KINDS = cu.CUdevice_attribute
device_attribute = SimpleNamespace(
    L2_CACHE_SIZE=_KINDS.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=_KINDS.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
)
_OF_FUNCTIONS = cu.CUfunction_attribute
function_attribute = SimpleNamespace(
    MAX_DYNAMIC_SHARED_SIZE_BYTES=_OF_FUNCTIONS.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
)


def init() -> None:
    _done(cu.cuInit(0))


def get_driver_version() -> int:
    return int(_done(cu.cuDriverGetVersion()))


class Device:
    """A GPU, by its number."""

    def __init__(self, number: int) -> None:
        self.handle = _done(cu.cuDeviceGet(number))

    @staticmethod
    def count() -> int:
        return int(_done(cu.cuDeviceGetCount()))

    def name(self) -> str:
        text: bytes = _done(cu.cuDeviceGetName(256, self.handle))
        return text.split(b"\0")[0].decode()

    def get_attribute(self, kind: Any) -> int:
        return int(_done(cu.cuDeviceGetAttribute(kind, self.handle)))

    def compute_capability(self) -> tuple[int, int]:
        major = _KINDS.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        minor = _KINDS.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
        return self.get_attribute(major), self.get_attribute(minor)

    def retain_primary_context(self) -> Context:
        return Context(_done(cu.cuDevicePrimaryCtxRetain(self.handle)))


class Context:
    """What belongs to a process on a GPU."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def push(self) -> None:
        _done(cu.cuCtxPushCurrent(self.handle))

    @staticmethod
    def pop() -> None:
        _done(cu.cuCtxPopCurrent())


class DeviceAllocation:
    """Memory of a GPU; its number is its address."""

    def __init__(self, nbytes: int) -> None:
        self.address = int(_done(cu.cuMemAlloc(nbytes)))
        self._end = finalize(self, cu.cuMemFree, self.address)
        self._end.atexit = False

    def __int__(self) -> int:
        return self.address

    def free(self) -> None:
        if result := self._end():
            _done(result)


mem_alloc = DeviceAllocation


class Stream:
    """What happens in order."""

    def __init__(self, flags: int = 0) -> None:
        self.stream = _done(cu.cuStreamCreate(flags))
        self.handle = int(self.stream)

    def synchronize(self) -> None:
        _done(cu.cuStreamSynchronize(self.stream))


def memcpy_htod_async(to: int, array: Array, stream: Stream) -> None:
    _done(cu.cuMemcpyHtoDAsync(int(to), array.ctypes.data, array.nbytes, stream.stream))


def memcpy_dtoh_async(array: Array, of: int, stream: Stream) -> None:
    _done(cu.cuMemcpyDtoHAsync(array.ctypes.data, int(of), array.nbytes, stream.stream))


def memcpy_dtod_async(to: int, of: int, nbytes: int, stream: Stream) -> None:
    _done(cu.cuMemcpyDtoDAsync(int(to), int(of), nbytes, stream.stream))


class Event:
    """A moment of a stream."""

    def __init__(self) -> None:
        self.handle = _done(cu.cuEventCreate(0))
        finalize(self, cu.cuEventDestroy, self.handle).atexit = False

    def record(self, stream: Stream) -> None:
        _done(cu.cuEventRecord(self.handle, stream.stream))

    def synchronize(self) -> None:
        _done(cu.cuEventSynchronize(self.handle))

    def time_since(self, start: Event) -> float:
        """In milliseconds."""
        return float(_done(cu.cuEventElapsedTime(start.handle, self.handle)))


class Function:
    """A kernel of a module, which stays loaded as long."""

    def __init__(self, module: Module, symbol: str) -> None:
        self.module = module
        self.handle = _done(cu.cuModuleGetFunction(module.handle, symbol.encode()))

    def set_attribute(self, kind: Any, value: int) -> None:
        _done(cu.cuFuncSetAttribute(self.handle, kind, value))

    def __call__(
        self,
        *addresses: Any,
        grid: Sequence[int],
        block: Sequence[int],
        shared: int,
        stream: Stream,
    ) -> None:
        values = [ctypes.create_string_buffer(v.tobytes(), v.nbytes) for v in addresses]
        places = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        sizes = (*grid, 1, *block)
        launch = shared, stream.stream, ctypes.addressof(places), 0
        _done(cu.cuLaunchKernel(self.handle, *sizes, *launch))


class Module:
    """The kernels of a cubin or of PTX."""

    def __init__(self, image: bytes) -> None:
        self.handle = _done(cu.cuModuleLoadData(image))
        finalize(self, cu.cuModuleUnload, self.handle).atexit = False

    def get_function(self, symbol: str) -> Function:
        return Function(self, symbol)


module_from_buffer = Module
