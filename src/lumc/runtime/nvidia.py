"""The first NVIDIA GPU, from Python: pycuda or cuda-bindings, and the calls for graphs."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from lumc.bundle.packing import Array
from lumc.codegen.gpu.grid import Grid, TensorMap
from lumc.disk.artifact import corrupt
from lumc.errors import Exit, LumcError
from lumc.runtime.captured import ALIGN

OLDEST = 80  # sm_80: what lumc_dev.h needs
USUAL_SHARED = 48 << 10  # bytes of a block that a kernel has without being asked
HOPPER = 90  # whose kernels copy by tensor maps
MAP_BYTES, MAP_ALIGN = 128, 64  # of a CUtensorMap
UINT16, NOT_INTERLEAVED, SWIZZLE_128B, L2_128B, ZEROS = 1, 0, 3, 2, 0  # as in cuda.h
THREAD_LOCAL = 1  # capture: other threads of the process do as they like


def missing(what: str, fix: str) -> LumcError:
    return LumcError("E0706", what, fix=fix, exit=Exit.TOOLCHAIN)


@cache
def driver() -> Any:
    """``pycuda.driver``, or the same by cuda-bindings, started. Raises E0706, exit 7: neither is
    installed, there is no driver, no GPU, or one of them is too old."""
    update = "install an NVIDIA driver that is at least as new as the CUDA toolkit of pycuda"
    try:
        try:
            drv = importlib.import_module("pycuda.driver")
        except ModuleNotFoundError:
            drv = importlib.import_module("lumc.runtime.bindings")
    except ModuleNotFoundError:
        what = "neither pycuda nor cuda-bindings is installed"
        fix = "pip install 'lumc[cuda]', or use the bundle's bin/lumc-run"
        raise missing(what, fix) from None
    except ImportError as e:
        if "undefined symbol" in str(e):
            raise missing(f"the NVIDIA driver is too old for this pycuda: {e}", update) from None
        raise missing(f"no NVIDIA driver on this machine: {e}", update) from None
    fix = "see what nvidia-smi says, and CUDA_VISIBLE_DEVICES; or choose another --device"
    try:
        drv.init()
        count = drv.Device.count()
    except drv.Error as e:
        if "no CUDA-capable device" not in str(e):
            raise missing(f"the NVIDIA driver does not start: {e}", fix) from None
        count = 0
    if not count:
        raise missing("the NVIDIA driver sees no GPU", fix)
    return drv


def capability() -> int:
    """90 for sm_90. Raises E0706, also for a GPU that is too old."""
    major, minor = driver().Device(0).compute_capability()
    if major * 10 + minor < OLDEST:
        what = f"this GPU is sm_{major}{minor}, lumc needs sm_{OLDEST} or newer"
        raise missing(what, "choose another --device")
    return int(major * 10 + minor)


@cache
def describe() -> str:
    """The GPU and its driver, in words."""
    drv = driver()
    major, rest = divmod(drv.get_driver_version(), 1000)
    return f"{drv.Device(0).name()}, sm_{capability()}, driver for CUDA {major}.{rest // 10}"


def fingerprint() -> str:
    """Identifies the kind of GPU, and its driver."""
    return hashlib.sha256(describe().encode()).hexdigest()[:12]


def cache_bytes() -> int:
    """The size of its second cache."""
    drv = driver()
    return int(drv.Device(0).get_attribute(drv.device_attribute.L2_CACHE_SIZE))


class Gpu:
    """The first GPU: its context, and a stream on which everything happens in order."""

    def __init__(self) -> None:
        self.drv = driver()
        self.device = self.drv.Device(0)
        self.context = self.device.retain_primary_context()
        self.library = ctypes.CDLL("libcuda.so.1")  # it is loaded already
        with self.current():
            self.stream = self.drv.Stream(1)  # does not wait for others

    @contextmanager
    def current(self) -> Iterator[None]:
        """The context is this thread's for the block; one that is left there aborts at exit."""
        self.context.push()
        try:
            yield
        except self.drv.Error as e:
            raise LumcError("E0611", f"the NVIDIA driver says: {e}") from e
        finally:
            self.context.pop()

    def allocate(self, nbytes: int, what: str) -> Any:
        try:
            return self.drv.mem_alloc(max(nbytes, 1) + ALIGN)
        except self.drv.MemoryError:
            said = f"the GPU has no {nbytes / 1e6:.1f} MB left for {what}"
            raise LumcError("E0611", said) from None

    def upload(self, to: int, data: Array) -> None:
        """Bytes to an address; ``data`` may change afterwards."""
        if data.nbytes:
            self.drv.memcpy_htod_async(to, data, self.stream)
            self.stream.synchronize()

    def download(self, data: Array, of: int) -> None:
        if data.nbytes:
            self.drv.memcpy_dtoh_async(data, of, self.stream)
            self.stream.synchronize()

    def wait(self) -> None:
        self.stream.synchronize()

    def function(self, module: Any, symbol: str, grid: Grid) -> Any:
        """A kernel that may have the shared memory of its grid. Raises E0501, exit 5."""
        try:
            out = module.get_function(symbol)
        except self.drv.Error:
            raise corrupt(f"the compiled kernels have no '{symbol}'") from None
        if grid.shared_bytes > USUAL_SHARED:
            most = self.drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
            out.set_attribute(most, grid.shared_bytes)
        return out

    def launch(self, function: Any, grid: Grid, addresses: Sequence[int]) -> None:
        sizes = {"grid": (grid.blocks, 1), "block": (grid.threads, 1, 1)}
        maps = (self.tensor_map(m, addresses[m.buffer]) for m in grid.maps)
        ends = *maps, *map(np.uint64, addresses)
        function(*ends, **sizes, shared=grid.shared_bytes, stream=self.stream)

    def tensor_map(self, made: TensorMap, address: int) -> np.void:
        """The CUtensorMap of a buffer at this address; kernels for other GPUs than sm_90 do not
        look at it. Raises E0706 where the driver makes none."""
        words = np.zeros(MAP_BYTES + MAP_ALIGN, np.uint8)
        words = words[-words.ctypes.data % MAP_ALIGN :][:MAP_BYTES]
        if capability() == HOPPER:
            try:
                encode = self.library.cuTensorMapEncodeTiled
            except AttributeError:
                raise missing("the NVIDIA driver makes no tensor maps", "update it") from None
            n = len(made.dims)
            dims, box, every = (ctypes.c_uint64 * n), (ctypes.c_uint32 * n), (ctypes.c_uint32 * n)
            code = encode(
                *(ctypes.c_void_p(words.ctypes.data), UINT16, n, ctypes.c_void_p(address)),
                *(dims(*made.dims), dims(*made.strides), box(*made.box, *[1] * (n - 2))),
                *(every(*[1] * n), NOT_INTERLEAVED, SWIZZLE_128B, L2_128B, ZEROS),
            )
            self.check(code)
        out: np.void = np.frombuffer(words.tobytes(), f"V{MAP_BYTES}")[0]
        return out

    def module(self, image: bytes, name: str) -> Any:
        """The kernels of a cubin or of PTX. Raises E0706 when the driver does not take it."""
        try:
            return self.drv.module_from_buffer(image)
        except self.drv.Error as e:
            fix = "update the driver, or link with an older CUDA compiler"
            raise missing(f"the NVIDIA driver refuses {name}: {e}", fix) from None

    def graph(self, enqueue: Callable[[], None]) -> ctypes.c_void_p:
        """What ``enqueue`` launches, as one graph to launch again."""
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        stream = ctypes.c_void_p(self.stream.handle)
        self.check(self.library.cuStreamBeginCapture_v2(stream, THREAD_LOCAL))
        try:
            enqueue()
        finally:
            code = self.library.cuStreamEndCapture(stream, ctypes.byref(graph))
        self.check(code)
        flags = ctypes.c_uint64(0)
        code = self.library.cuGraphInstantiateWithFlags(ctypes.byref(ready), graph, flags)
        self.library.cuGraphDestroy(graph)
        self.check(code)
        return ready

    def launch_graph(self, graph: ctypes.c_void_p) -> None:
        self.check(self.library.cuGraphLaunch(graph, ctypes.c_void_p(self.stream.handle)))

    def destroy_graph(self, graph: ctypes.c_void_p) -> None:
        self.library.cuGraphExecDestroy(graph)

    def mark(self) -> Any:
        event = self.drv.Event()
        event.record(self.stream)
        return event

    def between(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(end.time_since(start) * 1e3)

    def check(self, code: int) -> None:
        """The error of a call that pycuda does not know."""
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(code, ctypes.byref(text))
            said = (text.value or b"unknown error").decode()
            raise LumcError("E0611", f"the NVIDIA driver says: {said} ({code})")
